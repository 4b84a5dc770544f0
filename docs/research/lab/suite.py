"""``python docs/research/lab/suite.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from kvstream.cli.app import run
from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.commands.bench import result_output
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option, typed
from kvstream.cli.options.table import model_options
from kvstream.cli.options.types import COUNT
from kvstream.errors import UsageError
from kvstream_lab.suites import SUITES, chosen, running


@click.command("suite", cls=SectionedCommand)
@click.argument("name", type=click.Choice(tuple(SUITES)))
@option(
    "--tasks", type=common.NAMES, metavar="NAME,...", section="Measurement",
    help="Tasks of the suite. [default: all]",
)  # fmt: skip
@option(
    "--data", metavar="PATH", section="Measurement",
    help="The folder of bAbI's files for babilong, such as tasks_1-20_v1-2/en.",
)  # fmt: skip
@option(
    "--tokens", type=COUNT, default="4k", metavar="N",
    section="Measurement", help="Tokens of each text.",
)  # fmt: skip
@option(
    "--trials", type=click.IntRange(min=1), default=10, metavar="N",
    section="Measurement", help="Texts for each task, with a question each.",
)  # fmt: skip
@common.text_option("that fills up the tasks")
@common.heldout_option
@common.trials_seed_option
@common.case_options
@model_options
@common.result_options
def command(**values: Any) -> int:
    """Run a suite of tasks, and print a table of scores: task by method, for each budget.

    ruler: numbers of one or several keys in other text (single, multikey, multivalue, multiquery),
    variables that get the value of another variable (tracking), the most common words of a list
    (common) and of made-up text (frequent). babilong: the facts of a bAbI story in other text (qa1
    to qa5), from data that you name with --data.

    A score is the share of the expected strings in the answer. babilong: the right word, without
    the other words that the task asks for. One more column is a baseline. `whole`: the whole text
    in a full KV cache, if the model was trained for that length.

    \b
      python docs/research/lab/suite.py ruler --budget 512,1k \\
          --method infinipot,streaming --save ruler.jsonl
      python docs/research/lab/suite.py babilong --data tasks_1-20_v1-2/en --tasks qa1 \\
          --text books/ --budget 1k
    """
    from kvstream.evaluation.filler import Filler
    from kvstream.evaluation.records import Records
    from kvstream.evaluation.sweep import WHOLE

    page = result_output.open_page(values)
    name, data = values["name"], values["data"]
    _refuse(name, values)
    tasks = chosen(name, values["tasks"], data)
    texts = common.text_files(values["text"], heldout=values["heldout"])
    settings = common.model_settings(values)
    values["max_tokens"] = max(task.max_tokens for task in tasks)
    cases = common.cases_of(values, [WHOLE])
    records = Records(values["save"])
    filler = Filler.of(texts)
    session = common.open_session(settings, verbose=values["verbose"])
    trials = running.trials(
        session, filler, name, tasks, cases,
        tokens=values["tokens"], count=values["trials"], seed=values["seed"],
    )  # fmt: skip
    total = values["trials"] * len(tasks) * len(cases)
    found, complete = result_output.measured(trials, total, records, values, running.so_far)
    rows = running.rows(found)
    result_output.tell(page, f"Suite: {name}", settings, rows, _tables, as_json=values["json"])
    return 0 if complete else 130


def _refuse(name: str, values: dict[str, Any]) -> None:
    """Raise UsageError for options that contradict each other, are missing or have no effect."""
    if name == "babilong" and not values["data"]:
        raise UsageError(
            "babilong reads your copy of its data: give --data, the folder of bAbI's files, such "
            "as tasks_1-20_v1-2/en."
        )
    if name == "ruler" and typed("data"):
        raise UsageError("ruler makes its texts and reads no data; leave --data out.")
    common.refuse_idle(values)


def _tables(rows: list[Any]) -> Iterator[Any]:
    """Yield a table for each budget. Every table has the full KV cache, which has no budget."""
    from kvstream.evaluation import report
    from kvstream.evaluation.sweep import WHOLE

    budgets = dict.fromkeys(r["budget"] for r in rows if r["method"] != WHOLE)
    for budget in budgets or ([None] if rows else []):
        shown = [r for r in rows if r["method"] == WHOLE or r["budget"] == budget]
        most: dict[str, int] = {}  # the full KV cache may lack texts that are too long for it
        for row in shown:
            most[row["task"]] = max(row["n"], most.get(row["task"], 0))
        lines = {task: {"task": task, "n": str(n)} for task, n in most.items()}
        for row in shown:
            fewer = f" of {row['n']}" if row["n"] < most[row["task"]] else ""
            mean, low, high = (f"{100 * row[key]:.0f}" for key in ("score", "low", "high"))
            cell = f"{mean} ({low}-{high}){fewer}"
            lines[row["task"]][report.case_label(row, shown)] = cell
        labels = dict.fromkeys(report.case_label(r, shown) for r in shown)
        columns: list[tuple[str, Callable[[Any], Any]]] = [
            (name, lambda line, key=key: line.get(key))  # type: ignore[misc]
            for name, key in (("", "task"), ("texts", "n"), *zip(labels, labels, strict=True))
        ]
        suite, tokens = rows[0]["suite"], rows[0]["tokens"]
        size = f", budget {report.count(budget)} ({tokens / budget:.3g}:1)" if budget else ""
        title = f"{suite}, {report.count(tokens)} tokens{size}\nquestion known, % (95% interval)"
        yield report.table(title, columns, list(lines.values()))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], command))
