"""The contract between every method and the engine: one matrix over all methods.

Every registered method is part of it. Each method runs with every growth of memory, every kind of
model and both precisions. The combinations of these are spread evenly over the methods.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import every_second
from models import bounded, plain, tokens
from torch import Tensor

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.eviction import NEWEST
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import KvstreamError, UsageError
from kvstream.evaluation.harness import IdFeed
from kvstream.methods import registry
from kvstream.methods.base import (
    EntryTensor,
    Evidence,
    Method,
    Step,
    in_words,
    limits,
    setting,
)
from kvstream.methods.scored import ScoredMethod
from kvstream.model.bounded import BoundedModel
from kvstream.model.layer_store import PROMPT
from kvstream.model.probe import bound
from kvstream.settings import SCHEDULES, RunSettings

KINDS = {
    "grouped": "llama",
    "not grouped": "gpt-neox",
    "layers without positions": "smollm3",
    "sliding layers": "gemma3",
    "recurrent layers": "qwen3.5",
    "recurrent beside attention": "falcon-h1",
    "shared layers": "gemma4",
}
METHODS = dict(registry.available())
EVICTING = [name for name, method in METHODS.items() if method.evicts]
PRECISIONS = ("float32", "bfloat16")

BUDGET, HEAD, QUESTION, ANSWER, CATALYST = 224, 6, 5, 8, 4
LENGTH = 450
"""Number of tokens of the source, twice the budget."""


@cache
def model(kind: str, precision: str) -> BoundedModel:
    if precision == "float32":
        return bounded(KINDS[kind])
    return bound(copy.deepcopy(plain(KINDS[kind])).to(torch.bfloat16), kind)


@dataclass
class Feed:
    """Token ids in a list. If `told` is set, the estimate of their number is exact, else None."""

    ids: list[int]
    told: bool = True
    at: int = 0

    def read(self, count: int) -> Chunk:
        piece = Chunk(self.ids[self.at : self.at + count], self.at)
        self.at += len(piece.ids)
        return piece

    def exhausted(self) -> bool:
        return self.at >= len(self.ids)

    def estimate(self) -> int | None:
        return len(self.ids) if self.told else None


def watched(kind: type[Method], calls: list[int]) -> Method:
    """Return the method with a check of every selection against the contract."""

    def select(self: Method, step: Step, keep: int) -> Tensor:
        layers, heads, n = step.origin.shape
        asked = self.evidence()
        assert 0 < keep < n
        assert len(step.layers) == layers
        assert asked.window_attention == 0 or (
            step.window_attention is not None and step.window_attention.shape == step.origin.shape
        )
        assert set(step.state) == {t.name for t in self.tensors()}
        assert all(t.shape == step.origin.shape for t in step.state.values())
        assert set(step.head_state) == {t.name for t in self.head_tensors()}
        before = step.origin.clone()
        chosen = kind.select(self, step, keep)
        assert torch.equal(step.origin, before), "select changed what it was shown"
        assert chosen.shape == (layers, heads, keep)
        assert chosen.dtype == torch.int64
        assert (chosen.diff(dim=-1) > 0).all(), "not sorted, or not unique"
        assert int(chosen.min()) >= 0
        assert int(chosen.max()) < n
        calls.append(n)
        return chosen

    return type(kind.__name__, (kind,), {"select": select})()


def reader(
    method: Method, kind: str, precision: str, run: RunSettings, length: int | None
) -> Reader:
    wants = method.catalyst(("a question",)) if method.evicts else ()
    catalysts = [tokens(CATALYST, seed=9 + i) for i in range(len(wants))]
    sizes = BudgetSplit(BUDGET, HEAD, CATALYST * len(wants), QUESTION, ANSWER)
    return Reader(
        model(kind, precision), method, run, sizes, tokens(HEAD, seed=1), catalysts, length
    )


def greedy(logits: Tensor) -> int:
    return int(logits.argmax())


def check(read: Reader, sinks: int) -> None:
    """Check the budget, the origins of all entries, and that prompt and sinks stay."""
    cache = read.cache
    assert max(cache.size, cache.peak.tokens) <= BUDGET
    assert cache.bytes <= cache.peak.bytes <= cache.capacity_bytes
    assert read.evictor.first_candidate == HEAD + sinks, "not the sinks that the method asks for"
    for store in read.compressible:
        origin = store.origin[:, : store.used]
        assert (origin[:, :HEAD] == PROMPT).all(), "the prompt is not in front"
        source = origin[:, HEAD:]
        assert (source[:, :sinks] == torch.arange(sinks)).all(), "the sinks are gone"
        assert (source >= 0).all()
        assert (source < read.seen).all()
        assert (source.diff(dim=1) > 0).all(), "not in order of age"


def stream(read: Reader, feed: Feed) -> Iterator[None]:
    asked = read.method.sinks  # not the number that the reader claims to protect
    settled: int | None = None
    for report in read.read(feed):
        assert report.in_flight <= BUDGET
        sinks = min(asked, read.seen) if settled is None else settled
        if settled is None and (smallest := min(report.memory)) < read.seen:
            # Final once entries leave. Sinks take at most three quarters of the smallest layer.
            sinks = settled = min(sinks, smallest * 3 // 4)
        check(read, sinks)
        yield


def answered(read: Reader, count: int) -> list[int]:
    """Answer, and check that the question and the newest tokens stay."""
    said: list[int] = []
    ids = tokens(QUESTION, seed=2)
    for token in read.answer(ids, greedy, frozenset(), count):
        assert read.cache.size <= BUDGET
        said.append(token)
        kept = min(len(said) - 1, NEWEST)
        for store in read.compressible:
            tail = store.origin[:, store.used - kept : store.used]
            assert (tail == PROMPT).all(), "the newest tokens of the answer are gone"
            own = (store.origin[:, HEAD : store.used] == PROMPT).sum(1)
            assert (own >= QUESTION + kept).all(), "the question is gone"
    return said


def cells() -> list[tuple[str, str, str, str]]:
    """Return (method, growth, kind, precision), with all pairs of a method and another value."""
    kinds = list(KINDS)
    found = []
    for i, method in enumerate(EVICTING):
        for j in range(max(len(SCHEDULES), len(kinds))):
            growth, kind = SCHEDULES[j % len(SCHEDULES)], kinds[(i + j) % len(kinds)]
            found.append((method, growth, kind, PRECISIONS[(j + i // 2) % 2]))
    return found


def test_every_method_meets_every_schedule_kind_and_precision() -> None:
    met = {(name, one) for name, *others in cells() for one in others}
    assert met == {(name, one) for name in EVICTING for one in (*SCHEDULES, *KINDS, *PRECISIONS)}


@pytest.mark.parametrize(("name", "growth", "kind", "precision"), every_second(cells()))
def test_a_long_text(name: str, growth: str, kind: str, precision: str) -> None:
    """The contract holds after every chunk and after every token of an answer."""
    read, held = read_through(name, growth, kind, precision)
    answered(read, ANSWER)
    assert torch.equal(read.retained(), held[-1]), "an answer that fits changed memory"


@pytest.mark.parametrize("name", every_second(EVICTING))
def test_a_long_answer_and_the_same_again(name: str) -> None:
    """Entries of the source leave during the answer. A second run gives the same tokens."""
    precision = PRECISIONS[EVICTING.index(name) % 2]
    runs = [read_through(name, "linear", "grouped", precision) for _ in range(2)]
    before = [sources(read) for read, _ in runs]
    room = BUDGET - runs[0][0].cache.size - QUESTION
    count = max(room, NEWEST) + NEWEST
    said = [answered(read, count) for read, _ in runs]
    assert said[0] == said[1]
    assert len(said[0]) == count
    for (read, _), held_before in zip(runs, before, strict=True):
        assert read.stopped == "length"
        assert sources(read) < held_before, "memory did not give way"
    assert all(torch.equal(a, b) for a, b in zip(*(held for _, held in runs), strict=True))
    for read, held in runs:
        assert read.retained().numel() <= held[-1].numel()
        check_evicted_while_decoding(read)


def sources(read: Reader) -> int:
    """Count the source's entries in the first head of each layer, summed over the layers."""
    return sum(int((s.origin[0, HEAD : s.used] != PROMPT).sum()) for s in read.compressible)


