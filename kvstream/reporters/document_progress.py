"""Reports on many documents: lines for logs, a panel on a terminal, a table at the end."""

from __future__ import annotations

import heapq
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TextIO

from rich.panel import Panel
from rich.text import Text

from kvstream import events
from kvstream.events import CollectionEvent, DocumentDone, DocumentFailed, DocumentStarted
from kvstream.reporters import format as f
from kvstream.reporters.live import PanelTeller, framed, panel_width
from kvstream.reporters.plain import FIRST_LINE_AFTER, LONGEST_WAIT, Teller, kept_share

RUNNING = 4
"""Maximum number of documents listed as being read in the panel; the rest is counted."""
NAME = 28
"""Maximum number of columns for a document's name in the table."""
RANKED = 20
"""Maximum number of documents in the table at the end; the results have all."""
LISTED = 20
"""Maximum number of failures listed at the end; each was reported when it happened."""
SHOWN = 200
"""Maximum number of characters of an answer in the table."""


class Row(NamedTuple):
    """A row of the table; rows with lower values are worse."""

    support: float
    order: int
    """Negative number of the document: among equals, the document done first is the best."""
    name: str
    answer: str
    warned: bool


@dataclass
class Tally:
    """Counts the progress of a run. The clock starts with the first document."""

    clock: Callable[[], float] = time.monotonic
    documents: int = 0
    bytes: int = 0
    done: int = 0
    present: int = 0
    """Documents of `done` that an earlier run wrote."""
    failed: int = 0
    read: int = 0
    """Tokens of the documents that this run read."""
    retained: int = 0
    budget: int = 0
    """Entries per head."""
    peak: int = 0
    """Maximum number of entries that any head held."""
    bytes_read: int = 0
    running: dict[str, tuple[DocumentStarted, float]] = field(default_factory=dict)
    """Documents being read, with the time when each began."""
    steps: dict[str, events.DocumentStep] = field(default_factory=dict)
    """The last step of each document that this process reads."""
    failures: list[DocumentFailed] = field(default_factory=list)
    best: list[Row] = field(default_factory=list)
    """A heap of at most `RANKED` rows."""
    began: float | None = None
    code: int = 0
    """Exit code of the first failure."""

    def add(self, event: CollectionEvent) -> None:
        """Count one event."""
        if isinstance(event, events.CollectionStarted):
            self.documents, self.bytes = event.documents, event.bytes
        elif isinstance(event, DocumentStarted):
            now = self.clock()
            self.began = now if self.began is None else self.began
            self.running[event.name] = event, now
        elif isinstance(event, events.DocumentStep):
            self.steps[event.name] = event
        elif isinstance(event, DocumentDone):
            self._ended(event.name)
            self._done(event)
        elif isinstance(event, DocumentFailed):
            self._ended(event.name)
            self.failed += 1
            self.code = self.code or event.exit_code
            if len(self.failures) < LISTED:
                self.failures.append(event)

    @property
    def rest(self) -> int:
        """Number of documents that have not begun."""
        return max(0, self.documents - self.done - self.failed - len(self.running))

    @property
    def seconds(self) -> float:
        """Seconds since the first document began."""
        return 0.0 if self.began is None else self.clock() - self.began

    @property
    def speed(self) -> float:
        """Tokens per second over the run, of all workers together."""
        read = self.read + sum(step.tokens for step in self.steps.values())
        return read / max(self.seconds, 1e-9)

    @property
    def progress(self) -> float:
        """Share of documents that are done or failed, with shares of those being read: 0 to 1."""
        ended = self.done + self.failed + sum(step.share for step in self.steps.values())
        return min(1.0, ended / max(1, self.documents))

    @property
    def seconds_left(self) -> float | None:
        """Estimate by the bytes read; None without any, or with results of an earlier run."""
        read = self.bytes_read + sum(
            step.share * self.running[name][0].bytes
            for name, step in self.steps.items()
            if name in self.running
        )
        if not read or self.present:
            return None
        return self.seconds * max(0, self.bytes - read) / read

    def _ended(self, name: str) -> None:
        self.steps.pop(name, None)
        entry = self.running.pop(name, None)
        if entry is not None:
            self.bytes_read += entry[0].bytes

    def _done(self, event: DocumentDone) -> None:
        self.done += 1
        self.present += event.present
        first = next((r for r in event.records if "tokens" in r), None)
        if first is not None and not event.present:
            self.read += event.tokens
            self.retained += first["tokens"]["retained"]
            self.budget = max(self.budget, first["budget"]["tokens"])
            self.peak = max(
                self.peak, *(r["peak"]["kv_tokens"] for r in event.records if "peak" in r)
            )
        if event.support is None or first is None:
            return
        answer = " / ".join(str(r.get("answer", "")) for r in event.records)
        answer = " ".join(answer.split())[:SHOWN]
        warned = any(r.get("warnings") for r in event.records)
        heapq.heappush(self.best, Row(event.support, -self.done, event.name, answer, warned))
        if len(self.best) > RANKED:
            heapq.heappop(self.best)


