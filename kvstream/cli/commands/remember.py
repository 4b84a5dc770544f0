"""``kvstream remember``: read once and save the memory in a file."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from kvstream.api.options import refuse_later_questions
from kvstream.cli.options.answers import OF_ANSWERS_ALONE
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.many import Each, Shards, each_options, shards_option
from kvstream.cli.options.memory import ONE_METHOD
from kvstream.cli.options.option import option
from kvstream.cli.options.reading import ReadingOptions, reading_options
from kvstream.cli.options.streams import ONE_MEMORY
from kvstream.cli.options.types import FileType
from kvstream.cli.shared import early, reports
from kvstream.cli.shared.arguments import refuse_question, sources_argument, sources_or_usage
from kvstream.cli.shared.models import announce, open_model, settled
from kvstream.cli.shared.output import OutputFile, refuse_clashes
from kvstream.cli.shared.recalling import open_memory
from kvstream.cli.shared.running import (
    check_checkpoint,
    check_files,
    kept_line,
    prepared,
    reading,
    reading_line,
    show_plan,
)
from kvstream.cli.shared.sources import check_shards, open_sources, tell_pages
from kvstream.errors import KvstreamError, SourceError
from kvstream.reporters import Reporters
from kvstream.reporters.format import json_text, size

if TYPE_CHECKING:
    from kvstream.api.memory import Memory

INTERRUPTED = 130
"""Exit code if Ctrl-C stopped the reading, so that the file is about a part of the text."""
CHECKPOINT = ("checkpoint", "checkpoint_every")
ANSWERS = "it does not answer. Use the option with kvstream ask --memory FILE."
EXPECT = (
    'No question was named: expect answers to some questions, and "not in the text" to others. '
    "Name questions with -Q if you know them: more answers are then right."
)
"""Shown if parts of the text were evicted and no question was named."""
WITHOUT = dict.fromkeys(OF_ANSWERS_ALONE, ANSWERS)
HELPS = {
    "method": ONE_METHOD,
    "max_tokens": "Room that the memory keeps for each later answer, in tokens. [default: 256]",
}


@click.command("remember", cls=SectionedCommand, without=WITHOUT, helps=HELPS)
@sources_argument
@option(
    "-Q", "--question", multiple=True, metavar="TEXT", section="Questions", envvar=(),
    help="A question that you will ask: memory keeps what it needs. Repeatable.",
)  # fmt: skip
@option(
    "--memory", type=FileType(), metavar="FILE", envvar=(), once=ONE_MEMORY,
    section="Questions", help="Read more text into the memory of this file.",
)  # fmt: skip
@shards_option
@each_options
@reading_options
@click.pass_context
def command(
    ctx: click.Context,
    sources: tuple[str, ...],
    question: tuple[str, ...],
    memory: Path | None,
    each: Each | None,
    shards: Shards | None,
    options: ReadingOptions,
) -> int:
    """Stream texts through the model under the budget, and save the memory in a file.

    The size of the file depends on the budget, not on the length of the text. kvstream ask --memory
    FILE and kvstream chat --memory FILE answer from it, without the sources. Name your questions
    with -Q if you know them: more answers are then right. Without -Q, kvstream chooses a method
    that needs no question (kvstream methods auto).

    \b
      kvstream remember book.txt -o book.kvs --budget 4k
      kvstream ask --memory book.kvs "Who hid the letter?"
      kvstream remember --memory book.kvs sequel.txt -o both.kvs
      kvstream remember letters/ --each -o memories/
    """
    if len(options.methods) > 1:
        raise click.UsageError(
            "remember uses one method, but --method names several; name one.", ctx
        )
    refuse_question(ctx, sources, "give it with -Q.")
    if each is not None:
        from kvstream.cli.shared.each import read_each

        if options.output is None:
            raise click.UsageError(
                "No output folder: name the folder for the memory files with -o FOLDER.", ctx
            )
        return read_each(ctx, "remember", sources, question, options, each)
    target = options.output or memory
    if target is None or str(target) == "-":
        raise click.UsageError("No output file: name the new memory file with -o FILE.kvs.", ctx)
    if memory is not None and question:
        raise click.UsageError(
            "The questions of a memory cannot change; give -Q with the first reading only.", ctx
        )
    if memory is not None and options.dry_run:
        raise click.UsageError(
            "--dry-run shows the sizes of a first reading; those of an existing memory are fixed.",
            ctx,
        )
    if any(not text.strip() for text in question):
        raise click.UsageError("A question is empty.", ctx)
    paths = sources_or_usage(ctx, sources)
    if shards is not None:
        shards.refuse_with(options, memory=memory)
        check_shards(paths)
    return remember(ctx, paths, question, memory, target, options, shards)


def remember(
    ctx: click.Context,
    paths: tuple[str, ...],
    questions: tuple[str, ...],
    base: Path | None,
    target: Path,
    options: ReadingOptions,
    shards: Shards | None = None,
) -> int:
    """Read `paths`, into the memory of `base` if given, write `target`; return the exit code."""
    from kvstream.api.files import check_writable

    others = {
        "--checkpoint": options.checkpoint, "--stats": options.stats, "--report": options.report,
    }  # fmt: skip
    check_files(replace(options, output=target), paths)
    refuse_clashes(others, {"--memory": base})
    check_writable(target)
    early.check(options)
    if base is None:
        refuse_later_questions(options.skim)
    with ExitStack() as stack:
        # -o names the memory file; printed output goes to stdout.
        output, reporter, interrupts = prepared(stack, replace(options, output=None))
        interrupts.then = "keeping what was read so far"
        sources = open_sources(paths, options, interrupts)
        pages = sources.check()
        if base is None:
            check_checkpoint(options, reporter)
            options = settled(options, alone=shards is not None)
            announce(reporter, options)
            model = open_model(options)
            asked = {k: v for k, v in options.of_method().items() if k not in WITHOUT}
            asked |= {"questions": questions, **(shards.asked() if shards else {})}
            if options.dry_run:
                plan = model.plan(sources, command="remember", **asked)
                reporter.close()
                show_plan(plan, options, output)
                return 0
            tell_pages(reporter, pages)
            with reading(interrupts):
                memory = model.read(
                    sources, progress=reporter.show, interrupted=interrupts, **asked
                )
        else:
            if _finished(base, target, options, sources):
                reporter.close()
                if not options.quiet:
                    reporter.tell(
                        f"{target} is complete: an earlier run wrote it and ended before it "
                        f"removed {options.checkpoint}, which is removed now. Nothing was read."
                    )
                return 0
            _, memory = open_memory(ctx, base, options, reporter)
            check_checkpoint(options, reporter)
            kept = {k: options.asked[k] for k in CHECKPOINT if k in options.asked}
            with reading(interrupts):
                memory.read(sources, progress=reporter.show, interrupted=interrupts, **kept)
        _write(memory, target, options, output, reporter)
        return INTERRUPTED if memory.interrupted else 0


def _write(
    memory: Memory,
    target: Path,
    options: ReadingOptions,
    output: TextIO | OutputFile,
    reporter: Reporters,
) -> None:
    """Save the memory and tell of it. Raises KvstreamError."""
    try:
        digest = memory.save(target)
    except KvstreamError as error:
        raise KvstreamError(f"{error} {saved_elsewhere(memory, target)}") from error
    if options.checkpoint is not None:  # after Ctrl-C, `save` leaves it
        options.checkpoint.unlink(missing_ok=True)
    if (page := reports.of(reporter)) is not None:
        page.add(memory)
    reporter.close()
    written = target.stat().st_size
    if options.as_json:
        output.write(json_text(summary(memory, target, digest, written)) + "\n")
        output.flush()
    if not options.quiet:
        about = ", ".join(f'"{q}"' for q in memory.questions) or "any question"
        reporter.tell(f"Wrote {target} ({size(written)}), for {about}.")
        reporter.tell(reading_line(memory))
        if memory.answering is not None:
            reporter.tell(kept_line(memory.answering))
        if not memory.questions and memory.evicted:
            reporter.tell(EXPECT)


def saved_elsewhere(memory: Memory, target: Path) -> str:
    """Write the memory to another place, because `target` failed, and return a message."""
    beside = [] if target.exists() and not target.is_file() else [target.parent]  # not in /dev
    for folder in (*beside, Path(tempfile.gettempdir())):
        place = None
        try:
            handle, name = tempfile.mkstemp(".kvs", f"{target.stem[:40]}.", folder)
            os.close(handle)
            place = Path(name)
            memory.save(place)
        except (OSError, KvstreamError):
            if place is not None:
                place.unlink(missing_ok=True)
            continue
        return f"The memory was written to {place} instead."
    return "No other place could take the memory either, and it is lost."


def _finished(base: Path, target: Path, options: ReadingOptions, sources: Any) -> bool:
    """Return whether an earlier run wrote `target` but did not remove its checkpoint.

    In that case remove the checkpoint. Raises SourceError if the sources have changed since.
    """
    path = options.checkpoint
    if path is None or not (path.exists() and target.exists() and base.exists()):
        return False
    from kvstream.api.files import finished_reading

    written = finished_reading(path, target)
    if written is None:
        return False
    if not written.ends_with(sources):
        raise SourceError(
            f"{path} belongs to a run that was finished, and the sources have changed since. "
            "Remove the file to read them."
        )
    path.unlink()
    return True


def summary(memory: Memory, target: Path, digest: str, written: int) -> dict[str, Any]:
    """Return what ``--json`` prints for a written memory."""
    record = memory.to_json()
    file = {"file": str(target), "bytes": written, "sha256": digest}
    return {**record, "memory": {**file, **record["memory"]}}
