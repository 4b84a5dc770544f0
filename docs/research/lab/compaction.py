"""Measure memory that is compacted when it is saved: Attention Matching and eviction.

See docs/research/tried.md.

    python docs/research/lab/compaction.py --save compaction.jsonl --qa ... --text ... \
        --cases foresight foresight/small foresight/evict foresight/match:queries=probes+repeat

The script takes the options of `later_questions.py` and prints its table. Then it prints the
entries of each case and its share of the F1 of the first case. After a slash, a case may say what
happens to its memory once the text is read:

    small  nothing: a smaller budget leaves memory the same number of entries
    evict  the method evicts once more
    match  a subset of the entries stays (Attention Matching, arXiv 2602.16284). An additive mask
           and new values make up for the others: they are fitted to what all of memory answers to
           reference queries

    size       divisor of the number of entries
    at         kept: entries stay at their positions; closed: they move together, as kvstream does
               after every eviction
    queries    passes that give the reference queries, joined by +: probes (made-up questions with
               answers, about other things, of the forms that training uses), repeat (the kept text,
               read again), study (parts of the kept text as questions, and again as answers), asked
               (the later questions with their answers: the best possible queries)
    select     rms, max: by the attention of the queries; own: by the method
    pool       width of the max pooling of that attention, in source tokens
    fit        both; mask, values: one of them; none
    ridge      weight of the original values against the fitted ones
    weigh      share: each query is weighted by the share of its attention that memory gets; none
    alike      all: all heads keep the same entries; none
    policy     on: the queries of a layer are recorded after the layers below it are compacted; off
    shares     ada: the heads of a layer share its entries by their scores, and each gets at least a
               fifth of an equal share (AdaKV; nothing is fitted then); equal
    rows       maximum number of passes of each kind
    most       maximum number of queries for each KV head, drawn from all

If the case before read the same text with the same settings, the seconds of `match` and `evict` are
those of the compaction alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import AttentionInterface

import later_questions
from kvstream.engine.reader import Reader
from kvstream.evaluation.records import Record
from kvstream.methods.scored import ScoredMethod
from kvstream.methods.tools.scoring import best, pool
from kvstream.model import hook
from kvstream.model.attention import Shape
from kvstream.model.cache import BoundedCache
from kvstream.model.layer_store import LayerStore
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings
from kvstream_lab.synthetic.training_facts import fact

BLOCK, OVERLAP, PART = 48, 8, 12
"""Tokens that a pass reads again, tokens in front of them, and tokens of a made question."""
CLAMP = 3.0
"""Maximum absolute value of the mask, in nats."""
STEPS = 300
"""Steps of the projected gradient descent that fits the mask."""
OWN = "compaction"
"""Key in the method settings of a run that says what happens to memory."""


@dataclass(frozen=True)
class Way:
    """What happens to memory once the text is read."""

    name: str = "none"
    size: int = 4
    at: str = "kept"
    queries: str = "probes+repeat"
    select: str = "rms"
    pool: int = 7
    fit: str = "both"
    ridge: float = 0.01
    weigh: str = "share"
    alike: str = "none"
    policy: str = "off"
    shares: str = "equal"
    rows: int = 32
    most: int = 2048

    @classmethod
    def of(cls, spec: str) -> Way:
        name, _, settings = spec.partition(":")
        known = {f: type(getattr(cls, f)) for f in cls.__dataclass_fields__}
        pairs = (pair.split("=") for pair in settings.split(",") if pair)
        return cls(name, **{key: known[key](value) for key, value in pairs})


class Attending:
    """Attention that records the queries of a pass and adds the mask of a store, if it has one."""

    layer: ClassVar[int] = -1
    queries: ClassVar[dict[int, list[tuple[Tensor, Tensor]]] | None] = None
    plain = staticmethod(hook.attend)

    @classmethod
    def run(cls, module: Any, *rest: Any, **more: Any) -> Any:
        cls.layer = int(module.layer_idx)
        return hook.bounded_attention(module, *rest, **more)

    @classmethod
    def attend(
        cls, q: Tensor, k: Tensor, v: Tensor, shape: Shape, backend: str = "auto", **more: Any
    ) -> tuple[Tensor, Tensor | None]:
        cache, _ = hook._running.passes[-1]
        mask = None if cache is None else getattr(cache.store(cls.layer), "mask", None)
        if mask is not None:
            return masked(q, k, v, shape.scale, mask)
        if cls.queries is None:
            return cls.plain(q, k, v, shape, backend, **more)
        out, lse = cls.plain(q, k, v, shape, backend, log_sum_exp=True)
        assert lse is not None
        cls.queries.setdefault(cls.layer, []).append((q.clone(), lse))
        return out, lse


def masked(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Compute attention with `mask` [K, m] added to the scores of the first m keys."""
    scores = q.unflatten(0, (k.shape[0], -1)) @ k[:, None].mT * scale
    scores[..., : mask.shape[-1]] += mask[:, None, None]
    old = k.shape[1] - q.shape[1]
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu_(old + 1)
    scores.masked_fill_(hidden, -torch.inf)
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp() @ v[:, None]
    return out.flatten(0, 1), lse.flatten(0, 1)


