"""A few lines for logs and pipes: the start, progress now and then, and the cost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TextIO

from kvstream import events
from kvstream.events import Event, Result, Started, StepDone
from kvstream.reporters.citation_lines import coverage_line, looked_lines, support_line
from kvstream.reporters.format import counted, duration, in_lines, number, share, size, visible

FIRST_LINE_AFTER = 5.0
LONGEST_WAIT = 60.0


class Recorder(Protocol):
    """What gets every event of a run beside the reporter, in order."""

    def show(self, event: Event, /) -> None: ...


class Teller:
    """Writes only warnings, as lines on a stream: the output of ``-q``, and the base of others."""

    recorders: Sequence[Recorder] = ()

    verbose = False
    """Also show the numbers behind a warning."""
    notes = False
    """Also show the cost of each answer, and notes, which are no reason to doubt one."""
    cites = False
    """Show the passages of each answer, because the answers are written to a file."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        encoding = getattr(stream, "encoding", None) or "utf-8"
        self.unicode = encoding.lower().replace("-", "") == "utf8"
        self.messages: set[str] = set()
        """Messages that were written and are not repeated."""
        self.noticed: set[str] = set()
        """Messages written since the last answer; its result repeats them."""
        self.answering = False
        self.number = 0
        self.waiting: list[str] = []
        """Lines to be written later, because a signal arrived during a write."""

    def wait_for(self, work: str) -> None:
        """Announce work that may take long, and that comes before the first event."""

    def make_way(self) -> None:
        """Prepare for a whole answer, which may be written to the same terminal."""

    def show(self, event: Event) -> None:
        """Show one event of the run. Events arrive in order."""
        self.tell_waiting()
        if isinstance(event, events.AnswerStarted):
            self.answering, self.number = True, event.number
        elif isinstance(event, events.Notice) and not self.answering:
            # A notice during an answer would break its line; the result repeats the notice.
            if event.loss or not event.note:
                self.warn(event.message)
            elif self.notes:
                self.tell_once(event.message, event.message)
        elif isinstance(event, events.Answered):
            self.answering = False
            if self.cites:
                self.cite(event.result)
            self.warn_of(event.result)
        for recorder in self.recorders:
            recorder.show(event)
        if self.notes and isinstance(event, events.Answered):
            self.cost(event.result)

    def cite(self, result: Result) -> None:
        """Write the passages of an answer. From the second answer on, write its question first."""
        lines = looked_lines(result, shutil.get_terminal_size().columns)
        if lines and self.number:
            lines[:1] = ["", f"Question: {' '.join(result.question.split())}"]
        for line in lines:
            self.tell(line)

    def warn_of(self, result: Result) -> None:
        """Write the warnings of an answer; those of the reading appear once for all answers.

        Above the warnings of a later answer stands its question, except on a terminal, and except
        for a comparison, whose warnings name it.
        """
        own = [w for w in result.warnings if w not in self.noticed and w not in result.of_reading]
        self.noticed.clear()
        if own and self.number and not self.is_terminal and result.command != "compare":
            self.tell(f"Question: {result.question}")
        for warning in result.of_reading:
            self.warn(warning)
        for warning in own:
            self.tell(f"Warning: {warning}")

    def warn(self, message: str) -> None:
        """Write a warning of the reading once; every answer repeats it."""
        self.noticed.add(message)
        self.tell_once(message, f"Warning: {message}")

    def tell_once(self, message: str, line: str) -> None:
        """Write the line of a message unless the message was written before."""
        if message not in self.messages:
            self.messages.add(message)
            self.tell(line)

    def tell(self, message: str) -> None:
        """Show a message that is no event, such as what Ctrl-C does."""
        self.write(message)

    def cost(self, result: Result) -> None:
        """Write what an answer cost; under the first one, also what the reading cost."""
        lines = [narrowed_line(result)]
        first = self.number == 0
        if self.verbose:
            lines += [coverage_line(result, pictures=self.unicode)] * first
            lines += [support_line(result), skim_line(result)]
            lines += [verbose_line(result)] * first
        lines.append(summary(result) if first else f"answered in {duration(result.answer_s)}")
        for line in filter(None, lines):
            self.tell(line)

    def tell_waiting(self) -> None:
        """Tell the messages that had to wait."""
        waiting, self.waiting = self.waiting, []
        for message in waiting:
            self.tell(message)

    def write(self, line: str) -> None:
        """Write one line, below those that had to wait. A closed stderr must not end the run. If a
        signal handler interrupts a write, that write continues."""
        self.waiting.append(line)
        while self.waiting:
            line = self.waiting.pop(0)
            text = in_lines(line) if self.is_terminal else visible(line)
            if not self.unicode:
                text = text.replace("·", "|")
            try:
                with suppress(OSError):
                    self.stream.write(text + "\n")
                    self.stream.flush()
            except RuntimeError:  # a signal handler during a write: streams refuse a second one
                self.waiting.insert(0, line)
                return

    def close(self) -> None:
        """End the report and leave the terminal as it was. May be called twice."""
        self.tell_waiting()


