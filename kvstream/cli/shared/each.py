"""``--each``: one result for every document, printed when the document is done."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from kvstream.api.collection import ask_each, remember_each, summarize_each
from kvstream.api.options import effective, require
from kvstream.cli.options.answers import OF_ANSWERS_ALONE
from kvstream.cli.options.many import Each
from kvstream.cli.options.model import refuse_revision
from kvstream.cli.options.option import typed
from kvstream.cli.options.reading import ReadingOptions
from kvstream.cli.options.types import NONE
from kvstream.cli.shared.interrupts import Interrupts
from kvstream.cli.shared.models import EXTRACTS, POCKET, demonstration
from kvstream.cli.shared.running import WITHHELD, can_be_live, quiet_libraries
from kvstream.errors import UsageError
from kvstream.events import DocumentDone, Outcome
from kvstream.reporters.citations import wrapped
from kvstream.reporters.collection import Collected, CollectedLines, CollectedLive
from kvstream.reporters.format import counted, json_line, visible

SOME_FAILED = 7
"""Exit code if some documents failed and others have results."""
INTERRUPTED = 130
ALONE = {
    "skim": "--skim is for one text",
    "memory": "--memory asks one memory",
    "follow": "--follow waits for more of one text",
    "report": "--report shows one text",
    "every": "--every answers while it reads one text",
    "checkpoint": "--checkpoint saves the reading of one text (with -o FOLDER the same command "
    "resumes a stopped run)",
    "stats": "--stats records the steps of one text",
    "dry_run": "--dry-run shows the sizes of one text",
}
"""Options that need a single text, and why."""


def read_each(
    ctx: click.Context,
    command: str,
    paths: Sequence[str],
    questions: Sequence[str],
    options: ReadingOptions,
    each: Each,
) -> int:
    """Read every document separately, report progress, and return the exit code."""
    for name, why in ALONE.items():
        if name in ctx.params and typed(ctx, name) and ctx.params[name] != NONE:
            raise click.UsageError(f"{why}; leave it out, or leave out --each.", ctx)
    if not paths:
        raise click.UsageError("Nothing to read: name a folder or files for --each.", ctx)
    refuse_revision(options.model)
    if each.spread:
        require("ray", "ray", "--workers" if each.workers is not None else "--ray")
    into = None if options.output in (None, _STDOUT) else options.output
    with ExitStack() as stack:
        quiet_libraries(options)
        reporter = _reporter(options)
        stack.callback(reporter.close)
        interrupts = stack.enter_context(Interrupts(reporter.tell))
        interrupts.then = "finishing the documents that are being read"
        if into is not None:
            interrupts.then += "; later the same command continues with the rest"
        if options.model == POCKET and not options.quiet:
            reporter.tell(EXTRACTS if command == "summarize" else demonstration(options))
        outcomes = _outcomes(
            command, paths, questions, options, each,
            {"into": into, "progress": reporter.note, "interrupted": interrupts},
        )  # fmt: skip
        interrupts.reading = True
        code, withheld = 0, False
        printed = options.as_json or (into is None and command != "remember")
        labels = len(questions) > 1, _compares(command, options)
        for outcome in outcomes:
            withheld |= any(r.get("withheld") is not None for r in outcome.records)
            # An answer that could not be written to its file goes to stdout.
            unwritten = not isinstance(outcome, DocumentDone) and bool(outcome.records)
            if printed or unwritten:
                with reporter.aside():
                    _print(outcome, as_json=options.as_json, labels=labels)
            reporter.note(outcome)
        reporter.finish(None if into is None else str(into))
        tally = reporter.tally
        if interrupts.pressed:
            if tally.left and not options.quiet:
                reporter.tell(_not_read(tally.left, into))
            return INTERRUPTED
        if tally.failed:
            code = SOME_FAILED if tally.done else tally.code
        return code or (WITHHELD if withheld else 0)


def _not_read(documents: int, into: Path | None) -> str:
    """Describe how many documents Ctrl-C left unread, and how to continue."""
    told = f"Interrupted: {counted(documents, 'document')} not read."
    if into is not None:
        return f"{told} The same command continues with the rest."
    return f"{told} With -o FOLDER, the same command continues with the rest."


def _compares(command: str, options: ReadingOptions) -> bool:
    """Return whether the answers of a document are of several methods."""
    return command == "compare" or len(options.methods) > 1


def _outcomes(
    command: str,
    paths: Sequence[str],
    questions: Sequence[str],
    options: ReadingOptions,
    each: Each,
    run: dict[str, Any],
) -> Iterator[Outcome]:
    several = _compares(command, options)
    if several and command in ("summarize", "remember"):
        raise UsageError(f"{command} uses one method, but --method names several; name one.")
    asked = effective(options.asked)
    for name in ("checkpoint", "checkpoint_every"):  # from the config file, for single texts
        asked.pop(name, None)
    found: dict[str, Any] = {
        **asked,
        **run,
        "model": options.model,
        "loading": dict(options.loading),
        "plain": options.plain,
        "max_unpacked": options.max_unpacked,
        "workers": each.workers,
        "ray": each.ray,
        "worker_memory": each.worker_memory,
    }
    if several:
        found["methods"] = options.methods
        found["set"] = {
            f"{method}.{name}": value
            for method, settings in options.settings.items()
            for name, value in settings.items()
        }
    else:
        one = options.of_method()
        found |= {"method": one["method"], "set": one["set"]}
    if command == "summarize":
        return summarize_each(list(paths), **found)
    if command == "remember":
        # The config file may set them for other commands.
        found = {name: v for name, v in found.items() if name not in OF_ANSWERS_ALONE}
        return remember_each(list(paths), questions=questions, **found)
    return ask_each(list(paths), questions=questions, **found)


def _print(outcome: Outcome, *, as_json: bool, labels: tuple[bool, bool]) -> None:
    """Print one document: a line of JSON, or its name and its answers."""
    if as_json:
        sys.stdout.write(json_line(outcome.to_json(), sys.stdout))
    elif outcome.records:
        terminal = sys.stdout.isatty()
        show = visible if terminal else str
        sys.stdout.write(show(f"==> {outcome.name} <==") + "\n")
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


def _reporter(options: ReadingOptions) -> Collected:
    if options.quiet or options.progress == "none":
        return Collected(sys.stderr)
    if options.progress == "plain" or not can_be_live():
        return CollectedLines(sys.stderr)
    return CollectedLive(sys.stderr)


_STDOUT = Path("-")
