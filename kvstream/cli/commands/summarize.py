"""``kvstream summarize``: the same stream, a summary at the end."""

from __future__ import annotations

from typing import Any

import click

from kvstream.cli.shared import logs
from kvstream.cli.shared.arguments import sources_argument, sources_or_usage
from kvstream.cli.shared.options import (
    ONE_MODEL,
    Each,
    ReadingOptions,
    SectionedCommand,
    each_options,
    following_options,
    reading_options,
)
from kvstream.cli.shared.running import read


@click.command("summarize", cls=SectionedCommand, without=ONE_MODEL)
@sources_argument
@following_options
@logs.as_option
@logs.width_option
@each_options
@reading_options
@click.pass_context
def command(
    ctx: click.Context,
    sources: tuple[str, ...],
    follow: bool,
    every: Any,
    kind: str,
    width: int | None,
    each: Each | None,
    options: ReadingOptions,
) -> int:
    """Stream texts of any length through the model under the budget, and summarise.

    With --extract nothing is written by the model: the sentences or log lines that its memory held
    on to most are printed, in the order of the document and with their line numbers. The embedded
    pocket does so unless --no-extract is given.

    A log is not read by the model: it becomes a table of its templates, with counts, times, bursts,
    silences and drifts, errors first; --passages sets the rows (16, or what the screen holds). With
    -m a model writes a paragraph above it; sentences with a number or a name that is not in the
    table are removed. Several files of a log are read in the order of their times. --as prose
    leaves a log to the model.

    \b
      kvstream summarize report.txt -m ./my-model --budget 8k
      kvstream summarize server.log.gz --extract --passages 20
      kvstream summarize server.log --follow --every 30s
      kvstream summarize reports/ --each -o summaries/
    """
    if len(options.methods) > 1:
        raise click.UsageError("A summary is made by one method; --method names several.", ctx)
    if each is not None:
        from kvstream.cli.shared.each import read_each

        if kind == "log":
            raise click.UsageError(
                "--each lets the model read every file; a log is summarized without --each.", ctx
            )
        return read_each(ctx, "summarize", sources, (), options, each)
    paths = sources_or_usage(ctx, sources)
    if logs.is_log(ctx, paths, kind, text=options.text):
        return logs.summarize(
            paths,
            options,
            rows=options.asked.get("passages"),
            width=width,
            seconds=logs.seconds_of(every),
            follow=follow,
        )
    if width is not None:
        raise click.UsageError("--width has an effect on the page of a log alone.", ctx)
    return read(paths, (), options, every=every, follow=follow)