def read_through(name: str, growth: str, kind: str, precision: str) -> tuple[Reader, list[Tensor]]:
    """Read the long text with all checks. Return the reader and what it held after each chunk."""
    number = SCHEDULES.index(growth) + len(name)
    # Some runs have a stream of unknown length, some have chunks of one size.
    told = number % 3 != 0
    run = RunSettings(schedule=growth, chunk=("decremental", "fixed")[number % 2], seed=7)
    calls: list[int] = []
    method = watched(METHODS[name], calls)
    read = reader(method, kind, precision, run, LENGTH if told else None)
    held = [read.retained() for _ in stream(read, Feed(tokens(LENGTH, seed=3), told))]
    assert read.seen == LENGTH
    assert calls, "nothing was ever selected"
    # `check` compares the number of sinks. These lines ensure that there are any.
    assert read.evictor.first_candidate > HEAD or METHODS[name]().sinks == 0
    assert read.evictor.first_candidate > HEAD or name != "streaming"
    return read, held


def check_evicted_while_decoding(read: Reader) -> None:
    """Check that the entries are still in order after eviction while decoding."""
    for store in read.compressible:
        source = store.origin[:, HEAD : store.used]
        source = source[:, (source != PROMPT).all(0)]
        assert (source.diff(dim=1) > 0).all()


