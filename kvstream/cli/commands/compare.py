"""``kvstream compare``: several methods on the same text under the same budget, side by side."""

from __future__ import annotations

import csv
import io
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click

from kvstream.api.html_report import Report
from kvstream.api.model import Model
from kvstream.cli.options.option import option
from kvstream.cli.options.table import Options, reading_command
from kvstream.cli.shared import inputs, reports, running
from kvstream.cli.shared.exact_answers import note_estimates
from kvstream.cli.shared.interrupts import InterruptibleInput, Interrupts
from kvstream.cli.shared.model_choice import open_model, settled
from kvstream.cli.shared.output import OutputFile, refuse_closed
from kvstream.errors import BudgetError, KvstreamError, UsageError
from kvstream.events import Answered, AnswerStarted, Event, Notice, Result, StepDone
from kvstream.reporters.citation_lines import wrapped
from kvstream.reporters.format import Sink, json_line, shortened, visible
from kvstream.reporters.plain import Teller

BINS = 20
"""Number of parts of the document over which the spread of retained tokens is computed."""
QUESTION = 40
"""Maximum number of characters of a question in a warning."""
FILE_WIDTH = 100
"""Columns of a table in a file."""
BESIDE = 24
"""Minimum columns of an answer beside its method; with fewer, the answer stands below."""
MARK = "!"
CHANGED = (
    "Warning: The text changed during the run, so the methods read different texts; run it again."
)
CSV = (
    "question", "method", "answer", "warnings", "withheld", "error", "read_s", "answer_s",
    "tokens_per_s", "budget", "peak_kv_tokens", "read", "retained", "spread",
)  # fmt: skip


@reading_command("compare")
@inputs.asking
@option(
    "--csv", "as_csv", is_flag=True, section="Input and output",
    help="Print CSV: a header, then one line per method and question.",
)  # fmt: skip
def command(
    arguments: tuple[str, ...], question: tuple[str, ...], as_csv: bool, options: Options
) -> int:
    """Answer the same questions with several methods under the same budget, side by side.

    kvstream loads the model once and reads the text once per method. Without --method, it compares
    infinipot (which auto chooses for a known question), keydiff (which needs no question) and the
    baseline streaming. It copies a pipe to a temporary file. "kept"
    counts the tokens of the text that at least one head still holds. "spread" is 1 if these tokens
    are spread evenly over the text, and 0 if all are in one place. ! marks an answer with a
    warning.

    \b
      kvstream compare book.txt "Who hid the letter?" --budget 1k
      kvstream compare book.txt "Who hid it?" --budget 1k \\
          --method infinipot,snapkv
    """
    paths, questions = inputs.split_arguments(arguments, question)
    options = options.asking(questions=questions, command="compare")
    note_estimates(questions)
    if options.each:
        from kvstream.cli.shared.each import read_each

        if as_csv:
            raise click.UsageError("--csv is for one text; use --json with --each.")
        return read_each(paths, options)
    return compare(inputs.sources_or_usage(paths), options, as_csv=as_csv)


def compare(paths: Sequence[str], options: Options, *, as_csv: bool = False) -> int:
    """Run every method of `options.methods` on the same sources, and return the exit code."""
    if as_csv and (options.json or options.dry_run):
        other = "--json" if options.json else "--dry-run"
        raise UsageError(f"--csv and {other} print two different things; use one.")
    running.check_early(options)
    running.check_files(options, paths)
    options = settled(options)
    with ExitStack() as stack:
        refuse_closed(options.output)
        output, reporter, interrupts = running.prepared(stack, options)
        stack.enter_context(running.whole_or_none(output))
        several = len(options.methods) > 1 and not options.dry_run
        once = [path for path in paths if several and not inputs.can_be_read_again(path)]
        copies = stack.enter_context(_copies(once, interrupts))
        sources = inputs.open_sources(paths, options, interrupts, copies=copies)
        pages = sources.check()
        model = open_model(options, reporter)
        comparison = Comparison(model, paths, copies, options, as_csv, output, reporter, interrupts)
        if options.dry_run:
            comparison.plan(sources)
            return 0
        code = comparison.run(sources, pages)
    if comparison.error is not None:
        raise comparison.error
    return code


