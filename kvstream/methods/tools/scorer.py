"""What `foresight` learned for a model: from the keys of a layer, what questions will look at.

A scorer of one layer sees the unrotated keys of all its heads, a token beside its neighbors. The
sum over the layers is the logarithm of the odds that some question will attend to the token. Of
`LayerScorers`, each one alone is that for its layer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear

from kvstream.methods.base import LayerFacts, ModelFacts
from kvstream.methods.tools.learned import LearnedFile

FILE = "foresight.safetensors"
"""Looked for beside the model's weights."""
WIDTH = 9
"""Tokens that a score depends on: four to each side."""

BLOCK = 256
"""Tokens that are scored at once while a text is read."""


class Scorer(nn.Module):
    """The share of one layer: a projection, a convolution along the text, a sum.

    Args:
        keys: dimension of a token's keys over all heads, ``K * D``.
        hidden: features of a token.
        width: tokens that a feature's convolution covers; odd.
    """

    def __init__(self, keys: int, hidden: int, width: int = WIDTH) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(hidden, keys) / keys**0.5)
        self.b1 = nn.Parameter(torch.zeros(hidden))
        self.w2 = nn.Parameter(torch.randn(hidden, hidden, width) / (hidden * width) ** 0.5)
        self.b2 = nn.Parameter(torch.zeros(hidden))
        self.w3 = nn.Parameter(torch.randn(1, hidden) / hidden**0.5)
        self.b3 = nn.Parameter(torch.zeros(1))

    def forward(self, keys: Tensor, real: Tensor | None = None) -> Tensor:
        """Scores [n] float32 of unrotated keys [K, n, D] of tokens that follow each other.

        `real` [n] is 0 where a row stands for no token: what lies across such rows is not seen.
        """
        found = linear(keys.float().transpose(0, 1).flatten(1), self.w1, self.b1).relu()
        if real is not None:
            found = found * real[:, None]
        beside = conv1d(found.T[None], self.w2, self.b2, padding=self.w2.shape[-1] // 2)[0].T
        return linear(found + beside.relu(), self.w3, self.b3)[:, 0]

    def in_blocks(self, keys: Tensor) -> Tensor:
        """The same scores [n], of some tokens and their neighbors at a time: it takes little."""
        beside, n = self.w2.shape[-1] // 2, keys.shape[1]
        scores = []
        for first in range(0, n, BLOCK):
            start = max(0, first - beside)
            said = self(keys[:, start : first + BLOCK + beside])
            scores.append(said[first - start : first - start + BLOCK])
        return torch.cat(scores)


class LayerScorers(nn.ModuleDict):
    """Scorers that choose for their layers alone; their sum means nothing."""


BY_LAYER = "layer."
"""Before the names of their tensors in a file."""


def load_scorers(model: ModelFacts, file: str = "") -> nn.ModuleDict:
    """The scorers of a model by layer. Raises UsageError where there are none, or of other shapes.

    `file` is where they are; empty: beside the model's weights.
    """
    remedy = (
        f"train them with `kvstream methods train foresight --model {model.name} --data FOLDER "
        f"--out {FILE}` and name them with --set foresight.scorers={FILE}, or use --method keydiff "
        "--set keydiff.pool=15."
    )

    def new(layer: LayerFacts, own: Mapping[str, Tensor]) -> Scorer:
        hidden, width = own["w2"].shape[1:] if "w2" in own and own["w2"].ndim == 3 else (1, 1)
        return new_scorer(layer, hidden, width)

    stored = LearnedFile(model, "foresight", "scorers", FILE, file, remedy, several=True)
    alone = any(name.startswith(BY_LAYER) for name in stored.tensors)
    found = stored.layers(f"{BY_LAYER if alone else ''}{{}}.", new)
    kind = LayerScorers if alone else nn.ModuleDict
    return kind({str(n): scorer for n, scorer in found.items()})


def new_scorer(layer: LayerFacts, hidden: int, width: int = WIDTH) -> Scorer:
    """An untrained one for a layer."""
    return Scorer(layer.heads * layer.key_dim, hidden, width)


def save_scorers(scorers: nn.ModuleDict, path: Path) -> None:
    """Write scorers in float16, half of what they take; a whole file or none."""
    from safetensors.torch import save_file

    prefix = BY_LAYER if isinstance(scorers, LayerScorers) else ""
    stored = {prefix + k: v.half().contiguous() for k, v in scorers.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    save_file(stored, partial)
    os.replace(partial, path)
