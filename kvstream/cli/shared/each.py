"""``--each``: one result for every document, printed when the document is done."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from kvstream.api.collection import each_of
from kvstream.cli.app import INTERRUPTED
from kvstream.cli.options.table import Options
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.model_choice import POCKET, demonstration, refuse_revision
from kvstream.cli.shared.running import SOME_FAILED, WITHHELD, can_be_live, quiet_libraries
from kvstream.events import DocumentDone, Outcome
from kvstream.reporters.citation_lines import wrapped
from kvstream.reporters.document_progress import Collected, CollectedLines, CollectedLive
from kvstream.reporters.format import counted, in_line, json_line, visible


def read_each(paths: Sequence[str], options: Options) -> int:
    """Read every document separately, report progress, and return the exit code."""
    if click.get_current_context().params.get("memory") is not None:
        raise click.UsageError("--memory asks one memory; leave it out, or leave out --each.")
    if not paths:
        raise click.UsageError("Nothing to read: name a folder or files for --each.")
    refuse_revision(options.model)
    into = None if options.output in (None, Path("-")) else options.output
    command = options.request.command
    compares = command == "compare" or len(options.methods) > 1
    with ExitStack() as stack:
        quiet_libraries(options)
        reporter = _reporter(options)
        stack.callback(reporter.close)
        interrupts = stack.enter_context(Interrupts(reporter.tell, stack.close))
        interrupts.then = "finishing the documents that are being read"
        if into is not None:
            interrupts.then += "; later the same command continues with the rest"
        if options.model == POCKET and not options.quiet:
            reporter.tell(demonstration(options))
        alone = options.asking(checkpoint=None, every=None, follow=False)
        if compares:
            alone = alone.asking(command="compare")
        outcomes = each_of(
            list(paths), [alone.of_method(name) for name in options.methods], options.loading,
            ray=options.ray, into=into, progress=reporter.note, interrupted=interrupts,
        )  # fmt: skip
        interrupts.reading = True
        withheld = False
        printed = options.json or (into is None and command != "remember")
        labels = len(options.request.questions) > 1 or options.one_of_several, compares
        for outcome in outcomes:
            withheld |= any(r.get("withheld") is not None for r in outcome.records)
            # An answer that could not be written to its file goes to stdout.
            unwritten = not isinstance(outcome, DocumentDone) and bool(outcome.records)
            if printed or unwritten:
                with reporter.aside():
                    _print(outcome, as_json=options.json, labels=labels)
            reporter.note(outcome)
        reporter.finish(None if into is None else str(into))
        tally = reporter.tally
        if interrupts.pressed:
            if tally.rest and not options.quiet:
                reporter.tell(_not_read(tally.rest, into))
            return INTERRUPTED
        if tally.failed:
            return SOME_FAILED if tally.done else tally.code
        return WITHHELD if withheld else 0


def _not_read(documents: int, into: Path | None) -> str:
    how = "With -o FOLDER, the" if into is None else "The"
    text = f"Interrupted: {counted(documents, 'document')} not read."
    return f"{text} {how} same command continues with the rest."


def _print(outcome: Outcome, *, as_json: bool, labels: tuple[bool, bool]) -> None:
    """Print one document: a line of JSON, or its name and its answers."""
    if as_json:
        sys.stdout.write(json_line(outcome.to_json(), sys.stdout))
    elif outcome.records:
        terminal = sys.stdout.isatty()
        show = visible if terminal else str
        sys.stdout.write(f"==> {in_line(outcome.name)} <==" + "\n")
        for record in outcome.records:
            for line in _answer(record, labels, terminal=terminal):
                sys.stdout.write(show(line) + "\n")
        sys.stdout.write("\n")
    sys.stdout.flush()


def _answer(record: dict[str, Any], labels: tuple[bool, bool], *, terminal: bool) -> Iterator[str]:
    question, method = labels
    if question and record.get("question"):
        yield f"Question: {' '.join(record['question'].split())}"
    head = f"{record['method']}: " if method else ""
    text = record["answer"] if "answer" in record else f"(refused: {record['error']})"
    lines = f"{head}{text}".rstrip("\n").split("\n")
    if not terminal:
        yield from lines
        return
    width = shutil.get_terminal_size().columns
    for line in lines:
        yield from wrapped(line, width) or [""]


def _reporter(options: Options) -> Collected:
    if options.quiet or options.progress == "none":
        return Collected(sys.stderr)
    if options.progress == "plain" or not can_be_live():
        return CollectedLines(sys.stderr)
    return CollectedLive(sys.stderr)
