"""``python docs/research/lab/suite.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from kvstream.cli.app import run
from kvstream.cli.commands.bench import result_output
from kvstream.cli.commands.bench.common_options import (
    NAMES,
    case_options,
    cases_of,
    heldout_option,
    model_settings,
    no_stdin,
    open_session,
    refuse_idle,
    result_options,
    text_files,
    text_option,
    trials_seed_option,
)
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option, typed
from kvstream.cli.options.table import model_options
from kvstream.cli.options.types import COUNT
from kvstream.errors import UsageError

DATA = {
    "babilong": "the folder of bAbI's files, such as tasks_1-20_v1-2/en",
    "qmsum": "a file of QMSum, such as data/ALL/jsonl/val.jsonl",
    "squality": "a file of SQuALITY, such as data/v1-3/txt/dev.jsonl",
}
"""Data that --data names, for the suites that need it."""
WHOLE_TEXTS = ("qmsum", "squality")
"""Suites whose texts have their own lengths."""
SUITES = ("ruler", "nolima", *DATA)
"""Names of the suites. A test compares them with kvstream_lab.suites."""


@click.command("suite", cls=SectionedCommand)
@click.argument("name", type=click.Choice(SUITES))
@option(
    "--tasks", type=NAMES, metavar="NAME,...", section="Measurement",
    help="Tasks of the suite. [default: all]",
)  # fmt: skip
@option(
    "--data", metavar="PATH", section="Measurement",
    help="The data of babilong (a folder), qmsum or squality (a file).",
)  # fmt: skip
@option(
    "--tokens", type=COUNT, default="4k", show_default=True, metavar="N",
    section="Measurement", help="Tokens of each text; not for qmsum and squality.",
)  # fmt: skip
@option(
    "--trials", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    section="Measurement",
    help="Texts for each task, with a question each; at most as many as the data have.",
)  # fmt: skip
@option(
    "--later", is_flag=True, section="Measurement",
    help="Read without the question and ask it afterwards, as after `remember`.",
)  # fmt: skip
@option(
    "--other", is_flag=True, section="Measurement",
    help="Read with another question about the text, and ask the real one afterwards.",
)  # fmt: skip
@text_option("that fills up the tasks")
@heldout_option
@trials_seed_option
@case_options
@model_options
@result_options
def command(**values: Any) -> int:
    """Run a suite of tasks, and print a table of scores: task by method, for each budget.

    ruler: numbers of one or several keys in other text (single, multikey, multivalue, multiquery),
    variables that get the value of another variable (tracking), the most common words of a list
    (common) and of made-up text (frequent). nolima: a sentence that shares no word with its
    question (places, trades).

    Three suites read data that you name with --data. babilong: the facts of a bAbI story in other
    text (qa1 to qa5). qmsum: whole meetings (general, specific). squality: whole short stories
    (plot, questions).

    A score is the share of the expected strings in the answer. babilong: the right word, without
    the other words that the task asks for. qmsum, squality: ROUGE-L. One more column is a baseline.
    `whole`: the whole text in a full KV cache, if the model was trained for that length.

    \b
      python docs/research/lab/suite.py ruler --budget 512,1k \\
          --method infinipot,streaming --save ruler.jsonl
      python docs/research/lab/suite.py nolima --later --budget 1k \\
          --method keydiff --set keydiff.pool=15
      python docs/research/lab/suite.py babilong --data tasks_1-20_v1-2/en --tasks qa1 \\
          --text books/ --budget 1k
      python docs/research/lab/suite.py squality --data dev.jsonl --other \\
          --budget 1k --method infinipot
    """
    from kvstream.evaluation.filler import Filler
    from kvstream.evaluation.records import Records
    from kvstream.evaluation.sweep import WHOLE
    from kvstream_lab.suites import LOADERS, running
    from kvstream_lab.suites import SUITES as TASKS

    page = result_output.opened(values)
    name, data = values["name"], values["data"]
    _refuse(name, values)
    mode = running.LATER if values["later"] else running.OTHER if values["other"] else running.KNOWN
    tasks = running.chosen(name, TASKS[name], values["tasks"])
    if name in LOADERS:
        tasks = LOADERS[name](data, tasks, values["seed"])
    texts = text_files(values["text"], heldout=values["heldout"])
    settings = model_settings(values)
    values["max_tokens"] = max(task.max_tokens for task in tasks)
    cases = cases_of(values, [WHOLE])
    records = Records(values["save"])
    filler = Filler.of(texts, seed=values["seed"])
    session = open_session(settings, verbose=values["verbose"])
    trials = running.trials(
        session, filler, name, tasks, cases,
        tokens=values["tokens"], count=values["trials"], seed=values["seed"], mode=mode,
    )  # fmt: skip
    total = sum(task.count(values["trials"]) for task in tasks) * len(cases)
    found, complete = result_output.measured(trials, total, records, values, running.so_far)
    rows = running.rows(found)
    result_output.tell(page, f"Suite: {name}", settings, rows, _tables, as_json=values["json"])
    return 0 if complete else 130


def _refuse(name: str, values: dict[str, Any]) -> None:
    """Raise UsageError for options that contradict each other, are missing or have no effect."""
    ctx = click.get_current_context()
    if values["later"] and values["other"]:
        raise UsageError("--later reads with no question, --other with another one; give one.")
    if name in DATA and not values["data"]:
        raise UsageError(f"{name} reads your copy of its data: give --data, {DATA[name]}.")
    if name in DATA:
        no_stdin([values["data"]])
    elif typed(ctx, "data"):
        raise UsageError(f"{name} makes its texts and reads no data; leave --data out.")
    for option_name in ("tokens", "text", "heldout"):
        if name in WHOLE_TEXTS and typed(ctx, option_name):
            raise UsageError(
                f"{name} reads whole documents, as long as they are; leave --{option_name} out."
            )
    refuse_idle(values)


def _tables(rows: list[Any]) -> Iterator[Any]:
    """Yield a table for each budget. Every table has the full KV cache, which has no budget."""
    from kvstream.evaluation import report
    from kvstream.evaluation.sweep import WHOLE

    if not rows:
        return
    own_lengths = rows[0]["suite"] in WHOLE_TEXTS
    digits = 1 if own_lengths else 0
    budgets = list(dict.fromkeys(r["budget"] for r in rows if r["method"] != WHOLE))
    for budget in budgets or [None]:
        shown = [r for r in rows if r["method"] == WHOLE or r["budget"] == budget]
        labels = list(dict.fromkeys(report.case_label(r, shown) for r in shown))
        lines: dict[str, Any] = {}
        for row in shown:  # only the full KV cache lacks texts that are too long for it
            line = lines.setdefault(row["task"], dict(row))
            if row["n"] > line["n"]:
                line |= {"n": row["n"], "tokens": row["tokens"]}
        for row in shown:
            line = lines[row["task"]]
            fewer = f" of {row['n']}" if row["n"] < line["n"] else ""
            mean, low, high = (f"{100 * row[key]:.{digits}f}" for key in ("score", "low", "high"))
            line[report.case_label(row, shown)] = f"{mean} ({low}-{high}){fewer}"

        def cell_of(label: str) -> Callable[[Any], Any]:
            return lambda task: task.get(label)

        columns: list[tuple[str, Callable[[Any], Any]]] = [
            ("", lambda line: line["task"]),
            ("texts", lambda line: str(line["n"])),
            *((label, cell_of(label)) for label in labels),
        ]
        if own_lengths:
            columns.insert(2, ("tokens", lambda line: f"{line['tokens']:,}"))
        every = list(lines.values())
        yield report.table(_title(every[-1], budget), columns, every)


def _title(row: Any, budget: int | None) -> str:
    """Return the title of a suite's table; `row` is its last row: the only task or the mean."""
    from kvstream.evaluation import report

    tokens = row["tokens"]
    size = f", budget {report.count(budget)} ({tokens / budget:.3g}:1)" if budget else ""
    known = "question asked later" if row["later"] else "question known"
    if row["other"]:
        known = "another question known"
    each, score = (" a text", "ROUGE-L, ") if row["suite"] in WHOLE_TEXTS else ("", "")
    return (
        f"{row['suite']}, {report.count(tokens)} tokens{each}{size}\n"
        f"{known}, {score}% (95% interval)"
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], command))
