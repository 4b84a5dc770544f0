"""``kvstream compare``: several methods on the same text under the same budget, side by side."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

import click

from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.many import Each, each_options
from kvstream.cli.options.model import ONE_MODEL, model_help
from kvstream.cli.options.option import option
from kvstream.cli.options.reading import ReadingOptions, reading_options
from kvstream.cli.shared import early, reports
from kvstream.cli.shared.arguments import asking, sources_or_usage, split_arguments
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.output import OutputFile
from kvstream.cli.shared.running import (
    WITHHELD,
    announce,
    answer_events,
    can_be_read_again,
    check_files,
    check_reread,
    open_model,
    open_sources,
    prepared,
    settled,
    show_plan,
    tell_pages,
    whole_or_none,
)
from kvstream.cli.shared.side_by_side import CSV, Row, blocks, columns, csv_line, csv_row
from kvstream.errors import BudgetError, KvstreamError, SourceError, UsageError
from kvstream.events import Answered, AnswerStarted, Event, Notice, StepDone
from kvstream.reporters.format import for_terminal, json_line, shortened

if TYPE_CHECKING:
    from kvstream.api.model import Model

BINS = 20
"""Parts of the document among which the spread of what is retained is taken."""
COPY = 1 << 20
QUESTION = 40
"""Characters of a question that its warnings show."""
METHODS = "infinipot,keydiff,streaming"
"""Compared if nobody names others: one that needs the question, one that does not, a baseline."""


@click.command(
    "compare",
    cls=SectionedCommand,
    without=ONE_MODEL,
    defaults={"method": METHODS},
    helps={
        "method": "Methods to compare, separated by commas (list: kvstream methods).",
        "model": model_help("pocket"),
    },
)
@asking
@option(
    "--with", "baseline", type=click.Choice(["bm25"]), section="Questions",
    help="Add a row for a plain word search (BM25) that fills the same budget.",
)  # fmt: skip
@option(
    "--csv", "as_csv", is_flag=True, section="Input and output",
    help="Print CSV: a header, then one line per method and question.",
)  # fmt: skip
@each_options
@reading_options
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    question: tuple[str, ...],
    baseline: str | None,
    as_csv: bool,
    each: Each | None,
    options: ReadingOptions,
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
    paths, questions = split_arguments(ctx, arguments, question)
    if each is not None:
        from kvstream.cli.shared.each import read_each

        if as_csv:
            raise click.UsageError("--csv is for one text; use --json with --each.", ctx)
        return read_each(ctx, "compare", paths, questions, options, each, baseline)
    paths = sources_or_usage(ctx, paths)
    return compare(paths, questions, options, baseline, as_csv=as_csv)


def compare(
    paths: Sequence[str],
    questions: Sequence[str],
    options: ReadingOptions,
    baseline: str | None = None,
    *,
    command: str = "compare",
    as_csv: bool = False,
) -> int:
    """Run every method of `options.methods` over the same sources and show them side by side.

    With a `baseline` (bm25) a row for that, too: it reads what it finds and nothing else. Returns
    the exit code.
    """
    if as_csv and (options.as_json or options.dry_run):
        other = "--json" if options.as_json else "--dry-run"
        raise UsageError(f"--csv and {other} print two different things; use one.")
    if options.checkpoint is not None:
        raise UsageError("--checkpoint, --follow and --every are for one method, not for several.")
    if baseline and options.extract:
        raise UsageError(
            "--extract prints what memory retains, and --with bm25 has no memory; use one."
        )
    early.check(options, by_words=baseline is not None)
    check_files(options, paths)
    options = settled(options, alone=True)
    stopped: Exception | None = None
    with ExitStack() as stack:
        output, reporter, interrupts = prepared(stack, options)
        stack.enter_context(whole_or_none(output))
        if options.dry_run:
            sources = open_sources(paths, options, interrupts)
            sources.check()
            announce(reporter, options)
            model = open_model(options)
            reporter.close()
            for turn, name in enumerate(options.methods):
                if turn:
                    sources = open_sources(paths, options, interrupts)
                _plan(model, sources, name, {"questions": questions}, options, output)
            return 0
        times = 2 if baseline or options.reread else len(options.methods)
        once = [path for path in paths if times > 1 and not can_be_read_again(path)]
        copies = stack.enter_context(_copied(once, interrupts))
        check_reread(options, paths, questions, copies)
        sources = open_sources(paths, options, interrupts, copies=copies)
        pages = sources.check()
        asked: dict[str, Any] = {
            "questions": questions,
            "command": command,
            "interrupted": interrupts,
        }
        announce(reporter, options)
        model = open_model(options)
        rows: list[Row] = []
        failure: KvstreamError | None = None
        noticed: set[str] = set()
        labels = labels_of(questions)

        def add(row: Row) -> None:
            rows.append(row)
            if options.as_json:
                _print_json(output, row)
            elif as_csv:
                output.write(for_terminal(csv_row(row)) if output.isatty() else csv_row(row))
                output.flush()

        page = reports.of(reporter)
        if as_csv:
            output.write(csv_line(CSV))
        methods = (*options.methods, *([baseline] if baseline else []))
        for turn, name in enumerate(methods):
            coverage: Sequence[float] = ()
            if page is not None:
                page.page.begin(name)
            number: int | None = None
            try:
                if turn:
                    sources = open_sources(paths, options, interrupts, copies=copies)
                tell_pages(reporter, pages)
                events = model.stream(sources, **options.of_method(name), **asked)
                for event in answer_events(events, interrupts):
                    if isinstance(event, AnswerStarted):
                        number = event.number
                    elif isinstance(event, Notice) and number is None:
                        noticed.add(event.message)  # of the text, so of all methods and questions
                    elif isinstance(event, Answered):
                        reporter.make_way()  # what is told of a method stands below its panel
                    about = name if number is None else f"{name}{labels[number]}"
                    reporter.show(_named(event, about, noticed))
                    if isinstance(event, StepDone):
                        coverage = event.coverage(BINS)
                    elif isinstance(event, Answered):
                        number = None
                        warned = tuple(w for w in event.result.warnings if w not in noticed)
                        add(Row(name, event.result, spread(coverage), warned=warned))
            except Exception as error:
                reporter.make_way()
                if page is not None:
                    page.page.fail(str(error))
                # One method that cannot (full, or a gate that is missing) has a row that says so.
                # Anything else, such as a source that cannot be read, ends the run, and the rows
                # that are complete stay.
                own = (BudgetError, UsageError, *([SourceError] if name == baseline else []))
                if not isinstance(error, own):
                    stopped, missing = error, methods[turn:]
                    break
                failure = error
                reporter.show(Notice(f"{name}: {error}"))
                add(Row(name, None, 0.0, str(error)))
            if interrupts():
                skipped = ", ".join(methods[turn + 1 :])
                if skipped:
                    reporter.tell(f"Warning: Interrupted; answers are missing of: {skipped}.")
                break
        nothing = not any(row.result for row in rows)
        if stopped is not None:
            if nothing:
                raise stopped
            named = ", ".join(missing)
            reporter.tell(f"Warning: The run failed; answers are missing of: {named}.")
        reporter.close()
        if not options.as_json and not as_csv:
            width = columns(to_file=isinstance(output, OutputFile))
            for line in blocks(rows, questions, width):
                output.write(f"{line.rstrip()}\n")
            output.flush()
        if failure is not None and nothing:
            raise failure
        withheld = any(row.result and row.result.withheld is not None for row in rows)
    if stopped is not None:
        raise stopped
    return WITHHELD if withheld else 0


def labels_of(questions: Sequence[str]) -> list[str]:
    """What names each question behind its method in a warning; nothing where there is one."""
    if len(questions) < 2:
        return [""] * max(1, len(questions))
    short = [shortened(question, QUESTION) for question in questions]
    return [
        f" (question {number})" if short.count(text) > 1 else f' ("{text}")'
        for number, text in enumerate(short, 1)
    ]


def _named(event: Event, about: str, noticed: set[str]) -> Event:
    """The event with method and question before what is said of its answer, not of the text."""
    if isinstance(event, Notice) and event.message not in noticed:
        return replace(event, message=f"{about}: {event.message}")
    if not isinstance(event, Answered):
        return event
    warnings = tuple(w if w in noticed else f"{about}: {w}" for w in event.result.warnings)
    of_reading = tuple(w for w in event.result.warnings if w in noticed)
    result = replace(event.result, warnings=warnings, of_reading=of_reading)
    return replace(event, result=result)


def _plan(
    model: Model,
    sources: Any,
    method: str,
    asked: Mapping[str, Any],
    options: ReadingOptions,
    output: TextIO | OutputFile,
) -> None:
    """One method's line of --dry-run; or the reason why the method cannot run."""
    try:
        started = model.plan(sources, **options.of_method(method), **asked)
    except (BudgetError, UsageError) as error:
        if len(options.methods) == 1:
            raise
        if options.as_json:
            _print_json(output, Row(method, None, 0.0, str(error)))
        else:
            output.write(f"{method}: {error}\n")
        return
    show_plan(started, options, output)


