"""Measure what an answer from a joined memory should see: several documents, or single entries.

    python docs/research/lab/joining.py documents build/joining --budget 512 --texts 0
    python docs/research/lab/narrowing.py build/joining --texts 0

The script joins the memories of eight documents that the first command made; the questions are
those of all eight. It ranks the documents by the question's words (as `answer/narrowing.py` does),
or by how likely the question is when the model sees one document alone. Without a ranking, every
head keeps the entries that the question attends to most, with their neighbors. The script prints
the right answers of each way.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial, reduce
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import max_pool1d

from joining import Bench, all_in_sight
from kvstream.answer import narrowing
from kvstream.answer.answering import answered
from kvstream.evaluation.metrics import contains
from kvstream.memory.base import Memory
from kvstream.memory.joining import join
from kvstream.memory.saving import look
from kvstream.model.attention import AttentionRequest
from kvstream.sample.document import questions
from kvstream.settings import RunSettings

DOCUMENTS, FACTS = 8, 6
POOL = 7
"""Width of the max pooling of attention, in entries."""


def by_words(memory: Memory, question: str) -> np.ndarray:
    return narrowing._scores(memory, question)


def by_likelihood(memory: Memory, question: str) -> np.ndarray:
    """Return the log-likelihood of the question after each document alone."""
    ids = memory.prompt.tail(question, brief=memory.run.brief)
    found = []
    for document in range(DOCUMENTS):
        with documents(memory, [document], 1):
            found.append(-float(memory.reader.score(ids[:1], ids[1:]).sum()))
    return np.array(found)


def documents(memory: Memory, best: list[int], count: int) -> AbstractContextManager[int]:
    """Return a context in which the first `count` documents of `best` are in sight."""
    order = [*best, *(i for i in range(DOCUMENTS) if i not in best)]
    return memory.reader.in_sight(narrowing._begins(memory), order, count)


def entries(memory: Memory, question: str, count: int) -> AbstractContextManager[None]:
    """Return a context in which each head sees some of its entries only.

    They are the `count` entries that the question attends to most.
    """
    reader, ids = memory.reader, memory.prompt.tail(question, brief=memory.run.brief)
    first, chosen = reader.first_candidate, {}
    wanted = AttentionRequest((), accumulated_attention=True, queries=len(ids), reduce="max")
    with reader.cache.passing() as ends:
        reader.model.forward(ids, reader.cache, wanted)
        for store, end in zip(reader.cache.stores, ends, strict=True):
            assert store.accumulated_attention is not None
            scores = store.accumulated_attention[None, :, first:end].float()
            pooled = max_pool1d(scores, POOL, 1, POOL // 2)[0]
            chosen[store] = pooled.topk(count, dim=-1).indices.sort(dim=-1).values
    return reader.cache.in_sight(first, chosen)


def sights(memory: Memory, question: str) -> Iterator[tuple[str, AbstractContextManager[object]]]:
    """Yield every way that is compared, with its context for the memory."""
    for name, ranked, counts in (
        ("words", by_words, (1, 2, 3)),
        ("likelihood", by_likelihood, (1,)),
    ):
        order = np.argsort(-ranked(memory, question), kind="stable").tolist()
        for count in counts:
            yield f"{name}, best {count}", documents(memory, order, count)
    yield "512 entries by attention", entries(memory, question, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, nargs="*", default=[0])
    parser.add_argument("--name", default="foresight-512", help="of the memories: method, budget")
    options = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(options.folder, 1e9)
    right: Counter[str] = Counter()
    asked = 0
    for group in options.texts:
        paths = [
            options.folder / f"group{group}-{number}-{options.name}.kvs"
            for number in range(DOCUMENTS)
        ]
        memories = [bench.session.recall(look(path), RunSettings(max_tokens=32)) for path in paths]
        memory = reduce(partial(join, budget=4096), memories)
        for number in range(DOCUMENTS):
            for each in questions(facts=FACTS, seed=1000 + DOCUMENTS * group + number):
                asked += 1
                for name, sight in sights(memory, each["question"]):
                    with sight, all_in_sight():  # the answer itself must not narrow it again
                        said = answered(memory, each["question"])[0].answer
                    right[name] += any(contains(said, known) for known in each["answers"])
        for name, count in right.items():
            print(f"{name:28} {count} of {asked}", flush=True)


if __name__ == "__main__":
    main()