class Collected(Teller):
    """Writes only notices, warnings and failures: the output of ``-q``."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.tally = Tally()
        self.lock = threading.Lock()

    def note(self, event: CollectionEvent) -> None:
        """Record one event of the run and show it."""
        self.tell_waiting()
        with self.lock:
            self.tally.add(event)
        if isinstance(event, events.Notice) and not event.note:
            self.tell(f"Warning: {event.message}")
        elif isinstance(event, DocumentFailed):
            self.tell(f"Failed: {f.about(event.name, event.reason)}")
        elif isinstance(event, DocumentDone):
            warnings = (w for record in event.records for w in record.get("warnings", ()))
            for warning in dict.fromkeys(warnings):  # several methods may have the same one
                self.tell(f"Warning: {f.about(event.name, warning)}")

    def finish(self, into: str | None) -> None:
        """End the report of the run; `into` is the folder of the results."""
        self.close()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Return a context in which something else may write to the same terminal."""
        yield


class CollectedLines(Collected):
    """Writes a line at the start, lines at growing intervals, then a table and the cost."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.wait = FIRST_LINE_AFTER
        self.next_line = self.tally.clock() + self.wait

    def note(self, event: CollectionEvent) -> None:
        super().note(event)
        if isinstance(event, DocumentDone) and not event.present:
            receipts = (record.get("receipt") or {} for record in event.records)
            for note in dict.fromkeys(note for each in receipts for note in each.get("notes", ())):
                self.tell(f.about(event.name, note))
        if isinstance(event, events.Notice) and event.note:
            self.tell(event.message)
        if isinstance(event, events.CollectionStarted):
            about = f"about {f.size(event.bytes)} of text"
            how = f" · {f.number(event.workers)} workers" if event.workers > 1 else ""
            self.tell(f"{f.counted(event.documents, 'document')} · {about}{how}")
        elif self.tally.clock() >= self.next_line and self.tally.began is not None:
            self.progress()

    def progress(self) -> None:
        """Write a line on the progress of the run and set the time of the next one."""
        self.tell(f"{count_line(self.tally)} · {speed_line(self.tally)}")
        self.wait = min(2 * self.wait, LONGEST_WAIT)
        self.next_line = self.tally.clock() + self.wait

    def finish(self, into: str | None) -> None:
        self.close()
        if self.is_terminal:
            with suppress(OSError):
                for line in table(self.tally, shutil.get_terminal_size().columns):
                    self.stream.write(line + "\n")
                self.stream.flush()
        for line in last_lines(self.tally, into):
            self.tell(line)


class CollectedLive(CollectedLines, PanelTeller):
    """Shows a panel over all documents instead of lines during the run."""

    def progress(self) -> None:
        """Write no line: the panel shows the progress."""

    def note(self, event: CollectionEvent) -> None:
        super().note(event)
        if isinstance(event, DocumentStarted) and self.panel is None:
            self._start()

    @contextmanager
    def aside(self) -> Iterator[None]:
        running = self.panel is not None
        self.close()
        try:
            yield
        finally:
            if running:
                self._start()

    def _start(self) -> None:
        # The panel is transient: the lines that follow have what it showed.
        self.start_panel(self._draw, transient=True)

    def _draw(self) -> Panel:
        with self.lock:
            lines = panel_lines(self.tally, max(10, panel_width(self.console.width) - 4))
        text = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        return framed(text, Text("kvstream · many documents", style="bold"), self.console)


def count_line(tally: Tally) -> str:
    """Return the number of documents done, of those being read and of those that failed."""
    parts = [f"{f.number(tally.done)} of {f.counted(tally.documents, 'document')} done"]
    parts += [f"{f.number(len(tally.running))} being read"] if tally.running else []
    parts += [f"{f.number(tally.failed)} failed"] if tally.failed else []
    return " · ".join(parts)


def speed_line(tally: Tally) -> str:
    """Return tokens per second, elapsed time and estimated time left."""
    parts = [f"{f.number(tally.speed)} tokens/s", f.duration(tally.seconds)]
    rest = tally.seconds_left
    parts += [f"about {f.duration(rest)} left"] if rest else []
    return " · ".join(parts)


def panel_lines(tally: Tally, width: int) -> list[str]:
    """Return the lines of the panel, at most `width` columns wide."""
    full = round(width * tally.progress)
    lines = ["━" * full + "─" * (width - full), count_line(tally), speed_line(tally)]
    rows = list(tally.running.items())[:RUNNING]
    for name, (event, began) in rows:
        step = tally.steps.get(name)
        parts = [f.duration(tally.clock() - began)]
        parts += [f.counted(step.tokens, "token")] if step and step.tokens else []
        parts += [f"{event.worker}:{event.process}"] if event.worker else []
        tail = " · ".join(parts)
        room = max(8, width - len(tail) - 3)
        lines.append(f"{f.end_of(f.in_line(name), room)} · {tail}")
    if len(tally.running) > RUNNING:
        lines.append(f"and {f.number(len(tally.running) - RUNNING)} more")
    return [line[:width] for line in lines]


def table(tally: Tally, width: int) -> Iterator[str]:
    """Yield the rows of documents by the support of their answers; none without support."""
    rows = sorted(tally.best, reverse=True)
    if not rows:
        return
    names = [f.end_of(f.in_line(row.name), NAME) for row in rows]
    name = max(f.cells(label) for label in ("document", *names))
    yield f"support  {'document':{name}}    answer"
    room = max(8, width - name - 13)
    for row, label in zip(rows, names, strict=True):
        mark = "!" if row.warned else " "
        answer = f.cut(f.visible(row.answer), room)
        support = f.share(row.support, 1.0) if row.support else "-"  # the text has no answer
        yield f"{support:>7}  {f.padded(label, name)} {mark}  {answer}".rstrip()
    if tally.done > len(rows):
        yield f"({f.number(tally.done - len(rows))} more: --json or -o FOLDER has all of them)"
    if any(row.warned for row in rows):
        yield "! marks an answer with a warning."


def last_lines(tally: Tally, into: str | None) -> Iterator[str]:
    """Yield what was done, what failed (the reasons were shown before) and what it cost."""
    if tally.failed:
        yield f"Failed: {f.counted(tally.failed, 'document')}"
        for event in tally.failures:
            yield f"  {f.in_line(event.name)}"
        if tally.failed > LISTED:
            yield f"  and {f.number(tally.failed - LISTED)} more, listed above"
    parts = [f"{f.number(tally.done)} of {f.counted(tally.documents, 'document')} done"]
    if tally.present:
        parts.append(f"{f.number(tally.present)} of them by an earlier run")
    if into is not None and tally.done:
        parts.append(f"results in {into}")
    yield " · ".join(parts)
    if tally.read:
        yield (
            f"read {f.counted(tally.read, 'token')} · {kept_share(tally.read, tally.retained)} · "
            f"peak {f.number(tally.peak)} of {f.number(tally.budget)} entries · "
            f"{f.duration(tally.seconds)}"
        )
