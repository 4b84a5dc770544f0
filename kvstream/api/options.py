"""Keywords of the Python API, and the request made from them.

The keywords are the options of the table (`kvstream.settings`, `kvstream.run.request`); a test
compares them. `kvstream ask --help-all` describes each.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from kvstream.api.checks import kind, path_of, questions_of, settings_of
from kvstream.engine.budget import SMALLEST_FREE
from kvstream.errors import BudgetError, UsageError, hint
from kvstream.methods.automatic import AUTO as AUTO
from kvstream.methods.automatic import AUTOMATIC as AUTOMATIC
from kvstream.methods.automatic import QUESTIONS_LEARNED as QUESTIONS_LEARNED
from kvstream.methods.automatic import SETTINGS, choose
from kvstream.methods.names import method_names, plugins
from kvstream.run.request import Intervals as Intervals
from kvstream.run.request import Request as Request
from kvstream.run.request import never
from kvstream.settings import Budget, CommandName, ModelSettings, RunSettings, table

WORDS, SELF = "words", "self"
"""Values of `skim` that name no other model: the words of the questions alone choose what the model
reads of a long text, or the model itself reads all of it first."""
PASSAGES_METHOD = "passages"
"""Method that keeps passages instead of KV entries."""
TABLE = {**table(RunSettings), **table(Request)}
"""The options of a reading by name."""
PER_ANSWER = tuple(name for name, row in TABLE.items() if row.per_answer)
"""Options that may differ between the answers of a memory."""
SAMPLING = {name: row.default for name, row in TABLE.items() if "temp" in row.needs}
"""Options without effect at temperature 0, and their defaults."""


class ModelOptions(TypedDict, total=False):
    """How a model is loaded."""

    skim: str | os.PathLike[str] | None
    revision: str | None
    offline: bool
    device: str
    dtype: str
    kv_dtype: str
    attn: str
    threads: int | None
    quantize: str | None
    max_weights: int | str | None
    trust_remote_code: bool
    quiet: bool


class AnswerOptions(TypedDict, total=False):
    """How answers are generated."""

    max_tokens: int | str
    temp: float
    top_p: float
    top_k: int
    repetition_penalty: float
    brief: bool


class ShownOptions(TypedDict, total=False):
    """What an answer consists of."""

    extract: bool | None
    passages: int
    strict: bool


class MemoryOptions(AnswerOptions, total=False):
    """How a text is read under a budget."""

    budget: int | str | Budget | None
    method: str
    set: Mapping[str, object]
    """Settings of the method, as ``{"infinipot.alpha": 0.5}``."""
    preset: Literal["paper"] | None
    keep: int | str | None
    start: int | str | None
    schedule: str
    chunk: str
    chunk_size: int | str | None
    seed: int
    system: str | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int | str
    command: CommandName
    """The command named in results."""
    thin: Literal["auto", "off"]
    interrupted: Callable[[], bool]
    """Called between two chunks; True ends the reading early."""


class ReadOptions(MemoryOptions, ShownOptions, total=False):
    """How a text is read, and how questions about it are answered."""

    every: int | str | Intervals | None


class FileOptions(TypedDict, total=False):
    """How files are read."""

    plain: bool
    """Read files of any format as UTF-8 text."""
    max_unpacked: int | str
    """Refuse a compressed file that unpacks to more bytes; the default is ``"16GB"``."""
    workers: int | None
    """Read this many documents or parts at once, each in its own process (extra ``ray``)."""
    worker_memory: int | str | None
    """Bytes of RAM that a worker reserves; by default an estimate from the model's files."""


class SourceOptions(FileOptions, total=False):
    """How sources are read."""

    follow: bool
    only: str | None
    since: str | None
    until: str | None
    shards: int | None


_KNOWN = frozenset({*ReadOptions.__annotations__, *SourceOptions.__annotations__})


def model_settings(model: str, options: Mapping[str, Any]) -> ModelSettings:
    """Return the settings of a model. Raises UsageError."""
    check_options(options, (*ModelOptions.__annotations__, "like"))
    values = {k: v for k, v in options.items() if k != "skim"}
    return ModelSettings(model=model, **values_of(values, table(ModelSettings)))


