"""``kvstream summarize``: read the sources and write a summary."""

from __future__ import annotations

from typing import Any

import click

from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.many import Each, Shards, each_options, shards_option
from kvstream.cli.options.memory import ONE_METHOD
from kvstream.cli.options.model import ONE_MODEL, model_help
from kvstream.cli.options.reading import ReadingOptions, reading_options
from kvstream.cli.options.streams import following_options
from kvstream.cli.shared import log_summaries
from kvstream.cli.shared.arguments import refuse_question, sources_argument, sources_or_usage
from kvstream.cli.shared.models import summarizing
from kvstream.cli.shared.running import read
from kvstream.cli.shared.saying import say

HELPS = {
    "method": ONE_METHOD,
    "model": model_help("pocket"),
    "passages": "Number of passages that --extract prints, or of rows on the page of a log. "
    "[default: 10 passages; 16 rows, or as many as fit the screen]",
}
COMMON = ("every", "passages")
WITHOUT = {
    **ONE_MODEL,
    "brief": "a summary is not a short phrase. Limit it with --max-tokens.",
    "strict": "kvstream checks answers, not summaries. Leave it out.",
}


@click.command("summarize", cls=SectionedCommand, without=WITHOUT, helps=HELPS, common=COMMON)
@sources_argument
@following_options
@log_summaries.as_option
@log_summaries.width_option
@shards_option
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
    shards: Shards | None,
    options: ReadingOptions,
) -> int:
    """Stream texts of any length through the model under the budget, and summarize them.

    With --extract, kvstream prints the sentences or lines that memory retains best, in their order
    and with line numbers, instead of a written summary. With pocket this is the default
    (--no-extract).

    For a log, kvstream needs no model. It lists the templates of the lines with counts, times,
    bursts, silences and drifts, errors first. --passages sets the number of rows (16, or as many as
    fit the screen). If -m names another model than pocket, that model writes a paragraph above the
    list; kvstream removes sentences that do not cite rows with all of their numbers and names.
    kvstream reads several files of a log in the order of their timestamps. With --as prose the
    model reads the log.

    \b
      kvstream summarize report.txt -m ./my-model --budget 8k
      kvstream summarize server.log.gz --extract --passages 20
      kvstream summarize server.log --follow --every 30s
      kvstream summarize reports/ --each -o summaries/
    """
    if len(options.methods) > 1:
        raise click.UsageError(
            "summarize uses one method, but --method names several; name one.", ctx
        )
    refuse_question(ctx, sources, "ask it with kvstream ask.")
    options = summarizing(options)
    if kind == "log":
        log_summaries.refuse_reading(ctx)
    if each is not None and kind == "log":
        raise click.UsageError(
            "--each reads every file with the model; leave it out to summarize a log.", ctx
        )
    paths = () if each is not None else sources_or_usage(ctx, sources)
    by_model = each is not None or shards is not None
    if not by_model and log_summaries.is_log(ctx, paths, kind, plain=options.plain, follow=follow):
        return log_summaries.summarize(
            paths,
            options,
            rows=options.asked.get("passages"),
            width=width,
            every=log_summaries.in_time(every),
            follow=follow,
        )
    if width is not None:
        raise click.UsageError(
            "--width has an effect only on the page of a log; --as log takes the text for one.", ctx
        )
    if kind == "auto" and not by_model:
        told = log_summaries.unrecognized(ctx, paths, plain=options.plain)
        if told:
            say(told)
    if each is not None:
        from kvstream.cli.shared.each import read_each

        return read_each(ctx, "summarize", sources, (), options, each)
    return read(paths, (), options, every=every, follow=follow, shards=shards)
