"""Memory files at the command line: opened for a model, asked, and told apart from one another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kvstream.cli.shared import early
from kvstream.cli.shared.options import ReadingOptions
from kvstream.cli.shared.running import (
    WITHHELD,
    announce,
    check_files,
    open_session,
    plainly,
    prepared,
)
from kvstream.errors import UsageError
from kvstream.events import Answered, Event
from kvstream.reporters import Reporter
from kvstream.reporters.answer import AnswerWriter

if TYPE_CHECKING:
    from kvstream.memory.base import Memory
    from kvstream.memory.saving import Kind
    from kvstream.session.session import Session


def ask(ctx: click.Context, path: Path, questions: Sequence[str], options: ReadingOptions) -> int:
    """Answer from a memory file; returns the exit code."""
    from kvstream.answer.answering import answers

    if options.reread is not None:
        raise UsageError("--reread needs the sources; a memory file is asked without them.")
    if options.dry_run:
        raise UsageError("--dry-run tells what a reading would take; here nothing is read.")
    early.check(options)
    code = 0
    check_files(options, memory=path)
    with ExitStack() as stack:
        output, reporter, _ = prepared(stack, plainly(options))
        _, memory, kind = open_memory(ctx, path, options, reporter)
        if options.extract and memory.trace.passages is None:
            raise UsageError(f"{path} holds no passages, as its reading had not ended.")
        writer = AnswerWriter(output, as_json=options.as_json, labels=len(questions) > 1)
        stack.callback(writer.close)
        for event in of_memory(answers(memory, options.request("ask", questions)), kind):
            # An answer ends its line before anything is said about it.
            ended = isinstance(event, Answered)
            for each in (writer, reporter) if ended else (reporter, writer):
                each.show(event)
            if isinstance(event, Answered) and event.result.withheld is not None:
                code = WITHHELD
    return code


def of_memory(events: Iterator[Event], kind: Kind) -> Iterator[Event]:
    """The same events, with what memory was asked in the results."""
    for event in events:
        if isinstance(event, Answered):
            event = Answered(replace(event.result, memory=kind.to_json()))
        yield event


def open_memory(
    ctx: click.Context, path: Path, options: ReadingOptions, reporter: Reporter
) -> tuple[Session, Memory, Kind]:
    """A model and the memory of a file. Raises SourceError, ModelError, UsageError."""
    from kvstream.memory.saving import look

    kind = look(path)
    _refuse_changes(ctx, kind, options)
    if options.model.dtype == "auto":  # what is stored fits no other
        options = replace(options, model=replace(options.model, dtype=kind.model["dtype"]))
    announce(reporter, options)
    session = open_session(options)
    memory = session.recall(kind, options.run)
    # Nothing was read now; what it took is told with the file.
    memory.prefill_s = memory.reader.select_seconds = 0.0
    if not options.quiet:
        reporter.tell(kind.told())
    return session, memory, kind


def _refuse_changes(ctx: click.Context, kind: Kind, options: ReadingOptions) -> None:
    """What was settled when the memory was read cannot be typed otherwise. Raises UsageError."""
    state, run = kind.content.state, options.run
    budget = run.budget.tokens if run.budget is not None else None
    made: dict[str, tuple[Any, Any]] = {
        "budget": (state["sizes"]["budget"], budget),
        "method": (state["method"]["name"], run.method),
        "set": (state["method"]["typed"], dict(run.method_settings)),
        "keep": (state["run"]["keep"], run.keep),
        "start": (state["run"]["start"], run.start),
        "schedule": (state["run"]["growth"], run.growth),
        "chunk": (state["run"]["chunk"], run.chunk),
        "chunk_size": (state["run"]["chunk_size"], run.chunk_size),
        "system": (state["system"], options.system),
    }

    def is_typed(name: str) -> bool:
        return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE

    for name, (then, now) in made.items():
        by_preset = is_typed("preset") and name in ("set", "schedule", "chunk", "start")
        if (is_typed(name) or by_preset) and then != now:
            option = "--preset" if by_preset else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{kind.path} was made with {option} {_shown(then)}, and {_shown(now)} was given; "
                f"leave {option} out, or read the sources again."
            )


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items()) or "(nothing)"
    return "(nothing)" if value is None else str(value)