def spread(coverage: Sequence[float]) -> float:
    """Entropy of the retained tokens over equal parts of the document, 0 to 1."""
    total = sum(coverage)
    if total <= 0 or len(coverage) < 2:
        return 0.0
    shares = [c / total for c in coverage if c > 0]
    return -sum(p * math.log(p) for p in shares) / math.log(len(coverage))


@contextmanager
def _copied(paths: Sequence[str], interrupts: Interrupts) -> Iterator[Mapping[str, str]]:
    """What can be read only once, in temporary files: their paths by the sources' names."""
    with ExitStack() as stack:
        copies = {}
        for path in paths:
            if path != "-" and not os.path.exists(path):
                continue  # which is said where sources are opened
            if path == "-" and sys.stdin is None:
                raise SourceError("Standard input is closed; name a file instead.")
            spool = stack.enter_context(tempfile.NamedTemporaryFile(prefix="kvstream-"))
            source = sys.stdin.fileno() if path == "-" else os.open(path, os.O_RDONLY)
            try:
                while not interrupts() and (block := os.read(source, COPY)):
                    spool.write(block)
            finally:
                if path != "-":
                    os.close(source)
            spool.flush()
            copies[path] = spool.name
        yield copies


def _print_json(output: TextIO | OutputFile, row: Row) -> None:
    if row.result is None:
        record: dict[str, Any] = {"command": "compare", "method": row.method, "error": row.problem}
    else:
        record = {**row.result.to_json(), "spread": round(row.spread, 4)}
    output.write(json_line(record, output))
    output.flush()
