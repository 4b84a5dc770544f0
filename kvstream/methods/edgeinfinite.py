"""EdgeInfinite: what leaves goes into a compressive memory, read through a trained gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, linear

from kvstream.errors import UsageError
from kvstream.methods.base import HeadTensor, Method, Mixer, ModelFacts, Step, setting

ROOM = (300 + 200 + 2048) * 8 // 7
"""The budget at which sizes are the paper's: an eighth is left for prompt, question and answer."""
GATE_FILE = "gate.safetensors"
"""Looked for beside the model's weights."""
BLOCK = 512
"""Queries that read the memory, or entries that go into it, at once."""


def sigma(x: Tensor) -> Tensor:
    """ELU + 1, float32: the feature map of linear attention; always positive."""
    return elu(x.float()) + 1


class Gate(nn.Module):
    """Eqs. 7-9 for one layer: an MLP shared by its heads, and a gating vector for each head."""

    def __init__(self, heads: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(hidden, dim) * (2 / dim) ** 0.5)
        self.b1 = nn.Parameter(torch.zeros(hidden))
        # Starts as next to nothing: memory says zero, and little is taken from the attention.
        self.w2 = nn.Parameter(torch.zeros(dim, hidden))
        self.b2 = nn.Parameter(torch.zeros(dim))
        self.g = nn.Parameter(torch.full((heads, dim), -3.0))

    def forward(self, query: Tensor, out: Tensor, memory: Tensor, norm: Tensor) -> Tensor:
        """out [H, T, E] mixed with what rotated queries [H, T, D] find in memory.

        memory is [K, D, E], norm [K, D]; H is a multiple of K.
        """
        kv_heads = memory.shape[0]
        asked = sigma(query).unflatten(0, (kv_heads, -1)).flatten(1, 2)  # [K, H / K * T, D]
        found = (asked @ memory) / (asked @ norm[..., None])
        found = found.unflatten(1, (query.shape[0] // kv_heads, -1)).flatten(0, 1)
        found = linear(linear(found, self.w1, self.b1).relu(), self.w2, self.b2)
        return torch.lerp(out.float(), found, self.g.sigmoid()[:, None]).to(out.dtype)


@dataclass(frozen=True)
class EdgeInfinite(Method):
    """Keeps the first and newest tokens, and all others in a compressive memory behind a gate.

    Chen et al., "EdgeInfinite: A Memory-Efficient Infinite-Context Transformer for Edge Devices",
    section 3. Per KV head ``M [D, E] += sigma(k)^T v`` and ``z [D] += sigma(k)`` of the entries
    that leave, a segment at a time, with keys as they were rotated when they were read (eqs.
    5-6); queries read ``sigma(q) M / sigma(q) z`` (eq. 7), which an MLP transforms (eq. 8) and a
    gate mixes with the attention to what is still there (eq. 9). The gate alone is trained
    (``kvstream gate train``), and a text that fits is read by the untouched model.

    Departures: the window stays between segments too, since the end of a stream is not known
    before it comes, so a segment is read behind sinks and window; sizes are the paper's shares
    (300, 200 and 2,048 of 2,548) of seven eighths of the budget, and a segment is all of a
    chunk that is at least as long, or less where the schedule has no room for it; each query
    head has a gating vector.
    """

    name: ClassVar[str] = "edgeinfinite"
    source: ClassVar[str] = "EdgeInfinite, section 3"
    folds: ClassVar[bool] = True

    sinks: int = setting(300, "first tokens of the source that always stay")
    window: int = setting(200, "newest tokens that always stay")
    segment: int = setting(2048, "fewer tokens than this stay until more have come", least=1)
    scale: bool = setting(
        True, f"sizes are for a budget of {ROOM} and follow it; false: they are tokens as they are"
    )
    memory: bool = setting(True, "false: sinks and window alone, for comparison")
    gate: str = setting(
        "", f"file with the trained gate; {GATE_FILE} beside the model's weights if not given"
    )

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        if not self.memory:
            return ()
        return (
            HeadTensor("memory", lambda key_dim, value_dim: (key_dim, value_dim)),
            HeadTensor("norm", lambda key_dim, value_dim: (key_dim,)),
        )

    def sized(self, budget: int) -> EdgeInfinite:
        def scaled(size: int) -> int:
            return size * budget // ROOM if self.scale else size

        return dataclasses.replace(
            self,
            sinks=scaled(self.sinks),
            window=scaled(self.window),
            segment=max(1, scaled(self.segment)),
            scale=False,
        )

    def target(self, size: int, present: int) -> int:
        kept = self.sinks + self.window
        residual = present - kept
        # Less than a segment waits for the next chunk; at the end of the text it stays.
        return min(size, present if residual < self.segment and present <= size else kept)

    def select(self, step: Step, keep: int) -> Tensor:
        n = step.origin.shape[-1]
        newest = torch.arange(n - keep, n, device=step.origin.device)
        return newest.expand(*step.origin.shape[:-1], keep)

    def fold(self, step: Step, chosen: Tensor) -> None:
        if not self.memory:
            return
        assert step.as_read is not None
        leave = step.origin.shape[-1] - chosen.shape[-1]  # the oldest
        for first in range(0, leave, BLOCK):
            keys, values = step.as_read(first, min(first + BLOCK, leave))
            features = sigma(keys)
            step.heads["memory"].add_(features.transpose(-1, -2) @ values.float())
            step.heads["norm"].add_(features.sum(-2))

    def mixer(self, model: ModelFacts) -> Mixer | None:
        return mixer(load_gates(self.gate, model)) if self.memory else None


def mixer(gates: Mapping[int, Gate]) -> Mixer:
    """What attention calls with a layer's queries, its output and what its heads remember."""

    def mix(layer: int, query: Tensor, out: Tensor, heads: Mapping[str, Tensor]) -> Tensor:
        gate, memory, norm = gates[layer], heads["memory"], heads["norm"]
        if query.shape[1] <= BLOCK:
            return gate(query, out, memory, norm)
        pairs = zip(query.split(BLOCK, 1), out.split(BLOCK, 1), strict=True)
        return torch.cat([gate(q, o, memory, norm) for q, o in pairs], dim=1)

    return mix


def load_gates(file: str, model: ModelFacts) -> dict[int, Gate]:
    """The gates of a model's layers. Raises UsageError where there are none, or of other shapes."""
    path = Path(file).expanduser() if file else Path(model.folder or ".") / GATE_FILE
    remedy = (
        f"train one with `kvstream gate train --model {model.name} --data FOLDER --out "
        f"{GATE_FILE}` and name it with --set edgeinfinite.gate={GATE_FILE}."
    )
    if not path.is_file():
        where = (
            f"{path} is no file" if file else f"there is none beside the weights of {model.name}"
        )
        raise UsageError(
            f"edgeinfinite needs a gate that was trained for the model, and {where}; {remedy}"
        )
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} cannot be read as a gate ({error}); {remedy}") from error
    gates = {}
    for layer in model.layers:
        prefix = f"layers.{layer.index}."
        own = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
        hidden = own["b1"].shape[0] if "b1" in own else 0
        gate = Gate(layer.query_heads, layer.value_dim, max(1, hidden))
        wanted = {k: v.shape for k, v in gate.state_dict().items()}
        if {k: v.shape for k, v in own.items()} != wanted:
            raise UsageError(
                f"{path} was trained for another model: its layer {layer.index} does not fit "
                f"{model.name}; {remedy}"
            )
        gate.load_state_dict(own)
        gates[layer.index] = gate.requires_grad_(False).to(layer.device)
    return gates
