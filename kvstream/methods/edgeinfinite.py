"""EdgeInfinite: evicted entries go into a compressive memory, read through a trained gate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from kvstream.methods import base
from kvstream.methods.base import Evidence, HeadTensor, Method, ModelFacts, Preset, Step, setting
from kvstream.methods.tools.gates import FORMS, Gate, LearnedGate, PaperGate, load_gates
from kvstream.methods.tools.scoring import latest, pool

ROOM = (300 + 200 + 2048) * 8 // 7
"""The budget with the sizes of the paper: an eighth is left for prompt, question and answer."""
QUERIES = 32
"""Number of queries that read memory at once."""
BLOCK = 64
"""Number of evicted entries that are folded at once."""
LOOKED_AT = 22
"""In the form learned, one of this many evicted entries is folded: those with the most window
attention."""
POOL = 15
"""Width of the pooling of this attention, in source tokens."""
WEIGHT = math.e
"""Weight of a folded entry, as a multiple of the attention that it got."""


@dataclass(frozen=True)
class EdgeInfinite(Method):
    """Keeps the first and newest tokens, and all others in a compressive memory with a gate.

    Chen et al., "EdgeInfinite: A Memory-Efficient Infinite-Context Transformer for Edge Devices",
    section 3. Evicted entries are added segment by segment, ``M [F, E] += f(k)^T v`` and
    ``z [F] += f(k)`` per KV head, with keys as rotated during reading (eqs. 5-6). Queries read
    ``f(q) M / f(q) z`` (eq. 7), and a gate mixes the result with the attention to the present
    entries. Only the gate is trained (``edgeinfinite.py`` of the lab). The untouched model reads a
    text that fits.

    In the form ``paper``, f is ELU + 1, memory gets every evicted entry, and the result passes an
    MLP (eq. 8) and a gating vector per query head (eq. 9). It is close to a mean of all evicted
    entries, so the model finds no single one in it. In the form ``learned``, f is trained to
    approximate the softmax. Memory gets only the entries that the question attends to most (or, if
    no question is known, the newest tokens). The result counts by its attention mass relative to
    that of the present entries; without a question it counts less, and MLP and vectors follow.

    Departures of both: the window also stays between segments, because the end of a stream is not
    known in advance; so a segment is read after sinks and window. Sizes are the paper's shares
    (300, 200 and 2,048 of 2,548) of seven eighths of the budget. A segment is a whole chunk if that
    is at least as long, or less if the schedule has no room for it.
    """

    name: ClassVar[str] = "edgeinfinite"
    source: ClassVar[str] = "EdgeInfinite, section 3"
    paper: ClassVar[Preset] = Preset(
        "EdgeInfinite, sections 3 and 4.1",
        {
            "form": "paper", "memory": "true", "sinks": "300", "window": "200",
            "segment": "2048", "scale": "true",
        },
        {"schedule": "fixed", "chunk": "decremental"},
    )  # fmt: skip

    sinks: int = setting(300, "first tokens of the source that always stay")
    window: int = setting(200, "newest tokens that always stay")
    segment: int = setting(
        2048, "least number of tokens that enter compressive memory together", least=1
    )
    scale: bool = setting(
        True, f"true: sizes are for a budget of {ROOM} and scale with it; false: sizes are tokens"
    )
    memory: bool = setting(True, "false: sinks and window alone, for comparison")
    form: str = setting(
        "learned",
        "how memory is written and read: learned (attended entries, features like the softmax) or "
        "paper (everything, ELU + 1, MLP and gating vectors)",
        choices=FORMS,
    )
    features: int = setting(
        32,
        "rows of the memory of a head in the learned form, as the gate was trained",
        least=1,
        most=4096,
    )
    gate: str = setting(
        "",
        f"file with the trained gate; {LearnedGate.file} ({PaperGate.file} in the form paper) "
        "in the folder of the model if not given",
    )

    @property
    def selects(self) -> bool:
        """Whether only the most attended entries are folded into memory."""
        return self.memory and self.form == "learned"

    def evidence(self) -> Evidence:
        return Evidence(window_attention=32) if self.selects else Evidence()

    def catalyst(self, questions: Sequence[str]) -> tuple[str, ...]:
        return tuple(questions) if self.selects else ()

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        if not self.memory:
            return ()

        def rows(key_dim: int) -> int:
            return self.features if self.selects else key_dim

        return (
            HeadTensor("memory", lambda key_dim, value_dim: (rows(key_dim), value_dim)),
            HeadTensor("norm", lambda key_dim, value_dim: (rows(key_dim),)),
        )

    def sized(self, budget: int) -> EdgeInfinite:
        def scale(size: int) -> int:
            return size * budget // ROOM if self.scale else size

        return dataclasses.replace(
            self,
            sinks=scale(self.sinks),
            window=scale(self.window),
            segment=max(1, scale(self.segment)),
            scale=False,
        )

    def target(self, size: int, present: int) -> int:
        ends = self.sinks + self.window
        residual = present - ends
        # Less than a segment waits for the next chunk, and stays at the end of the text.
        return min(size, present if residual < self.segment and present <= size else ends)

    def select(self, step: Step, keep: int) -> Tensor:
        return latest(step, keep)

    def blocks(self, step: Step, leave: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield, in blocks, what to fold of the `leave` oldest entries of a layer: keys [K, n, D],
        values [K, n, E], and the weight of each [K, n].

        When an answer evicts while decoding, the window attention is that of one token, so these
        entries get little weight.
        """
        assert step.as_read is not None
        blocks = ((first, min(first + BLOCK, leave)) for first in range(0, leave, BLOCK))
        if not self.selects:
            for first, end in blocks:
                keys, values = step.as_read(first, end)
                yield keys[0], values[0].float(), keys.new_ones(keys.shape[1:3])
            return
        assert step.window_attention is not None
        attention = pool(step.window_attention, step.origin, POOL)[0, :, :leave]
        attention, place = attention.topk(max(1, leave // LOOKED_AT), dim=-1)
        entries: list[Tensor] = []
        for first, end in blocks:  # to count the chosen entries of a block would wait for the GPU
            here = ((place >= first) & (place < end))[..., None]
            at = (place - first).clamp(0, end - first - 1)[..., None]
            block = [
                t[0].gather(1, at.expand(*place.shape, t.shape[-1])).float()
                for t in step.as_read(first, end)
            ]
            pairs = zip(block, entries or block, strict=True)
            entries = [torch.where(here, new, old) for new, old in pairs]
        yield entries[0], entries[1], WEIGHT * attention.clamp_min(1e-6)

    def compressive_memory(
        self, model: ModelFacts, *, asked: bool
    ) -> base.CompressiveMemory | None:
        if not self.memory:
            return None
        gates = load_gates(self.form, self.gate, model, self.features)
        return Gated(self, gates, asked)


@dataclass(frozen=True)
class Gated:
    """A `CompressiveMemory` with one gate per layer."""

    method: EdgeInfinite
    gates: Mapping[int, Gate]
    asked: bool
    """Whether a question selected what is in memory."""

    @property
    def trained(self) -> nn.Module:
        return nn.ModuleDict({str(layer): gate for layer, gate in self.gates.items()})

    @torch.no_grad()
    def fold(self, step: Step, choice: Tensor) -> None:
        gate = self.gates[step.layers[0]]
        leave = step.origin.shape[-1] - choice.shape[-1]  # the oldest
        for keys, values, counts in self.method.blocks(step, leave):
            features = gate.features(keys) * counts[..., None]
            step.head_state["memory"][0] += features.transpose(1, 2) @ values
            step.head_state["norm"][0] += features.sum(1)

    def mix(
        self, layer: int, query: Tensor, out: Tensor, lse: Tensor, head_state: Mapping[str, Tensor]
    ) -> Tensor:
        gate, memory, norm = self.gates[layer], head_state["memory"], head_state["norm"]
        result = torch.empty_like(out)
        parts = zip(*(t.split(QUERIES, 1) for t in (query, out, lse, result)), strict=True)
        for *part, into in parts:
            into.copy_(gate(*part, memory, norm, self.asked))
        return result
