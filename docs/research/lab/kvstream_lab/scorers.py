"""Train the scorers of `foresight` for a model: which tokens will questions attend to?

A document is prose of a book with planted facts and with passages that have human questions. The
model first reads it whole. Then it runs each of the questions with its answer. The importance of a
token is the highest attention of any question to it, averaged over all heads. Then the model reads
the document again under a budget; the scorers get the keys of this reading. So they are trained on
keys as they are in use.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Reader
from kvstream.evaluation.harness import ROOM, IdFeed
from kvstream.methods.base import EntryTensor, Step
from kvstream.methods.foresight import BY_LAYER, LayerScorers, Scorer, new_scorer
from kvstream.methods.keydiff import KeyDiff
from kvstream.model.attention import AttentionRequest
from kvstream.model.bounded import BoundedModel
from kvstream.run.prompt import REFUSAL, build_prompt
from kvstream.settings import RunSettings
from kvstream.store.writing import replace
from kvstream.tokenization.tokenizer import Tokenizer
from kvstream_lab.synthetic import questions, training_facts
from kvstream_lab.synthetic.corpus import Corpus, QuestionAnswer, split_sentences
from kvstream_lab.synthetic.mixture import planted
from kvstream_lab.synthetic.training_facts import Planted

LENGTHS = (1500, 2500, 3584)
"""Numbers of tokens of a document."""
BUDGETS = (256, 448, 448, 768)
"""Budgets of the reading."""
FACTS, PASSAGES = (2, 4, 8), (0, 1, 2, 4)
"""Numbers of facts and of passages in a document."""
PASSKEYS = 0.3
"""Share of passkeys among the facts."""
ASKED_OF_PROSE, ASKED_OF_A_PASSAGE, MOST_QUESTIONS = 6, 4, 40
LONGEST = 900
"""Maximum characters of a passage."""
LOOKED_AT = 0.004
"""Share of the attention to a document. A token that gets more is wanted, with its neighbors."""
NEAR = 7
"""Width of this neighborhood."""
PIECES = (60, 400)
"""Range of tokens that the scorers see in one piece, as in chunks."""
DROPPED = 0.3
"""Dropout: share of the numbers of a key that are hidden during training."""
ANSWER = 16


@dataclass(frozen=True)
class Recipe:
    """Settings of the training."""

    texts: int = 240
    epochs: int = 8
    hidden: int = 32
    rate: float = 2e-3
    seed: int = 0
    by_layer: bool = False
    """Whether each layer chooses its own tokens; then `Lesson.attention` is by layer."""


@dataclass(frozen=True)
class Lesson:
    """A document as the scorers see it, and their target."""

    keys: tuple[Tensor, ...]
    """Unrotated keys of each layer, [K, n, D] float16."""
    attention: Tensor
    """[Q, n]: attention of each question, averaged over all heads; [Q, L, n]: by layer."""

    @property
    def wanted(self) -> Tensor:
        """[n] or [L, n]: 1 for tokens that a question attends to, and their neighbors."""
        return (_pooled(self.attention.amax(0)) > LOOKED_AT).float()


def _pooled(scores: Tensor) -> Tensor:
    rows = scores.reshape(1, -1, scores.shape[-1])
    return F.max_pool1d(rows, NEAR, 1, NEAR // 2).view(scores.shape)


# Documents


def document(
    corpus: Corpus, tokenizer: Tokenizer, draw: random.Random, tokens: int
) -> tuple[list[int], list[QuestionAnswer]]:
    """Return ids of about `tokens` tokens, and the questions about them."""

    def told(kind: float) -> Planted:
        """Return a sentence with human questions, or a fact."""
        if kind >= 0.75:
            return training_facts.anything(draw)
        sentence = draw.choice(corpus.sentences if kind < 0.6 else corpus.snippets)
        return Planted(sentence.text, list(sentence.questions))

    parts = [
        (f" {fact.text} ", [draw.choice(fact.questions)] if fact.questions else [])
        for fact in planted(draw, draw.choice(FACTS), PASSKEYS, told)
    ]
    for passage in draw.sample(corpus.passages, draw.choice(PASSAGES)):
        if len(passage.text) < LONGEST:
            asked = [each for each in passage.questions if each[1] != REFUSAL]
            some = draw.sample(asked, min(len(asked), ASKED_OF_A_PASSAGE))
            parts.append((f"\n\n{passage.text.strip()}\n\n", some))
    room = tokens - sum(len(tokenizer.encode(text)) for text, _ in parts)
    prose = tokenizer.encode(corpus.prose(draw, max(0, room) * 5 + 300))[: max(300, room)]
    pieces: list[tuple[str, list[QuestionAnswer]]]
    pieces = [(text, []) for text in split_sentences(tokenizer.decode(prose))]
    rules = [(at, q) for at, p in enumerate(pieces) for q in questions.from_sentence(p[0], draw)]
    for at, question in draw.sample(rules, min(len(rules), ASKED_OF_PROSE)):
        pieces[at][1].append(question)
    for part in parts:
        pieces.insert(draw.randrange(len(pieces) + 1), part)
    every = [question for _, some in pieces for question in some]
    ids = tokenizer.encode("".join(text for text, _ in pieces))[: tokens + ANSWER]
    return ids, draw.sample(every, min(len(every), MOST_QUESTIONS))


# Attention and keys of the model


def attention(
    model: BoundedModel,
    tokenizer: Tokenizer,
    ids: Sequence[int],
    asked: Sequence[QuestionAnswer],
    *,
    by_layer: bool = False,
) -> Tensor:
    """Return [Q, n]: for each question, each token's share of its attention to the text.

    `by_layer`: [Q, L, n], shares of all attention of a layer.
    """
    prompt = build_prompt(tokenizer)
    first, end = len(prompt.head), len(prompt.head) + len(ids)
    rows = [
        [*prompt.tail(question), *tokenizer.encode(f" {answer}", continuing=True)]
        for question, answer in asked
    ]
    cache = model.new_cache(end + max(map(len, rows)))
    model.forward([*prompt.head, *ids], cache)
    shares = []
    for row in rows:
        with cache.passing():
            model.forward(row, cache, AttentionRequest((len(row),)))
        paid = [s.window_attention for s in cache.stores if s.spec.window is None]
        parts = [each[:, first:end].cpu() for each in paid if each is not None]
        if by_layer:
            shares.append(torch.stack([p.sum(0) / p.sum() for p in parts]))
        else:
            shares.append(torch.cat([p / p.sum(-1, keepdim=True) for p in parts]).mean(0))
    return torch.stack(shares)


def keys_under(
    model: BoundedModel, tokenizer: Tokenizer, ids: Sequence[int], budget: int
) -> tuple[Tensor, ...]:
    """Return the unrotated keys of each layer, [K, n, D] float16, from a reading under a budget."""
    met: dict[int, list[Tensor]] = {}

    class Noting(KeyDiff):
        def tensors(self) -> tuple[EntryTensor, ...]:
            return (EntryTensor("unused"),)  # without it, `absorb` is not called

        def absorb(self, step: Step) -> None:
            new = step.keys()[0, :, -step.new :]
            met.setdefault(step.layers[0], []).append(new.to("cpu", torch.float16, copy=True))

    head = build_prompt(tokenizer).head
    sizes = BudgetSplit(budget, len(head), 0, ANSWER, ANSWER)
    reader = Reader(model, Noting(pool=15), RunSettings(), sizes, head, (), len(ids))
    for _ in reader.read(IdFeed(ids)):
        pass
    return tuple(torch.cat(met[layer.index], 1) for layer in model.facts.layers)


def lessons(
    model: BoundedModel,
    tokenizer: Tokenizer,
    corpus: Corpus,
    count: int,
    seed: int,
    longest: int = max(LENGTHS),
    *,
    by_layer: bool = False,
) -> Iterator[Lesson]:
    """Yield lessons of `count` documents, each with at most about `longest` tokens."""
    draw = random.Random(f"foresight {seed}")
    longest = min(longest, model.trained_length - ROOM)
    while count:
        tokens = min(draw.choice(LENGTHS), longest)
        ids, asked = document(corpus, tokenizer, draw, tokens)
        if asked:
            found = attention(model, tokenizer, ids, asked, by_layer=by_layer)
            yield Lesson(keys_under(model, tokenizer, ids, draw.choice(BUDGETS)), found)
            count -= 1


# Training


@dataclass(frozen=True)
class Trained:
    """The result of an epoch."""

    scorers: nn.ModuleDict
    epoch: int
    loss: float
    """Nats per token, in this epoch."""
    seconds: float


def train(model: BoundedModel, learned: Sequence[Lesson], recipe: Recipe) -> Iterator[Trained]:
    """Yield the scorers after every epoch; the last ones are the result."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        yield from _train(model, learned, recipe)