@contextmanager
def _copies(paths: Sequence[str], interrupts: Interrupts) -> Iterator[Mapping[str, str]]:
    """Copy sources that can be read only once; yield their temporary files by source name."""
    with ExitStack() as stack:
        copies = {}
        for path in paths:
            if path != "-" and not os.path.exists(path):
                continue  # opening the sources reports it
            spool = stack.enter_context(tempfile.NamedTemporaryFile(prefix="kvstream-"))
            with InterruptibleInput(interrupts, path=None if path == "-" else Path(path)) as source:
                shutil.copyfileobj(source, spool)
            spool.flush()
            copies[path] = spool.name
        yield copies


@dataclass(frozen=True)
class Row:
    """Result of one method on one question; `result` is None if the method could not run."""

    method: str
    result: Result | None
    spread: float | None
    """None if memory is text without entries, or the method could not run."""
    problem: str = ""
    warned: tuple[str, ...] = ()
    """Warnings about this answer."""


@dataclass
class Comparison:
    """Reads the same sources with each method and shows the results."""

    model: Model
    paths: Sequence[str]
    copies: Mapping[str, str]
    """Temporary files of sources that can be read only once, by the names of the sources."""
    options: Options
    as_csv: bool
    output: Sink
    reporter: Teller
    interrupts: Interrupts
    rows: list[Row] = field(default_factory=list)
    error: Exception | None = None
    """Error that ended the run before every method had its turn."""
    _failure: KvstreamError | None = None
    """Error of the latest method that could not run."""
    _noticed: set[str] = field(default_factory=set)
    """Notices about the text, which concern all methods and questions."""

    def plan(self, sources: Any) -> None:
        """Write a line of --dry-run for each method, or the reason why it cannot run."""
        self.reporter.close()
        for turn, name in enumerate(self.options.methods):
            request = self.options.of_method(name)
            try:
                plan = self.model.plan_of(self._sources() if turn else sources, request)
                running.show_plan(plan, self.options, self.output)
            except (BudgetError, UsageError) as error:
                if len(self.options.methods) == 1:
                    raise
                if self.options.json:
                    self._add(Row(name, None, None, str(error)))
                else:
                    self.output.write(f"{name}: {error}\n")

    def _sources(self) -> Any:
        return inputs.open_sources(self.paths, self.options, self.interrupts, copies=self.copies)

    def run(self, sources: Any, pages: Mapping[str, int]) -> int:
        """Read with each method, show the rows and return the exit code.

        `sources` are for the first method, and `pages` are their PDFs. If the run fails but has
        answers, they are shown and the error is kept in `error`.
        """
        page = reports.of(self.reporter)
        if self.as_csv:
            self.output.write(csv_line(CSV))
        methods = self.options.methods
        for turn, name in enumerate(methods):
            if page is not None:
                page.begin(name)
            try:
                if turn:
                    sources = self._sources()
                inputs.tell_pages(self.reporter, pages)
                self._read(name, sources)
            except Exception as error:
                self.reporter.make_way()
                if page is not None:
                    page.fail(str(error))
                if isinstance(error, (BudgetError, UsageError)):  # only this method cannot run
                    self._failure = error
                    self.reporter.show(Notice(f"{name}: {error}"))
                    self._add(Row(name, None, None, str(error)))
                else:
                    if not self._answered or isinstance(error, BrokenPipeError):
                        raise  # a reader of stdout that has read enough misses nothing
                    self.error = error
                    self._leave_out("The run failed", methods[turn:])
                    _fail(page, methods[turn + 1 :], "Not run, because the run failed.")
                    break
            if self.interrupts():
                if names := methods[turn + 1 :]:
                    self._leave_out("Interrupted", names)
                    _fail(page, names, "Not run, because of the interrupt.")
                break
        else:
            read = [row.result.receipt or {} for row in self.rows if row.result]
            if any(each.get("input") != read[0].get("input") for each in read):
                self.reporter.tell(CHANGED)
        self.reporter.close()
        self._show_all()
        if self._failure is not None and not self._answered:
            raise self._failure
        withheld = any(row.result and row.result.withheld is not None for row in self.rows)
        return running.WITHHELD if withheld else 0

    def _read(self, name: str, sources: Any) -> None:
        coverage: Sequence[float] = ()
        labels = labels_of(self.options.request.questions)
        number: int | None = None
        request = replace(self.options.of_method(name), interrupted=self.interrupts)
        events = self.model.events(sources, request)
        for event in running.answer_events(events, self.interrupts):
            if isinstance(event, AnswerStarted):
                number = event.number
            elif isinstance(event, Notice) and number is None:
                self._noticed.add(event.message)
            elif isinstance(event, Answered):
                self.reporter.make_way()  # messages about a method stand below its panel
            about = name if number is None else f"{name}{labels[number]}"
            self.reporter.show(_named(event, about, self._noticed))
            if isinstance(event, StepDone):
                coverage = event.coverage(BINS)
            elif isinstance(event, Answered):
                number = None
                warned = tuple(w for w in event.result.warnings if w not in self._noticed)
                value = None if event.result.coverage is None else spread(coverage)
                self._add(Row(name, event.result, value, warned=warned))

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        if self.options.json:
            record: dict[str, Any]
            if row.result is None:
                record = {"command": "compare", "method": row.method, "error": row.problem}
            else:
                spread = None if row.spread is None else round(row.spread, 4)
                record = {**row.result.to_json(running.origin()), "spread": spread}
            self.output.write(json_line(record, self.output))
            self.output.flush()
        elif self.as_csv:
            line = csv_row(row)
            self.output.write(visible(line) if self.output.isatty() else line)
            self.output.flush()

    def _leave_out(self, why: str, missing: Sequence[str]) -> None:
        names = ", ".join(missing)
        self.reporter.tell(f"Warning: {why}; answers are missing of: {names}.")

    @property
    def _answered(self) -> bool:
        return any(row.result for row in self.rows)

    def _show_all(self) -> None:
        if self.options.json or self.as_csv:
            return  # each row was already written
        width = max(20, shutil.get_terminal_size().columns)
        if isinstance(self.output, OutputFile):
            width = FILE_WIDTH
        for line in blocks(self.rows, self.options.request.questions, width):
            self.output.write(f"{line.rstrip()}\n")
        self.output.flush()


