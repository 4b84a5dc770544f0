"""``python docs/research/lab/longbench.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kvstream.cli.app import run
from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.commands.bench import result_output
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option
from kvstream.cli.options.table import model_options


@click.command("longbench", cls=SectionedCommand)
@common.data_option(help="Records of LongBench or LongBench-E as JSON lines; repeatable.")
@option(
    "--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    required=True, section="Measurement", help="The dataset2prompt.json of LongBench.",
)  # fmt: skip
@common.limit_option("records")
@common.trials_seed_option
@common.case_options
@common.whole_option("the whole context")
@model_options
@common.result_options
def command(**values: Any) -> int:
    """Ask LongBench's questions with its own prompts, and score the answers with its metrics.

    The table has a row for each case and task; LongBench's average is the mean of a case's rows.

    \b
      python docs/research/lab/longbench.py --data hotpotqa.jsonl --data dureader.jsonl \\
          --prompts dataset2prompt.json --budget 4k -m OWNER/NAME
    """
    import random

    from kvstream.evaluation.records import Records
    from kvstream.evaluation.sweep import WHOLE
    from kvstream_lab.suites import longbench

    page = result_output.open_page(values)
    common.no_stdin(values["data"])
    settings = common.model_settings(values)
    asked = longbench.load(values["data"], values["prompts"])
    if values["limit"] is not None and values["limit"] < len(asked):
        asked = random.Random(values["seed"]).sample(asked, values["limit"])
    longbench.require(record.task for record in asked)
    lengths = [longbench.TASKS[record.task].max_tokens for record in asked]
    values["max_tokens"] = max(lengths, default=1)
    cases = common.cases_of(values, [WHOLE] * values["whole"])
    records = Records(values["save"])
    session = common.open_session(settings, verbose=values["verbose"])
    every = longbench.trials(session, asked, cases)
    total = len(asked) * len(cases)
    found, complete = result_output.measured(every, total, records, values, longbench.so_far)
    rows = longbench.rows(found)
    result_output.tell(page, "LongBench", settings, rows, _tables, as_json=values["json"])
    return 0 if complete else 130


def _tables(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report

    def percent(row: Any) -> str | None:
        if "score" not in row:
            return None
        interval = row.get("interval")
        around = f" ({100 * interval[0]:.0f}-{100 * interval[1]:.0f})" if interval else ""
        return f"{100 * row['score']:.1f}{around}"

    columns = [
        ("", lambda r: report.case_label(r, rows)),
        ("task", lambda r: r["task"]),
        ("budget", report.budget),
        ("records", lambda r: f"{r['n']:,}"),
        ("left out", lambda r: r.get("left_out")),
        ("score", percent),
    ]
    yield report.table("LongBench's scores, % (95% interval)", columns, rows)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], command))
