"""All systems that read: kvstream's methods, their floors, and the alternatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.errors import UsageError
from kvstream.evaluation.harness import IdFeed, document, open_reader
from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.floor import FLOOR, SDPA, read_floor
from kvstream.evaluation.speed.llamacpp import FULL, SLIDING, Llamacpp
from kvstream.evaluation.speed.outside import Kvpress
from kvstream.evaluation.speed.plain import read_plain, read_token_by_token
from kvstream.evaluation.speed.timing import Stopwatch
from kvstream.evaluation.sweep import Case
from kvstream.input.sources import open_sources
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.tokenization.loading import TokenStream

NAMES = (
    "floor", "floor-sdpa", "full", "transformers", "kvpress", "llamacpp", "streamingllm", "reading",
)  # fmt: skip
FITTED = ("full", "transformers", "kvpress", "llamacpp")
"""Attention to everything: for long texts, time grows with the square of the length."""
FLOORS = {"floor": FLOOR, "floor-sdpa": SDPA}
QUESTION = "What is the passkey?"
READ_AT_ONCE = 1024
FULL_CHUNK = 8192
PLAIN_CHUNK = 2048
"""Tokens per forward pass of the plain cache that is read in chunks."""


@dataclass(frozen=True, eq=False)
class System:
    """A system that reads. Each is equal only to itself."""

    name: str
    """``kvstream``, or one of NAMES."""
    case: Case | None = None
    """kvstream's settings; a floor takes its sizes from them."""
    mode: str | None = None
    """The mode of transformers, ``one shot`` or ``chunked``, or of llama.cpp, ``full`` or
    ``sliding``."""
    budget: int | None = None
    """Maximum entries per head; None is no limit."""

    @property
    def method(self) -> str | None:
        """kvstream's method, or kvpress's; None for other systems."""
        if self.case is not None:
            return self.case.name
        return "snapkv" if self.name == "kvpress" else None

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.name, self.method, self.mode)))

    @property
    def growth(self) -> int:
        """The exponent of the length in its reading time, for long texts."""
        return 2 if self.name in FITTED and self.mode != SLIDING else 1

    def beside(self, other: System) -> bool:
        """Return whether this system of kvstream is compared with the other."""
        if other.name == "kvstream":
            return False
        same_case = other.case is None or other.case is self.case
        return same_case and other.budget in (None, self.budget)


def check(against: Sequence[str]) -> None:
    """Raise UsageError for a name that is not in NAMES."""
    for name in against:
        if name not in NAMES:
            raise UsageError(f"Unknown system {name!r}; choose among {', '.join(NAMES)}.")


def systems(session: Session, cases: Sequence[Case], against: Sequence[str]) -> list[System]:
    """Return every case followed by its floors, then the other systems, once for each budget."""
    out: list[System] = []
    for case in cases:
        budget = session.settle(Request((QUESTION,), case.run)).sizes.budget
        out.append(System("kvstream", case, budget=budget))
        out += [System(name, case, budget=budget) for name in against if name in FLOORS]
    if "full" in against:
        out.append(System("full"))
    if "transformers" in against:
        out += [System("transformers", mode=mode) for mode in ("one shot", "chunked")]
    if "reading" in against:
        out.append(System("reading"))
    budgets = dict.fromkeys(s.budget for s in out if s.budget is not None)
    if "llamacpp" in against:
        out.append(System("llamacpp", mode=FULL))
        out += [System("llamacpp", mode=SLIDING, budget=budget) for budget in budgets]
    for name in ("kvpress", "streamingllm"):
        if name in against:
            out += [System(name, budget=budget) for budget in budgets]
    return out


@dataclass
class Task:
    """The input of all systems."""

    session: Session
    ids: Sequence[int]
    question: Sequence[int]
    """Ids after the text and before the answer."""
    tokens: int
    """Number of tokens of the answer, whatever they are."""
    limit_s: float
    """Seconds after which a system that reads token by token is extrapolated."""
    steps: Sequence[tuple[int, int]] = ()
    """(chunk, memory) of kvstream's last reading, which its floor repeats."""
    kvpress: Kvpress | None = None
    llamacpp: Llamacpp | None = None
    exact_times: bool = False
    """Wait for the GPU around selection: the reading takes longer, but the share is exact."""