@cache
def plain_answer(kind: str, ids: tuple[int, ...], count: int) -> list[int]:
    """Return the greedy tokens of the plain model, without a KV cache."""
    held, said = list(ids), []
    with torch.inference_mode():
        for _ in range(count):
            said.append(greedy(plain(KINDS[kind])(torch.tensor([held])).logits[0, -1]))
            held.append(said[-1])
    return said


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize(("name", "kind"), every_second(itertools.product(METHODS, KINDS)))
def test_nothing_is_lost_when_all_fits(name: str, kind: str, precision: str) -> None:
    """Answers equal those of the plain model; in bfloat16, those of the method `full`."""
    length = 60
    read = reader(METHODS[name](), kind, precision, RunSettings(), length)
    text = tokens(length, seed=4)
    for _ in stream(read, Feed(text)):
        pass
    assert read.retained().tolist() == list(range(length))
    for store in read.compressible:
        assert store.used == HEAD + length
    said = answered(read, ANSWER)
    if precision == "float32":
        ids = (*tokens(HEAD, seed=1), *text, *tokens(QUESTION, seed=2))
        assert said == plain_answer(kind, ids, ANSWER)
    else:
        full = reader(METHODS["full"](), kind, precision, RunSettings(), length)
        assert list(stream(full, Feed(text)))
        assert said == answered(full, ANSWER)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_says_of_itself(name: str) -> None:
    """A method has a name, a docstring, help for every setting, and tensors of valid types."""
    kind = METHODS[name]
    method = kind()
    assert kind.name == name
    assert (kind.__doc__ or "").strip()
    assert all(f.metadata.get("help") for f in dataclasses.fields(kind))
    assert registry.make(name, {k: _typed(v) for k, v in method.settings().items()}) == method
    for tensor in (*method.tensors(), *method.head_tensors()):
        assert tensor.dtype in (torch.float32, torch.int32)
    assert method.layer_sizes((100,) * 6) == tuple(
        min(s, 100) for s in method.layer_sizes([100] * 6)
    )
    assert method.sized(BUDGET).name == name


# Limits of settings ---------------------------------------------------------------------------

NUMBERS = [
    (name, field.name, allowed)
    for name, kind in METHODS.items()
    for field in dataclasses.fields(kind)
    if (allowed := limits(field)) is not None
]
MANY = 10**9
"""Stands for the upper limit of a setting that has none."""


