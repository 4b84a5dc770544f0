"""``kvstream bench qa``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import click

from kvstream.api.options import require
from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.commands.bench import result_output
from kvstream.cli.commands.bench.common_options import measured_option
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.table import model_options
from kvstream.cli.options.types import COUNT
from kvstream.errors import UsageError


@click.command("qa", cls=SectionedCommand)
@common.data_option(help="Records as JSON lines, compressed or not; repeatable.")
@common.limit_option("records")
@measured_option(
    "--where", multiple=True, metavar="KEY=VALUE",
    help="Use only records with this value; repeatable.",
)  # fmt: skip
@measured_option(
    "--explicit", is_flag=True,
    help="Use only questions whose answer is stated in the text (FairytaleQA's explicit=true).",
)  # fmt: skip
@measured_option(
    "--elsewhere", is_flag=True,
    help="Also ask every question about another document, which does not answer it.",
)  # fmt: skip
@measured_option(
    "--brief/--no-brief", default=None,
    help="Ask for short phrases. [default: if all questions have answers, most of at most 5 words]",
)  # fmt: skip
@measured_option(
    "--within", type=COUNT, metavar="N", help="Hide each context in a text of N tokens."
)
@common.text_option("for --within")
@common.heldout_option
@common.result_option(
    "--by-attribute", is_flag=True,
    help="Add a row for each value of `attribute` in the records, or each task of LongBench.",
)  # fmt: skip
@common.trials_seed_option
@common.tokens_option(default=48)
@common.case_options
@common.whole_option("the context alone")
@model_options
@common.result_options
def command(**values: Any) -> int:
    """Ask the questions of a data set and score the answers.

    Records can have the form of SQuAD (context, question or questions, answers), LongBench, L-Eval
    or multiple choice (options and label; the most likely option counts). Exact match and F1 cover
    the questions that have an answer. The table also shows how many questions without an answer
    the model refuses (recognized), and how many of the others (refused).

    \b
      kvstream bench qa --data squad.jsonl.gz --budget 1k --limit 200
      kvstream bench qa --data squad.jsonl.gz --elsewhere --budget 1k
      kvstream bench qa --data tales.jsonl.gz --explicit --within 32k \\
          --text books/ --budget 1k
    """
    from kvstream.evaluation import qa
    from kvstream.evaluation.filler import Filler
    from kvstream.evaluation.records import Records
    from kvstream.evaluation.sweep import WHOLE

    page = result_output.open_page(values)
    require("rouge_score", "bench", "ROUGE")
    common.no_stdin(values["data"])
    if values["text"] and not values["within"]:
        raise UsageError(
            "--text is what --within hides the contexts in; add --within, or leave --text out."
        )
    texts = common.text_files(values["text"], heldout=values["heldout"])
    settings = common.model_settings(values)
    cases = common.cases_of(values, [WHOLE] * values["whole"])
    where = [*values["where"], *["explicit=true"] * values["explicit"]]
    items = qa.choose(
        values["data"], where, values["limit"], values["seed"], heldout=values["heldout"]
    )
    if values["elsewhere"]:
        items += qa.elsewhere(items, values["seed"])
    brief = qa.wants_phrases(items) if values["brief"] is None else values["brief"]
    cases = [replace(case, run=replace(case.run, brief=brief)) for case in cases]
    records = Records(values["save"])
    within = None
    if values["within"]:
        within = qa.Within(values["within"], Filler.of(texts))
    session = common.open_session(settings, verbose=values["verbose"])
    if within is not None:
        qa.check_within(session, items, within)
    total = len(items) * len(cases)
    every = qa.trials(session, items, cases, within, values["seed"])
    results, complete = result_output.measured(every, total, records, values, qa.so_far)
    rows = qa.rows(results, by=values["by_attribute"])
    result_output.tell(
        page, "Questions and answers", settings, rows, _tables, _plots, as_json=values["json"]
    )
    return 0 if complete else 130


NAMES = {
    "em": "EM", "f1": "F1", "rouge_l": "ROUGE-L", "choice": "choice", "refused": "refused",
    "recognised": "unanswerable recognized",
}  # fmt: skip
"""Names of the scores in tables."""


def _plots(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report

    def label(row: Any) -> str:
        budget = report.budget(row)
        case = report.case_label(row, rows) + (f", budget {budget}" if budget else "")
        return " · ".join(filter(None, (case, row.get("attribute"))))

    for key, name in NAMES.items():
        yield from result_output.bars(
            name, rows, label,
            lambda r, key=key: (  # type: ignore[misc]
                (r[key], *(r.get(f"{key}_interval") or (None, None))) if key in r else None
            ),
        )  # fmt: skip


def _tables(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report

    def percent(key: str) -> Callable[[Any], str | None]:
        def pick(row: Any) -> str | None:
            if key not in row:
                return None
            interval = row.get(f"{key}_interval")
            around = f" ({100 * interval[0]:.0f}-{100 * interval[1]:.0f})" if interval else ""
            return f"{100 * row[key]:.1f}{around}"

        return pick

    columns: list[tuple[str, Callable[[Any], Any]]] = [
        ("", lambda r: report.case_label(r, rows)),
        ("", lambda r: r.get("attribute", "")),
        ("budget", report.budget),
        ("questions", lambda r: f"{r['n']:,}"),
    ]
    if any("error" in row for row in rows):
        columns.append(("left out", lambda r: r.get("left_out")))
    columns += [(NAMES[k], percent(k)) for k in NAMES if any(k in r for r in rows)]
    yield report.table("Answers, % (95% interval)", columns, rows)
