"""A text that fits gets the logits and greedy answers of transformers, token for token.

The plain model is a separate copy with its own attention that reads the whole prompt at once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from models import EVERY_RUN, FAMILIES, bounded, fresh, plain, tokens
from torch import Tensor
from transformers import AutoModelForCausalLM

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods.infinipot import InfiniPot
from kvstream.methods.whole import Full
from kvstream.model.bounded import BoundedModel
from kvstream.model.probe import bound
from kvstream.settings import RunSettings
from kvstream.store import pocket

REST = sorted(set(FAMILIES) - set(EVERY_RUN))
HEAD, CHUNKS, QUESTION, ANSWER = 5, (30, 1, 44, 17), 6, 12


@cache
def greedy(model: Any, ids: tuple[int, ...], count: int) -> tuple[list[int], Tensor]:
    """Return a greedy answer and its logits [count, V], from a full pass for each token.

    Without a cache, the result depends on nothing but the model.
    """
    said: list[int] = []
    seen = []
    with torch.inference_mode():
        for _ in range(count):
            seen.append(
                model(input_ids=torch.tensor([[*ids, *said]]), use_cache=False).logits[0, -1]
            )
            said.append(int(seen[-1].argmax()))
    return said, torch.stack(seen)


def ours(
    model: BoundedModel, method: Any, head: list[int], chunks: list[list[int]], question: list[int],
    count: int,
) -> tuple[list[int], Tensor, Reader]:  # fmt: skip
    length = sum(map(len, chunks))
    sizes = BudgetSplit(
        len(head) + length + len(question) + count + 40, len(head), 8, len(question), 20
    )
    catalysts = [tokens(8, seed=9)]
    reader = Reader(model, method, RunSettings(), sizes, head, catalysts, estimate=length)
    for i, chunk in enumerate(chunks):
        reader.step(Chunk(chunk, reader.seen), last=i + 1 == len(chunks))
    seen = []

    def choose(logits: Tensor) -> int:
        seen.append(logits.clone())
        return int(logits.argmax())

    said = list(reader.answer(question, choose, frozenset(), count))
    return said, torch.stack(seen), reader


def problem(cuts: tuple[int, ...], vocabulary: int) -> tuple[list[int], list[list[int]], list[int]]:
    text = tokens(sum(cuts), seed=2, vocabulary=vocabulary)
    chunks = [text[sum(cuts[:i]) : sum(cuts[: i + 1])] for i in range(len(cuts))]
    return (
        tokens(HEAD, seed=1, vocabulary=vocabulary), chunks,
        tokens(QUESTION, seed=3, vocabulary=vocabulary),
    )  # fmt: skip


def check(
    model: Any, wrapped: BoundedModel, cuts: tuple[int, ...], method: Any = None,
    tolerance: float = 1e-4,
) -> None:  # fmt: skip
    vocabulary = model.get_input_embeddings().weight.shape[0]
    head, chunks, question = problem(cuts, vocabulary)
    whole = (*head, *(i for chunk in chunks for i in chunk), *question)
    want, want_logits = greedy(model, whole, ANSWER)
    said, logits, reader = ours(wrapped, method or InfiniPot(), head, chunks, question, ANSWER)
    wrong = (logits - want_logits).abs().max() / want_logits.std()
    assert wrong < tolerance
    assert said == want
    assert reader.retained().tolist() == list(range(sum(cuts)))
    assert all(store.unrotated == 0 for store in reader.cache.stores), "something was un-rotated"


@pytest.mark.parametrize("cuts", [CHUNKS, (sum(CHUNKS),)], ids=["several chunks", "one chunk"])
@pytest.mark.parametrize("name", EVERY_RUN)
def test_what_fits_is_answered_as_by_the_plain_model(name: str, cuts: tuple[int, ...]) -> None:
    check(plain(name), bounded(name), cuts)


@pytest.mark.long
@pytest.mark.parametrize("name", REST)
def test_what_fits_in_every_family(name: str) -> None:
    check(plain(name), bounded(name), CHUNKS)
    check(plain(name), bounded(name), (sum(CHUNKS),), Full())


@pytest.fixture(scope="module")
def pockets() -> dict[torch.dtype, tuple[Any, BoundedModel]]:
    """Two layers of the embedded model in two precisions, as transformers runs them and bounded."""

    def load(dtype: torch.dtype) -> Any:
        few = {"dtype": dtype, "num_hidden_layers": 2}
        return AutoModelForCausalLM.from_pretrained(pocket.path(), **few)

    return {d: (load(d), bound(load(d), "pocket")) for d in (torch.float32, torch.bfloat16)}


@pytest.mark.parametrize("cuts", [(300, 100, 171), (571,)], ids=["several chunks", "one chunk"])
def test_pocket_is_lossless(pockets: Any, cuts: tuple[int, ...]) -> None:
    check(*pockets[torch.float32], cuts, tolerance=1e-3)


def english(count: int) -> list[int]:
    """Return tokens of a text from the Python standard library."""
    from pydoc_data.topics import topics

    return pocket.encoding().encode_ordinary(topics["assert"] + topics["class"])[:count]


def test_pocket_is_lossless_on_text(pockets: Any) -> None:
    model, wrapped = pockets[torch.float32]
    ids = english(700)
    want, _ = greedy(model, tuple(ids), ANSWER)
    cut = len(ids) - 20
    said, _, _ = ours(wrapped, InfiniPot(), [], [ids[:256], ids[256:cut]], ids[cut:], ANSWER)
    assert said == want


@pytest.mark.parametrize("name", ["pocket", "llama", "qwen3", "gemma3", "gpt-neox"])
def test_bfloat16_decides_alike_where_rounding_cannot(name: str, pockets: Any) -> None:
    """The choices agree wherever the plain model's two best logits differ by more than rounding.

    The rounding error is measured: the plain model in bfloat16 against itself in float32. Mixtures
    of experts are left out, because rounding sends single tokens to other experts.
    """
    if name == "pocket":
        (exact, _), (model, wrapped) = pockets[torch.float32], pockets[torch.bfloat16]
    else:
        exact = fresh(FAMILIES[name].config()).to(torch.bfloat16).float()
        model = fresh(FAMILIES[name].config()).to(torch.bfloat16)
        wrapped = bound(fresh(FAMILIES[name].config()).to(torch.bfloat16), name)
    ids = english(160) if name == "pocket" else tokens(160, seed=4)
    with torch.inference_mode():
        batch = torch.tensor([ids])
        want = model(input_ids=batch, use_cache=False).logits[0].float()
        error = (want - exact(input_ids=batch, use_cache=False).logits[0]).abs().amax(-1)
    cache = wrapped.new_cache(160)
    got = torch.cat(
        [wrapped.logits(wrapped.forward(part, cache)) for part in (ids[:70], ids[70:71], ids[71:])]
    )
    best = want.topk(2).values
    sure = best[:, 0] - best[:, 1] > 2 * error.quantile(0.99)
    assert sure.float().mean() > 0.1, "nothing was tested"
    assert torch.equal(got.argmax(-1)[sure], want.argmax(-1)[sure])


def test_answers_leave_memory_bit_for_bit_as_it_was() -> None:
    head, chunks, question = problem(CHUNKS, 97)
    first, _, reader = ours(bounded("gemma3"), InfiniPot(), head, chunks, question, ANSWER)
    before = [
        (s.used, s.unrotated, s.keys[:, : s.used].clone(), s.values[:, : s.used].clone())
        for s in reader.cache.stores
    ]
    base = reader.cache.base
    for _ in range(2):
        again = list(reader.answer(question, lambda x: int(x.argmax()), frozenset(), ANSWER))
        assert again == first
        for store, (used, raw, keys, values) in zip(reader.cache.stores, before, strict=True):
            assert (store.used, store.unrotated) == (used, raw)
            assert torch.equal(store.keys[:, :used], keys)
            assert torch.equal(store.values[:, :used], values)
        assert reader.cache.base == base