def _train(model: BoundedModel, learned: Sequence[Lesson], recipe: Recipe) -> Iterator[Trained]:
    layers, draw = model.facts.layers, random.Random(recipe.seed)
    parts = [new_scorer(layer, recipe.hidden).cpu() for layer in layers]
    scales = [_scale([lesson.keys[i] for lesson in learned]) for i in range(len(layers))]
    weights = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.AdamW(weights, recipe.rate, weight_decay=0.05)
    wanted = [lesson.wanted for lesson in learned]
    order, done, steps = list(range(len(learned))), 0, recipe.epochs * len(learned)
    for epoch in range(recipe.epochs):
        started, total = time.perf_counter(), 0.0
        draw.shuffle(order)
        for at in order:
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * min(1, done / 50) * (1 - done / steps)
            rows, real = cut(wanted[at].shape[-1], draw)
            each = []
            for part, (mean, size), seen in zip(parts, scales, learned[at].keys, strict=True):
                each.append(part(F.dropout((seen.float() - mean) / size, DROPPED)[:, rows], real))
            said = torch.stack(each)
            said = said if recipe.by_layer else said.sum(0)
            aim = wanted[at][..., rows]
            apart = F.binary_cross_entropy_with_logits(said, aim, reduction="none")
            loss = (apart * real).sum() / real.expand_as(apart).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, done = total + loss.item(), done + 1
        pairs = zip(layers, parts, scales, strict=True)
        kind = LayerScorers if recipe.by_layer else nn.ModuleDict
        folded = kind({str(la.index): _folded(p, *s) for la, p, s in pairs})
        yield Trained(folded, epoch + 1, total / len(order), time.perf_counter() - started)


