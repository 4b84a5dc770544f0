"""``kvstream bench needle``."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.commands.bench import result_output
from kvstream.cli.commands.bench.common_options import compared_option, measured_option
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.table import model_options
from kvstream.errors import UsageError

KINDS = ("passkey", "fact", "kv")


@click.command("needle", cls=SectionedCommand)
@measured_option(
    "--kind", type=click.Choice(KINDS), default="passkey",
    help="passkey: a number; fact: who, where, what, when or why; kv: a list of keys and values.",
)  # fmt: skip
@common.lengths_option(help="Tokens of the documents.")
@measured_option(
    "--depths", type=common.SHARES, default="0.1,0.5,0.9", metavar="SHARE,...",
    help="Position of the needle, from 0 (the beginning) to 1 (the end).",
)  # fmt: skip
@measured_option(
    "--trials", type=click.IntRange(min=1), default=10, metavar="N",
    help="Documents per length and depth.",
)  # fmt: skip
@measured_option(
    "--needles", type=click.IntRange(min=1), default=1, metavar="N",
    help="Needles per document, each with its question; one of them is at the depth.",
)  # fmt: skip
@common.text_option("to hide the needles in")
@click.argument("more", nargs=-1, metavar="[FILE]...")
@measured_option("--words", is_flag=True, help="Hide the needles in random made-up words.")
@common.heldout_option
@common.trials_seed_option
@common.tokens_option(default=24)
@common.case_options
@common.whole_option("the whole document")
@compared_option(
    "--near", is_flag=True,
    help="Also read only the text around the needle: what the model finds without eviction.",
)  # fmt: skip
@model_options
@common.result_options
def command(**values: Any) -> int:
    """Hide a sentence about an invented thing in long texts, and ask for it at the end.

    The needle is hidden in the texts of --text; more FILEs can follow that option. All methods get
    the same documents. A row of --json is one length and depth, with a 95% interval; --save keeps
    every answer.

    \b
      kvstream bench needle --lengths 8k,32k --budget 1k \\
          --method infinipot,streaming --text books/
      kvstream bench needle --kind fact --budget 1k \\
          --set infinipot.pool=1,7,15 --near
    """
    from kvstream.evaluation import needle
    from kvstream.evaluation.filler import Filler
    from kvstream.evaluation.records import Records
    from kvstream.evaluation.sweep import NEAR, WHOLE

    page = result_output.open_page(values)
    paths = [*values["text"], *values["more"]]
    if values["words"] and paths:
        raise UsageError("--words makes the text, and --text names one; give one of them.")
    common.refuse_idle(values)
    texts = common.text_files(paths, heldout=values["heldout"])
    settings = common.model_settings(values)
    whole, near = values.pop("whole"), values.pop("near")
    cases = common.cases_of(values, [WHOLE] * whole + [NEAR] * near)
    plan = needle.Plan(
        kind=values["kind"], lengths=values["lengths"], depths=values["depths"],
        trials=values["trials"], needles=values["needles"], seed=values["seed"],
    )  # fmt: skip
    records = Records(values["save"])
    filler = Filler.of(texts, words=values["words"])
    session = common.open_session(settings, verbose=values["verbose"])

    total = len(plan.lengths) * len(plan.depths) * plan.trials * len(cases)
    every = needle.trials(session, filler, plan, cases)
    results, complete = result_output.measured(every, total, records, values, needle.so_far)
    rows = needle.rows(results)
    pooled = needle.pooled(results)
    result_output.tell(
        page, f"Needles: {plan.kind}", settings, rows, partial(_tables, pooled),
        partial(_plots, pooled), as_json=values["json"],
    )  # fmt: skip
    return 0 if complete else 130


def _plots(pooled: list[Any], rows: list[Any]) -> Any:
    from kvstream.evaluation import report

    def label(row: Any) -> str:
        return report.case_label(row, rows)

    yield from result_output.lines(
        "Found, by length", pooled, ("tokens", lambda r: r["tokens"]),
        ("share right", lambda r: r.get("share")), label,
    )  # fmt: skip
    yield from result_output.bars(
        "Found, with 95% intervals", pooled,
        lambda r: f"{label(r)}, {report.count(r['tokens'])} tokens",
        lambda r: (r["share"], r["low"], r["high"]) if r["trials"] else None,
    )  # fmt: skip


def _tables(pooled: list[Any], rows: list[Any]) -> Any:
    from kvstream.evaluation import report

    labels = [report.case_label(row, rows) for row in rows]
    for label in dict.fromkeys(labels):
        yield report.grid(label, [r for r, own in zip(rows, labels, strict=True) if own == label])
    yield report.table(
        "All depths together",
        [
            ("", lambda r: report.case_label(r, rows)),
            ("budget", report.budget),
            ("tokens", lambda r: report.count(r["tokens"])),
            ("right", lambda r: f"{r['right']}/{r['trials']}"),
            ("share", lambda r: f"{r['share']:.0%}" if r["trials"] else None),
            (
                "95% interval",
                lambda r: f"{r['low']:.0%} to {r['high']:.0%}" if r["trials"] else None,
            ),
            ("F1", lambda r: f"{r['f1']:.0%}" if "f1" in r else None),
            ("digits", lambda r: None if r.get("digits") is None else f"{r['digits']:.0%}"),
            ("cited", lambda r: None if r.get("cited") is None else f"{r['cited']:.0%}"),
            ("kept tokens", lambda r: f"{r['retained']:,}" if "retained" in r else None),
            ("s a trial", lambda r: f"{r['seconds']:.1f}" if "seconds" in r else None),
        ],
        pooled,
    )
