"""Options of a reading, with the names of the command line, and the request made from them."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from kvstream.api.given import kind, path_of, questions_of, settings_of, text_of, whole_of
from kvstream.api.sources import bytes_of
from kvstream.engine.budget import SMALLEST_FREE
from kvstream.errors import BudgetError, UsageError
from kvstream.methods.automatic import AUTO as AUTO
from kvstream.methods.automatic import AUTOMATIC as AUTOMATIC
from kvstream.methods.automatic import QUESTIONS_LEARNED as QUESTIONS_LEARNED
from kvstream.methods.automatic import SETTINGS, chosen
from kvstream.run.intervals import Intervals as Intervals
from kvstream.run.request import CHECKPOINT_EVERY, CommandName, never
from kvstream.run.request import PASSAGES as PASSAGES
from kvstream.run.request import Request as Request
from kvstream.settings import PAPER, Budget, ModelSettings, RunSettings, count_of

WORDS, SELF = "words", "self"
"""Values of `skim` that name no other model: the words of the questions alone choose what the model
reads of a long text, or the model itself reads all of it first."""
_OF_COMMAND_LINE = ("none",)
"""Values of ``--skim`` that are no models."""
PASSAGES_METHOD = "passages"
"""Method that keeps passages instead of KV entries."""


class ModelOptions(TypedDict, total=False):
    """How a model is loaded; see `kvstream --help-all` for each."""

    skim: str | os.PathLike[str] | None
    """The scout, which reads all of a text that does not fit, and keeps passages. The answering
    model then reads the best of them and answers. A model (on the same device, in its own number
    type), ``"self"`` (the answering model), or ``"words"``: no model, the words of the questions
    choose the passages."""

    revision: str | None
    """Branch, tag or commit on the hub."""
    offline: bool
    """Use only files on this machine."""
    device: str
    """``auto``, ``cpu``, ``cuda``, ``cuda:1`` or ``mps``."""
    dtype: str
    """``auto``, ``float32``, ``bfloat16`` or ``float16``."""
    kv_dtype: str
    """Number type of the KV cache: ``auto``, ``float32``, ``bfloat16`` or ``float16``."""
    attn: str
    """``auto``, ``split``, ``flash``, ``sdpa`` or ``reference``."""
    threads: int | None
    """CPU threads."""
    quantize: str | None
    """``int8`` (on a CPU), ``8bit`` or ``4bit`` (bitsandbytes)."""
    max_weights: int | str | None
    """Maximum bytes of weights on a device (``"16GiB"``). The rest goes from GPUs to the CPU, and
    from there to disk."""
    trust_remote_code: bool
    """Run Python code that comes with the model."""
    quiet: bool
    """Print no progress while a GGUF file is converted or an adapter is merged."""


class AnswerOptions(TypedDict, total=False):
    """How answers are generated."""

    max_tokens: int | str
    """Maximum number of tokens of an answer; default 256."""
    temp: float
    """Temperature; 0: always take the most likely token."""
    top_p: float
    """Sample from the smallest set of tokens with this probability."""
    top_k: int
    """Sample from this many most likely tokens; 0: from all."""
    repetition_penalty: float
    """Divide positive logits of tokens that the answer already has by this number, and multiply
    negative ones."""
    brief: bool
    """Ask a model with a chat template for a short phrase."""


class ShownOptions(TypedDict, total=False):
    """What an answer consists of."""

    extract: bool | None
    """Answer with the passages that memory retains best. None: only for summaries by a model that
    cannot write them (`pocket`)."""
    passages: int
    """Number of passages of an extract; default 10."""
    strict: bool
    """Withhold a weakly supported answer."""


_FLAGS = frozenset({
    "offline", "trust_remote_code", "quiet", "brief", "extract", "strict", "plain", "follow",
    "last",
})  # fmt: skip
"""Options that are True or False."""
ANSWER_OPTIONS = tuple(AnswerOptions.__annotations__)
SHOWN_OPTIONS = tuple(ShownOptions.__annotations__)


class MemoryOptions(AnswerOptions, total=False):
    """How a text is read under a budget."""

    budget: int | str | Budget | None
    """Maximum size of the KV cache: entries per head (``4096``, ``"4k"``) or bytes (``"512MB"``).
    """
    method: str
    """The rule that decides which entries stay; `kvstream.available_methods()` lists them."""
    set: Mapping[str, object]
    """Settings of the method, as ``{"infinipot.alpha": 0.5}``."""
    preset: Literal["paper"] | None
    """Settings and schedule of the method's paper. Options that you pass as well override them."""
    keep: int | str | None
    """Entries in memory after the last eviction."""
    start: int | str | None
    """Entries in memory after the first chunk, or ``"paper"``."""
    schedule: str
    """How memory grows: ``linear``, ``fixed``, ``sqrt``, ``square``, ``square-sqrt``,
    ``adaptive``."""
    chunk: str
    """``decremental`` or ``fixed``."""
    chunk_size: int | str | None
    """Tokens in a chunk, on average if decremental."""
    seed: int
    """Seed of sampling and of methods with random choices."""
    system: str | None
    """System text for the model."""
    checkpoint: str | os.PathLike[str] | None
    """Save the reading in this file, and resume from it if it exists."""
    checkpoint_every: int | str
    """Tokens between two checkpoints; default 32768."""
    command: CommandName
    """The command named in results: ``ask``, ``summarize``, ``remember``, ``chat``,
    ``compare``."""
    thin: Literal["auto", "off"]
    """``auto`` (default): in a log that is longer than the budget, read a repeated line only now
    and then and count the others. ``off``: read every line."""
    interrupted: Callable[[], bool]
    """Called between two chunks; True ends the reading early."""


