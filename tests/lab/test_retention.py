"""``bench retention``, compared with slow and obvious computations, and run as a program."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import every_second
from models import bounded, plain, tokens

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Reader
from kvstream.errors import UsageError
from kvstream.evaluation.harness import IdFeed
from kvstream.evaluation.sweep import Case
from kvstream.methods.h2o import H2O
from kvstream.methods.registry import available, make
from kvstream.settings import RunSettings
from kvstream_lab.retention import shares, trials
from kvstream_lab.retention.watch import MEASURES, Watch
from kvstream_lab.retention.whole import Whole

HEAD, QUESTION, BUDGET, LENGTH = 6, 5, 224, 448
METHODS = [name for name, method in available().items() if method.evicts]
KINDS = ("gpt-neox", "gemma3", "qwen3.5", "falcon-h1", "gemma4")
TEXT, ASKED = tokens(LENGTH), tokens(QUESTION, seed=2)


def reader(name: str, kind: str = "llama", seed: int = 0) -> Reader:
    method = make(name, {})
    catalysts = [ASKED for _ in method.catalyst(("a question",))]
    sizes = BudgetSplit(BUDGET, HEAD, QUESTION * len(catalysts), QUESTION, 8)
    run = RunSettings(chunk="fixed", chunk_size=64, seed=seed)
    return Reader(bounded(kind), method, run, sizes, tokens(HEAD, seed=1), catalysts, LENGTH)


def held_by(read: Reader) -> list[list[list[int]]]:
    """Return the ordinals of the source tokens that each head of each layer holds."""
    return [
        [[o for o in head if o >= 0] for head in s.origin[:, : s.used].tolist()]
        for s in read.compressible
    ]


@cache
def watched(name: str, kind: str = "llama") -> tuple[dict[str, Any], list[Any], list[int]]:
    """Return the record of a reading, what heads held after each step, and where the steps end."""
    read = reader(name, kind)
    whole = Whole(read.model, read.head, LENGTH + QUESTION)
    watch = Watch(TEXT, read, whole, ASKED)
    held, ends = [], []
    for _ in read.read(watch):
        watch.after_step()
        held.append(held_by(read))
        ends.append(read.seen)
    return watch.record(), held, ends


@cache
def attention(end: int, asked: bool) -> list[torch.Tensor]:
    """Return the attention [K, T, T] of each layer, from the plain model.

    It covers the prompt, the text so far and, if `asked`, the question. It is averaged over the
    query heads of a KV head.
    """
    ids = [*tokens(HEAD, seed=1), *TEXT[:end], *(ASKED if asked else ())]
    with torch.no_grad():
        out = plain("llama")(torch.tensor([ids]), output_attentions=True)
    return [a[0].unflatten(0, (2, -1)).mean(1) for a in out.attentions]


def share_of_best(scores: list[float], held: list[int]) -> float:
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[: len(held)]
    return len(set(best) & set(held)) / len(held)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("name", ["infinipot", "random", "streaming"])
def test_hits_are_those_of_the_plain_model(name: str) -> None:
    record, held, ends = watched(name)
    for step, layers, end in zip(record["steps"], held, ends, strict=True):
        rates = [
            share_of_best(scores[-1, HEAD : HEAD + end].tolist(), head)
            for layer, heads in zip(attention(end, asked=True), layers, strict=True)
            for scores, head in zip(layer, heads, strict=True)
        ]
        everything = end == len(layers[0][0])
        expected = None if everything else pytest.approx(mean(rates), abs=1e-4)
        assert step["hit_question"] == expected, "a choice is a hit only where there was one"
        assert step["chance"] == pytest.approx(len(layers[0][0]) / end, abs=1e-4)
    chunks = zip(record["steps"], held, ends, ends[1:], strict=False)
    for step, layers, end, following in chunks:
        rates = [
            share_of_best(scores[HEAD + end :, HEAD : HEAD + end].sum(0).tolist(), head)
            for layer, heads in zip(attention(following, asked=False), layers, strict=True)
            for scores, head in zip(layer, heads, strict=True)
        ]
        everything = end == len(layers[0][0])
        assert step["hit_chunk"] == (None if everything else pytest.approx(mean(rates), abs=1e-4))
    assert sum(s["hit_chunk"] is not None for s in record["steps"]) > 4
    assert record["steps"][-1]["hit_chunk"] is None, "nothing follows the last step"
    assert record["compared"] == LENGTH


@pytest.mark.parametrize("name", ["infinipot", "random", "pyramidkv"])
def test_overlap_and_age_by_counting(name: str) -> None:
    record, held, ends = watched(name)
    before: list[Any] = []
    for step, layers, end in zip(record["steps"], held, ends, strict=True):
        heads = [set(head) for layer in layers for head in layer]
        pairs = [len(a & b) / len(a | b) for a, b in itertools.combinations(heads, 2)]
        assert step["jaccard"] == pytest.approx(mean(pairs), abs=1e-4)
        common = len(set.intersection(*heads)) / mean([len(head) for head in heads])
        assert step["shared"] == pytest.approx(common, abs=1e-4)
        ages = [(end - 1 - token) / (end - 1) for head in heads for token in head]
        if len({len(head) for head in heads}) == 1:  # `age` weights all layers alike
            assert step["age"] == pytest.approx(mean(ages), abs=1e-4)
        if before:
            stayed = [
                mean([len(set(a) & set(b)) / len(a) for a, b in zip(new, old, strict=True)])
                for new, old in zip(layers, before, strict=True)
            ]
            assert step["retention"] == pytest.approx(mean(stayed), abs=1e-4)
        before = layers
    assert record["steps"][0]["retention"] is None
    by_layer = []
    for heads in held[-1]:
        counts = Counter(token * shares.PARTS // LENGTH for head in heads for token in head)
        by_layer.append([counts[part] / sum(map(len, heads)) for part in range(shares.PARTS)])
    expected = [mean(list(column)) for column in zip(*by_layer, strict=True)]
    assert record["parts"] == pytest.approx(expected, abs=1e-4)


def test_many_distinct_tokens_overlap_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    origins = [
        torch.stack([torch.randperm(200, generator=draw)[:m].sort().values for _ in range(3)])
        for m in (40, 70, 70)
    ]
    at_once = shares.overlap(origins)
    monkeypatch.setattr(shares, "BLOCK", 16)
    assert shares.overlap(origins) == at_once


def test_an_even_choice_is_spread_and_one_place_is_not() -> None:
    even = shares.parts(torch.arange(0, 80, 2)[None], 80)
    assert shares.spread(even) == pytest.approx(1)
    assert shares.spread(shares.parts(torch.arange(5)[None], 80)) == pytest.approx(0, abs=1e-6)
    halves = shares.parts(torch.tensor([[0, 79]]), 80)
    assert shares.spread(halves) == pytest.approx(math.log(2) / math.log(shares.PARTS))


def test_one_head_has_no_overlap_and_all_of_the_text_no_hits() -> None:
    alone = shares.overlap([torch.arange(9)[None]])
    assert (alone.jaccard, alone.shared) == (None, None)
    assert shares.hit_rate(torch.rand(1, 9), torch.arange(9)[None]) is None


def test_attention_to_memory_is_what_the_step_itself_measures() -> None:
    """`h2o` receives the same sums from the pass itself."""
    seen: list[tuple[float, float]] = []

    class Noted(H2O):
        def absorb(self, step: Any) -> None:
            sums, old = step.accumulated_attention, step.origin.shape[-1] - step.new
            if sums is not None and old:
                mass = sums[..., :old].double().mean((0, 1)) / step.new
                memory = step.origin[0, 0, :old] >= sinks
                seen.append((float(mass[memory].sum()), float(mass[~memory].sum())))
            super().absorb(step)

    read = reader("h2o")
    sinks = read.method.sinks
    read.method = read.evictor.method = read.prefill.method = Noted()
    watch = Watch(TEXT, read, Whole(read.model, read.head, LENGTH), ())
    for _ in read.read(watch):
        watch.after_step()
    steps = [s for s in watch.record()["steps"] if s["attention"] is not None]
    # The step measures nothing for the last chunk if it evicts nothing.
    for step, (memory, of_sinks) in zip(steps, seen, strict=False):
        assert step["attention"] == pytest.approx(memory, abs=1e-4)
        assert step["attention_sinks"] >= of_sinks - 1e-4, "the prompt's is with the sinks'"
    assert len(seen) >= len(steps) - 1 > 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *every_second((name, "llama") for name in METHODS),
        *(("infinipot", kind) for kind in KINDS),
        *(
            pytest.param(name, kind, marks=pytest.mark.long)
            for name, kind in itertools.product(("h2o", "random"), KINDS)
        ),
    ],
)
def test_watching_changes_nothing(name: str, kind: str) -> None:
    """Every method that evicts and every kind of layer also has all measures."""
    record, held, ends = watched(name, kind)
    read = reader(name, kind)
    for at, _ in enumerate(read.read(IdFeed(TEXT))):
        assert held_by(read) == held[at]
        assert read.seen == ends[at]
    json.dumps(record)
    heads = sum(s.spec.heads for s in read.compressible)
    evicted = [s for s in record["steps"][1:-1] if s["chance"] < 1]
    assert evicted
    for step in evicted:
        missing = {m for m in MEASURES if step[m] is None}
        assert missing == (set() if heads > 1 else {"jaccard", "shared"})
        assert all(0 <= step[m] <= 1.0001 for m in MEASURES if step[m] is not None)


def test_hits_end_where_the_whole_text_is_not_held() -> None:
    read = reader("streaming")
    whole = Whole(read.model, read.head, 300)
    watch = Watch(TEXT, read, whole, ASKED)
    for _ in read.read(watch):
        watch.after_step()
    record = watch.record()
    assert 0 < record["compared"] <= 300
    known = [s["tokens"] for s in record["steps"] if s["hit_question"] is not None]
    assert known
    assert max(known) <= record["compared"]
    assert record["steps"][-1]["age"] is not None


# The command


def step(tokens: int, hit: float | None) -> dict[str, Any]:
    numbers = dict.fromkeys((*MEASURES, "chance"), 0.5)
    return {"tokens": tokens, "memory": 8, **numbers, "hit_chunk": hit}


def record(text: str, hits: list[float | None]) -> dict[str, Any]:
    parts = [1 / shares.PARTS] * shares.PARTS
    return {
        "method": "random", "question": None, "text": text, "tokens": 100, "compared": 100,
        "steps": [step(50 * (i + 1), hit) for i, hit in enumerate(hits)],
        "parts": parts,
    }  # fmt: skip


def test_a_row_is_the_mean_of_texts_and_not_of_steps() -> None:
    (row,) = trials.rows([record("a", [0.2, 0.4, None]), record("b", [0.9, None])])
    assert row["hit_chunk"] == pytest.approx((0.3 + 0.9) / 2)
    low, high = row["hit_chunk_interval"]
    assert low < row["hit_chunk"] < high
    assert [s["texts"] for s in row["steps"]] == [2, 2, 1]
    assert [s["hit_chunk"] for s in row["steps"]] == [pytest.approx(0.55), 0.4, None]
    assert "age_interval" not in row, "no difference, no interval"
    (alone,) = trials.rows([record("a", [0.2, 0.4])])
    assert "hit_chunk_interval" not in alone, "one text says nothing of others"
    early = record("a", [0.2, 0.4])
    early["steps"][0] |= {"chance": 1, "age": 0.9}
    assert trials.rows([early])[0]["age"] == 0.5, "nothing was evicted in the first step"


def test_methods_that_keep_everything_are_refused() -> None:
    with pytest.raises(UsageError, match=r"full evicts nothing.* infinipot, cascade"):
        trials.check([Case(RunSettings(method="random")), Case(RunSettings(method="full"))])


@pytest.fixture(scope="module")
def story(write_story: Any) -> Path:
    return write_story(tokens=1500)


@pytest.mark.whole_pocket
def test_rows_and_a_page(lab: Any, story: Path, tmp_path: Path) -> None:
    saved, page = (tmp_path / n for n in ("trials.jsonl", "page.html"))
    arguments = (
        "retention", str(story), "-Q", "Who came?", "--limit", "1k", "--budget", "512",
        "--threads", "1", "--method", "infinipot,random", "--save", str(saved),
    )  # fmt: skip
    done = lab(*arguments, "--json", "--report", str(page))
    assert done.code == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["method"] for r in rows] == ["infinipot", "random"]
    for row in rows:
        assert row["tokens"] == row["compared"] == 1024
        assert row["steps"][-1]["tokens"] == 1024
        assert row["chance"] < row["hit_question"] < 1
        assert sum(row["parts"]) == pytest.approx(1, abs=1e-3)
    assert "Attention of the next chunk to memory" in page.read_text()
    again = lab(*arguments)
    assert "2 trials were taken from" in again.stderr
    assert "Where memory is from at the end" in again.stdout


def test_without_a_question_its_hits_are_missing(lab: Any, story: Path) -> None:
    arguments = (
        "retention", str(story), "--limit", "700", "--budget", "512", "--threads", "1",
        "--method", "streaming", "-q",
    )  # fmt: skip
    done = lab(*arguments, "--json")
    assert done.code == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["hit_question"] is None
    assert row["hit_chunk"] > 0
    assert "Hit rate of the question" not in lab(*arguments).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--method", "nonsense"), 2, "Unknown method 'nonsense'"),
        (("--method", "truncate"), 2, "truncate evicts nothing"),
        (("--budget", "40"), 5, "A budget of 40 entries leaves"),
        (("--budget", "1M"), 5, "exceeds the 4,096 positions"),
        (("--budget", "512", "-Q", "why " * 600), 5, "a shorter question"),
    ],
)
def test_bad_input(
    lab: Any, story: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = lab("retention", str(story), "--threads", "1", *arguments)
    assert (done.code, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_text_without_text(lab: Any, tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("")
    done = lab("retention", str(path), "--budget", "512", "--threads", "1")
    assert done.code == 3
    assert str(path) in done.stderr