class Plain(Teller):
    """Writes a line at the start, lines at growing intervals during reading, then a summary."""

    notes = True

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self.clock = clock
        self.wait = FIRST_LINE_AFTER
        self.next_line = clock() + self.wait

    def wait_for(self, work: str) -> None:
        self.write(work)

    def show(self, event: Event) -> None:
        if isinstance(event, Started):
            self.write(plan_line(event))
            self.next_line = self.clock() + self.wait
        elif isinstance(event, StepDone):
            now = self.clock()
            if now >= self.next_line:
                self.write(step_line(event))
                self.wait = min(2 * self.wait, LONGEST_WAIT)
                self.next_line = self.clock() + self.wait
        elif isinstance(event, events.PartRead):
            part = f"part {event.number} of {event.count}"
            tokens = counted(event.tokens, "token")
            self.write(f"{part} · {tokens} · {duration(event.seconds)}")
        super().show(event)


def plan_line(event: Started) -> str:
    """Return the sizes of a run, with the budget in entries and in bytes."""
    line = (
        f"{event.model} · {event.method} · budget {number(event.budget_tokens)} entries "
        f"({size(event.budget_bytes)})"
    )
    line += f" · memory {event.schedule}, chunks {event.chunk}" if event.schedule else ""
    line += f" · {event.precision}" if event.precision else ""
    if event.estimated_tokens is None:
        return f"{line} · length unknown"
    if event.lossless:
        return f"{line} · about {counted(event.estimated_tokens, 'token')}: all of it fits"
    steps = f" in {counted(event.estimated_steps, 'step')}" if event.estimated_steps else ""
    return f"{line} · about {counted(event.estimated_tokens, 'token')}{steps}"


def answering_line(event: Started) -> str:
    """Return the sizes of the model that answers from passages, for a plan of two models."""
    tokens = counted(event.estimated_tokens or 0, "token")
    return (
        f"{event.model} answers from passages of about {tokens} · budget "
        f"{number(event.budget_tokens)} entries ({size(event.budget_bytes)}) · {event.precision}"
    )


def step_line(event: StepDone) -> str:
    """Return the progress of the reading in one line."""
    speed, total, retained = event.speed, event.estimated_tokens, event.retained()
    parts = [
        f"read {number(event.seen)} of ~{number(total)} tokens ({share(event.seen, total)})"
        if total
        else f"read {counted(event.seen, 'token')}",
        f"kept {number(retained)} ({share(retained, event.seen)})",
        f"{number(speed)} tokens/s",
    ]
    if total and speed and total > event.seen:
        parts.append(f"{duration((total - event.seen) / speed)} left")
    return " · ".join(parts)


def skim_line(result: Result) -> str | None:
    """Describe what was read first and which text was kept; None if one model read all."""
    skim = result.skim
    if skim is None:
        return None
    memory = skim["kept"]
    first = f"{skim['model']} read all of it" if skim["model"] else "no model read all of it"
    passages, tokens = counted(len(skim["pieces"]), "passage"), counted(skim["tokens"], "token")
    judged = f"judged {counted(skim['judged'], 'passage')} and " if skim["judged"] else ""
    answers = " and compared 2 answers" * bool(skim["other"])
    line = (
        f"{first} · {result.model} {judged}read {passages} ({tokens}){answers} · passages kept as "
        f"text {number(memory['peak_bytes'])} of {number(memory['room_bytes'])} bytes"
    )
    if memory["dropped_bytes"]:
        line += f" · {number(memory['dropped_bytes'])} bytes dropped, which cannot be read again"
    return line


