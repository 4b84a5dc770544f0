"""``python docs/research/lab/retention.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from kvstream.cli.app import run
from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.commands.bench import result_output
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.option import option
from kvstream.cli.options.table import model_options
from kvstream.cli.options.types import COUNT

BY_STEP = {
    "hit_question": "Hit rate of the question",
    "hit_chunk": "Hit rate of the next chunk",
    "jaccard": "Overlap of two heads",
    "attention": "Attention of the next chunk to memory",
    "retention": "Retention ratio: memory that was there one step before",
    "age": "Age of memory: 0 is the end of the text, 100 its beginning",
}
"""Titles of the tables by eighths of the text."""


@click.command(
    "retention",
    cls=SectionedCommand,
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@option(
    "-Q", "--question", metavar="TEXT", section="Measurement", envvar=(),
    help="A question about the texts, known during the reading; its hit rate is measured after "
    "every step.",
)  # fmt: skip
@option(
    "--limit", type=COUNT, metavar="N", section="Measurement",
    help="Maximum tokens per text. [default: all]",
)  # fmt: skip
@common.heldout_option
@common.trials_seed_option
@common.tokens_option(default=24, help=common.ROOM)
@common.case_options
@model_options
@common.result_options
def command(**values: Any) -> int:
    """Stream texts under the budget, and measure what memory keeps after every step.

    The main measure is the hit rate: of the tokens that get the most attention in a full KV cache,
    the share that memory holds. To measure it, kvstream reads each text a second time in a full KV
    cache, up to the trained length. Other measures are the overlap of heads, the attention of the
    next chunk to memory, the share of memory that was there one step before, and the age of memory.
    A row is one method over all texts, with a list by step.

    \b
      python docs/research/lab/retention.py book.txt --limit 3k --budget 1k \\
          --method infinipot,snapkv,random
      python docs/research/lab/retention.py book.txt -Q "Who wrote the letter?" \\
          --limit 3k --budget 1k
    """
    from kvstream.evaluation.records import Records
    from kvstream_lab.retention import trials

    page = result_output.open_page(values)
    paths = common.text_files(values["files"], heldout=values["heldout"])
    settings = common.model_settings(values)
    cases = common.cases_of(values)
    trials.check(cases)
    records = Records(values["save"])
    session = common.open_session(settings, verbose=values["verbose"])
    every = trials.trials(session, paths, cases, values["limit"], values["question"])
    total = len(paths) * len(cases)
    found, complete = result_output.measured(every, total, records, values, trials.so_far)
    rows = trials.rows(found)
    result_output.tell(page, "Retention", settings, rows, _tables, _plots, as_json=values["json"])
    return 0 if complete else 130


def _plots(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report

    labeled = [(report.case_label(row, rows), row) for row in rows]
    steps = [{"label": label, **step} for label, row in labeled for step in row["steps"]]
    for name, title in BY_STEP.items():
        if any(step[name] is not None for step in steps):
            yield from result_output.lines(
                title, steps, ("tokens read", lambda s: s["tokens"]),
                ("share", lambda s, name=name: s[name]),  # type: ignore[misc]
                lambda s: str(s["label"]),
            )  # fmt: skip


def _tables(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report
    from kvstream_lab.retention.shares import PARTS

    if not rows:  # interrupted before the first text
        return
    label = ("", lambda r: report.case_label(r, rows))
    yield report.table(
        "Means over the steps from the first eviction on, % (95% interval)",
        [
            label,
            ("budget", lambda r: report.count(r["budget"]) if r["budget"] else None),
            ("texts", lambda r: str(r["texts"])),
            ("hits, question", _cell("hit_question")),
            ("hits, next chunk", _cell("hit_chunk")),
            ("by chance", _cell("chance", around=False)),
            ("heads alike", _cell("jaccard")),
            ("held by all", _cell("shared")),
            ("attention", _cell("attention")),
            ("2nd half minus 1st", _cell("rise")),
            ("prompt, sinks", _cell("attention_sinks")),
            ("retention", _cell("retention")),
            ("age", _cell("age")),
            ("spread", _cell("spread")),
        ],
        rows,
    )
    for name, title in BY_STEP.items():
        shown = [r for r in rows if any(s[name] is not None for s in r["steps"])]
        if shown:
            columns = [(f"to {i + 1}/{PARTS}", _eighth(name, i, PARTS)) for i in range(PARTS)]
            yield report.table(f"{title}, by eighths of the text, %", [label, *columns], shown)
    columns = [(f"{i + 1}/{PARTS}", _part(i)) for i in range(PARTS)]
    yield report.table("Where memory is from at the end, %", [label, *columns], rows)
    for row in rows:
        if row["compared"] < row["tokens"]:
            yield (
                f"{report.case_label(row, rows)}: hit rates cover {row['compared']:,} of "
                f"{row['tokens']:,} tokens, because the model was trained for no longer texts."
            )


def _cell(name: str, *, around: bool = True) -> Callable[[Any], str | None]:
    def pick(row: Any) -> str | None:
        interval = row.get(f"{name}_interval") if around else None
        told = _percent(row[name])
        if told is None or interval is None:
            return told
        return f"{told} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"

    return pick


def _eighth(name: str, part: int, parts: int) -> Callable[[Any], str | None]:
    """Return a cell: the mean over the steps that end in this part of the text."""

    def pick(row: Any) -> str | None:
        end = row["steps"][-1]["tokens"]
        inside = [
            s[name] for s in row["steps"]
            if (s["tokens"] - 1) * parts // end == part and s[name] is not None
        ]  # fmt: skip
        return _percent(sum(inside) / len(inside)) if inside else None

    return pick


def _part(number: int) -> Callable[[Any], str | None]:
    return lambda row: _percent(row["parts"][number])


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f}"


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], command))
