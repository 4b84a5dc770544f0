"""``kvstream ask``: read the sources with the model and answer questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from kvstream.cli.app import INTERRUPTED
from kvstream.cli.options.option import memory_option
from kvstream.cli.options.table import Options, reading_command
from kvstream.cli.shared import recalling
from kvstream.cli.shared.inputs import asking, sources_or_usage, split_arguments
from kvstream.cli.shared.running import SOME_FAILED, read
from kvstream.errors import SourceError, UsageError


@reading_command("ask")
@asking
@memory_option(
    "Ask this memory file (from kvstream remember). For a folder, ask the memory files most "
    "relevant to the question.", folder=True,
)  # fmt: skip
def command(
    arguments: tuple[str, ...], question: tuple[str, ...], memory: Path | None, options: Options
) -> int:
    """Stream texts of any length through the model under the budget, and answer.

    A SOURCE is a file, a folder, or - for standard input. Without a SOURCE, kvstream reads the
    pipe. It reads HTML, PDF, EPUB, DOCX, mail, notebooks, captions and plain text, which can be
    compressed (gzip, bzip2, xz, zstd). The last argument is the QUESTION, unless you use -Q.

    \b
      kvstream ask book.txt "Who hid the letter?" --budget 4k
      kvstream ask notes/ -Q "Who was ill?" -Q "When did they leave?" --json
      zcat novel.txt.gz | kvstream ask "Who hid the letter?"
      kvstream ask --memory book.kvs "Who hid the letter?"
      kvstream ask letters/ "Who wrote it?" --each
      kvstream ask novel.txt "Who hid the letter?" --shards 4 --workers 2
    """
    paths, questions = split_arguments(arguments, question)
    options = options.asking(questions=questions)
    several = len(options.methods) > 1
    on_the_way = options.request.follow or options.request.every is not None
    code, answered = 0, False
    readings: list[tuple[Sequence[str], Options]] = [(paths, options)]
    if not (options.each and not paths):
        from kvstream.cli.shared.exact_answers import answer_exactly, follow_count, note_estimates

        alone = memory is None and not several and not options.dry_run
        if alone and options.request.follow:
            counted = follow_count(sources_or_usage(paths), options)
            if counted is not None:
                return counted
        if options.dry_run or memory or several or on_the_way:
            note_estimates(questions, plan=options.dry_run)
        else:
            code, readings, answered = answer_exactly(paths, options)
    if options.each:
        from kvstream.cli.shared.each import read_each

        for each in readings:
            if (code := max(code, read_each(*each))) == INTERRUPTED:
                break
        return SOME_FAILED if answered and code == SourceError.exit_code else code
    if not readings:
        return code
    [(sources, options)] = readings
    request = options.request
    if memory is not None:
        if sources or on_the_way or request.shards or request.checkpoint or several:
            raise click.UsageError(
                "--memory FILE takes no sources, no --follow, --every, --shards or --checkpoint "
                "and no second method. To read sources into it, use kvstream remember --memory."
            )
        return recalling.ask(memory, options)
    sources = sources_or_usage(sources)
    if several:
        if on_the_way or request.shards is not None or request.checkpoint is not None:
            raise UsageError(
                "--checkpoint, --follow, --every and --shards are for one method, not for several."
            )
        from kvstream.cli.commands.compare import compare

        return compare(sources, options.asking(command="ask"))
    return read(sources, options)