def _scale(seen: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of a layer's keys, [K, 1, D] each."""
    some = torch.cat([each[:, ::4].float() for each in seen], 1)
    return some.mean(1, keepdim=True), some.std(1, keepdim=True) + 1e-3


def _folded(scorer: Scorer, mean: Tensor, size: Tensor) -> Scorer:
    """Return a scorer of unscaled keys, from one trained on (key - `mean`) / `size`."""
    plain = Scorer(scorer.w1.shape[1], len(scorer.w1), scorer.w2.shape[-1])
    plain.load_state_dict(scorer.state_dict())
    with torch.no_grad():
        plain.w1.div_(size.flatten())
        plain.b1.sub_(plain.w1 @ mean.flatten())
    return plain.requires_grad_(False)


def cut(length: int, draw: random.Random) -> tuple[Tensor, Tensor]:
    """Cut a text into pieces; return row indices, and 1 for real rows, 0 for gaps between."""
    ends = [0]
    while ends[-1] < length:
        ends.append(min(length, ends[-1] + draw.randrange(*PIECES)))
    rows, real = [], []
    for first, end in pairwise(ends):
        gap = NEAR
        rows += [*range(first, end), *[0] * gap]
        real += [1.0] * (end - first) + [0.0] * gap
    return torch.tensor(rows), torch.tensor(real)


def recovered(scorers: nn.ModuleDict, held: Sequence[Lesson], share: float) -> list[float]:
    """Return the share of the questions' attention that a `share` of the tokens gets, by document.

    Only attention above `LOOKED_AT` counts. Questions, and their layers, have equal weight.
    """
    found = []
    for lesson in held:
        with torch.no_grad():
            parts = zip(scorers.values(), lesson.keys, strict=True)
            score = torch.stack([s.cpu()(seen) for s, seen in parts])
            score = _pooled(score if isinstance(scorers, LayerScorers) else score.sum(0))
        best = score.topk(max(1, int(share * score.shape[-1]))).indices
        kept = torch.zeros_like(score).scatter_(-1, best, 1)
        looked = lesson.attention * (lesson.attention > LOOKED_AT)
        every, got = looked.sum(-1), (looked * kept).sum(-1)
        if (every > 0).any():
            found.append((got[every > 0] / every[every > 0]).mean().item())
    return found


def save_scorers(scorers: nn.ModuleDict, path: Path) -> None:
    """Write scorers in float16, to halve the file, atomically."""
    from safetensors.torch import save

    prefix = BY_LAYER if isinstance(scorers, LayerScorers) else ""
    stored = {prefix + k: v.half().contiguous() for k, v in scorers.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, lambda file: file.write(save(stored)))