def narrowed_line(result: Result) -> str | None:
    """Name the sources of a joined memory that the answer saw; None if it saw all."""
    view = result.narrowed
    if view is None:
        return None
    first, *more = view["sources"]
    also = f" and {len(more)} more" if more else ""
    return (
        f"answered from {first}{also}, by the question's words · "
        f"saw {number(view['entries'])} of {number(view['held'])} entries, "
        f"{number(view['prompt'])} of the prompt"
    )


def summary(result: Result) -> str:
    """Return what an answer cost, in one line: the receipt of a run."""
    skim = result.skim
    if skim:
        passages = counted(len(skim["pieces"]), "passage")
        rest = f"answered from {passages} ({counted(skim['tokens'], 'token')})"
        if dropped := skim["kept"]["dropped_bytes"]:
            rest += f" · left out {number(dropped)} bytes of passages: no room"
    else:
        rest = kept_share(result.read, result.retained, partial=result.partial)
    return cost_line(
        result.read, rest, peak=(result.peak_kv_tokens, result.peak_kv_bytes),
        budget=(result.budget_tokens, result.budget_bytes), owners=_owners(result),
        seconds=result.prefill_s + result.answer_s, lines=result.lines, shards=result.shards,
        sizes_read=result.bytes_read,
    )  # fmt: skip


def kept_share(read: int, retained: int, *, partial: bool = False) -> str:
    """Return which share of the tokens memory holds, and how many found no room.

    `partial`: heads evicted some, though each token is in another head.
    """
    if partial:
        return "kept each token, but not in each head: no room"
    if retained >= read:
        return "kept all of it"
    return f"kept {share(retained, read)}, left out {counted(read - retained, 'token')}: no room"


def verbose_line(result: Result) -> str:
    """Return what only a person who tunes a run wants to know."""
    counts = f"kept {number(result.retained)} tokens, evicted {number(result.evicted)}"
    speed = f" · {number(result.tokens_per_s)} tokens/s" if result.tokens_per_s else ""
    return f"{counts} · {counted(result.steps, 'step')}{speed}"


def _owners(result: Result) -> tuple[str, str]:
    """Name the models with the peak in entries and in bytes; empty unless two took part."""
    if result.skim is None or result.skim["model"] is None:
        return "", ""
    names = {"skim": f" ({result.skim['model']})", "answer": f" ({result.model})"}
    peaks = result.skim["peak"]
    entries = max(names, key=lambda who: peaks[who]["kv_tokens"])
    larger = max(names, key=lambda who: peaks[who]["kv_bytes"])
    together = result.peak_kv_bytes > peaks[larger]["kv_bytes"]  # both caches existed at once
    return names[entries], " (both)" if together else names[larger]


def cost_line(
    read: int,
    rest: str,
    peak: tuple[int, int],
    budget: tuple[int, int],
    seconds: float,
    lines: Mapping[str, Any] | None = None,
    shards: Mapping[str, int] | None = None,
    owners: tuple[str, str] = ("", ""),
    sizes_read: tuple[int, int] = (0, 0),
) -> str:
    """Describe the cost of a reading: text, peak and budget in entries and bytes, time.

    `rest` says what is left of the text; `owners` (with two models) whose the entries and the bytes
    are; `sizes_read`: bytes that were read and those of the whole text, 0 if unknown.
    """
    entries = f"peak {number(peak[0])} of {number(budget[0])} entries"
    sizes = f"{size(peak[1])} of {size(budget[1])}"
    tokens = counted(read, "token")
    some, whole = sizes_read
    amount = size(some) if some == whole else f"{size(some)} of {size(whole)}"
    parts = [
        f"read {amount} ({tokens})" if whole else f"read {tokens}",
        rest,
        f"{entries}{owners[0]}, {sizes}{owners[1]}" if any(owners) else f"{entries} ({sizes})",
    ]
    if lines and lines["thinned"]:
        left_out = f"{number(lines['thinned'])} of {number(lines['lines'])} lines"
        parts.insert(1, f"left out {left_out}: repeats, only counted")
    if shards:
        parts[0] += f" in {counted(shards['count'], 'part')}"
        if shards["count"] > 1:
            parts.append(
                f"up to {shards['budgets']} budgets ({size(shards['bytes'])}) while they were read"
            )
    if seconds:  # 0 for an opened memory file: it was read at another time
        parts.append(duration(seconds))
    return " · ".join(parts)