def skim_settings(answering: ModelSettings, skim: str | None) -> ModelSettings | None:
    """Return the settings of the skimming model, or None without one. Raises UsageError."""
    if skim in (None, WORDS, SELF, AUTO):
        return None
    if skim == "none":  # of the command line
        raise UsageError(f"skim= is the name of a model, {WORDS!r}, {SELF!r} or None, not 'none'.")
    fresh = ModelSettings(model=skim)
    same = ("device", "threads", "offline", "attn", "trust_remote_code", "quiet")
    return replace(fresh, **{name: getattr(answering, name) for name in same})


def check_options(options: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise UsageError for an option that is not among those known, and for an array."""
    for name, value in options.items():
        if getattr(value, "ndim", 0):  # comparing it is an error of numpy or torch
            raise UsageError(f"{name}= takes one value, not {kind(value)}.")
    unknown = sorted(options.keys() - set(names))
    if unknown:
        if unknown[0] in ModelOptions.__annotations__:
            raise UsageError(f"{unknown[0]}= is an option of kvstream.load, not of a reading.")
        raise UsageError(f"There is no option {unknown[0]!r}.{hint(unknown[0], names)}")


def values_of(options: Mapping[str, Any], rows: Mapping[str, Any] = TABLE) -> dict[str, Any]:
    """Return the options with the values that their rows make of them. Raises UsageError."""
    values = {}
    for name, value in options.items():
        parse = rows[name].parse if name in rows and value is not None else None
        if parse is Path:
            value = path_of(name, value)
        values[name] = value if parse is None else parse(value)
    return values


def beside_skimming(request: Request) -> str | None:
    """Return an option that cannot be used if a scout reads the text; None if there is none."""
    rows = table(Request).items()
    return next((name for name, row in rows if row.one_model and getattr(request, name)), None)


def refuse_beside_skimming(request: Request) -> None:
    """Raise UsageError for options that cannot be used if a scout reads the text."""
    if name := beside_skimming(request):
        raise UsageError(
            f"--{name} is for one model that reads all of the text, but here a scout reads it; "
            "leave it out, or add --skim none."
        )


def refuse_twice(methods: Sequence[object], option: str) -> None:
    """Raise UsageError if `option` names a method twice."""
    for number, method in enumerate(methods):
        if method in methods[:number]:
            raise UsageError(f"{option} names {method} twice; name each method once.")


def refuse_idle(options: Mapping[str, Any], temp: float) -> None:
    """Raise UsageError for options without effect: of sampling at temperature 0, of an extract."""
    for name, row in TABLE.items():
        for other, why in row.excludes.items():
            if options.get(name) and options.get(other):
                raise UsageError(why)
    for name, default in SAMPLING.items():
        if not temp and options.get(name, default) != default:
            raise UsageError(
                f"{name}= has no effect at temperature 0, which always takes the most likely "
                "token; add temp=0.7, or leave it out."
            )


def effective(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options; at temperature 0 without those of sampling, and beside an extract without
    those of a written answer."""
    idle = set(() if options.get("temp") else SAMPLING)
    idle |= {name for name, row in TABLE.items() if any(map(options.get, row.excludes))}
    return {name: value for name, value in options.items() if name not in idle}


def refuse_later_questions(scout: object) -> None:
    """Raise UsageError without a scout: then only the words of known questions choose passages."""
    option, other = "--skim words", "a model with --skim, such as pocket or self"
    if scout is None:
        option, other = "--method passages", "another method"
    if scout in (None, WORDS):
        raise UsageError(
            f"{option} needs its questions before it reads. Use it with kvstream ask, or choose "
            f"{other}."
        )


def request_of(questions: Sequence[str] = (), /, **options: Any) -> Request:
    """Make a request from questions and options; `with_method` chooses its method."""
    check_options(options, _KNOWN)
    questions = questions_of(questions)
    command: CommandName = options.get("command") or ("ask" if questions else "summarize")
    if command not in get_args(CommandName):
        names = ", ".join(get_args(CommandName))
        raise UsageError(f"command= is one of {names}, not {command!r:.80}.")
    if command in ("ask", "summarize", "compare"):  # others answer later, at any temperature
        refuse_idle(options, options.get("temp", 0))
    values = values_of(options)
    if not isinstance(method := values.get("method", AUTO), str):
        raise UsageError(
            f"method= is the name of one method, not {method!r}; compare() takes several."
        )
    values |= {"command": command, "interrupted": values.get("interrupted") or never}
    values["set"] = settings_of(values.get("set"))
    return request_from(values, questions=questions, choices=frozenset(options))


def request_from(values: Mapping[str, Any], **more: Any) -> Request:
    """Return a request with checked values of the table; others have the defaults of users."""
    defaults = {name: row.default for name, row in table(RunSettings).items()} | {"set": {}}
    run = {name: values.get(name, default) for name, default in defaults.items()}
    others = [each.name for each in fields(Request) if each.name in values]
    return Request(run=RunSettings(**run), **{n: values[n] for n in others}, **more)


def with_method(
    request: Request, *, learned: bool = False, extracts: bool = False, known: bool = False
) -> Request:
    """Return the request with its method, which ``auto`` and a preset leave open.

    `learned`: the model comes with the trained weights of the method `foresight`. `extracts`: its
    summaries are extracts. `known`: take the questions for known. Raises UsageError.
    """
    run, summary = request.run, request.command == "summarize"
    extract = extracts if summary and request.extract is None else bool(request.extract)
    method, own = run.method, dict[str, str]()
    if method == AUTO:
        owners = {path.partition(".")[0].strip() for path in run.set}
        known = known or bool(request.questions) or summary or extract
        method = choose(
            known=known, learned=learned, owners=owners, preset=request.preset is not None
        )
        own = {} if owners else dict(SETTINGS.get(method, {}))
    settings = {**own, **settings_by_method(run.set, (method,))[method]}
    changes: dict[str, Any] = {}
    from kvstream.methods.registry import by_name, make, preset

    by_name(method, (AUTO,))
    if request.preset:
        paper = preset(method)
        settings = {**paper.settings, **settings}
        changes = {k: v for k, v in paper.run.items() if k not in request.choices}
    make(method, settings)
    run = replace(run, method=method, set=settings, **changes)
    return replace(request, run=run, extract=extract, preset=None)


def options_of(request: Request) -> dict[str, Any]:
    """Return the options that memory depends on, with the keys of `MemoryFile.options`."""
    run, rows = request.run, table(RunSettings).items()
    return {
        "budget": run.budget and (run.budget.tokens or str(run.budget)),
        "method": run.method,
        "set": dict(run.set),
        "system": request.system,
        **{name: getattr(run, name) for name, row in rows if row.stored and not row.per_answer},
    }


def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `RunSettings` that options of answers set. Raises UsageError."""
    own = table(RunSettings)
    return values_of({k: v for k, v in options.items() if k in own and own[k].per_answer}, own)


def settings_by_method(
    values: Mapping[str, object], methods: Sequence[str], *, strict: bool = True
) -> dict[str, dict[str, str]]:
    """Return the settings of each method in ``{"METHOD.NAME": value}``; `strict` refuses others."""
    settings: dict[str, dict[str, str]] = {method: {} for method in methods}
    for path, value in settings_of(values).items():
        owner, dot, name = path.strip().partition(".")
        if not (dot and owner and name):
            raise UsageError(f"--set {path!r} is not METHOD.NAME=VALUE, as in {methods[0]}.name=1.")
        if owner in settings:
            settings[owner][name.replace("-", "_")] = str(value).strip()
            continue
        names = method_names()
        if strict or not (owner in names or any(plugins())):
            close = "" if owner in names else hint(owner, names)
            raise UsageError(
                f"--set '{path}={value}' is for the method {owner!r}, but this run uses "
                f"{', '.join(methods)}; add --method {owner} or leave it out.{close}"
            )
    return settings


def by_method(values: Mapping[str, object], methods: Sequence[str]) -> list[MemoryOptions]:
    """Return the options `method` and `set` of each method. Raises UsageError."""
    return [
        {"method": method, "set": {f"{method}.{name}": value for name, value in own.items()}}
        for method, own in settings_by_method(values, methods).items()
    ]


def refuse_passages(method: str | None) -> None:
    """Raise UsageError where later questions are to come and only words choose passages."""
    if method == PASSAGES_METHOD:
        refuse_later_questions(None)


def refuse_small(budget: Budget | None) -> None:
    """Raise BudgetError for a budget in entries that is too small for any model and question."""
    if budget is not None and budget.tokens is not None and budget.tokens <= SMALLEST_FREE:
        raise BudgetError(
            f"A budget of {budget.tokens} is too small for any model: the text needs "
            f"{SMALLEST_FREE}, and the prompt, the question and the answer need more. --budget 256 "
            "is enough for a short question with most models."
        )


def require(module: str, extra: str, what: str) -> None:
    """Raise UsageError if an optional package is not installed."""
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{what} needs the extra {extra}: pip install 'kvstream[{extra}]'.")
