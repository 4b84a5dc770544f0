"""``kvstream bench speed``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kvstream.api.options import Request
from kvstream.cli.commands.bench import output, pages
from kvstream.cli.commands.bench.options import (
    NAMES,
    case_options,
    cases_of,
    lengths_option,
    no_stdin,
    plot_option,
    result_options,
    seed_option,
    text_option,
    tokens_option,
)
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.model import model_options
from kvstream.cli.options.option import option, stack, typed
from kvstream.cli.shared import libraries
from kvstream.cli.shared.measuring import model_settings, open_session
from kvstream.cli.shared.saying import say
from kvstream.errors import UsageError

if TYPE_CHECKING:
    from kvstream.api.model import Session

speed_options = stack(
    lengths_option("Tokens to read."),
    option(
        "--against", type=NAMES, default="floor", show_default=True, metavar="NAME,...",
        section="Measurement",
        help="floor: same chunks and memory, no selection; floor-sdpa: the floor with "
        "transformers' "
        "attention; full: no eviction, with the fastest attention; transformers: a plain cache, at "
        "once and in chunks; kvpress: its SnapKV; llamacpp: the same GGUF file, with a full KV "
        "cache and with a sliding window; streamingllm: token by token; "
        "reading: from the file to tokens, no model.",
    ),
    option(
        "--kvpress-python", metavar="PATH", section="Measurement",
        help="A Python with kvpress, for --against kvpress; make kvpress sets one up.",
    ),
    option(
        "--llamacpp-python", metavar="PATH", section="Measurement",
        help="A Python with xllamacpp, for --against llamacpp; make llamacpp sets one up.",
    ),
    option(
        "--shape", metavar="NAME", section="Measurement",
        help="Random weights of a known shape instead of a model: qwen2.5-0.5b, llama-3.1-8b, "
        "mistral-7b, llama-2-7b-32k, ... (a wrong name lists all).",
    ),
    option(
        "--layers", type=click.IntRange(min=1), metavar="N", section="Measurement",
        help="Use only so many layers of the shape.",
    ),
    option(
        "--runs", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
        section="Measurement", help="Rounds in which all systems alternate; the table has "
        "medians.",
    ),
    option(
        "--limit", type=click.FloatRange(min=0), default=120.0, show_default=True,
        metavar="SECONDS", section="Measurement",
        help="Do not repeat a run that takes longer; extrapolate it if it is token by token.",
    ),
    option(
        "--give-up", type=click.FloatRange(min=0), default=3600.0, show_default=True,
        metavar="SECONDS", section="Measurement",
        help="Skip a run that would take longer, judged by the previous length; estimate plain "
        "caches from a fit.",
    ),
    text_option("to read"),
)  # fmt: skip


@click.command("speed", cls=SectionedCommand)
@speed_options
@seed_option
@tokens_option(24)
@case_options
@model_options
@plot_option("time and memory against length")
@result_options
@click.pass_context
def command(ctx: click.Context, **values: Any) -> int:
    """Measure how fast kvstream reads texts under a budget, and how much memory it needs.

    All systems read the same tokens in turn, and then write --max-tokens tokens. The ratio to the
    floor is the cost of a method beyond the model itself.

    \b
      kvstream bench speed --lengths 8k,32k --budget 4k \\
          --method infinipot,streaming
      kvstream bench speed --shape llama-3.1-8b --layers 1 \\
          --lengths 16k,64k --plot speed.png
    """
    if values["shape"] and ctx.get_parameter_source("model") is ParameterSource.COMMANDLINE:
        raise UsageError("--shape and --model name two models; give one of them.")
    if values["layers"] and not values["shape"]:
        raise UsageError("--layers is for a --shape; a model keeps all of its layers.")
    for name in ("kvpress", "llamacpp"):
        if typed(ctx, f"{name}_python") and name not in values["against"]:
            raise UsageError(
                f"--{name}-python is for --against {name}; add that, or leave --{name}-python out."
            )
    if values["save"] is not None:
        raise click.UsageError(
            "--save keeps answers; bench speed measures times in each run. Leave it out."
        )
    with ExitStack() as stack:
        return _run(pages.opened(stack, values), **values)


def _run(page: Any, **values: Any) -> int:
    from kvstream.evaluation import heatmap, report
    from kvstream.evaluation.speed import fit, llamacpp, outside, peak, plot, systems
    from kvstream.evaluation.speed.measure import Bench, Limits

    no_stdin(values["text"])
    against, answer = values["against"], values["max_tokens"]
    systems.check(against)
    python = other_python = None
    if "kvpress" in against:
        python = outside.KVPRESS.check(values["kvpress_python"])
    if "llamacpp" in against:
        other_python = llamacpp.LLAMACPP.check(values["llamacpp_python"])
    if values["plot"] is not None:
        heatmap.check(values["plot"])
    settings = model_settings(values)
    cases = cases_of(values)
    session = _open(values, settings)
    every = systems.systems(session, cases, against)
    total = len(values["lengths"]) * len(every) * (values["runs"] + 1)
    rows: list[Any] = []
    with ExitStack() as stack:
        kvpress = None
        if python is not None:
            kvpress = stack.enter_context(
                outside.Kvpress(
                    python, session.model, random=bool(values["shape"]), revision=settings.revision
                )
            )
        advance = stack.enter_context(
            output.progress(values["progress"], total, quiet=values["quiet"])
        )
        llama = None
        if other_python is not None:
            llama = stack.enter_context(llamacpp.Llamacpp(other_python, session.model))
        model = session.model
        flops = peak.measured_flops(model.device, model.layers[0].dtype)
        limits = Limits(values["limit"], values["give_up"])
        bench = Bench(session, every, values["runs"], limits, flops, advance)
        question = session.settle(Request((systems.QUESTION,), cases[0].run)).prompt.tail(
            systems.QUESTION
        )
        texts = _texts(session, values)
        complete = True
        try:
            for tokens in sorted(values["lengths"]):
                task = systems.Task(
                    session,
                    texts(tokens),
                    question,
                    answer,
                    limits.repeat_s,
                    kvpress=kvpress,
                    llamacpp=llama,
                )
                found = bench.measure(task)
                rows += found
                fit.extrapolate(rows)
                if values["json"]:
                    output.show(found, list, as_json=True)
        except KeyboardInterrupt:
            if not rows:
                raise
            say("Interrupted; these are the results so far.")
            complete = False
    if not values["json"]:
        output.show(rows, lambda: _tables(rows, report, flops), as_json=False)
    pages.write(
        page, "Speed", settings, rows, _tables(rows, report, flops), _plots(rows, plot, report)
    )
    if values["plot"] is not None:
        budgets = ", ".join(sorted({report.count(r["budget"]) for r in rows if r["budget"]}))
        plot.draw(rows, values["plot"], f"{session.model_name}, budget {budgets}")
    return 0 if complete else 130


def _open(values: dict[str, Any], settings: Any) -> Session:
    if not values["shape"]:
        return open_session(settings, verbose=values["verbose"])
    libraries.quiet(offline=settings.offline, verbose=values["verbose"])
    from kvstream.evaluation.speed.shapes import open_shape

    return open_shape(values["shape"], values["layers"], settings)


def _texts(session: Session, values: dict[str, Any]) -> Any:
    """Return a function that maps a number of tokens to the ids of a text of that length."""
    import random

    from kvstream.evaluation.filler import Filler

    filler = Filler.of(values["text"], seed=values["seed"])

    def ids(tokens: int) -> list[int]:
        text = filler.cut(session.tokenizer, tokens, random.Random(f"{values['seed']} {tokens}"))
        return session.tokenizer.encode(text)[:tokens]

    return ids


def _plots(rows: list[Any], plot: Any, report: Any) -> Any:
    ours = [r for r in rows if r["system"] == "kvstream"]
    for title, key, unit, sign in (*plot.PANELS, plot.DEVICE_PANEL):
        measured = [r for r in rows if r.get(key)]
        yield from pages.lines(
            title[0].upper() + title[1:], measured, ("tokens", lambda r: r["tokens"]),
            (sign, lambda r, key=key, unit=unit: r[key] / unit),  # type: ignore[misc]
            lambda r: _name(r, ours).strip(), log=True,
        )  # fmt: skip


def _tables(rows: list[Any], report: Any, flops: float) -> Any:
    ours = [r for r in rows if r["system"] == "kvstream"]
    columns = [
        ("", lambda r: _name(r, ours)),
        ("tokens", lambda r: report.count(r["tokens"])),
        ("budget", lambda r: report.count(r["budget"]) if r["budget"] else None),
        ("seconds", _seconds),
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
    names = {
        "to_floor": "to floor",
        "to_floor_sdpa": "to floor with SDPA",
        "to_full": "to all of it",
        "to_transformers": "to a plain cache",
        "to_kvpress": "to kvpress",
        "to_llamacpp_full": "to llama.cpp",
        "to_llamacpp_sliding": "to llama.cpp, sliding",
        "to_streamingllm": "to StreamingLLM",
        "to_reading": "to reading",
    }
    shown = [name for name in names if any(f"ratio_{name}" in r for r in ours)]
    if shown:
        yield report.table(
            "Ratio of time (cpu)",
            [
                ("", lambda r: _name(r, ours)),
                ("tokens", lambda r: report.count(r["tokens"])),
                *((names[name], _ratio(name)) for name in shown),
            ],
            ours,
        )
    for row in (r for r in rows if r.get("setting")):
        setting = ", ".join(f"{name} {value}" for name, value in row["setting"].items())
        yield f"{_name(row, ours)}, {report.count(row['tokens'])}: {setting}."
    for info in dict.fromkeys(r["system_info"] for r in rows if r.get("system_info")):
        yield f"llama.cpp says of this machine: {info.strip()}"
    for row in ours:
        for name in ("full", "sliding"):
            if f"decode_to_llamacpp_{name}" in row:
                ratio = row[f"decode_to_llamacpp_{name}"]
                yield (
                    f"{_name(row, ours)} answers {ratio:.3g} times as fast as llama.cpp, {name} "
                    "(processor time)."
                )
    told = dict.fromkeys(
        f"{_name(r, ours).strip()}, {report.count(r['tokens'])}: {r['error']}"
        for r in rows if "error" in r
    )  # fmt: skip
    yield from told
    for row in (r for r in rows if "text_mb_per_s" in r):
        yield (
            f"Reading and tokenizing {report.count(row['tokens'])} tokens: "
            f"{row['text_mb_per_s']:.1f} MB of text a second of processor time."
        )
    if any(r.get("fitted") for r in rows):
        yield "~ is fitted to the shorter lengths, not measured."
    if any("measured_tokens" in r for r in rows):
        yield "StreamingLLM was extrapolated: once its memory is full, every token costs the same."
    yield f"Measured peak of this machine in products of matrices: {flops / 1e9:,.0f} GFLOP/s."


def _ratio(name: str) -> Any:
    def cell(row: Any) -> str | None:
        if f"ratio_{name}" not in row:
            return None
        return f"{row[f'ratio_{name}']:.3g} ({row[f'cpu_ratio_{name}']:.3g})"

    return cell


def _name(row: Any, ours: list[Any]) -> str:
    from kvstream.evaluation.speed.plot import line_label

    label = line_label(row, ours)
    if row["system"].startswith("floor"):
        return f"  {label}"
    told = row.get("mode") if row["system"] != "llamacpp" else None
    return f"{label}, {told}" if told else label


def _seconds(row: Any) -> str | None:
    if row["prefill_s"] is None:
        return None
    return f"{'~' if row.get('fitted') else ''}{row['prefill_s']:,.2f}"


def _number(value: float | None, digits: int = 0, unit: float = 1) -> str | None:
    return None if value is None else f"{value / unit:,.{digits}f}"


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"
