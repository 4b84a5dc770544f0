"""``kvstream bench speed``."""

from __future__ import annotations

from typing import Any

import click

from kvstream.cli.bench import output
from kvstream.cli.bench.options import (
    COUNTS,
    NAMES,
    case_options,
    cases_of,
    model_settings,
    no_stdin,
    result_options,
    seed_option,
    tokens_option,
)
from kvstream.cli.options import SectionedCommand, model_options, option


@click.command("speed", cls=SectionedCommand, short_help="Time and memory of reading.")
@option(
    "--lengths",
    type=COUNTS,
    default="8k",
    show_default=True,
    metavar="N,...",
    section="Measurement",
    help="Tokens to read.",
)
@option(
    "--against",
    type=NAMES,
    default="floor",
    show_default=True,
    metavar="NAME,...",
    section="Measurement",
    help="floor: same chunks and memory, no selection; floor-sdpa: with transformers' attention; "
    "transformers: a plain cache, at once and in chunks.",
)
@option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    section="Measurement",
    help="Rounds in which all take turns; medians count.",
)
@option(
    "--limit",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    section="Measurement",
    help="What takes longer is not repeated.",
)
@option(
    "--text",
    multiple=True,
    metavar="FILE",
    section="Measurement",
    help="Text to read: files or directories. [default: made-up prose]",
)
@seed_option
@tokens_option(24)
@case_options
@model_options
@result_options
def command(**values: Any) -> int:
    """Measure how fast texts are read under a budget, and what it takes in memory.

    All systems get the same tokens, in turns. The ratio to the floor is what a method costs
    beyond the model itself.

    \b
      kvstream bench speed --lengths 8k,32k --budget 4k --method infinipot,streaming
      kvstream bench speed --lengths 32k --chunk-size 1k --keep 1k --budget 2200 --chunk fixed
    """
    return _run(**values)


def _run(**values: Any) -> int:
    import random

    from kvstream.evaluation import report, speed
    from kvstream.evaluation.filler import Filler

    no_stdin(values["text"])
    settings = model_settings(values)
    every = speed.systems(cases_of(values), values["against"])
    if values["save"] is not None:
        raise click.UsageError("--save is for accuracy; a time is never taken from an earlier run.")
    filler = Filler.of(values["text"], seed=values["seed"])
    output.quiet_libraries(settings, verbose=values["verbose"])
    session = output.open_session(settings)
    rows: list[Any] = []
    total = len(values["lengths"]) * len(every) * (values["runs"] + 1)
    with output.progress(values["progress"], total, quiet=values["quiet"]) as advance:
        for tokens in values["lengths"]:
            text = filler.cut(
                session.tokenizer, tokens, random.Random(f"{values['seed']} {tokens}")
            )
            ids = session.tokenizer.encode(text)[:tokens]
            found = speed.measure(session, ids, every, values["runs"], values["limit"], advance)
            if values["json"]:
                output.show(found, list, as_json=True)
            rows += found
    if not values["json"]:
        output.show(rows, lambda: [_table(rows, report)], as_json=False)
    return 0


def _table(rows: list[Any], report: Any) -> Any:
    def ratio(key: str) -> Any:
        return lambda r: f"{r[key]:.2f}" if key in r else None

    columns = [
        ("", lambda r: _name(r, rows, report)),
        ("tokens", lambda r: report.count(r["tokens"])),
        ("budget", lambda r: report.count(r["budget"]) if r["budget"] else None),
        ("seconds", lambda r: f"{r['prefill_s']:.2f}"),
        ("tokens/s", lambda r: f"{r['tokens_per_s']:,.0f}"),
        ("selection", lambda r: _share(r["select_s"], r["prefill_s"])),
        ("peak KV", lambda r: f"{r['peak_kv_tokens']:,.0f}"),
        ("KV MB", lambda r: f"{r['peak_kv_bytes'] / 1e6:.1f}"),
        ("process MB", lambda r: f"{r['peak_rss_bytes'] / 1e6:.0f}"),
    ]
    names = {
        "ratio_to_floor": "to floor",
        "cpu_ratio_to_floor": "(cpu)",
        "ratio_to_floor_sdpa": "to SDPA",
        "cpu_ratio_to_floor_sdpa": "(cpu)",
        "ratio_to_transformers": "to plain",
        "cpu_ratio_to_transformers": "(cpu)",
    }
    columns += [(names[k], ratio(k)) for k in names if any(k in r for r in rows)]
    return report.table("Reading", columns, rows)


def _name(row: Any, rows: list[Any], report: Any) -> str:
    if row["system"] == "kvstream":
        return str(report.case_label(row, [r for r in rows if r["system"] == "kvstream"]))
    name = "  floor" if row["system"] == "floor" else f"  {row['system']}"
    return f"transformers, {row['mode']}" if row["system"] == "transformers" else name


def _share(part: float | None, whole: float) -> str | None:
    return None if part is None else f"{part / whole:.0%}"
