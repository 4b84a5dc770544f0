"""Frozen settings of a run. Their constructors check them, so later code need not."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real

from kvstream.errors import UsageError

THINS = ("auto", "off")
SCHEDULES = ("fixed", "linear", "sqrt", "square", "square-sqrt", "adaptive")
CHUNKS = ("decremental", "fixed")
INT8 = "int8"
"""The value of `ModelSettings.quantize` for a CPU."""
QUANTIZED = (INT8, "8bit", "4bit")
BACKENDS = ("auto", "split", "flash", "sdpa", "reference")
"""Backends of attention: `split` at the end of memory (CPU), the `flash` kernel of flash-attn
(CUDA), the kernel that PyTorch chooses (`sdpa`, CUDA), and `reference`, which materializes every
score (any device)."""
PAPER = "paper"
"""Value that stands for what the paper of a method or schedule sets."""

MOST_DIGITS = 100
_BINARY = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_BYTES = {
    "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3,
}  # fmt: skip


def _times(digits: str, unit: int) -> int:
    """Return a number such as ``1.5`` times a unit, rounded down.

    Raises UsageError for more than MOST_DIGITS digits, and for a fraction of a token or byte.
    """
    if len(digits) > MOST_DIGITS:
        raise UsageError(f"A number of {len(digits)} digits is more than any machine holds.")
    if unit == 1 and not float(digits).is_integer():
        raise UsageError(f"{digits} is not a whole number; 1.5k and 1.5MB are.")
    return int(float(digits) * unit)


def parse_count(text: str) -> int:
    """Parse a number of tokens or entries: ``4096``, ``4k`` (k = 1024), ``1.5M`` (M = 1024²).

    Raises UsageError.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgG]?)\s*", text)
    if not match:
        raise UsageError(f"{text!r} is not a whole number above 0; write it as 4096, 4k or 1M.")
    value = _times(match[1], _BINARY[match[2].lower()])
    if value < 1:
        raise UsageError(f"{text!r} is less than 1.")
    return value


