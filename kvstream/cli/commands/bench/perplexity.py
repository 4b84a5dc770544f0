"""``kvstream bench perplexity``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import click

from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.commands.bench import result_output
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.table import model_options
from kvstream.cli.options.types import COUNT


@click.command("perplexity", cls=SectionedCommand)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@common.measured_option(
    "--limit", type=COUNT, metavar="N", help="Maximum tokens per text. [default: all]"
)
@common.heldout_option
@common.trials_seed_option
@common.tokens_option(default=24, help=common.ROOM)
@common.case_options
@model_options
@common.result_options
def command(**values: Any) -> int:
    """Stream texts under the budget and measure the loss of every token, given the memory.

    A row is one method over all texts: perplexity, bits per byte, and perplexity by position (first
    1k tokens, second 1k, next 2k and so on). If memory helps, perplexity does not rise with
    position. Every row after the first also shows its increase over the first row on the same
    texts, with the 95% interval of the paired differences.

    \b
      kvstream bench perplexity book.txt --budget 1k \\
          --method infinipot,streaming,snapkv
    """
    from kvstream.evaluation import perplexity
    from kvstream.evaluation.records import Records

    page = result_output.open_page(values)
    paths = common.text_files(values["files"], heldout=values["heldout"])
    settings = common.model_settings(values)
    cases = common.cases_of(values)
    records = Records(values["save"])
    session = common.open_session(settings, verbose=values["verbose"])
    every = perplexity.trials(session, paths, cases, values["limit"])
    total = len(paths) * len(cases)
    results, complete = result_output.measured(every, total, records, values, perplexity.so_far)
    rows = perplexity.rows(results)
    result_output.tell(page, "Perplexity", settings, rows, _tables, _plots, as_json=values["json"])
    return 0 if complete else 130


def _plots(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report

    places = [
        {"label": report.case_label(row, rows), **part} for row in rows
        for part in row["by_position"]
    ]  # fmt: skip
    yield from result_output.lines(
        "By position", places, ("token", lambda p: p["to"]),
        ("perplexity", lambda p: p["perplexity"]), lambda p: str(p["label"]), log=True,
    )  # fmt: skip


def _change(row: Any) -> str | None:
    if "change" not in row:
        return None
    around = (
        f" ({row['change_low']:+.2%} to {row['change_high']:+.2%})" if "change_low" in row else ""
    )
    return f"{row['change']:+.2%}{around}"


def _tables(rows: list[Any]) -> Iterator[Any]:
    from kvstream.evaluation import report

    def at(place: int) -> Callable[[Any], str | None]:
        def pick(row: Any) -> str | None:
            parts = [p for p in row["by_position"] if p["from"] == place]
            return f"{parts[0]['perplexity']:.2f}" if parts else None

        return pick

    ends = {p["from"]: p["to"] for row in rows for p in row["by_position"]}
    columns: list[tuple[str, Callable[[Any], Any]]] = [
        ("", lambda r: report.case_label(r, rows)),
        ("budget", lambda r: report.count(r["budget"]) if r["budget"] else None),
        ("tokens", lambda r: f"{r['tokens']:,}" if r["texts"] else None),
        ("perplexity", lambda r: f"{r['perplexity']:.2f}" if r["texts"] else "left out"),
        (
            "95% interval",
            lambda r: None if r.get("low") is None else f"{r['low']:.2f} to {r['high']:.2f}",
        ),
        ("bits/byte", lambda r: f"{r['bits_per_byte']:.3f}" if r["texts"] else None),
    ]
    if len(rows) > 1:
        columns.append(("to the first", _change))
    columns += [(f"to {report.count(ends[start])}", at(start)) for start in sorted(ends)]
    yield report.table("Perplexity, overall and by position", columns, rows)
