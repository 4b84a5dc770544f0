"""The passages that were kept of several texts, joined in the room of one.

As with entries (`memory/joining.py`), each text keeps a share in proportion to the tokens that were
read of it. The best of its passages stay, by the memory that they were kept beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvstream.answer.skim.kept import BYTES_A_TOKEN, KeptPassages, recalled
from kvstream.memory.base import Beside, Memory
from kvstream.tokenization.passages import Passage


@dataclass(frozen=True)
class KeptPart:
    """What was kept beside one memory, and what is needed of that memory once it is joined."""

    beside: Beside
    kept: KeptPassages
    order: Sequence[int]
    """Places of the passages, the best first."""
    sources: int
    read: int
    """Tokens."""
    end: int
    """Bytes of its text."""

    @classmethod
    def of(cls, memory: Memory) -> KeptPart:
        """That of a memory of two models. Raises SourceError where its file is damaged."""
        assert memory.beside is not None
        kept, trace = recalled(memory), memory.trace
        order = kept.order(memory)
        return cls(memory.beside, kept, order, len(trace.names), trace.read, trace.end)


def joined(parts: Sequence[KeptPart], budget: int) -> Beside:
    """What is kept of all texts, in their order, for a model that answers under `budget` tokens."""
    room = BYTES_A_TOKEN * budget
    sizes = [part.kept.bytes for part in parts]
    excerpts: list[tuple[Passage, ...]] = []
    sources = end = 0
    for part, share in zip(parts, shares(room, sizes, [p.read for p in parts]), strict=True):
        part.kept.fit(share, part.order)
        for excerpt in part.kept.excerpts:
            excerpts.append(tuple(p.moved(sources, end) for p in excerpt.passages))
        sources, end = sources + part.sources, end + part.end
    size = sum(part.kept.bytes for part in parts)
    dropped = sum(part.kept.dropped for part in parts)
    first = parts[0].beside
    # The same questions, maybe in another order.
    found = [[part.kept.totals(question) for part in parts] for question in parts[0].kept.questions]
    words = [[sum(each) for each in zip(*one, strict=True)] for one in found if None not in one]
    return Beside(
        first.model, first.fingerprint, budget, first.by, room, size, dropped, excerpts, words
    )  # fmt: skip


def shares(room: int, sizes: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Parts of `room` in proportion to `weights`; what one does not need, the others get."""
    found, weight = [0] * len(sizes), sum(weights)
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i] / weights[i]):
        found[i] = min(sizes[i], room * weights[i] // weight)
        room, weight = room - found[i], weight - weights[i]
    return found
