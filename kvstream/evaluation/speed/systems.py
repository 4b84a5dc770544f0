"""All systems that read: kvstream's methods and the alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from kvstream.errors import UsageError
from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.timing import Stopwatch, answer
from kvstream.evaluation.sweep import Case
from kvstream.model import hook
from kvstream.model.bounded import BoundedModel, holding
from kvstream.run.request import Request
from kvstream.session.session import Session

SDPA = "sdpa"
QUESTION = "What is the passkey?"
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
    of_case: bool = False
    """Whether it reads once beside each system of kvstream, with the sizes of its steps."""


@dataclass(frozen=True, eq=False)
class System:
    """A system that reads. Each is equal only to itself."""

    name: str
    """``kvstream``, or one of KINDS."""
    case: Case | None = None
    """kvstream's settings, or those whose steps the other system repeats."""
    mode: str = ""
    budget: int | None = None
    """Maximum entries per head; None is no limit."""

    @property
    def kind(self) -> Kind:
        return KINDS.get(self.name, OURS)

    @property
    def method(self) -> str | None:
        """The method of kvstream, or of the other system; None if it has none."""
        return self.case.name if self.case is not None else self.kind.method

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.name, self.method, self.mode)))

    @property
    def growth(self) -> int:
        """The exponent of the length in its reading time, for long texts."""
        return 2 if self.mode in self.kind.grows else 1

    def beside(self, other: System) -> bool:
        """Return whether this system of kvstream is compared with the other."""
        if other.name == "kvstream":
            return False
        same_case = other.case is None or other.case is self.case
        return same_case and other.budget in (None, self.budget)


def check(against: Sequence[str]) -> None:
    for name in against:
        if name not in KINDS:
            raise UsageError(f"Unknown system {name!r}; choose among {', '.join(KINDS)}.")


def systems(session: Session, cases: Sequence[Case], against: Sequence[str]) -> list[System]:
    """Return every case with the systems beside it, then the others, once for each budget."""
    out: list[System] = []
    for case in cases:
        budget = session.settle(Request((QUESTION,), case.run)).sizes.budget
        out.append(System("kvstream", case, budget=budget))
        out += [System(name, case, budget=budget) for name in against if KINDS[name].of_case]
    budgets = dict.fromkeys(s.budget for s in out)
    for name, kind in KINDS.items():
        if name in against and not kind.of_case:
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
    """(chunk, memory) of kvstream's last reading."""
    exact_times: bool = False
    """Wait for the GPU around selection: the reading takes longer, but the share is exact."""


def run(system: System, task: Task) -> Record:
    """Run one reading and answer; return times, and the peak of the cache."""
    return system.kind.run(system, task)


def _kvstream(system: System, task: Task) -> Record:
    """Read with the engine, without tokenization, which the other systems do not do either."""
    assert system.case is not None
    model = task.session.model
    reader, _ = open_reader(task.session, [QUESTION], system.case.run, len(task.ids))
    reader.exact_times = task.exact_times
    watch = Stopwatch(model.device)
    reports = list(reader.read(IdFeed(task.ids)))
    watch.has_read()
    stop: frozenset[int] = frozenset()
    for _ in reader.answer(
        task.question, lambda row: int(row.argmax()), stop, task.tokens, final=True
    ):
        watch.token()
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


@contextmanager
def attention(model: BoundedModel, name: str) -> Iterator[None]:
    """Let the model compute attention with `name`, and with kvstream's own afterwards."""
    model.model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.model.set_attn_implementation(hook.NAME)


@torch.inference_mode()
def read_plain(
    model: BoundedModel, ids: Sequence[int], chunk: int | None, question: Sequence[int], tokens: int
) -> Record:
    """Read with a cache that holds everything. `chunk`: tokens per forward pass; None is all."""
    cache = DynamicCache(config=model.model.config)

    def logits(part: Tensor) -> Tensor:
        keywords = holding(model.model, cache)
        out = model.model(input_ids=part, use_cache=True, logits_to_keep=1, **keywords)
        return out.logits[0, -1]

    text = torch.tensor([list(ids)], device=model.device)
    with attention(model, SDPA):
        watch = Stopwatch(model.device)
        for part in text.split(chunk or text.shape[1], dim=1):
            logits(part)
        watch.has_read()
        layers: Any = [cache.layers[spec.index] for spec in model.layers]
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        size += sum(spec.bytes for spec in model.states)
        answer(
            lambda more: logits(torch.tensor([list(more)], device=model.device)),
            question, tokens, watch,
        )  # fmt: skip
    return {**watch.record(), "peak_kv_tokens": len(ids), "peak_kv_bytes": size}


def _plain(system: System, task: Task) -> Record:
    chunk = PLAIN_CHUNK if system.mode == "chunked" else None
    return read_plain(task.session.model, task.ids, chunk, task.question, task.tokens)


OURS = Kind(_kvstream, "kvstream")
PLAIN = {"one shot": False, "chunked": False}
KINDS: dict[str, Kind] = {
    "transformers": Kind(_plain, "transformers, plain cache", PLAIN, grows=tuple(PLAIN)),
}
"""The lab adds more."""