def _fail(page: Report | None, methods: Sequence[str], reason: str) -> None:
    if page is None:
        return
    for name in methods:
        page.begin(name)
        page.fail(reason)


def labels_of(questions: Sequence[str]) -> list[str]:
    """Return a label of each question for warnings; empty for a single question."""
    if len(questions) < 2:
        return [""] * max(1, len(questions))
    short = [shortened(question, QUESTION) for question in questions]
    return [
        f" (question {number})" if short.count(text) > 1 else f' ("{text}")'
        for number, text in enumerate(short, 1)
    ]


def _named(event: Event, about: str, noticed: set[str]) -> Event:
    """Put method and question before messages about an answer, but not about the text."""
    if isinstance(event, Notice) and event.message not in noticed:
        return replace(event, message=f"{about}: {event.message}")
    if not isinstance(event, Answered):
        return event
    warnings = tuple(w if w in noticed else f"{about}: {w}" for w in event.result.warnings)
    of_reading = tuple(w for w in event.result.warnings if w in noticed)
    result = replace(event.result, warnings=warnings, of_reading=of_reading)
    return replace(event, result=result)


def spread(coverage: Sequence[float]) -> float:
    """Return the entropy of the retained tokens over equal parts of the document, 0 to 1."""
    total = sum(coverage)
    if total <= 0 or len(coverage) < 2:
        return 0.0
    shares = [c / total for c in coverage if c > 0]
    return sum(p * math.log(1 / p) for p in shares) / math.log(len(coverage))  # never -0.0