def rotated_keys(store: LayerStore, base: int, scratch: Tensor | None) -> Tensor:
    """Rotate the keys of a compacted store to the positions that its entries had."""
    out = plain_keys(store, base, scratch)
    stood = getattr(store, "stood", None)
    if stood is not None and store.spec.rotary is not None:
        cos, sin = store.spec.rotary.angles.at(0, base)
        for head, places in enumerate(stood):
            part = slice(head, head + 1), slice(0, len(places))
            store.spec.rotary._turn(store.keys[part], cos[places], sin[places], out[part])
    return out


def rebase(cache: BoundedCache) -> None:
    """Continue at the position that came next before memory was compacted."""
    stays = getattr(cache, "stays", None)
    plain_rebase(cache) if stays is None else setattr(cache, "base", stays)


plain_keys, plain_rebase = LayerStore.rotated_keys, BoundedCache.rebase


@dataclass
class Noted:
    """Reference queries of a layer, by KV head."""

    seen: Tensor
    """[K, N, D], at the positions of their pass."""
    after: Tensor
    """The same queries at their positions after compaction."""
    total: Tensor
    """[K, N], the log-sum-exp of all scores."""


@dataclass
class Compaction:
    """Compacts the memory of `reader`."""

    session: Session
    reader: Reader
    way: Way
    ids: Sequence[int]
    asked: Sequence[later_questions.Question]
    rng: random.Random = field(default_factory=lambda: random.Random("compaction"))

    @torch.inference_mode()
    def run(self) -> None:
        cache, way = self.reader.cache, self.way
        cache.settle()
        self.first, self.base = self.reader.first_candidate, cache.base
        self.keep = (self.reader.compressible[0].used - self.first) // way.size
        chosen: dict[LayerStore, Any] = dict.fromkeys(self.reader.compressible)
        if way.name == "evict" or way.select == "own":
            chosen = self.by_method()
        rows = list(self.rows()) if way.name == "match" else []
        if way.at == "kept":
            cache.stays = self.base  # type: ignore[attr-defined]
        noted = self.noted(rows) if rows else None
        if noted and way.alike == "all" and way.select != "own":
            chosen = self.alike(noted)
        for store, indices in chosen.items():
            mask = values = None
            if noted:
                if way.policy == "on":
                    noted = self.noted(rows)
                indices, mask, values = self.matched(store, indices, noted[store.spec.index])
            self.cut(store, indices, mask, values)
        cache.rebase()

    def noted(self, rows: Sequence[Sequence[int]]) -> dict[int, Noted]:
        """Run passes over memory as it is; return the queries of each layer without a mask."""
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        Attending.queries = found
        for row in rows:
            with self.reader.cache.passing():
                self.reader.model.forward(row, self.reader.cache)
        Attending.queries = None
        left = (s for s in self.reader.compressible if s.spec.index in found)
        return {s.spec.index: self.drawn(s, found[s.spec.index]) for s in left}

    def drawn(self, store: LayerStore, found: Sequence[tuple[Tensor, Tensor]]) -> Noted:
        """Return the queries of a layer by KV head, at most `most` for each head."""
        heads, rotary = len(store.keys), store.spec.rotary
        seen = torch.cat([q for q, _ in found], 1)
        after = seen
        if self.way.at == "closed" and rotary is not None:
            turned = (rotary.unrotate(q, self.base) for q, _ in found)
            after = torch.cat([rotary.rotate(q, self.first + self.keep) for q in turned], 1)
        total = torch.cat([lse for _, lse in found], 1)
        drawn = torch.randperm(seen.shape[1], generator=torch.Generator().manual_seed(0))
        drawn = drawn[: self.way.most * heads // len(seen)]
        seen, after, total = (
            t[:, drawn].float().unflatten(0, (heads, -1)).flatten(1, 2)
            for t in (seen, after, total)
        )
        return Noted(seen, after, total)

    def alike(self, noted: dict[int, Noted]) -> dict[LayerStore, Tensor]:
        """Choose the same entries in all heads, by the mean of their scores."""
        layers = self.reader.compressible
        scores = [self.attention(s, noted[s.spec.index])[-1] for s in layers]
        mean = torch.stack([s / s.sum(-1, keepdim=True) for s in scores]).mean((0, 1))
        origin = layers[0].origin[:, self.first : layers[0].used]
        indices = best(pool(mean.expand_as(origin), origin, self.way.pool), self.keep)
        return dict.fromkeys(layers, indices)

    def by_method(self) -> dict[LayerStore, Tensor]:
        """Return the entries that the method would keep."""
        evictor, found = self.reader.evictor, dict[LayerStore, Tensor]()
        layers = dict.fromkeys(self.reader.compressible, self.keep)
        parts = [(g, slice(self.first, g[0].used)) for g in evictor.groups(layers)]
        for group, _, step in evictor.views(parts, 0, None):
            if self.way.shares == "ada":
                assert isinstance(evictor.method, ScoredMethod)
                found.update(
                    (s, self.shared(x))
                    for s, x in zip(group, evictor.method.score(step), strict=True)
                )
            else:
                found.update(zip(group, evictor.select(step, self.keep), strict=True))
        return found

    def shared(self, scores: Tensor) -> Tensor:
        """Return the best entries [K, m] of a layer; -1 pads heads with a smaller share (AdaKV)."""
        heads, n = scores.shape
        if self.way.shares == "equal":
            return best(scores, self.keep)
        order = scores.argsort(-1, descending=True)
        least = self.keep // 5
        sure = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, order[:, :least], True)
        ranked = scores.masked_fill(sure, torch.inf).flatten()
        chosen = torch.zeros(heads * n, dtype=torch.bool)
        chosen[ranked.topk(heads * self.keep).indices] = True
        rows = [row.nonzero()[:, 0] for row in chosen.view(heads, n)]
        most = max(map(len, rows))
        return torch.stack([torch.nn.functional.pad(r, (0, most - len(r)), value=-1) for r in rows])

    def cut(
        self, store: LayerStore, indices: Tensor, mask: Tensor | None, values: Tensor | None
    ) -> None:
        protected = torch.arange(self.first).expand(len(indices), -1)
        absent = indices < 0
        if absent.any():  # padding of heads with a smaller share
            mask, indices = torch.zeros(indices.shape).masked_fill_(absent, -1e9), indices.clamp(0)
        store.keep(self.first, indices)
        if self.way.at == "kept":
            stood = torch.cat((protected, indices + self.first), -1)
            store.stood = stood  # type: ignore[attr-defined]
        if values is not None:
            store.values[:, self.first : store.used] = values
        if mask is not None:
            mask = torch.cat((torch.zeros(len(mask), self.first), mask), -1)
            store.mask = mask  # type: ignore[attr-defined]

    # Reference queries

    def rows(self) -> Iterator[list[int]]:
        """Yield the ids of each pass that gives reference queries."""
        tail, encode = self.reader_prompt.tail, self.session.tokenizer.encode
        for kind in self.way.queries.split("+"):
            if kind == "asked":
                for q in self.asked:
                    yield [*tail(q.text), *encode(f" {q.answers[0]}", continuing=True)]
            elif kind == "probes":
                for _ in range(self.way.rows):
                    question, answer = self.rng.choice(self.probe())
                    yield [*tail(question), *encode(f" {answer}", continuing=True)][: BLOCK + 16]
            elif kind == "repeat":
                kept, begun = self.kept(), encode("\n", continuing=True)
                for at in range(0, min(len(kept), BLOCK * self.way.rows), BLOCK):
                    yield [*begun, *kept[max(0, at - OVERLAP) : at + BLOCK]]
            elif kind == "study":
                kept, decode = self.kept(), self.session.tokenizer.decode
                for at in range(0, min(len(kept), PART * self.way.rows), PART):
                    part = kept[at : at + PART]
                    yield [*tail(f"{decode(part).strip()}?"), *part]

    def probe(self) -> list[tuple[str, str]]:
        while not (found := fact(self.rng).questions):
            pass
        return found

    def kept(self) -> list[int]:
        return [self.ids[i] for i in self.reader.retained().tolist()]

    @property
    def reader_prompt(self) -> Any:
        run = RunSettings(Budget(tokens=self.reader.sizes.budget), "streaming", max_tokens=16)
        return self.session.settle(Request((), run, command="remember")).prompt

    # Matching

    def matched(
        self, store: LayerStore, indices: Tensor | None, noted: Noted
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return indices [K, m], mask [K, m] or None, and values [K, m, E] of a layer."""
        way, rotary = self.way, store.spec.rotary
        keys, mass, paid, weight, found = self.attention(store, noted)
        values = store.values[:, self.first : store.used].float()
        scale = keys.shape[-1] ** -0.5
        if indices is None:
            origin = store.origin[:, self.first : store.used]
            indices = self.shared(pool(found, origin, way.pool))
        if way.shares == "ada":
            return (
                indices,
                None,
                values.gather(1, indices.clamp_min(0)[..., None].expand(-1, -1, values.shape[-1])),
            )
        wanted = paid @ values
        if way.at == "kept":
            left = keys.gather(1, indices[..., None].expand(-1, -1, keys.shape[-1]))
        else:
            real = store.keys[:, self.first : store.used].float()
            real = real.gather(1, indices[..., None].expand(-1, -1, keys.shape[-1]))
            left = real if rotary is None else rotary.rotate(real, self.first)
        logits = noted.after @ left.mT * scale - mass[..., None]  # [K, N, m]
        mask = torch.zeros(indices.shape)
        if way.fit in ("both", "mask"):
            mask = torch.stack([fitted_mask(*x) for x in zip(logits, weight, strict=True)])
        stayed = values.gather(1, indices[..., None].expand(-1, -1, values.shape[-1]))
        if way.fit in ("both", "values"):
            shares = (logits + mask[:, None]).softmax(-1)
            fits = zip(shares, wanted, stayed, weight, strict=True)
            stayed = torch.stack([fitted_values(*x, way.ridge) for x in fits])
        return indices, mask if way.fit in ("both", "mask") else None, stayed

    def attention(self, store: LayerStore, noted: Noted) -> tuple[Tensor, ...]:
        """Return what the reference queries pay to the candidate entries of a layer.

        These are: keys [K, n, D], the log-sum-exp of the entries' scores [K, N], the distribution
        of attention over them [K, N, n], each query's weight [K, N], and scores [K, n].
        """
        keys = self.reader.cache.attended(store)[0][:, self.first :]
        keys = keys.to(torch.float32, copy=True)
        scores = noted.seen @ keys.mT * keys.shape[-1] ** -0.5
        mass = scores.logsumexp(-1)
        paid = (scores - mass[..., None]).exp_()
        weight = (mass - noted.total).exp()
        if self.way.weigh == "none":
            weight = torch.ones_like(mass)
        counted = paid * weight[..., None]
        found = counted.amax(1) if self.way.select == "max" else counted.square().mean(1).sqrt()
        return keys, mass, paid, weight, found


def fitted_mask(logits: Tensor, weight: Tensor) -> Tensor:
    """Return [m], the logarithm of a w >= 0, clamped.

    The w minimizes ``|weight (exp(logits) w - 1)|``.
    """
    rows = logits.double().exp() * weight.double()[:, None]
    square, aim = rows.T @ rows, rows.T @ weight.double()
    step = 1 / torch.linalg.matrix_norm(square, 2).clamp_min(1e-12)
    low, high = torch.tensor((-CLAMP, CLAMP)).exp().tolist()
    w = last = torch.ones_like(aim)
    for i in range(STEPS):  # accelerated gradient descent
        ahead = w + (i / (i + 3)) * (w - last)
        last, w = w, (ahead - step * (square @ ahead - aim)).clamp(low, high)
    return w.log().float()


def fitted_values(
    shares: Tensor, wanted: Tensor, stayed: Tensor, weight: Tensor, ridge: float
) -> Tensor:
    """Return the values [m, E] that minimize ``|weight (shares V - wanted)|``.

    The ridge penalty draws them to `stayed`.
    """
    rows = shares.double() * weight.double()[:, None]
    missing = wanted.double() * weight.double()[:, None] - rows @ stayed.double()
    square = rows.T @ rows
    square.diagonal().add_(ridge * square.diagonal().mean() + 1e-9)
    return (stayed + torch.linalg.solve(square, rows.T @ missing)).float()


class Before:
    """The memory of the text that was read last."""

    key: ClassVar[str] = ""
    read: ClassVar[tuple[Any, ...]]
    stores: ClassVar[list[dict[str, Any]]]

    @classmethod
    def take(cls, reader: Reader) -> None:
        evictor, kept = reader.evictor, ("keys", "values", "origin", "used", "unrotated", "state")
        cls.read = evictor.seen, evictor.sinks, evictor.ratios
        cls.stores = [deepcopy({k: getattr(s, k) for k in kept}) for s in reader.cache.stores]

    @classmethod
    def give(cls, reader: Reader) -> None:
        reader.evictor.seen, reader.evictor.sinks, reader.evictor.ratios = cls.read
        reader.prefill.due = []
        for store, kept in zip(reader.cache.stores, cls.stores, strict=True):
            for name, value in deepcopy(kept).items():
                setattr(store, name, value)
        reader.cache.rebase()


# Replacements for functions of later_questions.py


def case(spec: str, budget: int) -> RunSettings:
    reading, _, way = spec.partition("/")
    run = plain_case(reading, budget)
    return replace(run, set={**run.set, OWN: way}) if way else run


def read_and_ask(
    session: Session, run: RunSettings, ids: Sequence[int], asked: Sequence[Any]
) -> Record:
    settings = dict(run.set)
    way = Way.of(settings.pop(OWN, "none"))
    run = replace(run, set=settings)
    if way.name == "small":
        run = smaller(session, run, way.size)

    def read(reader: Reader, *rest: Any) -> Iterator[Any]:
        key = repr((run, tuple(ids)))
        if Before.key == key:
            Before.give(reader)
        else:
            yield from plain_read(reader, *rest)
            Before.key = key
            Before.take(reader)
        if way.name in ("evict", "match"):
            Compaction(session, reader, way, ids, asked).run()

    Reader.read = read  # type: ignore[method-assign, assignment]
    return plain_read_and_ask(session, run, ids, asked)


def smaller(session: Session, run: RunSettings, size: int) -> RunSettings:
    """Return a run that holds as many entries as memory divided by `size`."""

    def final(budget: int) -> int:
        shrunk = replace(run, budget=Budget(tokens=budget))
        return session.settle(Request((), shrunk, command="remember")).sizes.final

    assert run.budget is not None
    assert run.budget.tokens is not None
    budget = run.budget.tokens
    sinks = session.settle(Request((), run, command="remember")).method.sinks
    aim = sinks + (final(budget) - sinks) // size
    while final(budget) > aim:
        budget -= 1
    return replace(run, budget=Budget(tokens=budget))


def report(found: Sequence[Record], cases: Sequence[str]) -> None:
    """Print the table of later_questions.py, then each case's share of the F1 of the first case.

    The intervals are a bootstrap over texts.
    """
    plain_report(found, cases)
    by = {(r["case"], r["trial"]): r for r in found}
    rng = random.Random(0)
    for spec in cases:
        trials = [t for c, t in by if c == spec and (cases[0], t) in by]
        pairs = [
            tuple(sum(a["f1"] for a in by[c, t]["answers"]) for c in (spec, cases[0]))
            for t in trials
        ]

        def share(some: Sequence[Any]) -> float:
            return sum(a for a, _ in some) / max(1e-9, sum(b for _, b in some))

        drawn = sorted(share(rng.choices(pairs, k=len(pairs))) for _ in range(2000))
        held = sum(by[spec, t]["held"] for t in trials) / max(1, len(trials))
        interval = f"({drawn[50]:.0%} to {drawn[1949]:.0%})"
        print(f"{spec:70} {held:6.0f} entries {share(pairs):.0%} {interval}")


if __name__ == "__main__":
    plain_case, plain_report = later_questions.case, later_questions.report
    plain_read_and_ask, plain_read = later_questions.read_and_ask, Reader.read
    later_questions.case, later_questions.report = case, report
    later_questions.read_and_ask = read_and_ask
    LayerStore.rotated_keys = rotated_keys  # type: ignore[method-assign, assignment]
    BoundedCache.rebase = rebase  # type: ignore[method-assign, assignment]
    hook.attend = Attending.attend
    AttentionInterface.register(hook.NAME, Attending.run)
    later_questions.main()
