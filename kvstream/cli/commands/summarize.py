"""``kvstream summarize``: the same stream, a summary at the end."""

from __future__ import annotations

from typing import Any

import click

from kvstream.cli.shared.arguments import sources_or_usage
from kvstream.cli.shared.options import (
    ReadingOptions,
    SectionedCommand,
    complete_files,
    following_options,
    reading_options,
)
from kvstream.cli.shared.running import read


@click.command("summarize", cls=SectionedCommand)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...", type=str, shell_complete=complete_files)
@following_options
@reading_options
@click.pass_context
def command(
    ctx: click.Context,
    sources: tuple[str, ...],
    follow: bool,
    every: Any,
    options: ReadingOptions,
) -> int:
    """Stream texts of any length through the model under the budget, and summarise.

    With --extract nothing is written by the model: the sentences or log lines that its memory held
    on to most are printed, in the order of the document and with their line numbers. The embedded
    pocket does so unless --no-extract is given.

    \b
      kvstream summarize report.txt -m ./my-model --budget 8k
      kvstream summarize server.log.gz --extract --passages 20
      kvstream summarize server.log --follow --every 30s
    """
    if len(options.methods) > 1:
        raise click.UsageError("A summary is made by one method; --method names several.", ctx)
    return read(sources_or_usage(ctx, sources), (), options, every=every, follow=follow)