def count_of(count: int | str) -> int:
    """Return a number of tokens or entries given as ``4096``, ``"4k"`` or ``"1M"``.

    Raises UsageError.
    """
    return int(count) if isinstance(count, Integral) else parse_count(str(count))


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
        """Return a budget: entries as ``4096`` or ``"4k"``, bytes as ``"512MB"``.

        Raises UsageError.
        """
        if budget is None or isinstance(budget, Budget):
            return budget
        return cls.parse(str(budget))

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a budget: ``4k`` and ``4096`` are entries per head, ``512MB``, ``1GiB`` and
        ``4096B`` are bytes. Raises UsageError.
        """
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
        return (
            f"{self.tokens} entries per head" if self.tokens is not None else f"{self.bytes} bytes"
        )


def threads_of(threads: int) -> int:
    """Return a number of threads that this machine can run. Far more make torch crash or hang.

    Raises UsageError.
    """
    cpus = os.cpu_count() or 1
    most = max(16, 4 * cpus)
    if not isinstance(threads, Integral):
        raise UsageError(f"threads is a whole number, not {threads!r}.")
    if not 1 <= threads <= most:
        raise UsageError(
            f"{threads} threads are out of range for a machine with {cpus} CPUs; choose 1 to "
            f"{most}."
        )
    return int(threads)


def seed_of(seed: int) -> int:
    """Return a whole number that torch accepts as a seed. Raises UsageError."""
    if not isinstance(seed, Integral):
        raise UsageError(f"seed is a whole number, not {seed!r}.")
    if not -(2**63) <= seed < 2**63:
        raise UsageError(f"{seed} is beyond 64 bits; choose a smaller number.")
    return int(seed)


@dataclass(frozen=True)
class ModelSettings:
    """The model and how it is loaded."""

    model: str = "pocket"
    """Hub id, local folder, or ``pocket`` for the embedded model."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    offline: bool = False
    """Use only cached files, never the network."""
    device: str = "auto"
    """``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``."""
    dtype: str = "auto"
    """``auto`` (the stored type, or float32 on a CPU without instructions for that type),
    ``float32``, ``bfloat16``, ``float16``."""
    kv_dtype: str = "auto"
    """Number type of the KV cache: ``auto`` (the type of the weights in the file if that has 16
    bits and ``dtype`` is ``auto``, else the type of the computation), ``float32``, ``bfloat16``,
    ``float16``."""
    attn: str = "auto"
    """Attention backend: ``auto``, ``split``, ``flash``, ``sdpa``, ``reference``."""
    threads: int | None = None
    """CPU threads; None: torch's default."""
    quantize: str | None = None
    """Quantize the weights while they are loaded: ``int8`` (on a CPU), ``8bit`` or ``4bit``
    (bitsandbytes)."""
    max_weights: int | None = None
    """Maximum bytes of weights on a device. The rest goes from GPUs to the CPU, and what is beyond
    the CPU stays on disk."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    quiet: bool = False
    """Print nothing to stderr while a GGUF file is converted or an adapter is merged."""
    like: str | None = None
    """Name of the memory file that `dtype` comes from; None: the user set `dtype`, or it is the
    default."""

    def __post_init__(self) -> None:
        if self.threads is not None:
            threads_of(self.threads)
        if not isinstance(self.device, str):
            raise UsageError(f"device is a name, such as cpu or cuda, not {self.device!r}.")
        if self.attn not in BACKENDS:
            raise UsageError(f"attn is one of {', '.join(BACKENDS)}, not {self.attn!r}.")
        if self.quantize is not None and self.quantize not in QUANTIZED:
            raise UsageError(f"quantize is one of {', '.join(QUANTIZED)}, not {self.quantize!r}.")


@dataclass(frozen=True)
class RunSettings:
    """How a source is read under a budget, and how answers are generated."""

    budget: Budget | None = None
    """None: 4096 entries per head, or the model's trained length if that is less."""
    method: str = "infinipot"
    """The rule that decides which entries stay; see ``kvstream methods``."""
    set: Mapping[str, str] = field(default_factory=dict)
    """Settings of the method as typed (``--set infinipot.alpha=0.25`` -> {"alpha": "0.25"})."""
    keep: int | None = None
    """m_max: entries in memory after the last chunk; None: as many as fit."""
    start: int | str | None = None
    """m_0: entries in memory after the first chunk; None: half of m_max; PAPER: m_max / n."""
    schedule: str = "linear"
    """How memory grows from chunk to chunk (IMDC): one of SCHEDULES."""
    chunk: str = "decremental"
    """``decremental``: chunks shrink as memory grows; ``fixed``: all of one size."""
    chunk_size: int | None = None
    """Tokens in a chunk (on average, if decremental); None: as many as the budget allows."""
    max_tokens: int = 256
    """Maximum number of tokens of an answer."""
    temp: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus sampling: the smallest set of tokens with this probability."""
    top_k: int = 0
    """Sample from this many most likely tokens; 0: from all."""
    repetition_penalty: float = 1.0
    """Divide positive logits of tokens that the answer already has by this number, and multiply
    negative ones; 1 changes nothing."""
    brief: bool = False
    """Ask a chat model for a short phrase. Memory does not depend on it."""
    seed: int = 0
    """Seed of sampling and of methods with random choices."""
    thin: str = "off"
    """``auto``: in a log that is longer than the budget, read a repeated line only now and then
    and count the others. ``off``: read every line."""

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UsageError(
                f"Unknown schedule {self.schedule!r}; choose one of {', '.join(SCHEDULES)}."
            )
        if self.chunk not in CHUNKS:
            raise UsageError(
                f"Unknown chunk schedule {self.chunk!r}; choose {' or '.join(CHUNKS)}."
            )
        if self.thin not in THINS:
            raise UsageError(f"thin is {' or '.join(THINS)}, not {self.thin!r}.")
        if isinstance(self.start, str) and self.start != PAPER:
            raise UsageError(f"start is a number of entries or {PAPER}, not {self.start!r}.")
        for name in ("temp", "top_p", "repetition_penalty"):
            value = getattr(self, name)
            if not isinstance(value, Real):
                raise UsageError(f"{name.replace('_', '-')} is a number, not {value!r}.")
        seed_of(self.seed)
        for name in ("max_tokens", "top_k"):
            value = getattr(self, name)
            if not isinstance(value, Integral):
                raise UsageError(f"{name.replace('_', '-')} is a whole number, not {value!r}.")
        for name in ("keep", "start", "chunk_size", "max_tokens"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise UsageError(f"{name.replace('_', '-')} must be at least 1, not {value}.")
        if not 0 <= self.temp < float("inf"):  # nan is neither
            raise UsageError(f"temperature must be 0 or more, not {self.temp}.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p must be above 0 and at most 1, not {self.top_p}.")
        if not 1 <= self.repetition_penalty < float("inf"):
            raise UsageError(
                f"repetition-penalty must be 1 or more, not {self.repetition_penalty}; below 1 an "
                "answer would repeat itself on purpose."
            )
        if self.top_k < 0:
            raise UsageError(f"top-k must be 0 or more, not {self.top_k}.")
