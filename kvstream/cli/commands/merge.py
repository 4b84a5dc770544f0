"""``kvstream merge``: one memory of several files."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from kvstream.api.memory import inspect
from kvstream.cli.commands.remember import memory_target, summary
from kvstream.cli.options.table import Options, reading_command
from kvstream.cli.options.types import FileType, complete_files
from kvstream.cli.shared.model_choice import open_model
from kvstream.cli.shared.recalling import loaded_as, of_maker, tell_of_loading
from kvstream.cli.shared.running import check_early, check_files, kept_line, prepared
from kvstream.errors import UsageError
from kvstream.reporters.format import json_text, size
from kvstream.store import writing


@reading_command("merge")
@click.argument("files", nargs=-1, metavar="FILE FILE...", type=FileType(),
                shell_complete=complete_files)  # fmt: skip
def command(files: tuple[Path, ...], options: Options) -> None:
    """Join memory files into one, under one budget.

    The texts follow each other in the order of the files. The method of the files evicts entries
    until all fit the budget. Each file keeps a share in proportion to the tokens that it has read.
    Without --budget, the budget is the largest of the files. All files must have the same models,
    method and questions. Files of two models (--skim) also share the room for passages. An answer
    sees the entries of the source that has most of the question's words, unless the files were made
    for the question.

    \b
      kvstream merge first.kvs second.kvs -o both.kvs --budget 4k
      kvstream ask --memory both.kvs "Who hid the letter?"
    """
    if len(files) < 2:
        raise click.UsageError("Name at least two memory files.")
    target = memory_target(options.output)
    from kvstream.api.memories import refuse_repeats

    check_files(options, [str(path) for path in files])
    writing.check_writable(target)
    check_early(options)
    parts = [inspect(path).without_entries for path in files]
    refuse_repeats(parts)
    options = loaded_as(of_maker(str(parts[0].model["name"]), options), parts[0])
    budget = options.request.run.budget
    if budget is not None and budget.tokens is None:
        raise UsageError("merge takes a --budget in entries per head, such as 4k.")
    with ExitStack() as stack:
        output, reporter, _ = prepared(stack, replace(options, output=None, stats=None))
        alone = not any(file.answering for file in parts)  # otherwise another model answers
        model = open_model(options, reporter if alone else None, fixed=True)
        memory = model.merge(parts, None if budget is None else budget.tokens)
        tell_of_loading(reporter, memory, *parts)
        digest = memory.save(target)
        reporter.close()
        length = target.stat().st_size
        if options.json:
            record = {**summary(memory, target, digest, length), "command": "merge"}
            output.write(json_text(record) + "\n")
            output.flush()
        if not options.quiet:
            entries, most = memory.budget
            reporter.tell(
                f"Wrote {target} ({size(length)}): {memory.read_tokens:,} tokens of "
                f"{len(memory.sources)} sources, {memory.retained:,} kept, "
                f"{memory.evicted:,} evicted · budget {entries:,} entries ({size(most)})."
            )
            if memory.answering is not None:
                reporter.tell(kept_line(memory.answering))
