"""A memory for `edgeinfinite` that finds what the question looked at (docs/methods.md).

    python docs/ablations/kernel_memory.py train ../shared/data kernel.pt
    python docs/ablations/kernel_memory.py ask kernel.pt --text ../shared/data/books/*.gz

Sinks, window, segments and a matrix for each KV head are those of `edgeinfinite`. Four things
differ. Of what leaves, only that goes into the matrix which the question looks at most, and it
counts by the attention that it got. Features are ``exp(W x + b)``, with W and b of their own for
queries and for keys. What is read is mixed with the attention to what is there as if it had been
part of it, by the normalisers of both; there is no gate. And what is trained, W and b alone, learns
to be that attention: layer by layer, by the divergence from the softmax over the entries
themselves, on documents with questions.

`ask` plants one needle in each document, behind what stays, and asks for it: how likely the right
answer is, how often it is the likeliest of four of its kind, and how often it is what the model
says; with the memory, with that of the document before (which was written for another question),
with the entries that were written as they are, and without.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from likelihood import Document, document
from torch import Tensor, nn

from kvstream.engine import Reader
from kvstream.evaluation.filler import Filler
from kvstream.evaluation.intervals import mean_interval, wilson
from kvstream.evaluation.reading import IdFeed
from kvstream.methods.base import Evidence, HeadTensor, Mixer, ModelFacts, Step
from kvstream.methods.edgeinfinite import EdgeInfinite
from kvstream.methods.scoring import pool
from kvstream.model import hook
from kvstream.prompt import build_prompt
from kvstream.session import Session
from kvstream.settings import ModelSettings, RunSettings
from kvstream.sizes import Sizes
from kvstream.training.corpus import Corpus
from kvstream.training.rows import Mixture, RowMaker
from kvstream.training.splits import is_heldout

FEATURES = 40
"""Of each key: 0.9% of pocket's weights."""
SHARE, POOL = 22, 15
"""One of so many tokens that leave is written; scores are pooled over so many tokens."""
BOOST = 1.0
"""Added to the logarithm of the attention by which an entry counts."""
BUDGET, ANSWER = 1024, 64

Entries = tuple[Tensor, Tensor, Tensor]
"""Keys [K, n, D], values [K, n, E] and the log of what each counts [K, n]."""
Captured = dict[int, tuple[Tensor, Tensor, Entries]]
"""What queries meet in each layer: queries [K, n, D], the normalisers [K, n] of their attention to
what is there, and the entries that have left."""


