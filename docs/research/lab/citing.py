"""Measure which attention finds the sentence that an answer came from.

    python docs/research/lab/citing.py --documents 50 --tokens 8192 --text BOOKS...

The script plants a fact in each document and reads it under the budget, with its question known.
Question and answer then attend to memory once more, with every score written out. This attention is
added up for each sentence in several ways. For right answers and for the others, the script prints
how often the planted sentence is first or among the first three, and the median weight of the
heaviest sentence. With `--absent` it asks a question that the text does not answer. See
docs/research/citations.md.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from kvstream.evaluation.filler import Filler
from kvstream.evaluation.harness import document
from kvstream.evaluation.metrics import contains
from kvstream.evaluation.needle import Plan, haystack, make_needles
from kvstream.events import returned
from kvstream.input.sources import open_sources
from kvstream.model import hook
from kvstream.model.attention import AttentionRequest
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kind", choices=["passkey", "fact"], default="fact")
parser.add_argument("--documents", type=int, default=20)
parser.add_argument("--tokens", type=int, default=8192)
parser.add_argument("--budget", type=int, default=1024)
parser.add_argument("--absent", action="store_true")
parser.add_argument("--text", nargs="+", type=Path, default=[])
parser.add_argument("--model", default="pocket")
parser.add_argument("--seed", type=int, default=5)
given = parser.parse_args()

torch.set_num_threads(1)
session = Session.open(ModelSettings(model=given.model))
filler = Filler.of([str(path) for path in given.text], seed=given.seed)
plan = Plan(given.kind, (given.tokens,), (0.5,), seed=given.seed)
run = RunSettings(Budget(tokens=given.budget), max_tokens=24)
Found = dict[str, list[tuple[bool, bool, float]]]
found: dict[str, Found] = defaultdict(lambda: defaultdict(list))


def attention(reader: Any, question: list[int], said: list[int]) -> tuple[Any, Any, np.ndarray]:
    """Return the mean attention of answer and of question, and the ordinals of the tokens.

    Each attention is [layers x heads, tokens].
    """
    written: list[torch.Tensor] = []
    measure = hook.evidence

    def write(q: Any, k: Any, lse: Any, shape: Any, wanted: Any) -> Any:
        scores = q.float() @ k.float().repeat_interleave(q.shape[0] // k.shape[0], 0).mT
        hidden = torch.ones(scores.shape[1:]).tril(k.shape[1] - q.shape[1]) == 0
        written.append((scores * shape.scale).masked_fill(hidden, -torch.inf).softmax(-1))
        return measure(q, k, lse, shape, wanted)

    hook.evidence = write  # type: ignore[assignment]
    try:
        with reader.cache.passing() as ends:
            reader.model.forward([*question, *said[:-1]], reader.cache, AttentionRequest((1,)))
    finally:
        hook.evidence = measure
    ordinals = reader.retained().numpy()
    parts: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for store, shares, end in zip(reader.cache.stores, written, ends, strict=True):
        group = shares.shape[0] // store.spec.heads
        for head, queries in enumerate(shares[:, :, :end]):
            origin = store.origin[head // group, :end].numpy()
            places = np.searchsorted(ordinals, origin[origin >= 0])
            for part, rows in zip(
                parts, (queries[len(question) - 1 :], queries[: len(question)]), strict=True
            ):
                weights = np.zeros(len(ordinals))
                np.add.at(weights, places, rows.mean(0).numpy()[origin >= 0])
                part.append(weights)
    return np.array(parts[0]), np.array(parts[1]), ordinals


for number in range(given.documents):
    hay = haystack(session, filler, plan, given.tokens, random.Random(number).random(), number)
    fact = hay.needles[0]
    question = fact.question
    if given.absent:
        question = make_needles(plan, random.Random(f"absent {number}"), number)[0].question
    with document(hay.text) as path:
        memory = returned(session.read(open_sources([path], plain=True), Request((question,), run)))
    asked, stop_ids = memory.prompt.tail(question), frozenset(memory.prompt.stop_ids)
    said = list(memory.reader.answer(asked, lambda x: int(x.argmax()), stop_ids, run.max_tokens))
    if not said:
        continue
    decoder = session.tokenizer.decoder()
    text = "".join(map(decoder.push, said)) + decoder.flush()
    right = not given.absent and any(contains(text, a) for a in fact.answers)
    a, q, ordinals = attention(memory.reader, asked, said)
    layers = len(memory.reader.cache.stores)
    ways = {
        "answer, sum": a.sum(0),
        "answer, maximum over heads": a.max(0),
        "answer, squares": (a**2).sum(0),
        "answer beyond question, squares": (np.clip(a - q, 0, None) ** 2).sum(0),
        "question, sum": q.sum(0),
        "question, squares": (q**2).sum(0),
        **{f"answer, layer {i}": part.sum(0) for i, part in enumerate(np.split(a, layers))},
    }
    starts, every = memory.trace.origins.starts(ordinals), memory.trace.passages
    assert every is not None
    sentence = " ".join(fact.sentence.split())
    for way, weights in ways.items():
        ranked = sorted(every.score(starts, weights / weights.sum()), key=lambda p: -p.weight)
        hits = [sentence in " ".join(p.text.split()) for p in ranked[:3]]
        found["right" if right else "not right"][way].append((hits[0], any(hits), ranked[0].weight))

for outcome, table in found.items():
    print(f"\n{len(table['answer, sum'])} answers that are {outcome}")
    print(f"{'':34} {'first':>7} {'among three':>12} {'weight':>7}")
    for way, cases in table.items():
        first, three = (sum(case[i] for case in cases) for i in (0, 1))
        print(f"{way:34} {first:7} {three:12} {median(case[2] for case in cases):7.0%}")