@pytest.mark.parametrize(("name", "key", "allowed"), NUMBERS)
def test_a_number_out_of_its_limits_is_refused(
    name: str, key: str, allowed: tuple[float, float]
) -> None:
    """The error names the method, the setting, the value and the range."""
    least, most = allowed
    past = [least - 1, math.nan, math.inf] + ([] if most == math.inf else [most + 1])
    if type(getattr(METHODS[name](), key)) is float:
        past += [least - 0.001] + ([] if most == math.inf else [most + 0.001])
    else:
        past = [value for value in past if math.isfinite(value)]  # `int` has neither nan nor inf
    for value in past:
        with pytest.raises(UsageError) as caught:
            registry.make(name, {key: str(value)})
        assert caught.value.exit_code == 2
        assert str(caught.value) == f"--set {name}.{key} must be {in_words(allowed)}, not {value}."


@pytest.mark.parametrize("which", ["least", "most"])
@pytest.mark.parametrize(("name", "key", "allowed"), NUMBERS)
def test_a_text_is_read_with_a_setting_at_its_limit(
    name: str, key: str, allowed: tuple[float, float], which: str
) -> None:
    value = min(allowed[which == "most"], MANY)
    others = {"alpha": "0.5"} if key == "pool_novelty" else {}
    method = registry.make(name, {**others, key: str(value)})
    assert getattr(method, key) == value
    length = 280
    text = tokens(length, seed=5)
    read = reader(method, "grouped", "float32", RunSettings(), length)
    if not method.evicts:
        room = min(read.sizes.free, read.sizes.final)
        first, last = method.shorten(HEAD, room) or (room, 0)
        assert first + last == room
        text = text[:first] + text[length - last :]
    for _ in stream(read, Feed(text)):
        pass
    assert len(answered(read, 2)) == 2


def test_limits_of_a_method_that_declares_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of methods without limits, as other packages may have, must be 0 or more."""

    @dataclass(frozen=True)
    class Bare(METHODS["streaming"]):  # type: ignore[misc]
        name = "bare"
        share: float = dataclasses.field(default=0.5, metadata={"help": "a share"})
        plain: int = 3

    monkeypatch.setattr(registry, "available", lambda: {"bare": Bare})
    made = registry.make("bare", {"share": "7", "plain": "0", "sinks": "2"})
    assert made.settings() == {"share": 7.0, "plain": 0, "sinks": 2}
    for key in ("share", "plain"):
        with pytest.raises(UsageError, match=rf"bare\.{key} must be 0 or more, not -1\."):
            registry.make("bare", {key: "-1"})


def _typed(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Methods of other packages ---------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "tests" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package of tests/plugin with pip into a separate folder and return the folder."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source")
    for path in PLUGIN.iterdir():
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-index", "--no-build-isolation", "--no-deps"]
    done = subprocess.run(
        [*pip, *offline, "--target", str(target), str(source)], capture_output=True, text=True
    )
    if "No module named pip" in done.stderr:
        pytest.skip("pip is not in this environment")
    assert done.returncode == 0, done.stderr
    return target


def test_a_third_partys_method_is_listed(installed: Path, warm: list[str]) -> None:
    assert "everyother" not in METHODS
    done = subprocess.run(
        [*warm, "-mkvstream", "methods", "everyother"],
        capture_output=True,
        text=True,
        cwd=installed,  # which Python looks through for packages first
    )
    assert done.returncode == 0, done.stderr
    assert "--set everyother.window=16" in done.stdout


@pytest.fixture
def everyother(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Register the plugin's method in this process and yield its name."""
    monkeypatch.syspath_prepend(str(installed))
    registry.available.cache_clear()
    method = registry.available()["everyother"]
    monkeypatch.setitem(METHODS, "everyother", method)
    yield "everyother"
    registry.available.cache_clear()