class Kernel(nn.Module):
    """``kappa(q, k) = sum_f exp(W_q q + b_q)_f exp(W_k k + b_k)_f`` for the heads of one layer."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        # Random features of exp(q k / sqrt(dim)), but for their norms.
        start = torch.randn(heads, dim, FEATURES) / dim**0.25
        self.query, self.key = nn.Parameter(start), nn.Parameter(start.clone())
        self.query_plus = nn.Parameter(torch.zeros(heads, 1, FEATURES))
        self.key_plus = nn.Parameter(torch.full((heads, 1, FEATURES), -8.0))

    def of_queries(self, q: Tensor) -> Tensor:
        """Logs of the features [K, n, F] of queries [K, n, D]."""
        return q.float() @ self.query + self.query_plus

    def of_keys(self, k: Tensor) -> Tensor:
        return k.float() @ self.key + self.key_plus

    def log(self, q: Tensor, k: Tensor) -> Tensor:
        """Logs of the kernel [K, n, m]."""
        queries, keys = self.of_queries(q), self.of_keys(k)
        top, most = queries.amax(-1, keepdim=True), keys.amax((-2, -1), keepdim=True)
        product = (queries - top).exp() @ (keys - most).exp().transpose(-1, -2)
        return product.clamp_min(1e-30).log() + top + most


def grouped(query: Tensor, heads: int) -> Tensor:
    """[H, T, D] -> [K, H / K * T, D]."""
    return query.unflatten(0, (heads, -1)).flatten(1, 2)


def mixed(out: Tensor, found: Tensor, share: Tensor) -> Tensor:
    """out [H, T, E] with its `share` [K, n, 1] of what was found [K, n, E]."""
    both = grouped(out.float(), len(found)).lerp(found, share)
    return both.unflatten(1, (-1, out.shape[1])).flatten(0, 1).to(out.dtype)


@dataclass(frozen=True)
class KernelMemory(EdgeInfinite):
    """Reads with `kernels`; without them it only notes in `entries` what it would write."""

    name: ClassVar[str] = "kernel-memory"
    kernels: ClassVar[Mapping[int, Kernel] | None] = None
    """By layer."""
    entries: ClassVar[dict[int, list[Entries]]] = {}
    normaliser: ClassVar[list[Tensor]] = []
    """That of the attention just computed."""

    def evidence(self) -> Evidence:
        return Evidence(rows=1)

    def catalyst(self, questions: Sequence[str]) -> tuple[str, ...]:
        return tuple(questions)

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        if not self.memory:
            return ()
        return (
            HeadTensor("memory", lambda key_dim, value_dim: (FEATURES, value_dim)),
            HeadTensor("norm", lambda key_dim, value_dim: (FEATURES,)),
        )

    def fold(self, step: Step, chosen: Tensor) -> None:
        if not self.memory:
            return
        assert step.as_read is not None
        assert step.rows is not None
        leave = step.origin.shape[-1] - chosen.shape[-1]
        seen = pool(step.rows, step.origin, POOL)[0, :, :leave]
        seen, place = seen.topk(max(1, leave // SHARE), dim=-1)
        keys, values = (
            t[0].float().gather(1, place[..., None].expand(*place.shape, t.shape[-1]))
            for t in step.as_read(0, leave)
        )
        counts = seen.clamp_min(1e-6).log() + BOOST
        layer = step.layers[0]
        if self.kernels is None:
            self.entries.setdefault(layer, []).append((keys, values, counts))
        else:
            features = (self.kernels[layer].of_keys(keys) + counts[..., None]).exp()
            step.heads["memory"][0] += features.transpose(1, 2) @ values
            step.heads["norm"][0] += features.sum(1)

    def mixer(self, model: ModelFacts) -> Mixer | None:
        return self._mix if self.memory and self.kernels is not None else None

    def _mix(self, layer: int, query: Tensor, out: Tensor, heads: Mapping[str, Tensor]) -> Tensor:
        assert self.kernels is not None
        memory, norm = heads["memory"], heads["norm"]
        asked = self.kernels[layer].of_queries(grouped(query, len(norm)))
        top = asked.amax(-1, keepdim=True)
        asked = (asked - top).exp()
        mass = asked @ norm[..., None]
        found = (asked @ memory) / mass
        beside = grouped(self.normaliser[-1][..., None], len(norm))
        share = (mass.log() + top - beside).sigmoid()
        return mixed(out, found, share)


@contextmanager
def normalisers_noted() -> Iterator[None]:
    """The hook hands no normaliser to who mixes: it is noted on its way."""
    attend = hook.attend

    def noting(*args: Any) -> tuple[Tensor, Tensor | None]:
        out, normaliser = attend(*args)
        assert normaliser is not None
        KernelMemory.normaliser[:] = [normaliser]
        return out, normaliser

    hook.attend = noting  # type: ignore[assignment]
    try:
        yield
    finally:
        hook.attend = attend


def read(
    session: Session, method: EdgeInfinite, ids: Sequence[int], questions: Sequence[str]
) -> Reader:
    """A reader that has read a document, knowing what will be asked."""
    prompt = build_prompt(session.tokenizer)
    asked = [prompt.tail(question) for question in questions]
    taken = sum(map(len, asked)) if method.catalyst(questions) else 0
    sizes = Sizes(BUDGET, len(prompt.head), taken, max(map(len, asked)), ANSWER)
    catalysts = asked if taken else []
    reader = Reader(session.model, method, RunSettings(), sizes, prompt.head, catalysts, len(ids))
    reader.begin()
    for _ in reader.read(IdFeed(ids)):
        pass
    return reader


def exact(noted: Mapping[int, list[Entries]], met: Captured) -> Mixer:
    """Attention to the entries themselves, which is what is to be learnt; notes what it meets."""

    def joined(parts: list[Entries]) -> Entries:
        keys, values, counts = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        return keys, values, counts

    entries = {layer: joined(parts) for layer, parts in noted.items()}

    def mix(layer: int, query: Tensor, out: Tensor, heads: Mapping[str, Tensor]) -> Tensor:
        keys, values, counts = entries[layer]
        asked = grouped(query.float(), len(keys))
        beside = grouped(KernelMemory.normaliser[-1][..., None], len(keys))[..., 0]
        met[layer] = asked, beside, (keys, values, counts)
        scores = asked @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5 + counts[:, None]
        share = (scores.logsumexp(-1) - beside).sigmoid()[..., None]
        return mixed(out, scores.softmax(-1) @ values, share)

    return mix


# Training --------------------------------------------------------------------------------------


def captured(session: Session, maker: RowMaker) -> Captured | None:
    """A made document with one to three questions; None where nothing left, or is asked."""
    rng, documents = maker.rng, maker.documents
    of = documents.of_people if rng.random() < 0.15 else documents.of_a_book
    pieces = of(rng.randrange(1600, 3800))
    asked, _ = maker.choose(pieces, rng.choice([30, 60, 100]))
    ids = maker.encode("".join(piece.text for piece in pieces))
    if not asked or len(ids) > 6000:
        return None
    KernelMemory.entries.clear()
    reader = read(session, KernelMemory(), ids, [question for question, _ in asked])
    if not KernelMemory.entries:
        return None
    met: Captured = {}
    reader.cache.mix = exact(KernelMemory.entries, met)
    words = [i for pair in asked for i in maker.question(pair)[0]]
    session.model.forward(words[: reader.cache.capacity - reader.cache.used], reader.cache)
    # Copies, as the model's own tensors know no gradients.
    return {
        layer: (queries.clone(), beside.clone(), (keys.clone(), values.clone(), counts.clone()))
        for layer, (queries, beside, (keys, values, counts)) in met.items()
    }


def divergence(kernel: Kernel, queries: Tensor, beside: Tensor, entries: Entries) -> Tensor:
    """KL of what the kernel says from the softmax, over entries and all that is there as one."""
    keys, _, counts = entries
    exact = queries @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5
    wanted, said = (
        torch.cat((beside[..., None], scores + counts[:, None]), -1).log_softmax(-1)
        for scores in (exact, kernel.log(queries, keys))
    )
    return (wanted.exp() * (wanted - said)).sum(-1).mean()


def train(session: Session, data: Path, out: Path, count: int, steps: int) -> None:
    torch.manual_seed(0)
    facts = session.model.facts.layers
    kernels = {layer.index: Kernel(layer.heads, layer.key_dim) for layer in facts}
    weights = [p for kernel in kernels.values() for p in kernel.parameters()]
    own, others = (
        sum(p.numel() for p in some) for some in (weights, session.model.model.parameters())
    )
    print(f"{own / (own + others):.2%} of all weights")
    maker = RowMaker(Corpus(data), 21, Mixture(refusals=0.005))
    planted = maker.documents._planted
    # Few facts a document, so that what is asked for is not all that is unlike the rest.
    maker.documents._planted = lambda _: planted(maker.rng.choice([100, 200, 400]))  # type: ignore
    learned: list[Captured] = []
    while len(learned) < count:
        if (one := captured(session, maker)) is not None:
            learned.append(one)
            if len(learned) % 40 == 0:
                print(f"{len(learned)} documents", flush=True)
    optimizer, draw = torch.optim.Adam(weights, lr=0.01), random.Random(0)
    total = 0.0
    for step in range(steps):
        for group in optimizer.param_groups:
            rise, fall = min(1, step / 30), 0.5 + 0.5 * math.cos(math.pi * step / steps)
            group["lr"] = 0.01 * rise * fall
        layers = draw.choice(learned)
        loss = torch.stack([divergence(kernels[i], *met) for i, met in layers.items()]).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += loss.item()
        if step % 500 == 499:
            print(f"step {step + 1}: {total / 500:.3f} nats apart over all layers", flush=True)
            total = 0.0
    torch.save({i: kernel.state_dict() for i, kernel in kernels.items()}, out)


# Asking ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    loss: float
    """Of the right answer, nats a token."""
    likeliest: bool
    said: bool


def ask(session: Session, reader: Reader, doc: Document) -> Asked:
    tail = build_prompt(session.tokenizer).tail(doc.questions[0])
    right, *wrong = (
        float(reader.score(tail, words).mean()) for words in (doc.said[0], *doc.others[0])
    )
    stop = frozenset(session.tokenizer.eos_ids)
    words = list(reader.answer(tail, lambda logits: int(logits.argmax()), stop, 24))
    decode = session.tokenizer.decode
    said = decode(words).strip(" .") == decode(doc.said[0]).strip(" .")
    return Asked(right, all(right < loss for loss in wrong), said)


def ask_all(session: Session, file: Path, asked: argparse.Namespace) -> None:
    stored, facts = torch.load(file), session.model.facts.layers
    KernelMemory.kernels = kernels = {
        layer.index: Kernel(layer.heads, layer.key_dim).requires_grad_(False) for layer in facts
    }
    for index, kernel in kernels.items():
        kernel.load_state_dict(stored[index])
    filler = Filler.of([t for t in asked.text if is_heldout(Path(t).name.partition(".")[0])])
    cases = ("with the memory", "another document's", "entries as they are", "without")
    found: dict[str, list[Asked]] = {case: [] for case in cases}
    lent: list[dict[str, Tensor]] | None = None
    for trial in range(-1, asked.trials):  # the first only lends its memory
        depth = random.Random(trial).choice([float(d) for d in asked.depths.split(",")])
        doc = document(session, filler, asked.kind, asked.tokens, [depth], 1, 4, trial)
        reader = read(session, KernelMemory(), doc.ids, doc.questions)
        heads = [s.heads for s in reader.compressible]
        mine = [{name: t.clone() for name, t in each.items()} for each in heads]
        if lent is not None:
            found[cases[0]].append(ask(session, reader, doc))
            for each, other in zip(heads, lent, strict=True):
                for name, tensor in each.items():
                    tensor.copy_(other[name])
            found[cases[1]].append(ask(session, reader, doc))
            KernelMemory.kernels = None
            KernelMemory.entries.clear()
            reader = read(session, KernelMemory(), doc.ids, doc.questions)
            reader.compactor._mixer = reader.cache.mix = exact(KernelMemory.entries, {})
            found[cases[2]].append(ask(session, reader, doc))
            KernelMemory.kernels = kernels
            alone = read(session, EdgeInfinite(memory=False), doc.ids, doc.questions)
            found[cases[3]].append(ask(session, alone, doc))
        lent = mine
    print(f"{asked.kind}, {asked.trials} documents of {asked.tokens:,} tokens, budget {BUDGET:,}")
    for case, results in found.items():
        n = len(results)
        pairs = zip(results, found[cases[3]], strict=True)
        loss, low, high = mean_interval([r.loss - w.loss for r, w in pairs])
        print(f"{case:20} {loss:+.2f} ({low:+.2f} to {high:+.2f}) nats a token", end="")
        for what in ("likeliest", "said"):
            count = sum(getattr(r, what) for r in results)
            low, high = wilson(count, n)
            print(f"; {what} {count} of {n} ({low:.0%} to {high:.0%})", end="")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("data", type=Path)
    training.add_argument("out", type=Path)
    training.add_argument("--documents", type=int, default=400)
    training.add_argument("--steps", type=int, default=5000)
    asking = commands.add_parser("ask")
    asking.add_argument("file", type=Path)
    asking.add_argument("--kind", choices=("fact", "passkey"), default="fact")
    asking.add_argument("--tokens", type=int, default=4096)
    asking.add_argument("--depths", default="0.1,0.3,0.5")
    asking.add_argument("--trials", type=int, default=120)
    asking.add_argument("--text", nargs="+", required=True)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    session = Session.open(ModelSettings(name="pocket", threads=1))
    with normalisers_noted():
        if asked.command == "train":
            train(session, asked.data, asked.out, asked.documents, asked.steps)
        else:
            ask_all(session, asked.file, asked)


if __name__ == "__main__":
    main()
