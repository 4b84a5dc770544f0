"""A report: one HTML page that shows a run, made from its events."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.api.checks import dict_of, kind, path_of, text_of
from kvstream.api.memory import Memory
from kvstream.api.options import require
from kvstream.api.source_objects import refuse_over
from kvstream.errors import KvstreamError, UsageError
from kvstream.events import Answered, AnswerStarted, Event, Notice, Started, StepDone
from kvstream.reporters.format import counted, duration, entries, number, share, size
from kvstream.reporters.html.page import Chart, Document, Page, Run
from kvstream.version import __version__

if TYPE_CHECKING:
    from kvstream.memory.snapshot.positions import Snapshot

LARGEST = 6_000_000
"""Maximum bytes of a page."""
TEXT = 3_600_000
"""Maximum bytes of text in a page; fewer if the rest of the page is large."""
TOKENS = 300_000
"""Maximum number of kept tokens in a page."""
SMALLEST = 64
"""A page that is too large is made again with half of the text and tokens, until their limits are
divided by more than this number."""

Row = tuple[int, int, int, int, int, int]
"""Sizes after a step: tokens read; entries of memory, chunk, in flight and budget; kept tokens."""
POINTS = 400
"""Maximum number of steps in a chart. Longer runs show every second, fourth, ... step."""


@dataclass
class Series:
    """Sizes over a reading, for a bounded number of steps."""

    stride: int = 1
    rows: list[Row] = field(default_factory=list)
    last: StepDone | None = None

    def add(self, step: StepDone) -> None:
        self.last = step
        if (step.step - 1) % self.stride:
            return
        self._append(step)
        if len(self.rows) > POINTS:
            self.stride *= 2
            self.rows = self.rows[::2]

    def end(self) -> None:
        """Add the last step in any case. Call this while the reading still has its memory."""
        if self.last is not None and (not self.rows or self.rows[-1][0] != self.last.seen):
            self._append(self.last)
        self.last = None

    def _append(self, step: StepDone) -> None:
        memory, flight = max(step.memory, default=0), step.in_flight_tokens
        row = step.seen, memory, step.chunk, flight, step.budget_tokens, step.retained()
        self.rows.append(row)


@dataclass
class _Reading(Run):
    """Facts collected from the events of one reading."""

    series: Series = field(default_factory=Series)
    snapshot: Snapshot | None = None
    notices: list[str] = field(default_factory=list)
    facts: list[tuple[str, str, str]] = field(default_factory=list)
    times: list[tuple[str, str]] = field(default_factory=list)

    @property
    def answer_s(self) -> float:
        return sum(result.answer_s for result in self.results)


class Report:
    """Collects the contents of a page; pass `show` as `progress` of every reading:

        report = kvstream.Report()
        model.ask("book.txt", "Who hid the letter?", progress=report.show)
        report.write("book.html")

    A report needs the extra ``report`` (Jinja2). The page contains the text of regular files, which
    are read again when it is written. Of pipes, open files and `text=` it contains only the
    passages that memory holds.
    """

    def __init__(
        self, *, command: str = "", settings: Mapping[str, object] | None = None, title: str = ""
    ) -> None:
        """Start an empty report. Raises UsageError if Jinja2 is not installed.

        `command`: the command line that repeats the run; `settings` are listed on the page; `title`
        replaces the question.
        """
        require("jinja2", "report", "A report")
        self.command, self.title = text_of("command", command), text_of("title", title)
        self.settings = dict(dict_of("settings", {} if settings is None else settings))
        self._readings: list[_Reading] = []

    def begin(self, name: str) -> None:
        """Begin another reading, such as the next method of a comparison."""
        self._readings.append(_Reading(text_of("name", name)))

    @property
    def complete(self) -> bool:
        """Whether there is an answer, or a memory that was not asked."""
        return any(reading.results or reading.facts for reading in self._readings)

    def fail(self, problem: str) -> None:
        """Record why the current reading failed."""
        self._reading.problem = problem

    @property
    def _reading(self) -> _Reading:
        if not self._readings:
            self.begin("")
        return self._readings[-1]

    def show(self, event: Event) -> None:
        """Add one event."""
        if isinstance(event, Started):
            if self._readings and (self._reading.started is not None or self._reading.results):
                self.begin(event.method)
            self._reading.started = event
            self._reading.name = self._reading.name or event.method
        elif isinstance(event, StepDone):
            self._reading.series.add(event)
        elif isinstance(event, Notice) and not event.note:
            self._reading.notices.append(event.message)
        elif isinstance(event, AnswerStarted):
            self._reading.series.end()
            # Copy the positions now: the answer may evict entries.
            self._reading.snapshot = None if event.kept is None else event.kept()
        elif isinstance(event, Answered):
            self._reading.results.append(event.result)

    def add(self, memory: Memory) -> None:
        """Add a memory that was read and not asked. Call this before it is asked or released.

        Raises UsageError for anything else.
        """
        from kvstream.memory.snapshot.positions import snapshot

        if not isinstance(memory, Memory):
            raise UsageError(f"add() takes a Memory, as of Model.read, not {kind(memory)}.")
        reading, record = self._reading, memory.to_json()
        reading.name = reading.name or memory.method
        reading.series.end()
        with memory._in_use():
            reading.snapshot = snapshot(memory._engine)
        reading.facts = _facts(record, memory.seconds)
        reading.times = _times(record["timing"])

    def html(self) -> str:
        """Return the page. Raises UsageError if no run was recorded, and SourceError if a source
        cannot be read again for another reason than that it was removed or changed."""
        from kvstream.reporters.html.render import render

        if not any(r.started or r.snapshot or r.results or r.problem for r in self._readings):
            raise UsageError(
                "The report has no run to show: give its show as progress= of a reading, or a "
                "memory to its add(), before it is written."
            )
        share = 1
        while True:
            text = render(self._page(self._document(share)))
            if len(text.encode("utf-8", "replace")) <= LARGEST or share > SMALLEST:
                return text
            share *= 2

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page. Raises as `html`, KvstreamError if the file cannot be written, and
        UsageError if it is a source of a run."""
        place = Path(path_of("path", path))
        snapshots = (r.snapshot for r in self._readings if r.snapshot is not None)
        refuse_over(place, (record.name for each in snapshots for record in each.records))
        text = self.html()
        try:
            place.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise KvstreamError(f"Cannot write {path}: {error.strerror or error}.") from error

    def _document(self, share: int) -> Document | None:
        from kvstream.memory.snapshot.page_text import document_of

        snapshots = {r.name: r.snapshot for r in self._readings if r.snapshot is not None}
        if not any(len(each.ordinals) for each in snapshots.values()):
            return None
        spans = [
            (str(c["source"]), int(c["byte_start"]), int(c["byte_end"]))
            for reading in self._readings
            for result in reading.results
            for c in result.citations
        ]
        return document_of(snapshots, spans, TEXT // share, TOKENS // share)

    def _page(self, document: Document | None) -> Page:
        readings = self._readings
        warnings = {w for r in readings for result in r.results for w in result.warnings}
        notices = dict.fromkeys(n for r in readings for n in r.notices if n not in warnings)
        first = readings[0]
        facts, times = first.facts, first.times
        if len(readings) == 1 and first.results:
            record = first.results[-1].to_json()  # earlier ones may be of a part of the text
            timing = {**record["timing"], "answer_s": first.answer_s}
            facts = _facts(record, timing["prefill_s"] + timing["answer_s"])
            times = _times(timing)
        elif len(readings) > 1:
            times = [
                (r.name, f"read {duration(r.results[-1].prefill_s)}, "
                 f"answered {duration(r.answer_s)}, "
                 f"{number(r.results[-1].tokens_per_s)} tokens/s")
                for r in readings if r.results
            ]  # fmt: skip
        return Page(
            title=self.title or self._title(),
            command=self.command,
            version=f"{__version__} · {time.strftime('%Y-%m-%d %H:%M')}",
            runs=readings,
            document=document,
            charts=charts_of([(r.name, r.series) for r in readings]),
            settings=[*self._sizes(), *((k, str(v)) for k, v in self.settings.items())],
            times=times,
            warnings=list(notices),
            facts=facts,
        )

    def _title(self) -> str:
        questions = dict.fromkeys(result.question for r in self._readings for result in r.results)
        names = next((list(r.snapshot.names) for r in self._readings if r.snapshot is not None), [])
        about = "standard input" if names[:1] == ["-"] else names[0] if names else "a text"
        about += f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        if len(questions) == 1:
            return next(iter(questions)) or f"Summary of {about}"
        return f"{len(questions)} questions about {about}" if questions else f"Memory of {about}"

    def _sizes(self) -> list[tuple[str, str]]:
        """Return the sizes of the first reading that started, as rows of a table."""
        start = next((r.started for r in self._readings if r.started is not None), None)
        if start is None:
            return []
        methods = dict.fromkeys(r.name for r in self._readings)
        receipts = (result.receipt for r in self._readings for result in r.results)
        identity = []
        if receipt := next(filter(None, receipts), None):
            text = receipt["input"]
            amount = f"{number(text['bytes'])} bytes in {counted(text['count'], 'source')}"
            identity = [
                ("model digest", receipt["model_digest"]),
                ("input", f"{amount}, SHA-256 {text['sha256']}"),
                *((each["name"], _digest(each)) for each in text["sources"]),
            ]
        return [
            *identity,
            ("model", start.model),
            ("method", ", ".join(methods)),
            ("budget", f"{number(start.budget_tokens)} entries a head, "
             f"{size(start.budget_bytes)}"),
            ("prompt", entries(start.prompt_tokens)),
            ("question and answer", f"{entries(start.reserved_tokens)} kept free"),
            ("schedule", f"memory {start.schedule}, chunks {start.chunk}"),
        ]  # fmt: skip


def _digest(source: Mapping[str, Any]) -> str:
    """Return the digest of a file as sha256sum prints it, and where the part is that was read."""
    part = f", bytes {source['begin']:,} to {source['end']:,}" if "begin" in source else ""
    return f"SHA-256 {source.get('file_sha256', source['sha256'])}{part}"


def _facts(record: Mapping[str, Any], seconds: float) -> list[tuple[str, str, str]]:
    tokens, peak, budget = record["tokens"], record["peak"], record["budget"]
    read, kept_tokens = tokens["read"], tokens["retained"]
    return [
        ("Read", number(read), "tokens" if read != 1 else "token"),
        ("Kept", number(kept_tokens), f"{share(kept_tokens, read)} of the tokens"),
        ("Evicted", number(tokens["evicted"]), "tokens without room"),
        ("Peak", number(peak["kv_tokens"]), f"of {number(budget['tokens'])} entries a head"),
        ("KV cache", size(peak["kv_bytes"]), f"of {size(budget['bytes'])}"),
        ("Time", duration(seconds), "reading and answering"),
    ]


def _times(timing: Mapping[str, Any]) -> list[tuple[str, str]]:
    labels = {
        "load_s": "loading the model", "prefill_s": "reading", "select_s": "of it, selection",
        "answer_s": "answering",
    }  # fmt: skip
    rows = [(label, duration(timing[key])) for key, label in labels.items() if key in timing]
    if timing.get("tokens_per_s"):
        rows.append(("speed", f"{number(timing['tokens_per_s'])} tokens/s"))
    return rows


def charts_of(readings: Sequence[tuple[str, Series]]) -> list[Chart]:
    """Return the charts of one reading, or of a comparison; a reading of one step has none."""
    runs = [(name, series.rows) for name, series in readings if len(series.rows) > 1]
    if len(runs) == 1:
        read, memory, chunk, flight, budget, tokens = zip(*runs[0][1], strict=True)
        lines = [("memory", memory), ("chunk", chunk), ("in flight", flight), ("budget", budget)]
        return [
            Chart(
                "Memory and chunk", "tokens read", "entries a head", read, lines,
                note="In flight: memory, chunk and catalyst together, which never exceed the "
                "budget.",
            ),
            Chart("Kept tokens", "tokens read", "tokens", read, [("kept", tokens)],
                  note="Different tokens that at least one head holds."),
        ]  # fmt: skip
    charts = []
    x = sorted({row[0] for _, rows in runs for row in rows})
    for title, column, label in (("Kept tokens", 5, "tokens"), ("Memory", 1, "entries a head")):
        values = [(n, _values_at(x, {row[0]: row[column] for row in rows})) for n, rows in runs]
        charts.append(Chart(title, "tokens read", label, x, values))
    return charts if runs else []


def _values_at(x: list[int], points: dict[int, int]) -> list[float | None]:
    """Return at each of `x` the value so far; None before the first step and after the last one."""
    values: list[float | None] = []
    value, end = None, max(points)
    for place in x:
        value = points.get(place, value)
        values.append(value if place <= end else None)
    return values
