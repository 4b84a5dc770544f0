"""``python docs/research/lab/summary.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from kvstream.api.options import require
from kvstream.cli.app import run
from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.commands.bench import result_output
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option, typed
from kvstream.cli.options.table import model_options
from kvstream.errors import UsageError

ROUGE = {"rouge_1": "ROUGE-1", "rouge_2": "ROUGE-2", "rouge_l": "ROUGE-L"}


@click.command("summary", cls=SectionedCommand)
@common.data_option(
    help="Records as JSON lines: text, and questions with summaries (SQuALITY) or a summary."
)
@common.limit_option("texts")
@option(
    "--extract/--no-extract", default=None, section="Measurement",
    help="Use the passages that memory retains best. [default: what the model does best]",
)  # fmt: skip
@option(
    "--passages", type=click.IntRange(min=1), default=10, metavar="N",
    section="Measurement", help="Number of passages that --extract uses.",
)  # fmt: skip
@common.trials_seed_option
@common.tokens_option(default=512)
@common.case_options
@model_options
@common.result_options
def command(**values: Any) -> int:
    """Summarize texts under the budget and compare with human summaries by ROUGE.

    Each row also has the score of a baseline: the beginning of the text, cut to as many words.

    \b
      python docs/research/lab/summary.py --data squality_dev.jsonl.gz --budget 1k \\
          --method infinipot,random
    """
    from kvstream.evaluation.records import Records
    from kvstream_lab import summary

    page = result_output.open_page(values)
    require("rouge_score", "bench", "ROUGE")
    common.no_stdin(values["data"])
    if values["extract"] is False and typed("passages"):
        raise UsageError("--passages has no effect with --no-extract; leave one of them out.")
    settings = common.model_settings(values)
    cases = common.cases_of(values)
    stories = summary.load(values["data"], limit=values["limit"], seed=values["seed"])
    records = Records(values["save"])
    session = common.open_session(settings, verbose=values["verbose"])
    wanted = values["extract"]
    extract = values["passages"] if (session.default_extract if wanted is None else wanted) else 0
    total = len(stories) * len(cases)
    every = summary.trials(session, stories, cases, extract)
    found, complete = result_output.measured(every, total, records, values, summary.so_far)
    rows = summary.rows(found)
    result_output.tell(page, "Summaries", settings, rows, _tables, _plots, as_json=values["json"])
    return 0 if complete else 130


def _plots(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report

    for key, name in ROUGE.items():
        yield from result_output.bars(
            f"{name}, with 95% intervals", rows, lambda r: report.case_label(r, rows),
            lambda r, key=key: (  # type: ignore[misc]
                r[key], *(r.get(f"{key}_interval") or (None, None))
            ),
        )  # fmt: skip


def _tables(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report

    def score(key: str) -> Callable[[Any], str]:
        def pick(row: Any) -> str:
            interval = row.get(f"{key}_interval") if key in ROUGE else None
            around = f" ({100 * interval[0]:.1f}-{100 * interval[1]:.1f})" if interval else ""
            return f"{100 * row[key]:.1f}{around}"

        return pick

    columns: list[tuple[str, Callable[[Any], Any]]] = [
        ("", lambda r: report.case_label(r, rows)),
        ("budget", lambda r: report.count(r["budget"]) if r["budget"] else None),
        ("n", lambda r: str(r["n"])),
        ("words", lambda r: f"{r['words']:.0f}"),
    ]
    for key, name in ROUGE.items():
        columns += [(name, score(key)), ("lead", score(f"lead_{key}"))]
    yield report.table("Summaries, F-measure in % (95% interval), and the lead's", columns, rows)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], command))