@pytest.mark.parametrize(
    ("kind", "precision"), list(zip(KINDS, itertools.cycle(PRECISIONS), strict=False))[:3]
)
def test_a_third_partys_method_meets_the_contract(
    everyother: str, kind: str, precision: str
) -> None:
    test_what_a_method_says_of_itself(everyother)
    test_a_long_text(everyother, "linear", kind, precision)
    test_nothing_is_lost_when_all_fits(everyother, kind, precision)


class _Point:
    """An entry point of some package."""

    group, value, dist = (
        "kvstream.methods",
        "other.module:Thing",
        SimpleNamespace(name="other-package"),
    )
    pattern = EntryPoint.pattern

    def __init__(self, name: str, loaded: object) -> None:
        self.name, self.loaded = name, loaded

    def load(self) -> object:
        if isinstance(self.loaded, BaseException):
            raise self.loaded
        return self.loaded


class _Undecorated(METHODS["streaming"]):  # type: ignore[misc]
    width: int = setting(3, "ignored without the decorator")


@dataclass(frozen=True)
class _Optional(METHODS["streaming"]):  # type: ignore[misc]
    width: int | None = setting(None, "None cannot be typed")


@dataclass(frozen=True)
class _Unknown(METHODS["streaming"]):  # type: ignore[misc]
    width: NoSuchType = setting(3, "raises")  # type: ignore[name-defined]  # noqa: F821, RUF009


@dataclass(frozen=True)
class _Fine(METHODS["streaming"]):  # type: ignore[misc]
    name = "fine"


@pytest.mark.parametrize(
    ("loaded", "told"),
    [
        (ImportError("no such thing"), "does not load"),
        (SystemExit(3), "does not load"),
        (type("Nameless", (ScoredMethod,), {"name": 5}), "has no name"),
        (_Unknown, "does not load"),
        (dict, "not a kvstream Method"),
        (Method, "has no name"),
        (type("Unfinished", (ScoredMethod,), {"name": "thing"}), "does not define score"),
        (_Undecorated, "not decorated with @dataclass"),
        (_Optional, "has a setting 'width' that is not an int"),
        (METHODS["streaming"], "exists already"),
    ],
)
def test_a_broken_plugin_is_named(
    monkeypatch: pytest.MonkeyPatch, loaded: object, told: str
) -> None:
    points = [_Point("thing", loaded), _Point("other", _Fine)]
    monkeypatch.setattr(registry, "plugins", lambda: (points, ()))
    registry.available.cache_clear()
    try:
        assert set(registry.available()) - {"fine"} <= set(METHODS)
        assert issubclass(registry.by_name("fine"), _Fine)
        assert registry.by_name("snapkv")
        with pytest.raises(UsageError, match=told) as caught:
            registry.by_name("thing")
        assert "'other.module:Thing' in the package other-package" in str(caught.value)
    finally:
        registry.available.cache_clear()


@dataclass(frozen=True)
class _Leaving(METHODS["streaming"]):  # type: ignore[misc]
    name = "leaving"

    def catalyst(self, questions: Sequence[str]) -> tuple[str, ...]:
        raise SystemExit(0)


def test_every_function_of_a_plugin_names_it_in_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "plugins", lambda: ([_Point("leaving", _Leaving)], ()))
    registry.available.cache_clear()
    try:
        with pytest.raises(KvstreamError, match=r"other-package fails in catalyst \(SystemExit: 0"):
            registry.make("leaving").catalyst(())
    finally:
        registry.available.cache_clear()


class _Helped(Method):
    """A method with functions of its own, among them one with a name of `ScoredMethod`."""

    name = "helped"

    def score(self, parts: int, /) -> list[int]:
        return [0] * parts

    @staticmethod
    def target(size: int, present: int) -> int:
        return min(size, present, 4)


def test_functions_of_a_method_are_bound_and_its_own_stay_its_own() -> None:
    method = registry._answerable(_Helped, "It")()
    assert (method.score(3), method.target(9, 8)) == ([0, 0, 0], 4)  # type: ignore[attr-defined]


