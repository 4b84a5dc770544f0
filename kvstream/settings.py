"""The table of options, and the frozen settings that hold their values.

A field with a `Row` is an option: the field has its name, its type and its default, the row has the
rest. The options of the command line and their help, the keys of the config file, the environment
variables, the keywords of the Python API and the header of memory files come from these rows. The
constructors check values by their rows, so later code need not.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, TypeGuard

from kvstream.errors import UsageError

SCHEDULES = ("fixed", "linear", "sqrt", "square", "square-sqrt", "adaptive")
CHUNKS = ("decremental", "fixed")
INT8 = "int8"
"""The value of `ModelSettings.quantize` for a CPU."""
QUANTIZED = (INT8, "8bit", "4bit")
NUMBER_TYPES = ("auto", "float32", "bfloat16", "float16")
PAPER = "paper"
"""Value that stands for what the paper of a method or schedule sets."""

MOST_DIGITS = 100
_BINARY = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_BYTES = {
    "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3
}  # fmt: skip


def _times(digits: str, unit: int) -> int:
    """Return a number such as ``1.5`` times a unit, rounded down. Raises UsageError."""
    if len(digits) > MOST_DIGITS:
        raise UsageError(f"A number of {len(digits)} digits is more than any machine holds.")
    if digits.isdecimal():
        return int(digits) * unit
    if unit == 1 and not float(digits).is_integer():
        raise UsageError(f"{digits} is not a whole number; 1.5k and 1.5MB are.")
    return int(float(digits) * unit)


def is_whole(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number. True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def count_of(count: int | str) -> int:
    """Return a number of tokens or entries: 4096, ``4k`` (k = 1024), ``1.5M`` (M = 1024²)."""
    if is_whole(count):
        return int(count)
    text = str(count)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a whole number above 0; write it as 4096, 4k or 1M.")
    value = _times(match[1], _BINARY[match[2].lower()])
    if value < 1:
        raise UsageError(f"{text!r} is less than 1.")
    return value


@dataclass(frozen=True)
class Budget:
    """Maximum size of the KV cache: in entries per head or in bytes, not both."""

    tokens: int | None = None
    """Entries per head. An entry belongs to one token."""
    bytes: int | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.bytes is None):
            raise UsageError("A budget is a number of entries per head or a number of bytes.")

    @classmethod
    def of(cls, budget: int | str | Budget | None) -> Budget | None:
        """Return a budget: entries as ``4096`` or ``"4k"``, bytes as ``"512MB"``."""
        return budget if budget is None or isinstance(budget, Budget) else cls.parse(str(budget))

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse entries per head (``4k``, ``4096``) or bytes (``1GiB``, ``4096B``)."""
        match = re.fullmatch(r"\s*(-?)(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
        if not match:
            raise UsageError(
                f"{text!r} is not a budget; write whole entries per head as 4096 or 4k, bytes as "
                "512MB or 1GiB."
            )
        minus, digits, unit = match.groups()
        factor = {**_BINARY, **_BYTES}.get(unit.lower())
        if factor is None:
            raise UsageError(
                f"{text!r} is not a budget: there is no unit {unit!r}. Units are k, M and G for "
                "entries per head; B, kB, MB, GB, KiB, MiB and GiB for bytes."
            )
        value = _times(digits, factor)
        if minus or not value:
            raise UsageError(
                f"A budget of {text.strip()} is too small for any model; 256 is enough for a short "
                "question with most models."
            )
        return cls(bytes=value) if unit.lower() in _BYTES else cls(tokens=value)

    def __str__(self) -> str:
        return f"{self.bytes} bytes" if self.tokens is None else f"{self.tokens} entries per head"


def whole(name: str, value: object) -> int:
    """Return a whole number, also of text. Raises UsageError."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise UsageError(f"{value[:40]!r} is not a whole number.") from None
    if not is_whole(value):
        raise UsageError(f"{name} is a whole number, not {value!r:.80}.")
    return int(value)


def threads_of(value: int | str) -> int:
    """Return a number of threads that this machine can run. Far more make torch crash or hang."""
    threads = whole("threads", value)
    cpus = os.cpu_count() or 1
    most = max(16, 4 * cpus)
    if not 1 <= threads <= most:
        raise UsageError(
            f"{threads} threads are out of range for a machine with {cpus} CPUs; choose 1 to "
            f"{most}."
        )
    return threads


def seed_of(value: int | str) -> int:
    """Return a whole number that torch accepts as a seed. Raises UsageError."""
    seed = whole("seed", value)
    if not -(2**63) <= seed < 2**63:
        raise UsageError(f"{seed} is beyond 64 bits; choose a smaller number.")
    return seed


UNSET: Any = object()
CommandName = Literal["ask", "summarize", "compare", "remember", "chat"]
READS = "it reads no text."
NO_ANSWERS = "it does not answer. Use the option with kvstream ask --memory FILE."
IN_FILES = {"merge": "the memory files fix it."}
UNSAMPLED = (
    "{flag} has no effect at temperature 0, which always takes the most likely token; add --temp "
    "0.7, or leave it out."
)
UNWRITTEN = {
    "extract": "--extract writes no answer, so options of sampling have no effect; leave them "
    "out, or leave out --extract."
}  # fmt: skip
"""`Row.excludes` of an option of sampling."""
OF_ANSWERS = {"remember": NO_ANSWERS, "merge": NO_ANSWERS}
"""`Row.without` of an option that memory does not depend on."""
BESIDE = "a checkpoint is of one method. Use the option with kvstream ask."


@dataclass(frozen=True)
class Row:
    """A row of the table of options: all but name, type and default, which the field has."""

    section: str
    """Section of the help page."""
    help: str
    name: str = ""
    """Name of the field, in Python."""
    kind: str = ""
    """Type of the field, as written."""
    spelling: tuple[str, ...] = ()
    """How it is typed, if not ``--NAME`` alone."""
    metavar: str | None = None
    advanced: bool = False
    """Whether ``--help-all`` shows it and ``--help`` does not."""
    parse: Callable[[Any], Any] | None = None
    """Makes a value of what a user gives, such as 4096 of ``4k``. Raises UsageError."""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    above: bool = False
    """Whether the value must be more than `least`."""
    why: str = ""
    """Why a value below `least` is refused, for the end of the error."""
    default: Any = UNSET
    """Default of users; by default that of the field."""
    shown: bool = True
    """Whether the help page shows the default."""
    variable: bool = True
    """Whether an environment variable sets it."""
    only: tuple[str, ...] = ()
    """Commands that have it; if empty, all that read."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Commands that refuse it although they read, and why. Elsewhere set, it is ignored there."""
    helps: Mapping[str, str] = field(default_factory=dict)
    """Help of a command, if it differs."""
    per_answer: bool = False
    """Whether it may differ between the answers of a memory."""
    of_memory: bool = False
    """Whether it determines how a model keeps memory."""
    stored: str = ""
    """Name in the header of a memory file; empty if a memory does not depend on it."""
    once: str = ""
    """Why a second value is an error; if empty, the last one counts."""
    one_text: str = ""
    """Why ``--each`` cannot use it."""
    one_reading: bool = False
    """Whether ``--shards`` cannot use it."""
    one_model: bool = False
    """Whether it is for one model that reads all of a text, so that nothing skims."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Options without which it has no effect, with the error."""
    excludes: Mapping[str, str] = field(default_factory=dict)
    """Options beside which it makes no sense, with the error."""
    of_results: bool = True
    """Whether the result of a document depends on it (``--each -o FOLDER``)."""

    @property
    def flag(self) -> str:
        """How it is typed, as in ``--max-tokens``."""
        spelling = self.spelling or (f"--{self.name.replace('_', '-')}",)
        return max(spelling, key=len).partition("/")[0]

    @property
    def key(self) -> str:
        """Its name for click, in the config file and in the environment."""
        return self.flag[2:].replace("-", "_")


def row(default: Any, section: str, help: str, *, users: Any = UNSET, **more: Any) -> Any:
    """Return a field with a row of the table; `users` is the default of users, if it differs."""
    factory = {"default_factory": default} if callable(default) else {"default": default}
    return field(**factory, metadata={"row": Row(section, help, default=users, **more)})


def table(settings: Any) -> Mapping[str, Row]:
    """Return the options that are fields of a class of settings, by name."""
    return _table(settings)


@cache
def _table(settings: Any) -> Mapping[str, Row]:
    rows = {}
    for each in fields(settings):
        if (row := each.metadata.get("row")) is not None:
            own = None if each.default is MISSING else each.default
            default = own if row.default is UNSET else row.default
            rows[each.name] = replace(row, name=each.name, kind=str(each.type), default=default)
    return rows


def jsonable(value: Any) -> Any:
    """Return the value of an option as JSON has it; other types become text."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(each) for each in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def check(settings: Any) -> None:
    """Check the values of settings by their rows. Raises UsageError."""
    for name, row in table(type(settings)).items():
        value = getattr(settings, name)
        if (value is None and row.default is None) or (value == PAPER and "| str" in row.kind):
            continue
        if row.choices and value not in row.choices:
            raise UsageError(f"{name} is one of {', '.join(row.choices)}, not {value!r:.80}.")
        if row.kind.startswith("bool") and value not in (True, False):
            raise UsageError(f"{name}= is True or False, not {value!r:.80}.")
        if row.kind.startswith("str") and not isinstance(value, str):
            kind = "None" if value is None else type(value).__name__
            raise UsageError(f"{name}= takes a str, not {kind}.")
        if row.kind.startswith(("int", "float")):
            _check_number(row, value)


def _check_number(row: Row, value: Any) -> None:
    name = row.name.replace("_", "-")
    kind, what = (Real, "number") if row.kind == "float" else (Integral, "whole number")
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UsageError(f"{name} is a {what}, not {value!r:.80}.")
    number: float = value if isinstance(value, int) else float(value)  # numpy types overflow
    least = float("-inf") if row.least is None else row.least
    most = float("inf") if row.most is None else row.most
    inside = least < number if row.above else least <= number
    finite = row.kind != "float" or number <= sys.float_info.max  # nan is not
    if not (inside and number <= most and finite):
        bound = f"above {row.least}" if row.above else f"{row.least} or more"
        upto = "" if row.most is None else f" and at most {row.most}"
        raise UsageError(f"{name} must be {bound}{upto}, not {value}{row.why}.")


def stated(text: object) -> str:
    """Return the text of an option that must say something. Raises UsageError."""
    if not str(text).strip():
        raise UsageError("The value is empty; give one, or leave the option out.")
    return str(text)


def size_of(size: int | str | None) -> int | None:
    """Return a size in bytes, from ``512MB``, ``16GiB`` or a number. Raises UsageError."""
    if size is None or (is_whole(size) and size > 0):
        return size
    try:
        number = Budget.parse(str(size)).bytes
    except UsageError:
        number = None
    if not number:
        raise UsageError(f"{size!r} is not a size in bytes; write it as 512MB or 16GiB.")
    return number


MOST_UNPACKED = 16 * 1000**3
"""Default maximum bytes that a compressed source may unpack to."""


def start_of(start: int | str) -> int | str:
    """Return a number of entries, or PAPER. Raises UsageError."""
    return PAPER if start == PAPER else count_of(start)


@dataclass(frozen=True)
class ModelSettings:
    """The model and how it is loaded."""

    model: str = row(
        "pocket", "Model",
        "A model of the Hugging Face hub, a local folder, a GGUF file, a short name of the config "
        "file, reader, or pocket (the embedded model). [default: {default}]",
        spelling=("-m", "--model"), metavar="ID_OR_PATH",
    )  # fmt: skip
    """`help` names the default of each command."""
    device: str = row(
        "auto", "Model", "auto, cpu, cuda, cuda:1 or mps.", metavar="NAME", advanced=True
    )
    dtype: str = row(
        "auto", "Model",
        "Number type for computing. auto: the type of the stored weights, or float32 if the CPU "
        "is faster with it.",
        choices=NUMBER_TYPES, advanced=True,
    )  # fmt: skip
    kv_dtype: str = row(
        "auto", "Model",
        "Number type of the KV cache. auto: that of --dtype, or the 16-bit type of the stored "
        "weights if --dtype auto computes in float32.",
        choices=NUMBER_TYPES, advanced=True,
    )  # fmt: skip
    attn: str = row(
        "auto", "Model",
        "Attention backend. split: for a CPU, attends to memory and chunk separately; flash: for "
        "CUDA, needs the package flash-attn; sdpa: for CUDA, a kernel that PyTorch has; reference: "
        "slow, for any device, holds every score; auto: the first of them that works.",
        choices=("auto", "split", "flash", "sdpa", "reference"), advanced=True,
    )  # fmt: skip
    quantize: str | None = row(
        None, "Model",
        "Quantize the weights while loading: int8 on a CPU; 8bit and 4bit need bitsandbytes.",
        choices=QUANTIZED, advanced=True,
    )  # fmt: skip
    max_weights: int | None = row(
        None, "Model",
        "Maximum memory for weights; kvstream reads the other weights from disk for every chunk, "
        "which is slow.",
        parse=size_of, metavar="SIZE", advanced=True,
    )  # fmt: skip
    threads: int | None = row(
        None, "Model", "CPU threads. [default: as PyTorch chooses]",
        parse=threads_of, metavar="N", advanced=True, of_results=False,
    )  # fmt: skip
    """They change only the last bits of numbers."""
    revision: str | None = row(
        None, "Model", "Branch, tag or commit on the hub.", metavar="NAME", advanced=True
    )
    offline: bool = row(
        False, "Model", "Use only files that are already on this machine.",
        advanced=True, of_results=False,
    )  # fmt: skip
    trust_remote_code: bool = row(False, "Model", "Run Python code of the model.", advanced=True)
    quiet: bool = False
    """Print nothing to stderr while a GGUF file is converted or an adapter is merged."""
    like: str | None = None
    """Name of the memory file that `dtype` comes from; None: the user set `dtype`, or it is the
    default."""

    def __post_init__(self) -> None:
        check(self)
        if self.threads is not None:
            threads_of(self.threads)


@dataclass(frozen=True)
class RunSettings:
    """How a source is read under a budget, and how answers are generated."""

    budget: Budget | None = row(
        None, "Memory",
        "Maximum size of the KV cache: entries per head (4k, 4096) or bytes (512MB, 1GiB). "
        "[default: 4k, or the model's trained length if that is less]",
        parse=Budget.of, metavar="SIZE",
        helps={"merge": "Budget of the joined memory in entries per head (4k, 4096). [default: "
               "the largest]"},
    )  # fmt: skip
    method: str = row(
        "infinipot", "Memory",
        "Method that decides which entries stay (list: kvstream methods).",
        users="auto", metavar="NAME", of_memory=True, without=IN_FILES,
        helps={
            "ask": "Method that decides which entries stay (list: kvstream methods); a,b compares "
            "several.",
            "compare": "Methods to compare, separated by commas (list: kvstream methods).",
        },
    )  # fmt: skip
    set: Mapping[str, str] = row(
        dict, "Memory", "Change a setting of the method; repeatable.",
        metavar="METHOD.NAME=VALUE", advanced=True, of_memory=True, without=IN_FILES,
    )  # fmt: skip
    """Settings of the method as typed (``--set infinipot.alpha=0.25`` -> {"alpha": "0.25"})."""
    keep: int | None = row(
        None, "Memory", "Entries in memory after the last eviction. [default: as many as fit]",
        parse=count_of, least=1, metavar="N", advanced=True, of_memory=True, stored="keep",
        without=IN_FILES,
    )  # fmt: skip
    """m_max."""
    start: int | str | None = row(
        None, "Memory",
        "Entries in memory after the first chunk; paper: --keep / number of chunks, as in IMDC. "
        "[default: half of --keep]",
        parse=start_of, least=1, metavar="N|paper", advanced=True, of_memory=True, stored="start",
        without=IN_FILES,
    )  # fmt: skip
    """m_0; PAPER: m_max / n."""
    schedule: str = row(
        "linear", "Memory", "How memory grows from chunk to chunk.",
        choices=SCHEDULES, advanced=True, of_memory=True, stored="growth", without=IN_FILES,
    )  # fmt: skip
    chunk: str = row(
        "decremental", "Memory",
        "decremental: chunks shrink as memory grows; fixed: all chunks have one size.",
        choices=CHUNKS, advanced=True, of_memory=True, stored="chunk", without=IN_FILES,
    )  # fmt: skip
    chunk_size: int | None = row(
        None, "Memory",
        "Tokens per chunk, on average if decremental. [default: what the budget allows]",
        parse=count_of, least=1, metavar="N", advanced=True, of_memory=True, stored="chunk_size",
        without=IN_FILES,
    )  # fmt: skip
    max_tokens: int = row(
        256, "Answer", "Maximum tokens per answer.",
        spelling=("-n", "--max-tokens"), parse=count_of, least=1, metavar="N", per_answer=True,
        without={"merge": NO_ANSWERS},
        helps={"remember": "Room that the memory keeps for each later answer, in tokens. [default: "
               "256]"},
    )  # fmt: skip
    temp: float = row(
        0.0, "Answer", "Sampling temperature; 0 always takes the most likely token.",
        least=0, metavar="T", advanced=True, per_answer=True, without=OF_ANSWERS,
        excludes=UNWRITTEN,
    )  # fmt: skip
    top_p: float = row(
        1.0, "Answer",
        "Sample from the smallest set of tokens whose total probability reaches P.",
        least=0, most=1, above=True, metavar="P", advanced=True, per_answer=True, shown=False,
        without=OF_ANSWERS, needs={"temp": UNSAMPLED}, excludes=UNWRITTEN,
    )  # fmt: skip
    top_k: int = row(
        0, "Answer", "Sample from the K most likely tokens; 0: from all.",
        least=0, metavar="K", advanced=True, per_answer=True, shown=False,
        without=OF_ANSWERS, needs={"temp": UNSAMPLED}, excludes=UNWRITTEN,
    )  # fmt: skip
    repetition_penalty: float = row(
        1.0, "Answer",
        "Penalize the tokens of the answer so far: divide positive logits by X, multiply negative "
        "ones; 1 changes nothing.",
        least=1, why="; below 1 an answer would repeat itself on purpose", metavar="X",
        advanced=True, per_answer=True, without=OF_ANSWERS,
        excludes=UNWRITTEN,
    )  # fmt: skip
    seed: int = row(
        0, "Answer", "Random seed for sampling and randomized methods.",
        parse=seed_of, metavar="INTEGER", advanced=True, per_answer=True, stored="seed",
        without=IN_FILES,
    )  # fmt: skip
    brief: bool = row(
        False, "Answer",
        "Ask for a short phrase. Models without a chat template answer briefly anyway.",
        advanced=True, per_answer=True,
        excludes={"extract": "--brief is for written answers, and --extract writes none; leave one "
                  "of them out."},
        without={**OF_ANSWERS,
                 "summarize": "a summary is not a short phrase. Limit it with --max-tokens."},
    )  # fmt: skip
    thin: str = row(
        "off", "Input and output",
        "auto: if a log is longer than the budget, read only some of its repeated lines and count "
        "the others. off: read every line.",
        users="auto", choices=("auto", "off"), advanced=True, stored="thin",
        without={"merge": READS},
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)
        seed_of(self.seed)
