"""``kvstream remember``: read once and save the memory in a file."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvstream.api.memory import Memory
from kvstream.api.options import refuse_later_questions
from kvstream.cli.app import INTERRUPTED
from kvstream.cli.options.option import memory_option, option
from kvstream.cli.options.table import Options, reading_command
from kvstream.cli.shared import inputs, reports, running
from kvstream.cli.shared.model_choice import open_model, settled
from kvstream.cli.shared.recalling import open_memory
from kvstream.cli.shared.running import check_checkpoint, kept_line, prepared, reading_line
from kvstream.errors import KvstreamError, UsageError
from kvstream.reporters.format import Sink, json_text, size
from kvstream.reporters.plain import Teller
from kvstream.store import writing

EXPECT = (
    'No question was named: expect answers to some questions, and "not in the text" to others. '
    "Name questions with -Q if you know them: more answers are then right."
)
"""Shown if parts of the text were evicted and no question was named."""


@reading_command("remember")
@inputs.sources_argument
@option(
    "-Q", "--question", multiple=True, metavar="TEXT", section="Questions", envvar=(),
    help="A question that you will ask: memory keeps what it needs. Repeatable.",
)  # fmt: skip
@memory_option("Read more text into the memory of this file.")
def command(
    sources: tuple[str, ...], question: tuple[str, ...], memory: Path | None, options: Options
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
    inputs.refuse_question(sources, "give it with -Q.")
    if any(not text.strip() for text in question):
        raise click.UsageError("A question is empty.")
    options = options.asking(questions=question, command="remember")
    if options.each:
        from kvstream.cli.shared.each import read_each

        if options.output is None:
            raise click.UsageError(
                "No output folder: name the folder for the memory files with -o FOLDER."
            )
        return read_each(sources, options)
    target = memory_target(options.output or memory)
    if memory is not None and question:
        raise click.UsageError(
            "The questions of a memory cannot change; give -Q with the first reading only."
        )
    if memory is not None and options.dry_run:
        raise click.UsageError(
            "--dry-run shows the sizes of a first reading; those of an existing memory are fixed."
        )
    paths = inputs.sources_or_usage(sources)
    if options.request.shards is not None:
        if memory is not None:
            raise UsageError(
                "--memory is for one reading, but --shards makes several; leave one of them out."
            )
        inputs.check_shards(paths)
    return remember(paths, memory, target, options)


def remember(paths: tuple[str, ...], base: Path | None, target: Path, options: Options) -> int:
    """Read `paths`, into the memory of `base` if given, write `target`; return the exit code."""
    running.check_files(replace(options, output=target), paths)
    running.check_files(replace(options, output=None), memory=base)  # -o may replace it
    writing.check_writable(target)
    running.check_early(options)
    if base is None:
        refuse_later_questions(options.skim)
    before = None if base is None or not writing.same(base, target) else _version(target)
    with ExitStack() as stack:
        # -o names the memory file; printed output goes to stdout.
        output, reporter, interrupts = prepared(stack, replace(options, output=None))
        interrupts.then = "keeping what was read so far"
        sources = inputs.open_sources(paths, options, interrupts)
        pages = sources.check()
        if base is None:
            check_checkpoint(options, reporter)
            options = settled(options)
            model = open_model(options, reporter)
            request = replace(options.request, interrupted=interrupts)
            if options.dry_run:
                plan = model.plan_of(sources, request)
                reporter.close()
                running.show_plan(plan, options, output)
                return 0
            inputs.tell_pages(reporter, pages)
            events = model.memory_of(sources, request)
            memory = running.read_to_end(events, reporter, interrupts)
        else:
            memory = open_memory(base, options, reporter)
            check_checkpoint(options, reporter)
            request = replace(options.request, questions=(), interrupted=interrupts)
            running.read_to_end(memory.read_on(sources, request), reporter, interrupts)
        _write(memory, target, options, output, reporter, before)
        return INTERRUPTED if memory.interrupted else 0


def _version(path: Path) -> tuple[int, int] | None:
    """Return what changes when another program replaces a file; None without a file."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _write(
    memory: Memory, target: Path, options: Options, output: Sink, reporter: Teller,
    before: tuple[int, int] | None,
) -> None:  # fmt: skip
    """Write the memory. `before`: the version of `target` that it continues, if it replaces it."""
    try:
        if before is not None and _version(target) != before:
            raise KvstreamError(f"{target} was changed by another program in the meantime.")
        digest = memory.save(target)
    except KvstreamError as error:
        raise KvstreamError(f"{error} {saved_elsewhere(memory, target)}") from error
    if options.request.checkpoint is not None:  # after Ctrl-C, `save` leaves it
        options.request.checkpoint.unlink(missing_ok=True)
    if (page := reports.of(reporter)) is not None:
        page.add(memory)
    reporter.close()
    length = target.stat().st_size
    if options.json:
        output.write(json_text(summary(memory, target, digest, length)) + "\n")
        output.flush()
    if not options.quiet:
        about = ", ".join(f'"{q}"' for q in memory.questions) or "any question"
        reporter.tell(f"Wrote {target} ({size(length)}), for {about}.")
        reporter.tell(reading_line(memory))
        if memory.answering is not None:
            reporter.tell(kept_line(memory.answering))
        if not memory.questions and memory.evicted:
            reporter.tell(EXPECT)


def memory_target(path: Path | None) -> Path:
    """Return where to save a memory. Raises click's UsageError for none, and for stdout."""
    if path is None or str(path) == "-":
        raise click.UsageError("No output file: name the new memory file with -o FILE.kvs.")
    return path


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


def summary(memory: Memory, target: Path, digest: str, length: int) -> dict[str, Any]:
    """Return what ``--json`` prints for a written memory."""
    record = memory.to_json()
    file = {"file": str(target), "bytes": length, "sha256": digest}
    return {**record, "memory": {**file, **record["memory"]}}
