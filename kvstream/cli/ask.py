"""``kvstream ask``: stream the sources through the model, answer questions."""

from __future__ import annotations

import os

import click

from kvstream.cli.options import ReadingOptions, SectionedCommand, option, reading_options
from kvstream.cli.reading import Reading, read, sources_or_usage


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
) -> None:
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
        from kvstream.cli.compare import compare

        compare(reading, options)
        return
    read(reading, options)


def split_arguments(
    ctx: click.Context, arguments: tuple[str, ...], questions: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which arguments are sources and which one is the question."""
    if not questions:
        if not arguments:
            raise click.UsageError("No question: give it as the last argument or with -Q.", ctx)
        *paths, last = arguments
        if not paths and os.path.exists(last):
            raise click.UsageError(
                f"{last!r} is a file, so there is no question: add it as the last argument "
                "(or give it with -Q, if this is the question).",
                ctx,
            )
        arguments, questions = tuple(paths), (last,)
    if any(not text.strip() for text in questions):
        raise click.UsageError("A question is empty.", ctx)
    return arguments, questions