class ReadOptions(MemoryOptions, ShownOptions, total=False):
    """How a text is read, and how questions about it are answered."""

    every: int | str | Intervals | None
    """Answer during the reading, too: at an interval of tokens (``"10k"``) or time (``"30s"``)."""


_RUN = (
    "keep", "start", "schedule", "chunk", "chunk_size", "max_tokens", "temp", "top_p", "top_k",
    "repetition_penalty", "seed", "brief", "thin",
)  # fmt: skip
"""Options that are fields of `RunSettings`."""
_COUNTS = ("keep", "start", "chunk_size", "max_tokens")
_REQUEST = (
    "system", "strict", "interrupted", "command", "extract", "passages", "every",
    "checkpoint", "checkpoint_every",
)  # fmt: skip
_OF_SAMPLING = {"top_p": 1.0, "top_k": 0}
"""Options without effect at temperature 0, with the value that has no effect at any temperature."""
_KNOWN = frozenset({"budget", "method", "set", "preset", *_RUN, *_REQUEST})


def model_settings(name: str, options: Mapping[str, Any]) -> ModelSettings:
    """Return the settings of a model. Raises UsageError."""
    check_options(options, (*ModelOptions.__annotations__, "like"))
    values = {k: v for k, v in options.items() if k != "skim"}
    if values.get("max_weights") is not None:
        values["max_weights"] = bytes_of(values["max_weights"])
    return ModelSettings(model=name, **values)


def skim_settings(options: Mapping[str, Any]) -> ModelSettings | None:
    """Return the settings of the skimming model, or None without one. Raises UsageError."""
    name = options.get("skim")
    if name in (None, WORDS, SELF, AUTO):
        return None
    if name in _OF_COMMAND_LINE:
        raise UsageError(
            f"skim= is the name of a model, {WORDS!r}, {SELF!r} or None, not {name!r}."
        )
    same = ("device", "threads", "offline", "attn", "trust_remote_code", "quiet")
    return model_settings(name, {k: options[k] for k in same if k in options})


