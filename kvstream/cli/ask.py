"""``kvstream ask``: stream the sources through the model, answer questions."""

from __future__ import annotations

import click

from kvstream.cli.arguments import sources_or_usage, split_arguments
from kvstream.cli.compare import compare
from kvstream.cli.options import ReadingOptions, SectionedCommand, option, reading_options
from kvstream.cli.reading import Reading, read


@click.command("ask", cls=SectionedCommand, short_help="Answer a question about texts.")
@click.argument("arguments", nargs=-1, metavar="[SOURCE]... QUESTION", type=str)
@option(
    "-Q", "--question", multiple=True, metavar="TEXT", section="Questions", envvar=(),
    help="Ask this; may be given many times. All arguments are then sources.",
)  # fmt: skip
@reading_options
@click.pass_context
def command(
    ctx: click.Context,
    arguments: tuple[str, ...],
    question: tuple[str, ...],
    options: ReadingOptions,
) -> int:
    """Stream texts of any length through the model under the budget, and answer.

    A SOURCE is a file, a directory, or - for standard input; without one, text is read from a
    pipe. Files may be compressed (gzip, bzip2, xz). The last argument is the QUESTION, unless -Q
    is used.

    \b
      kvstream ask book.txt "Who hid the letter?" --budget 4k
      kvstream ask notes/ -Q "Who was ill?" -Q "When did they leave?" --json
      zcat huge.log.gz | kvstream ask "Why did the server stop?"
    """
    paths, questions = split_arguments(ctx, arguments, question)
    reading = Reading("ask", sources_or_usage(ctx, paths), questions)
    if len(options.runs) > 1:
        compare(reading, options)
        return 0
    return read(reading, options)
