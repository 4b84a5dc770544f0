"""Read sources into memory chunk by chunk, with checkpoints and answers on the way."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import torch

from kvstream.engine.reader import Reader, StepReport
from kvstream.errors import KvstreamError, SourceError
from kvstream.events import Event, Notice, Started, StepDone
from kvstream.input.blocks import TextBlock
from kvstream.input.source import LineCounts, Source, not_read, nothing_in
from kvstream.logs.thinning import PER_ENTRY, ThinnedSource
from kvstream.memory.checkpoint import Checkpoint
from kvstream.memory.contents import Memory, Trace
from kvstream.model.bounded import BoundedModel
from kvstream.reporters.format import share
from kvstream.run.feed import TokenFeed
from kvstream.run.plan import RunPlan
from kvstream.run.prompt import broken_apart
from kvstream.run.request import Request
from kvstream.settings import RunSettings
from kvstream.tokenization.loading import Tokenizer, TokenStream, WordForms
from kvstream.tokenization.passages import Passages

Show = Callable[[TextBlock], None]
"""Gets every block of the text, before its tokens are read."""
PRUNE_EVERY = 65536
"""Byte offsets of evicted tokens are dropped every so many tokens."""
FIRST_LOOK = 256
"""Tokens read ahead before the schedule is made. The length of a shorter text is then known."""


LOG = "The text looks like a log; kvstream summarize shows what happened in it, without a model."
STOPPED = "Reading was stopped after"
"""Beginning of the warning of an interrupted reading."""


def stopped_after(read: int, whole: int) -> str:
    """Return the warning of an interrupted reading; `whole`: tokens of the text, 0 if unknown."""
    part = f" of about {whole:,} ({share(read, whole)})" if whole > read else ""
    return f"{STOPPED} {read:,} tokens{part}; the rest was not read."


def out_of_sight(model: str, sight: int, budget: int) -> str:
    """Return the warning of a memory that is larger than what any layer sees."""
    return (
        f"No layer of {model} sees more than {sight:,} positions, so an answer misses the oldest "
        f"of {budget:,} entries; use --budget {sight}."
    )


def as_read(sources: Source, request: Request, plan: RunPlan) -> Source:
    """Return the text that the model reads of the sources: a log is thinned."""
    if request.run.thin != "auto":
        return sources
    return ThinnedSource(sources, PER_ENTRY * plan.sizes.budget, request.questions)


class NoTextError(SourceError):
    """No token was read: the sources are empty, or the run was interrupted too early."""


def nothing_read(*, interrupted: bool) -> NoTextError:
    if interrupted:
        return NoTextError("Reading was stopped before the first token.")
    return NoTextError("The input has no text; there is nothing to read.")


@dataclass
class Reading:
    """One reading of sources, from its settings to its memory."""

    model: BoundedModel
    tokenizer: Tokenizer
    sources: Source
    plan: RunPlan
    request: Request
    load_s: float = 0.0
    passages: Passages | None = None
    """The passages of the text, if known already; else they are collected."""
    words: WordForms | None = None
    """The words of the whole text, if `passages` are known already; else they are collected."""
    after: Memory | None = None
    """Read into this memory, behind the text that it has read."""
    checkpoint: Checkpoint | None = None
    show: Callable[[TextBlock], None] | None = None
    """Also gets every block of the text, before its tokens are read."""
    on_step: Callable[[Memory], None] = lambda memory: None
    """Called after every step, when memory has its target size."""
    on_the_way: Callable[[Memory], Iterator[Event]] = lambda memory: iter(())
    """Yields the events of the answers that `Request.every` asks for."""
    may_be_blank: bool = False
    """Whether a text of only spaces and line ends is no error, because it is a part of a text."""
    _blank: bool = False
    _lines: LineCounts | None = None
    """Line counts of logs that memory had read before."""
    _unsaved: bool = False
    _answer_s: float = 0.0
    """Seconds that answers on the way took, which are not part of the reading."""

    def events(self) -> Generator[Event, None, Memory]:
        """Read to the end; return the memory. Raises SourceError, after which `after` is usable."""
        try:
            return (yield from self._events())
        except SourceError:
            if self.after is not None:  # its text may go beyond the tokens read
                self._place(self.after.trace)
            raise

    def _events(self) -> Generator[Event, None, Memory]:
        run = self.request.run
        self.sources = as_read(self.sources, self.request, self.plan)
        memory, feed = self._new() if self.after is None else self._more(self.after)
        self._lines = memory.trace.line_counts
        count = len(memory.warnings)
        start = started(memory.reader, run)
        yield start
        unused = start.unused if start.unused not in memory.warnings else None
        if unused:
            yield Notice(unused)
        began, earlier = time.perf_counter(), memory.trace.read
        self._take_up(memory, feed)
        before = memory.prefill_s

        def seconds() -> float:
            return before + time.perf_counter() - began - self._answer_s

        cut_short = yield from self._steps(memory, feed, seconds)
        self._close(memory, feed, earlier)
        # A pipe that ended because of the interrupt may have had more text.
        stopped = self.request.interrupted() and (cut_short or not feed.ended)
        if stopped:
            yield from self._leave(memory, feed)
        self._warn(memory, feed)
        for message in memory.warnings[count:]:
            yield Notice(message)
        for message in self.sources.notes:
            yield Notice(message, note=True)
        if memory.trace.line_counts is not None and self.request.command == "ask":
            yield Notice(LOG, note=True)
        if unused:
            memory.warnings.insert(0, unused)
        self._place(memory.trace)
        memory.prefill_s = seconds()
        if len(memory.trace.names) > 1 and memory.reader.cache.base:
            # An answer that sees one of the sources does it, and rounds keys: it must not be the
            # first to do so, because later answers would differ.
            memory.reader.cache.settle()
        if self.checkpoint is not None and not stopped:
            yield from self._save(self.checkpoint.finish, memory, feed)
        return memory

    def _take_up(self, memory: Memory, feed: TokenFeed) -> None:
        """Begin to read, behind the tokens of a checkpoint if there is one."""
        memory.trace.interrupted = False
        schedule = memory.reader.schedule
        if self.after is None and (feed.estimate() is None or not schedule.whole):
            # A text that fits is read whole, also if it is a pipe or was estimated to be longer.
            feed.look_ahead(self.plan.sizes.free + 1)
            length = feed.estimate()
            if length is not None and feed.stream.at_end:
                schedule.revise(length)
        if (every := self.request.every) is not None:
            feed.limit = lambda: every.room(feed.read_tokens) or sys.maxsize
        if self.checkpoint is not None:
            follow, interrupted = self.request.follow, self.request.interrupted
            self.checkpoint.take_up(memory, feed, interrupted, follow=follow)
        if every is not None:
            every.latest = memory.trace.read

    def _steps(
        self, memory: Memory, feed: TokenFeed, seconds: Callable[[], float]
    ) -> Generator[Event, None, bool]:
        """Read to the end, or to an interrupt.

        Return whether an interrupt ended a pipe. Of the text that has already arrived, at most as
        much as a chunk may hold is still read: the last lines of a log, and not minutes of a book.
        """
        reader, trace = memory.reader, memory.trace
        every, interrupted = self.request.every, self.request.interrupted
        pruned, stop, cut_short = trace.read, interrupted, False
        while True:
            for report in reader.read(feed, stop):
                memory.prefill_s = seconds()
                yield step_done(reader, report, feed, memory.prefill_s, memory.loaded)
                trace.read, trace.end = feed.read_tokens, feed.end
                self.on_step(memory)
                if trace.read - pruned >= PRUNE_EVERY:
                    trace.prune(reader.retained())
                    pruned = trace.read
                if self.checkpoint is not None:
                    self._place(trace)
                    yield from self._save(self.checkpoint.note, memory, feed)
                if every is not None and not interrupted() and every.due(trace.read):
                    yield from self._answers(memory, feed)
            pressed = interrupted()  # asked once: it may come between two questions
            if pressed and not cut_short and self.sources.ends_on_interrupt:
                cut_short, stop = True, _beyond(feed, feed.read_tokens + self.plan.sizes.free)
            elif not feed.paused or (stop() if cut_short else pressed):
                return cut_short
            if every is not None and not interrupted() and every.due(trace.read):
                yield from self._answers(memory, feed)

    def _answers(self, memory: Memory, feed: TokenFeed) -> Iterator[Event]:
        began = time.perf_counter()
        self._place(memory.trace)
        memory.trace.waiting = self._waiting(feed)
        yield from self.on_the_way(memory)
        self._answer_s += time.perf_counter() - began

    def _close(self, memory: Memory, feed: TokenFeed, earlier: int) -> None:
        memory.trace.read, memory.trace.end = feed.read_tokens, feed.end
        memory.trace.waiting = self._waiting(feed)
        if memory.trace.read == earlier:
            raise nothing_read(interrupted=self.request.interrupted())
        if self._blank:
            raise SourceError(nothing_in(self.sources.names, "only spaces and line ends"))

    def _save(
        self, save: Callable[[Memory, TokenFeed], None], memory: Memory, feed: TokenFeed
    ) -> Iterator[Event]:
        """Save the checkpoint. If that fails, tell the user once; the reading is not affected."""
        try:
            save(memory, feed)
        except KvstreamError as error:
            if not self._unsaved:
                message = f"{error} The checkpoint is not up to date."
                yield Notice(message, note=True, loss=True)
            self._unsaved = True

    def _leave(self, memory: Memory, feed: TokenFeed) -> Iterator[Event]:
        """Save the checkpoint of an interrupted reading, and record what was not read."""
        trace = memory.trace
        if self.checkpoint is not None:
            self._place(trace)
            yield from self._save(self.checkpoint.leave, memory, feed)
        unread = self.sources.unread
        if unread is None:
            # Of the whole text, also if the feed hands out only its two ends. None: a pipe.
            warning = stopped_after(trace.read, feed.stream.estimate() or 0)
        elif unread := unread + trace.waiting:
            warning = not_read(self.sources.names[-1], unread)
        else:  # a followed file was read to its end
            return
        trace.interrupted = True
        memory.warnings.append(warning)

    def _waiting(self, feed: TokenFeed) -> int:
        """Return the bytes that were taken from the sources, and not read by the model."""
        return 0 if feed.ended else self.sources.bytes_read - feed.end

    def _warn(self, memory: Memory, feed: TokenFeed) -> None:
        """Add warnings about sources, broken-up control sequences, and memory out of sight."""
        memory.warnings += self.sources.warnings
        if feed.stream.broken:
            memory.warnings.append(broken_apart("text", feed.stream.broken))
        of_plan = []
        whole = [record for record in self.sources.records if record.part is None]
        if self.after is not None and len(set(whole)) < len(whole):
            twice = next(record.name for record in reversed(whole) if whole.count(record) > 1)
            of_plan.append(
                f"{twice} was read more than once, and memory holds entries of each reading. Read "
                "every source once."
            )
        if system := self.plan.prompt.broken(self.plan.system or ""):
            of_plan.append(broken_apart("system text", system))
        if self.plan.prompt.lacks_template:
            of_plan.append(
                f"The chat template of {self.model.name} fails, or changes or repeats the text, so "
                "kvstream asks without it, and answers may be worse."
            )
        sight, budget = self.model.sight, self.plan.sizes.budget
        if sight is not None and sight < budget and memory.retained < memory.trace.read:
            of_plan.append(out_of_sight(self.model.name, sight, budget))
        # A memory that reads on keeps its plan, and has these warnings already.
        memory.warnings += [warning for warning in of_plan if warning not in memory.warnings]

    def _new(self) -> tuple[Memory, TokenFeed]:
        passages, words = self.passages, self.words
        shows: list[Show | None] = []
        if passages is None:
            passages, words = Passages(), WordForms()
            self._blank = not self.may_be_blank
            shows = [self._look, passages.feed, words.feed, self.show]
        trace = Trace(self.sources.names, self.sources.bases, passages=passages, words=words)
        request = self.request
        stream = TokenStream(self.tokenizer, self.sources, each_of(shows))
        feed = self.plan.feed(stream, request.interrupted)
        trace.origins = feed.origins
        # Reading ahead shows the bytes per token of this text, before the schedule is solved, and
        # whether a pipe has only a line or two.
        feed.look_ahead(FIRST_LOOK)
        reader = self.plan.reader(self.model, request.run, feed.estimate())
        memory = Memory(
            self.model.name, self.tokenizer, reader, self.plan, request.run, trace,
            request.command, self.load_s,
        )  # fmt: skip
        return memory, feed

    def _more(self, memory: Memory) -> tuple[Memory, TokenFeed]:
        """Return the memory to read into and the token feed of the new sources."""
        trace = memory.trace
        trace.names, trace.bases = self.sources.names, self.sources.bases
        if trace.passages is None:  # not `or`: an empty one is falsy, and its mode must stay
            trace.passages = Passages()
        after = trace.read, trace.end
        # None: the words of the earlier text are unknown.
        words = None if trace.words is None else trace.words.feed
        show = each_of([trace.passages.feed, words, self.show])
        stream = TokenStream(self.tokenizer, self.sources, show, after)
        feed = TokenFeed(stream, trace.origins)
        feed.end = trace.end
        feed.look_ahead(FIRST_LOOK)
        memory.reader.reopen(feed.estimate())
        return memory, feed

    def _look(self, block: TextBlock) -> None:
        self._blank = self._blank and (not block.text or block.text.isspace())

    def _place(self, trace: Trace) -> None:
        trace.records, trace.ended_line = self.sources.records, self.sources.ended_line
        trace.notes = self.sources.notes
        counts = self.sources.line_counts if isinstance(self.sources, ThinnedSource) else None
        if counts is not None:
            trace.line_counts = counts if self._lines is None else self._lines + counts


def _beyond(feed: TokenFeed, tokens: int) -> Callable[[], bool]:
    return lambda: feed.read_tokens >= tokens


def each_of(functions: Sequence[Show | None]) -> Show:
    """Return a function that passes a block to each of several."""

    def show(block: TextBlock) -> None:
        for function in functions:
            if function is not None:
                function(block)

    return show


def started(reader: Reader, run: RunSettings) -> Started:
    sizes = reader.sizes
    shortened = reader.method.shorten(sizes.prompt, sizes.free) is not None
    return Started(
        model=reader.model.name,
        method=run.method,
        budget_tokens=sizes.budget,
        budget_bytes=reader.cache.capacity_bytes,
        fixed_bytes=reader.cache.fixed_bytes,
        prompt_tokens=sizes.prompt,
        reserved_tokens=sizes.question + sizes.answer,
        schedule=run.schedule,
        chunk=run.chunk,
        # A shortened text has only the length of its two ends.
        estimated_tokens=None if shortened else reader.schedule.length,
        estimated_steps=reader.schedule.steps,
        lossless=reader.schedule.whole and not shortened,
        precision=reader.model.precision,
        asked_bytes=run.budget.bytes if run.budget else None,
    )


def step_done(
    reader: Reader, report: StepReport, feed: TokenFeed, seconds: float, loaded: int = 0
) -> StepDone:
    """Return the event of a step, whose functions measure memory when they are called."""
    seen = feed.read_tokens

    def coverage(bins: int) -> list[float]:
        bins = max(1, min(bins, seen))
        counts = torch.histc(reader.retained().float(), bins, 0, seen)
        return [min(1.0, float(c) * bins / seen) for c in counts]

    return StepDone(
        step=reader.steps,
        chunk=report.chunk,
        memory=report.memory,
        seen=seen,
        estimated_tokens=feed.estimate(),
        kv_tokens=reader.cache.size,
        in_flight_tokens=report.in_flight,
        peak_tokens=reader.cache.peak.tokens,
        budget_tokens=reader.sizes.budget,
        kv_bytes=reader.cache.bytes,
        seconds=seconds,
        coverage=coverage,
        retained=lambda: int(reader.retained().numel()),
        loaded=loaded,
        ordinals=reader.ordinals,
    )
