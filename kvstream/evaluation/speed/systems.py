"""All systems that read: kvstream's methods, their floors, and the alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from kvstream.engine.reader import Reader
from kvstream.errors import UsageError
from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.floor import FLOOR, SDPA, read_floor, read_plain
from kvstream.evaluation.speed.timing import Stopwatch
from kvstream.evaluation.sweep import Case
from kvstream.run.request import Request
from kvstream.session.session import Session

FLOORS = {"floor": FLOOR, "floor-sdpa": SDPA}
QUESTION = "What is the passkey?"
FULL_CHUNK = 8192
PLAIN_CHUNK = 2048
"""Tokens per forward pass of the plain cache that is read in chunks."""
WARM = 4096
"""Tokens of the first round, which only warms up libraries and caches and is not counted."""


@dataclass(frozen=True)
class Kind:
    """How a system reads that kvstream is compared with."""

    run: Callable[[System, Task], Record]
    title: str
    modes: Mapping[str, bool] = field(default_factory=lambda: {"": False})
    """Whether each of its modes has a budget, which it then reads once with every budget."""
    grows: tuple[str, ...] = ()
    """Modes that attend to everything: for long texts, time grows with the square of the length."""
    method: str | None = None
    warm: int = WARM


@dataclass(frozen=True, eq=False)
class System:
    """A system that reads. Each is equal only to itself."""

    name: str
    """``kvstream``, a floor, or one of KINDS."""
    case: Case | None = None
    """kvstream's settings; a floor takes its sizes from them."""
    mode: str = ""
    budget: int | None = None
    """Maximum entries per head; None is no limit."""

    @property
    def method(self) -> str | None:
        """The method of kvstream, or of the other system; None if it has none."""
        return self.case.name if self.case is not None else KINDS[self.name].method

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.name, self.method, self.mode)))

    @property
    def growth(self) -> int:
        """The exponent of the length in its reading time, for long texts."""
        return 2 if self.name in KINDS and self.mode in KINDS[self.name].grows else 1

    @property
    def warm(self) -> int:
        """Tokens of its first round."""
        return KINDS[self.name].warm if self.name in KINDS else WARM

    def beside(self, other: System) -> bool:
        """Return whether this system of kvstream is compared with the other."""
        if other.name == "kvstream":
            return False
        same_case = other.case is None or other.case is self.case
        return same_case and other.budget in (None, self.budget)


def check(against: Sequence[str]) -> None:
    known = (*FLOORS, *KINDS)
    for name in against:
        if name not in known:
            raise UsageError(f"Unknown system {name!r}; choose among {', '.join(known)}.")


def systems(session: Session, cases: Sequence[Case], against: Sequence[str]) -> list[System]:
    """Return every case followed by its floors, then the other systems, once for each budget."""
    out: list[System] = []
    for case in cases:
        budget = session.settle(Request((QUESTION,), case.run)).sizes.budget
        out.append(System("kvstream", case, budget=budget))
        out += [System(name, case, budget=budget) for name in against if name in FLOORS]
    budgets = dict.fromkeys(s.budget for s in out)
    for name, kind in KINDS.items():
        if name in against:
            for mode, bounded in kind.modes.items():
                out += [System(name, mode=mode, budget=b) for b in (budgets if bounded else [None])]
    return out


@dataclass
class Task:
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
    exact_times: bool = False
    """Wait for the GPU around selection: the reading takes longer, but the share is exact."""


def run(system: System, task: Task) -> Record:
    """Run one reading and answer; return times, and the peak of the cache."""
    if system.name == "kvstream":
        return _kvstream(system, task)
    if system.name in FLOORS:
        name = FLOORS[system.name]
        return read_floor(
            task.session.model, task.ids, task.steps, task.question, task.tokens, name
        )
    return KINDS[system.name].run(system, task)


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


def _full(_: System, task: Task) -> Record:
    """Run the floor's loop with its fast attention, and drop nothing."""
    tokens = len(task.ids)
    steps = [(min(FULL_CHUNK, tokens - at), tokens) for at in range(0, tokens, FULL_CHUNK)]
    return read_floor(task.session.model, task.ids, steps, task.question, task.tokens)


def _plain(system: System, task: Task) -> Record:
    chunk = PLAIN_CHUNK if system.mode == "chunked" else None
    return read_plain(task.session.model, task.ids, chunk, task.question, task.tokens)


PLAIN = {"one shot": False, "chunked": False}
KINDS: dict[str, Kind] = {
    "full": Kind(_full, "all of it, kvstream's attention", grows=("",)),
    "transformers": Kind(_plain, "transformers, plain cache", PLAIN, grows=tuple(PLAIN)),
}
"""The lab adds more."""
