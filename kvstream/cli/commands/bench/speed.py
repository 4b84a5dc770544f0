"""``kvstream bench speed``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from kvstream.api.options import Request
from kvstream.cli.commands.bench import common_options as common
from kvstream.cli.commands.bench import result_output
from kvstream.cli.commands.bench.common_options import measured_option
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.table import model_options
from kvstream.cli.shared.saying import say

if TYPE_CHECKING:
    from kvstream.api.model import Session


@click.command("speed", cls=SectionedCommand)
@common.lengths_option(help="Tokens to read.")
@measured_option(
    "--against", type=common.NAMES, default="transformers", metavar="NAME,...",
    help="transformers: a plain cache, at once and in chunks.",
)  # fmt: skip
@measured_option(
    "--runs", type=click.IntRange(min=1), default=3, metavar="N",
    help="Rounds in which all systems alternate; the table has medians.",
)  # fmt: skip
@measured_option(
    "--limit", type=click.FloatRange(min=0), default=120.0, metavar="SECONDS",
    help="Do not repeat a run that takes longer; extrapolate it if it is token by token.",
)  # fmt: skip
@measured_option(
    "--give-up", type=click.FloatRange(min=0), default=3600.0, metavar="SECONDS",
    help="Skip a run that would take longer, judged by the previous length.",
)  # fmt: skip
@common.text_option("to read")
@common.trials_seed_option
@common.tokens_option(default=24)
@common.case_options
@model_options
@common.result_options
def command(**values: Any) -> int:
    """Measure how fast kvstream reads texts under a budget, and how much memory it needs.

    All systems read the same tokens in turn, and then write --max-tokens tokens. The ratio compares
    a method with transformers and a cache that holds everything.

    \b
      kvstream bench speed --lengths 8k,32k --budget 4k \\
          --method infinipot,streaming
      kvstream bench speed -m MODEL --lengths 16k,64k \\
          --report speed.html
    """
    return compare(values)


def compare(values: dict[str, Any], opener: Callable[..., Session] = common.open_session) -> int:
    """Measure and print; `opener` opens the session of the model settings."""
    if values["save"] is not None:
        raise click.UsageError(
            "--save keeps answers; bench speed measures times in each run. Leave it out."
        )
    import random

    from kvstream.evaluation.filler import Filler
    from kvstream.evaluation.speed import systems, timing
    from kvstream.evaluation.speed.measure import Bench

    page = result_output.open_page(values)
    common.no_stdin(values["text"])
    against, answer = values["against"], values["max_tokens"]
    systems.check(against)
    settings = common.model_settings(values)
    cases = common.cases_of(values)
    session = opener(settings, verbose=values["verbose"])
    every = systems.systems(session, cases, against)
    total = len(values["lengths"]) * len(every) * (values["runs"] + 1)
    rows: list[Any] = []
    with result_output.progress(values["progress"], total, quiet=values["quiet"]) as advance:
        model = session.model
        flops = timing.measured_flops(model.device, model.layers[0].dtype)
        limits = values["limit"], values["give_up"]
        bench = Bench(session, every, values["runs"], *limits, flops, advance)
        plan = session.settle(Request((systems.QUESTION,), cases[0].run))
        question = plan.prompt.tail(systems.QUESTION)
        filler = Filler.of(values["text"])
        complete = True
        try:
            for tokens in sorted(values["lengths"]):
                rng = random.Random(f"{values['seed']} {tokens}")
                ids = session.tokenizer.encode(filler.cut(session.tokenizer, tokens, rng))[:tokens]
                task = systems.Task(session, ids, question, answer, bench.repeat_s)
                part = bench.measure(task)
                rows += part
                if values["json"]:
                    result_output.show(part, list, as_json=True)
        except KeyboardInterrupt:
            if not rows:
                raise
            say("Interrupted; these are the results so far.")
            complete = False
    result_output.tell(
        page, "Speed", settings, rows, lambda rows: _tables(rows, flops), _plots,
        as_json=False, printed=values["json"],
    )  # fmt: skip
    return 0 if complete else 130


PANELS = (
    ("time to read", "prefill_s", 1.0, "s"),
    ("KV cache, at most", "peak_kv_bytes", 1024**2, "MiB"),
    ("whole process, at most", "peak_rss_bytes", 1024**2, "MiB"),
    ("GPU memory, at most", "peak_device_bytes", 1024**2, "MiB"),
)


def _plots(rows: list[Any]) -> Any:
    ours = [r for r in rows if r["system"] == "kvstream"]
    for title, key, unit, sign in PANELS:
        part = [r for r in rows if r.get(key)]
        yield from result_output.lines(
            title[0].upper() + title[1:], part, ("tokens", lambda r: r["tokens"]),
            (sign, lambda r, key=key, unit=unit: r[key] / unit),  # type: ignore[misc]
            lambda r: _name(r, ours).strip(), log=True,
        )  # fmt: skip


def _tables(rows: list[Any], flops: float) -> Any:
    from kvstream.evaluation import report

    ours = [r for r in rows if r["system"] == "kvstream"]
    columns = [
        ("", lambda r: _name(r, ours)),
        ("tokens", lambda r: report.count(r["tokens"])),
        ("budget", lambda r: report.count(r["budget"]) if r["budget"] else None),
        ("seconds", lambda r: _number(r["prefill_s"], 2)),
        ("tokens/s", lambda r: _number(r["tokens_per_s"])),
        ("selection", lambda r: _percent(r.get("select_share"))),
        ("of peak", lambda r: _percent(r.get("peak_share"))),
        ("first token s", lambda r: _number(r["first_token_s"], 2)),
        ("answer tokens/s", lambda r: _number(r["decode_tokens_per_s"], 1)),
        ("peak KV", lambda r: _number(r["peak_kv_tokens"])),
        ("KV MB", lambda r: _number(r["peak_kv_bytes"], 1, 1e6)),
        ("process MB", lambda r: _number(r["peak_rss_bytes"], 0, 1e6)),
        ("GPU MB", lambda r: _number(r["peak_device_bytes"], 0, 1e6)),
    ]
    yield report.table("Reading", [(n, p) for n, p in columns if not n or any(map(p, rows))], rows)
    names = {"to_transformers": "to a plain cache"}
    ratios = dict.fromkeys(k.removeprefix("ratio_") for r in ours for k in r if "ratio_to" in k[:8])
    if ratios:
        yield report.table(
            "Ratio of time (cpu)",
            [
                ("", lambda r: _name(r, ours)),
                ("tokens", lambda r: report.count(r["tokens"])),
                *((names.get(name, name.replace("_", " ")), _ratio(name)) for name in ratios),
            ],
            ours,
        )
    for row in (r for r in rows if r.get("setting")):
        setting = ", ".join(f"{name} {value}" for name, value in row["setting"].items())
        yield f"{_name(row, ours)}, {report.count(row['tokens'])}: {setting}."
    yield from dict.fromkeys(
        f"{_name(r, ours).strip()}, {report.count(r['tokens'])}: {r['error']}"
        for r in rows if "error" in r
    )  # fmt: skip
    for row in (r for r in rows if "measured_tokens" in r):
        yield f"{_name(row, ours)} is extrapolated from {row['measured_tokens']:,} tokens."
    yield f"Measured peak of this machine in products of matrices: {flops / 1e9:,.0f} GFLOP/s."


def _ratio(name: str) -> Any:
    def cell(row: Any) -> str | None:
        if f"ratio_{name}" not in row:
            return None
        return f"{row[f'ratio_{name}']:.3g} ({row[f'cpu_ratio_{name}']:.3g})"

    return cell


def _name(row: Any, ours: list[Any]) -> str:
    """Return the label of a row; `ours` are kvstream's rows, which decide what it must contain."""
    from kvstream.evaluation.report import case_label, count
    from kvstream.evaluation.speed.systems import KINDS

    if row["system"] == "kvstream":
        return case_label(row, ours)
    if KINDS[row["system"]].of_case:
        return f"  {KINDS[row['system']].title} of {case_label(row, ours)}"
    several = len({r["budget"] for r in ours}) > 1
    budget = count(row["budget"]) if several and row["budget"] else None
    return ", ".join(filter(None, (KINDS[row["system"]].title, budget, row.get("mode"))))


def _number(value: float | None, digits: int = 0, unit: float = 1) -> str | None:
    return None if value is None else f"{value / unit:,.{digits}f}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