def check_options(options: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise UsageError for an option that is not among those known, or that must be a flag."""
    unknown = sorted(options.keys() - set(known))
    if unknown:
        from kvstream.errors import meant

        raise UsageError(f"There is no option {unknown[0]!r}.{meant(unknown[0], known)}")
    refuse_no_flags(options)


def refuse_no_flags(options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option that is neither True nor False but has to be."""
    for name in sorted(_FLAGS & options.keys()):
        if options[name] not in (True, False, None):
            raise UsageError(f"{name}= is True or False, not {options[name]!r:.80}.")


BESIDE_SKIMMING = ("extract", "every", "checkpoint", "follow")
"""Options for one model that reads all of a text."""


def beside_skimming(options: Mapping[str, Any]) -> str | None:
    """Return an option that cannot be used if a scout reads the text; None if there is none."""
    return next((name for name in BESIDE_SKIMMING if options.get(name)), None)


def refuse_beside_skimming(options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that cannot be used if a scout reads the text."""
    if name := beside_skimming(options):
        raise UsageError(
            f"--{name} is for one model that reads all of the text, but here a scout reads it; "
            "leave it out, or add --skim none."
        )


def refuse_twice(methods: Sequence[object], option: str) -> None:
    """Raise UsageError if `option` names a method twice."""
    for number, method in enumerate(methods):
        if method in methods[:number]:
            raise UsageError(f"{option} names {method} twice; name each method once.")


def refuse_unsampled(options: Mapping[str, Any], temperature: float) -> None:
    """Raise UsageError for options of sampling at temperature 0, where they have no effect."""
    for name, without_effect in _OF_SAMPLING.items():
        if not temperature and options.get(name, without_effect) != without_effect:
            raise UsageError(
                f"{name}= has no effect at temperature 0, which always takes the most likely "
                "token; add temp=0.7, or leave it out."
            )


def effective(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options; at temperature 0 without those of sampling."""
    sampled = bool(options.get("temp"))
    return {k: v for k, v in options.items() if sampled or k not in _OF_SAMPLING}


def refuse_later_questions(scout: object) -> None:
    """Raise UsageError without a scout: then only the words of known questions choose passages."""
    if scout in (None, WORDS):
        raise UsageError(
            "--skim words needs its questions before it reads. Use it with kvstream ask, or choose "
            "a model with --skim, such as pocket or self."
        )


def request_of(questions: Sequence[str] = (), *, learned: bool = False, **options: Any) -> Request:
    """Make a request from questions and options (`ReadOptions`). Raises UsageError.

    `learned`: the model comes with the trained weights of the method `foresight`.
    """
    check_options(options, _KNOWN)
    questions = questions_of(questions)
    command: CommandName = options.get("command") or ("ask" if questions else "summarize")
    if command not in get_args(CommandName):
        names = ", ".join(get_args(CommandName))
        raise UsageError(f"command= is one of {names}, not {command!r:.80}.")
    if command in ("ask", "summarize", "compare"):  # others answer later, at any temperature
        refuse_unsampled(options, options.get("temp", 0))
    extract = bool(options.get("extract"))
    checkpoint, system = options.get("checkpoint"), options.get("system")
    interrupted = options.get("interrupted") or never
    if not callable(interrupted):
        raise UsageError(f"interrupted= takes a function, not {kind(interrupted)}.")
    every = options.get("every")
    known = bool(questions) or command == "summarize" or extract
    return Request(
        questions=questions,
        run=run_settings(options, known=known, learned=learned),
        command=command,
        system=None if system is None else text_of("system", system),
        extract=extract,
        passages=whole_of("passages", options.get("passages", PASSAGES), least=1),
        strict=options.get("strict", False),
        every=Intervals.of(every),
        checkpoint=None if checkpoint is None else Path(path_of("checkpoint", checkpoint)),
        checkpoint_every=whole_of(
            "checkpoint_every",
            count_of(options.get("checkpoint_every", CHECKPOINT_EVERY)),
            least=1,
        ),
        interrupted=interrupted,
    )


def run_settings(options: Mapping[str, Any], *, known: bool, learned: bool = False) -> RunSettings:
    """Return the settings of a run, and check those of its method. Raises UsageError.

    ``auto``, which is the default, chooses the method by `known` (the questions are known before
    the reading) and `learned` (the model comes with the trained weights of `foresight`).
    """
    method, given = options.get("method", AUTO), settings_of(options.get("set"))
    if not isinstance(method, str):
        raise UsageError(
            f"method= is the name of one method, not {method!r}; compare() takes several."
        )
    own: Mapping[str, str] = {}
    if method == AUTO:
        owners = {path.partition(".")[0].strip() for path in given}
        preset_given = bool(options.get("preset"))
        method = chosen(known=known, learned=learned, owners=owners, preset=preset_given)
        own = {} if owners else SETTINGS.get(method, {})
    settings = {**own, **settings_by_method(given, (method,))[method]}
    values = {"thin": "auto", **{name: options[name] for name in _RUN if name in options}}
    from kvstream.methods.registry import make, named, preset

    named(method, (AUTO,))
    if options.get("preset"):
        if options["preset"] != PAPER:
            raise UsageError(f"preset is {PAPER}, not {options['preset']!r}.")
        paper = preset(method)
        settings = {**paper.settings, **settings}
        values |= {k: v for k, v in paper.run.items() if k not in options}
    make(method, settings)
    for name in _COUNTS:
        if values.get(name) is not None and values[name] != PAPER:
            values[name] = count_of(values[name])
    return RunSettings(
        budget=Budget.of(options.get("budget")), method=method, set=settings, **values
    )


def options_of(request: Request) -> dict[str, Any]:
    """Return the options that memory depends on, with the keys of `MemoryFile.options`."""
    run = request.run
    return {
        "budget": None if run.budget is None else run.budget.tokens,
        "method": run.method,
        "set": dict(run.set),
        "keep": run.keep,
        "start": run.start,
        "schedule": run.schedule,
        "chunk": run.chunk,
        "chunk_size": run.chunk_size,
        "system": request.system,
        "thin": run.thin,
    }


def answer_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given `AnswerOptions`, with counts as numbers. Raises UsageError."""
    values = {name: options[name] for name in ANSWER_OPTIONS if name in options}
    if "max_tokens" in values:
        values["max_tokens"] = count_of(values["max_tokens"])
    return values


def settings_by_method(
    given: Mapping[str, object], methods: Sequence[str], *, strict: bool = True
) -> dict[str, dict[str, str]]:
    """Return the settings of each method in ``{"METHOD.NAME": value}``, as text.

    With `strict`, a setting of another method raises UsageError; otherwise it is left out.
    """
    settings: dict[str, dict[str, str]] = {method: {} for method in methods}
    for path, value in settings_of(given).items():
        owner, dot, name = path.strip().partition(".")
        if not (dot and owner and name):
            raise UsageError(f"--set {path!r} is not METHOD.NAME=VALUE, as in {methods[0]}.name=1.")
        if owner in settings:
            settings[owner][name.replace("-", "_")] = str(value).strip()
        elif strict:
            raise UsageError(
                f"--set '{path}={value}' is for the method {owner!r}, but this run uses "
                f"{', '.join(methods)}; add --method {owner} or leave it out."
            )
    return settings


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
