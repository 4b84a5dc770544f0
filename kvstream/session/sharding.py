"""Read one long text in separate parts, and join their memories."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from kvstream.engine.reader import Reader
from kvstream.errors import SourceError, UsageError
from kvstream.events import Event, Notice, PartRead, Started, StepDone, changed
from kvstream.input.blocks import TextBlock
from kvstream.input.parts import PartOfText, Stretch, stretches
from kvstream.input.source import (
    Replay,
    RereadableSource,
    Source,
    SourceOver,
    SourceRecord,
    nothing_in,
)
from kvstream.memory.contents import Memory, Shards
from kvstream.memory.merging import Joiner, check_can_be_joined
from kvstream.memory.snapshot.reread_text import first_changed
from kvstream.run.request import Request
from kvstream.session.reading import STOPPED, NoTextError, stopped_after
from kvstream.session.session import Session


def cut(
    session: Session, sources: RereadableSource, request: Request, shards: int
) -> tuple[list[Stretch], Started, Sequence[SourceRecord]]:
    """Return the parts of a text, the sizes of the run, and the records of the text. A text that
    fits is one part.

    Raises UsageError for options that need a single reading, or if the method's memories cannot be
    joined, SourceError if the text can be read only once or has nothing but spaces and line ends,
    and BudgetError.
    """
    for value, option in ((request.checkpoint, "--checkpoint"), (request.every, "--every")):
        if value is not None:
            raise UsageError(
                f"{option} is for one reading, but --shards makes several; leave one of them out."
            )
    plan = session.settle(request)
    check_can_be_joined(plan, session.model, request.run.method)
    start = session.plan(sources.again(), request)
    # The plan only estimates the length, from the beginning of the text.
    fits = session.fits(Replay(sources.again()), request)
    looked = _Looked(sources.again())
    parts = stretches(looked, 1 if fits else shards)
    if looked.blank:
        raise SourceError(nothing_in(sources.names, "only spaces and line ends"))
    return parts, replace(start, lossless=fits), looked.records


def tell_changes(before: Sequence[SourceRecord], memory: Memory) -> Iterator[Event]:
    """Warn if the text was changed after it was cut into parts, which were all read."""
    if name := first_changed(before, memory.trace.records):
        memory.warnings.append(
            f"{name} changed while its parts were read: some of it may be missing or twice. Read "
            "it again."
        )
        yield Notice(memory.warnings[-1])


class _Looked(SourceOver):
    """A source that notes whether its text has only spaces and line ends."""

    blank = True

    def __iter__(self) -> Iterator[TextBlock]:
        for block in self.source:
            self.blank = self.blank and (not block.text or block.text.isspace())
            yield block


def read_part(
    session: Session, sources: Source, stretch: Stretch, request: Request
) -> Generator[Event, None, Memory]:
    """Yield the events of reading one part; return its memory. Raises SourceError."""
    # Thinning needs the whole log, to know how often a line repeats.
    request = replace(request, run=replace(request.run, thin="off"))
    plan = session.settle(request)
    # A join evicts entries after the last chunk, so that one is measured, too.
    plan = replace(plan, extract=plan.extract or stretch.count > 1)
    part = PartOfText(sources, stretch)
    return (yield from session.reading(part, plan, request, may_be_blank=True))


def read_shards(
    session: Session, sources: RereadableSource, request: Request, shards: int
) -> Generator[Event, None, Memory]:
    """Read the parts of a text one after the other; return their joined memory. As `cut`."""
    parts, start, before_parts = cut(session, sources, request, shards)
    yield start
    joiner = Joiner(start.budget_tokens)
    before = _Before(start.estimated_tokens or 0)
    most, read, cut_short = 1, 0, False
    for stretch in parts:
        events = read_part(session, sources.again(), stretch, request)
        try:
            memory = yield from changed(events, before.moved)
        except NoTextError:
            if request.interrupted() and len(joiner):
                break
            raise
        most = max(most, len(joiner) + 1)
        before.add(memory)
        yield PartRead(stretch.number, stretch.count, memory.trace.read, memory.prefill_s)
        joiner.add(memory)
        read, cut_short = read + 1, memory.trace.interrupted
        if request.interrupted():
            break
    memory = joiner.finish()
    if request.interrupted() and (cut_short or read < len(parts)):
        memory.trace.interrupted = True
        known = sum(record.bytes for record in memory.trace.records)
        memory.trace.waiting = known - memory.trace.end
        others = [warning for warning in memory.warnings if not warning.startswith(STOPPED)]
        memory.warnings = [*others, stopped_after(before.tokens, before.expected)]
        yield Notice(memory.warnings[-1])
    else:
        yield from tell_changes(before_parts, memory)
    memory.shards = Shards(read, max(most, joiner.most), memory.reader.cache.capacity_bytes)
    return memory


@dataclass
class _Before:
    """Totals of the parts before the current one."""

    expected: int
    """Tokens of the whole text."""
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    peak: int = 0
    parts: tuple[torch.Tensor, ...] = ()
    """Retained tokens of each part, counted from the beginning of the text."""

    def add(self, memory: Memory) -> None:
        reader: Reader = memory.reader
        self.parts = (*self.parts, reader.retained() + self.tokens)
        self.tokens += memory.trace.read
        self.steps += reader.steps
        self.seconds += memory.prefill_s
        self.peak = max(self.peak, reader.cache.peak.tokens)

    def moved(self, event: Event) -> Event | None:
        """Return an event of the next part with numbers of the whole text; None for its start."""
        if not isinstance(event, StepDone):
            return None if isinstance(event, Started) else event
        return replace(
            event,
            step=event.step + self.steps,
            seen=event.seen + self.tokens,
            estimated_tokens=max(self.expected, event.seen + self.tokens),
            peak_tokens=max(event.peak_tokens, self.peak),
            seconds=event.seconds + self.seconds,
            coverage=self._coverage(event),
            retained=lambda: sum(map(len, self.parts)) + event.retained(),
        )

    def _coverage(self, event: StepDone) -> Callable[[int], list[float]]:
        seen = event.seen + self.tokens

        def coverage(bins: int) -> list[float]:
            bins = max(1, min(bins, seen))
            own = max(1, round(bins * event.seen / seen))
            if not self.parts or own >= bins:
                return event.coverage(bins)
            counts = torch.histc(torch.cat(self.parts).float(), bins - own, 0, self.tokens)
            width = self.tokens / (bins - own)
            return [*(min(1.0, float(c) / width) for c in counts), *event.coverage(own)]

        return coverage
