"""Join the passages kept of several texts in the room of one.

As with entries (`memory/merging.py`), each text gets a share in proportion to its tokens that were
read. Its best passages stay, as ranked with the memory beside which they were kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvstream.memory.contents import Beside, Memory
from kvstream.passages.memory import BYTES_A_TOKEN, PassageMemory, recalled
from kvstream.tokenization.passages import Passage


@dataclass(frozen=True)
class KeptPart:
    """The passages kept beside one memory, and facts of that memory that joining needs."""

    beside: Beside
    kept: PassageMemory
    order: Sequence[int]
    """Indices of the passages, best first."""
    sources: int
    read: int
    """Tokens read."""
    end: int
    """Bytes of its sources, `Trace.taken`."""

    @classmethod
    def of(cls, memory: Memory) -> KeptPart:
        """Take the part of a memory of two models. Raises SourceError if its file is damaged."""
        assert memory.beside is not None
        kept, trace = recalled(memory), memory.trace
        order = kept.order(memory)
        return cls(memory.beside, kept, order, len(trace.names), trace.read, trace.taken)


def joined(parts: Sequence[KeptPart], budget: int) -> Beside:
    """Return the passages kept of all texts, in order, for an answering model's `budget`."""
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
    # All parts have the same questions, possibly in another order.
    found = [[part.kept.totals(question) for part in parts] for question in parts[0].kept.questions]
    words = [[sum(each) for each in zip(*one, strict=True)] for one in found if None not in one]
    return Beside(
        first.model, first.fingerprint, budget, first.by, room, size, dropped, excerpts, words
    )  # fmt: skip


def shares(room: int, sizes: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Divide `room` in proportion to `weights`; a size below its share leaves room to others."""
    found, weight = [0] * len(sizes), sum(weights)
    for i in sorted(range(len(sizes)), key=lambda i: sizes[i] / weights[i]):
        found[i] = min(sizes[i], room * weights[i] // weight)
        room, weight = room - found[i], weight - weights[i]
    return found