class _Flat(ScoredMethod):
    """A method whose scores lack the dimension of the heads."""

    name = "flat"

    def score(self, step: Step) -> Tensor:
        return torch.zeros(len(step.layers), step.origin.shape[-1])


class _TooMany(Method):
    """A method that selects every entry."""

    name = "too-many"

    def select(self, step: Step, keep: int) -> Tensor:
        return torch.arange(step.origin.shape[-1]).expand(step.origin.shape)


@dataclass(frozen=True)
class _Chosen(Method):
    """A method whose selection begins with the same candidates in every head."""

    name = "chosen"
    begin: tuple[int, ...] = ()

    def select(self, step: Step, keep: int) -> Tensor:
        rest = range(len(self.begin), keep)
        return torch.tensor([*self.begin, *rest]).expand(*step.origin.shape[:-1], keep)


@dataclass(frozen=True)
class _Witness(ScoredMethod):
    """A method that notes keys and values when entries come, and compares when it selects."""

    name = "witness"

    @property
    def needs_keys(self) -> bool:
        return True

    def tensors(self) -> tuple[EntryTensor, ...]:
        return EntryTensor("key"), EntryTensor("value")

    def absorb(self, step: Step) -> None:
        for name, vectors in (("key", step.keys()), ("value", step.values())):
            step.state[name][..., -step.new :] = vectors[..., -step.new :, :].float().sum(-1)

    def score(self, step: Step) -> Tensor:
        for name, vectors in (("key", step.keys()), ("value", step.values())):
            torch.testing.assert_close(vectors.sum(-1), step.state[name], rtol=1e-3, atol=1e-3)
        return step.state["value"]


@pytest.mark.parametrize("kind", ["grouped", "sliding layers"])
def test_keys_and_values_are_those_of_the_entries(kind: str) -> None:
    reading = reader(_Witness(), kind, "float32", RunSettings(), LENGTH)
    assert len(list(reading.read(IdFeed(tokens(LENGTH))))) > 2


class _OneSize(Method):
    """A method that sizes one layer alone."""

    name = "one-size"

    def layer_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(sizes[:1])


@pytest.mark.parametrize(
    ("kind", "told"),
    [(_OneSize, r"It returns \(\d+,\), not 2 sizes from 0 to \d+, from layer_sizes"),
     (_Flat, r"It returns scores of the shape \[\d+, \d+\], not \[2, 2, \d+\], from score"),
     (_TooMany, r"It returns the shape .*, not .*, from select")],
)  # fmt: skip
def test_a_result_of_another_shape_is_refused(kind: type[Method], told: str) -> None:
    method = registry._answerable(kind, "It")()
    reading = reader(method, "grouped", "float32", RunSettings(), LENGTH)
    with pytest.raises(KvstreamError, match=told):
        list(reading.read(IdFeed(tokens(LENGTH))))


@pytest.mark.parametrize("begin", [(0, 0), (1, 0), (-1,)])
def test_a_selection_that_is_not_sorted_candidates_is_refused(begin: tuple[int, ...]) -> None:
    reading = reader(_Chosen(begin=begin), "grouped", "float32", RunSettings(), LENGTH)
    with pytest.raises(KvstreamError, match="chosen selected entries out of order, twice, or"):
        list(reading.read(IdFeed(tokens(LENGTH))))


def test_a_request_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="mean or max, not 'sum'"):
        Evidence(reduce="sum")
    with pytest.raises(ValueError, match="must be float32 or int32"):
        EntryTensor("seen", torch.bool)


def test_the_page_on_writing_a_method_shows_this_plugin() -> None:
    page = (ROOT / "docs" / "reference" / "write-a-method.md").read_text(encoding="utf-8")
    code = (PLUGIN / "kvstream_everyother.py").read_text(encoding="utf-8")
    assert code[code.index("@dataclass") :].strip() in page
    assert (PLUGIN / "pyproject.toml").read_text(encoding="utf-8").strip() in page