def run(system: System, task: Task) -> Record:
    """Run one reading and answer; return times, and the peak of the cache."""
    return _RUNS[system.name](system, task)


def _kvstream(system: System, task: Task) -> Record:
    """Read with the engine, without tokenization, which the other systems do not do either."""
    assert system.case is not None
    model = task.session.model
    reader, _ = open_reader(task.session, [QUESTION], system.case.run, len(task.ids))
    reader.exact_times = task.exact_times
    watch = Stopwatch(model.device)
    reports = list(reader.read(IdFeed(task.ids)))
    watch.has_read()
    _answer(reader, task, watch)
    task.steps = [(r.chunk, max(r.memory)) for r in reports]
    return {
        **watch.record(),
        "select_s": reader.select_seconds,
        "peak_kv_tokens": reader.cache.peak.tokens,
        "peak_kv_bytes": reader.cache.peak.bytes,
        "scratch_bytes": reader.cache.peak.scratch,
        "chunks": len(reports),
        "mean_chunk": round(len(task.ids) / len(reports)),
        "mean_memory": round(sum(memory for _, memory in task.steps) / len(reports)),
    }


def _answer(reader: Reader, task: Task, watch: Stopwatch) -> None:
    nothing: frozenset[int] = frozenset()

    def largest(logits: Tensor) -> int:
        return int(logits.argmax())

    for _ in reader.answer(task.question, largest, nothing, task.tokens, final=True):
        watch.token()


def _floor(system: System, task: Task) -> Record:
    return read_floor(
        task.session.model, task.ids, task.steps, task.question, task.tokens, FLOORS[system.name]
    )


def _full(_: System, task: Task) -> Record:
    """Run the floor's loop with its fast attention, and drop nothing."""
    tokens = len(task.ids)
    steps = [(min(FULL_CHUNK, tokens - at), tokens) for at in range(0, tokens, FULL_CHUNK)]
    return read_floor(task.session.model, task.ids, steps, task.question, task.tokens)


def _plain(system: System, task: Task) -> Record:
    chunk = PLAIN_CHUNK if system.mode == "chunked" else None
    return read_plain(task.session.model, task.ids, chunk, task.question, task.tokens)


def _kvpress(system: System, task: Task) -> Record:
    assert task.kvpress is not None
    assert system.budget is not None
    found = task.kvpress.read(task.ids, system.budget, task.question, task.tokens)
    return {**found, **task.kvpress.loaded}


def _llamacpp(system: System, task: Task) -> Record:
    assert task.llamacpp is not None
    assert system.mode is not None
    return task.llamacpp.read(task.ids, system.mode, system.budget, task.question, task.tokens)


def _streamingllm(system: System, task: Task) -> Record:
    assert system.budget is not None
    return read_token_by_token(
        task.session.model, task.ids, system.budget, task.question, task.tokens, task.limit_s
    )


def _reading(_: System, task: Task) -> Record:
    """Read from a file to ids, without a model; ``text_bytes`` are the bytes of the text."""
    with document(task.session.tokenizer.decode(task.ids)) as path:
        watch = Stopwatch(torch.device("cpu"))
        stream = TokenStream(task.session.tokenizer, open_sources([path], plain=True))
        while len(chunk := stream.read(READ_AT_ONCE)):
            end = chunk.end
        watch.has_read()
    return {**watch.record(), "text_bytes": end}


_RUNS: dict[str, Callable[[System, Task], Record]] = {
    "kvstream": _kvstream,
    "floor": _floor,
    "floor-sdpa": _floor,
    "full": _full,
    "transformers": _plain,
    "kvpress": _kvpress,
    "llamacpp": _llamacpp,
    "streamingllm": _streamingllm,
    "reading": _reading,
}
