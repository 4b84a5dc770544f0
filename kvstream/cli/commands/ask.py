"""``kvstream ask``: read the sources with the model and answer questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.many import Each, Shards, each_options, shards_option
from kvstream.cli.options.reading import ReadingOptions, reading_options
from kvstream.cli.options.streams import following_options, memory_file
from kvstream.cli.shared.arguments import asking, sources_or_usage, split_arguments
from kvstream.cli.shared.running import read
from kvstream.errors import UsageError


@click.command("ask", cls=SectionedCommand)
@asking
@memory_file
@following_options
@shards_option
@each_options
@reading_options
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    question: tuple[str, ...],
    memory: Path | None,
    follow: bool,
    every: Any,
    each: Each | None,
    shards: Shards | None,
    options: ReadingOptions,
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
    paths, questions = split_arguments(ctx, arguments, question)
    if each is not None:
        from kvstream.cli.shared.each import read_each

        return read_each(ctx, "ask", paths, questions, options, each)
    if memory is not None:
        reads = paths or shards or follow or every is not None or options.checkpoint
        if reads or len(options.methods) > 1:
            raise click.UsageError(
                "--memory FILE takes no sources, no --follow, --every, --shards or --checkpoint "
                "and no second method. To read sources into it, use kvstream remember --memory.",
                ctx,
            )
        from kvstream.cli.shared.recalling import ask

        return ask(ctx, memory, questions, options)
    paths = sources_or_usage(ctx, paths)
    if len(options.methods) > 1:
        if follow or every is not None or shards is not None:
            raise UsageError(
                "--checkpoint, --follow, --every and --shards are for one method, not for several."
            )
        from kvstream.cli.commands.compare import compare

        return compare(paths, questions, options, command="ask")
    return read(paths, questions, options, every=every, follow=follow, shards=shards)
