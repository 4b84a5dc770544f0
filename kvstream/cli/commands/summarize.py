"""``kvstream summarize``: read the sources and write a summary."""

from __future__ import annotations

import click

from kvstream.cli.options.table import Options, reading_command
from kvstream.cli.shared import log_summaries
from kvstream.cli.shared.inputs import refuse_question, sources_argument, sources_or_usage
from kvstream.cli.shared.model_choice import summarizing
from kvstream.cli.shared.running import read


@reading_command("summarize", common=("every", "passages"))
@sources_argument
@log_summaries.as_option
@log_summaries.width_option
def command(sources: tuple[str, ...], kind: str, width: int | None, options: Options) -> int:
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
    refuse_question(sources, "ask it with kvstream ask.")
    options = summarizing(options.asking(command="summarize"))
    request, plain = options.request, options.request.plain
    if kind == "log":
        log_summaries.refuse_reading()
        if options.each:
            raise click.UsageError(
                "--each reads every file with the model; leave it out to summarize a log."
            )
    paths = () if options.each else sources_or_usage(sources)
    by_model = options.each or request.shards is not None
    if not by_model and log_summaries.is_log(paths, kind, plain=plain, follow=request.follow):
        return log_summaries.summarize(paths, options, width=width)
    if width is not None:
        raise click.UsageError(
            "--width has no effect, because a model reads this text; leave it out, or take the "
            "text for a log with --as log."
        )
    if options.each:
        from kvstream.cli.shared.each import read_each

        return read_each(sources, options)
    if kind == "auto" and not by_model:
        log_summaries.tell_unrecognized(paths, plain=plain)
    return read(paths, options)
