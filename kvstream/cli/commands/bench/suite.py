"""``kvstream bench suite``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import click

from kvstream.cli.commands.bench import output, pages
from kvstream.cli.commands.bench.options import (
    NAMES,
    case_options,
    cases_of,
    heldout_option,
    result_options,
    seed_option,
    text_files,
    text_option,
)
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.model import model_options
from kvstream.cli.options.option import option
from kvstream.cli.options.types import CountType
from kvstream.cli.shared import early
from kvstream.cli.shared.measuring import model_settings, open_session, say

SUITES = ("ruler", "nolima")
"""A test compares them with kvstream.evaluation.suites."""


@click.command("suite", cls=SectionedCommand)
@click.argument("name", type=click.Choice(SUITES))
@option(
    "--tasks", type=NAMES, metavar="NAME,...", section="Measurement",
    help="Tasks of the suite. [default: all]",
)  # fmt: skip
@option(
    "--tokens", type=CountType(), default="4k", show_default=True, metavar="N",
    section="Measurement", help="Tokens of each text.",
)  # fmt: skip
@option(
    "--trials", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    section="Measurement", help="Texts for each task.",
)  # fmt: skip
@option(
    "--later", is_flag=True, section="Measurement",
    help="Read without the question and ask it afterwards, as after `remember`.",
)  # fmt: skip
@text_option("that fills up the tasks")
@heldout_option
@seed_option
@case_options
@model_options
@result_options
def command(**values: Any) -> int:
    """Run a suite of tasks, and print a table of scores: task by method, for each budget.

    ruler: numbers of one or several keys in other text (single, multikey, multivalue, multiquery),
    variables that get the value of another variable (tracking), the most common words of a list
    (common) and of made-up text (frequent). nolima: a sentence that shares no word with its
    question (places, trades).

    A score is the share of the expected strings in the answer. Two more columns are baselines.
    `whole`: the whole text in a full KV cache, if the model was trained for that length. `bm25`:
    the passages with the question's words, as many as the budget holds.

    \b
      kvstream bench suite ruler --budget 512,1k --method infinipot,streaming --save ruler.jsonl
      kvstream bench suite nolima --later --budget 1k --method keydiff --set keydiff.pool=15
    """
    with ExitStack() as stack:
        return _run(pages.opened(stack, values), **values)


def _run(page: Any, **values: Any) -> int:
    early.require("rank_bm25", "words", "Ranking by words (BM25)")
    from kvstream.evaluation.filler import Filler
    from kvstream.evaluation.records import Records
    from kvstream.evaluation.suites import SUITES as TASKS
    from kvstream.evaluation.suites import running
    from kvstream.evaluation.sweep import BM25, WHOLE

    name = values["name"]
    tasks = running.chosen(name, TASKS[name], values["tasks"])
    texts = text_files(values["text"], heldout=values["heldout"])
    settings = model_settings(values)
    values["max_tokens"] = max(task.max_tokens for task in tasks)
    cases = cases_of(values, [WHOLE, BM25])
    records = Records(values["save"])
    filler = Filler.of(texts, seed=values["seed"])
    session = open_session(settings, verbose=values["verbose"])
    trials = running.trials(
        session, filler, name, tasks, cases,
        tokens=values["tokens"], count=values["trials"], seed=values["seed"], later=values["later"],
    )  # fmt: skip
    total = len(tasks) * values["trials"] * len(cases)
    found, complete = output.measured(trials, total, records, values, running.so_far)
    for message in dict.fromkeys(record["error"] for record in found if "error" in record):
        say(f"Left out: {message}")
    output.say_reused(records, values)
    rows = running.rows(found)
    pages.tell(page, f"Suite: {name}", settings, rows, _tables, as_json=values["json"])
    return 0 if complete else 130


def _tables(rows: list[Any]) -> Iterator[Any]:
    """A table for each budget; the whole text stands in all of them."""
    from kvstream.evaluation import report
    from kvstream.evaluation.sweep import WHOLE

    budgets = list(dict.fromkeys(r["budget"] for r in rows if r["method"] != WHOLE))
    for budget in budgets or [None]:
        shown = [r for r in rows if r["method"] == WHOLE or r["budget"] == budget]
        labels = list(dict.fromkeys(report.case_label(r, shown) for r in shown))
        lines = {r["task"]: {"task": r["task"], "n": r["n"]} for r in shown}
        for row in shown:
            cell = f"{100 * row['score']:.0f} ({100 * row['low']:.0f}-{100 * row['high']:.0f})"
            lines[row["task"]][report.case_label(row, shown)] = cell

        def cell_of(label: str) -> Callable[[Any], Any]:
            return lambda line: line.get(label)

        columns: list[tuple[str, Callable[[Any], Any]]] = [
            ("", lambda line: line["task"]),
            ("texts", lambda line: str(line["n"])),
            *((label, cell_of(label)) for label in labels),
        ]
        yield report.table(_title(rows[0], budget), columns, list(lines.values()))


def _title(row: Any, budget: int | None) -> str:
    from kvstream.evaluation import report

    tokens = row["tokens"]
    size = f", budget {report.count(budget)} ({tokens / budget:.3g}:1)" if budget else ""
    known = "question asked later" if row["later"] else "question known"
    return f"{row['suite']}, {report.count(tokens)} tokens{size}\n{known}, % (95% interval)"
