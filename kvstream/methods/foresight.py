"""Foresight: a small network, trained for the model, predicts what questions will ask for.

The scorer of a layer sees the unrotated keys of all its heads, for a token and its neighbors. The
sum over the layers is the log-odds that some question will attend to the token. With
`LayerScorers`, each scorer alone gives the log-odds for its layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, linear

from kvstream.methods.base import EntryTensor, LayerFacts, ModelFacts, Step, setting
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.learned import LearnedFile
from kvstream.methods.tools.scoring import pool, pooling_width

POSITIVE = 16.0
"""Added to every score, so that a token that fewer layers hold has a smaller sum."""
FILE = "foresight.safetensors"
"""Default name of the file, in the folder of the model's weights."""
WIDTH = 9
"""Number of tokens that a score depends on: the token and four on each side."""
BLOCK = 256
"""Tokens to score at once while a text is read."""


@dataclass(frozen=True)
class Foresight(ScoredMethod):
    """Keeps what a small network expects questions to ask for; needs no question.

    After KVzap (arXiv 2601.07891), which predicts the scores of another method. Here the network
    learned from questions: it predicts how much a question and its answer attend to a token, the
    maximum over all questions about a text. Its input is the unrotated keys of a token and its
    neighbors in a layer; the sum over the layers is the score. An entry gets its score once, when
    its chunk is read. Depending on the network, all heads of all layers keep the same tokens, or
    all heads of a layer do.

    ``foresight.py`` of the lab trains the network for a model. Without a network, kvstream refuses
    the method.
    """

    name: ClassVar[str] = "foresight"
    source: ClassVar[str] = "after KVzap"
    needs_keys = True

    recent: int = setting(0, "newest tokens that always stay")
    pool: int = pooling_width(7)
    scorers: str = setting(
        "",
        "file with the trained network; foresight.safetensors in the folder of the model if not "
        "given",
    )

    def learned(self, model: ModelFacts) -> nn.ModuleDict:
        return load_scorers(model, self.scorers)

    def tensors(self) -> tuple[EntryTensor, ...]:
        return (EntryTensor("worth"),)

    def absorb(self, step: Step) -> None:
        if not step.new:
            return
        assert isinstance(step.learned, nn.ModuleDict)
        (layer,) = step.layers
        scorer = step.learned[str(layer)]
        assert isinstance(scorer, Scorer)
        keys = step.keys()[0, :, -step.new :]
        step.state["worth"][..., -step.new :] = scorer.in_blocks(keys) + POSITIVE

    def votes(self, step: Step) -> Tensor | None:
        return None if isinstance(step.learned, LayerScorers) else step.state["worth"]

    def score(self, step: Step) -> Tensor:
        worth = step.state["worth"] if step.agreed is None else step.agreed
        return pool(worth, step.origin, self.pool)


class Scorer(nn.Module):
    """The scorer of one layer: a projection, a convolution along the text, a sum.

    Args:
        keys: dimension of a token's keys over all heads, ``K * D``.
        hidden: number of features of a token.
        width: width of the convolution in tokens; odd.
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
        """Return scores [n] float32 for unrotated keys [K, n, D] of consecutive tokens.

        `real` [n] is 0 for rows without a token; these do not influence their neighbors.
        """
        features = linear(keys.float().transpose(0, 1).flatten(1), self.w1, self.b1).relu()
        if real is not None:
            features = features * real[:, None]
        beside = conv1d(features.T[None], self.w2, self.b2, padding=self.w2.shape[-1] // 2)[0].T
        return linear(features + beside.relu(), self.w3, self.b3)[:, 0]

    def in_blocks(self, keys: Tensor) -> Tensor:
        """Return the same scores [n], computed in blocks to save scratch memory."""
        beside, n = self.w2.shape[-1] // 2, keys.shape[1]
        scores = []
        for first in range(0, n, BLOCK):
            start = max(0, first - beside)
            part = self(keys[:, start : first + BLOCK + beside])
            scores.append(part[first - start : first - start + BLOCK])
        return torch.cat(scores)


class LayerScorers(nn.ModuleDict):
    """Scorers that each decide only for their layer; their sum has no meaning."""


BY_LAYER = "layer."
"""Prefix of the names of their tensors in a file."""


def load_scorers(model: ModelFacts, file: str = "") -> nn.ModuleDict:
    """Return the scorers of a model by layer. Raise UsageError if they are missing or do not fit.

    `file`: their path; empty: the default name in the folder of the model's weights.
    """
    remedy = (
        f"train them in a clone with `python docs/research/lab/foresight.py --model {model.name} "
        f"--data FOLDER --out {FILE}` and name them with --set foresight.scorers={FILE}, or use "
        "--method keydiff --set keydiff.pool=15."
    )

    def new(layer: LayerFacts, own: Mapping[str, Tensor]) -> Scorer:
        hidden, width = own["w2"].shape[1:] if "w2" in own and own["w2"].ndim == 3 else (1, 1)
        return new_scorer(layer, hidden, width)

    weights = LearnedFile(model, "foresight", "scorers", FILE, file, remedy, several=True)
    alone = any(name.startswith(BY_LAYER) for name in weights.tensors)
    scorers = weights.layers(f"{BY_LAYER if alone else ''}{{}}.", new)
    kind = LayerScorers if alone else nn.ModuleDict
    return kind({str(n): scorer for n, scorer in scorers.items()})


def new_scorer(layer: LayerFacts, hidden: int, width: int = WIDTH) -> Scorer:
    """Return an untrained scorer for a layer."""
    return Scorer(layer.heads * layer.key_dim, hidden, width)