def blocks(rows: Sequence[Row], questions: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines of at most `width` columns: a block per question, and one for the methods."""
    methods = list(dict.fromkeys(row.method for row in rows))
    for question in questions or [""]:
        if len(questions) > 1:
            yield from wrapped(_line(f"Question: {question}"), width)
        for method in methods:
            own = [row for row in rows if row.method == method]
            answers = [row for row in own if row.result and row.result.question == question]
            # A refused method has one row, for all questions that it did not answer.
            refusals = [row for row in own if row.result is None]
            if some := answers or refusals:
                yield from _answer(some[0], max(map(len, methods)), width)
        yield ""
    if any(row.warned for row in rows):
        yield from wrapped(f"{MARK} marks an answer with a warning (on stderr).", width)
        yield ""
    yield from _figures(rows, methods, width)


def _answer(row: Row, widest: int, width: int) -> Iterator[str]:
    text = "(refused)" if row.result is None else _line(row.result.answer) or "(nothing)"
    mark = MARK if row.warned else " "
    head = f"{row.method:{widest}} {mark} "
    if width - len(head) < BESIDE:
        yield f"{row.method} {mark}".rstrip()
        head = "  "
        yield from (head + line for line in wrapped(text, width - len(head)))
        return
    for number, line in enumerate(wrapped(text, width - len(head))):
        yield (" " * len(head) if number else head) + line


def _figures(rows: Sequence[Row], methods: Sequence[str], width: int) -> Iterator[str]:
    """Yield the figures of each method once, because one reading serves all questions."""
    heads = ("method", "read s", "answer s", "tokens/s", "peak KV", "kept", "spread")
    table = []
    for method in methods:
        own = [row for row in rows if row.method == method]
        results = [row.result for row in own if row.result is not None]
        if not results:
            table.append((method, *["-"] * 6))
            continue
        first, answer_s = results[0], sum(r.answer_s for r in results)
        peak = max(r.peak_kv_tokens for r in results)
        spread = "-" if own[0].spread is None else f"{own[0].spread:.2f}"
        table.append((
            method, f"{first.prefill_s:.1f}", f"{answer_s:.1f}", f"{first.tokens_per_s:,.0f}",
            f"{peak:,}", f"{first.retained:,}", spread,
        ))  # fmt: skip
    wide = [max(map(len, column)) for column in zip(heads, *table, strict=True)]
    if sum(wide) + 2 * len(wide) - 2 <= width:
        for line in (heads, *table):
            cells = (c.rjust(w) for c, w in zip(line[1:], wide[1:], strict=True))
            yield "  ".join([line[0].ljust(wide[0]), *cells])
        return
    for line in table:
        yield line[0]
        text = ", ".join(f"{h} {c}" for h, c in zip(heads[1:], line[1:], strict=True))
        yield from (f"  {part}" for part in wrapped(text, width - 2))


def _line(text: str) -> str:
    return visible(" ".join(text.split()))


def csv_line(values: Sequence[object]) -> str:
    """Return one line of CSV (RFC 4180)."""
    line = io.StringIO()
    csv.writer(line).writerow(values)
    return line.getvalue()


def csv_row(row: Row) -> str:
    """Return a row with the columns of `CSV`."""
    r = row.result
    if r is None:
        return csv_line(["", row.method, "", "", "", row.problem, *[""] * 8])
    return csv_line([
        r.question, row.method, r.answer, "; ".join(row.warned), r.withheld or "", "",
        f"{r.prefill_s:.3f}", f"{r.answer_s:.3f}", f"{r.tokens_per_s:.1f}", r.budget_tokens,
        r.peak_kv_tokens, r.read, r.retained, "" if row.spread is None else f"{row.spread:.4f}",
    ])  # fmt: skip
