"""Narrow a memory of several sources to the source that a question is about.

A small model attends to the entries of every source in its memory, whatever the question is about
(docs/research/answers.md). Therefore the words of the question choose the source first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from kvstream.memory.contents import Memory
from kvstream.passages.bm25 import bm25_of_documents
from kvstream.tokenization.forms import COMMON, words


@contextmanager
def narrowed(memory: Memory, question: str) -> Iterator[dict[str, Any] | None]:
    """Let the model see only the entries of the source with most words of the question.

    It also sees the sources of `Memory.always`, and those with the same score. Yield the object
    ``narrowed`` of ``--json``: these sources, and the entries of the fullest head that the answer
    sees and that memory holds, both with those of the prompt. Yield None and hide nothing if that
    leaves all, if memory was chosen for this question, or if nothing was evicted: then the answer
    equals the plain model's.
    """
    cache = memory.reader.cache
    whole = cache.base == 0 or question in memory.plan.questions
    scores = np.zeros(0) if whole else _scores(memory, question)
    always = [i for i in range(len(scores)) if memory.trace.names[i] in memory.always]
    scores[always] = 0.0
    scores[always] = scores.max(initial=0.0)
    best = np.flatnonzero(scores == scores.max(initial=0.0)).tolist()
    if len(best) == len(scores):
        yield None
        return
    order = np.argsort(-scores, kind="stable")
    sources = [memory.trace.names[i] for i in best]
    held = cache.held
    with memory.reader.in_sight(_begins(memory), order.tolist(), len(best)) as entries:
        counts = {"entries": entries, "held": held, "prompt": memory.reader.sizes.prompt}
        yield {"sources": sources, **counts}


def _scores(memory: Memory, question: str) -> np.ndarray:
    """Return the BM25 score [sources] of the question's words in each source's held passages."""
    trace = memory.trace
    asked = [w for w in dict.fromkeys(words(question)) if w not in COMMON]
    names = trace.names[: len(trace.bases)]  # an interrupted reading did not reach the others
    if len(names) < 2 or trace.passages is None or not asked:
        return np.zeros(len(names))
    counts = [Counter(words(name)) for name in names]
    # Only passages with retained tokens, which a memory file also has. `trace.passages` may still
    # have passages without any.
    starts = trace.origins.starts(memory.reader.retained().numpy())
    for passage in trace.passages.score(starts, np.ones(len(starts))):
        counts[passage.source].update(words(passage.text))
    often = np.array([[float(each[word]) for word in asked] for each in counts])
    scores = bm25_of_documents(often, np.array([float(each.total()) for each in counts]))
    # An empty file has words in its name, but no entries that could answer.
    return np.where(np.diff([*trace.bases, trace.end]) > 0, scores, 0.0)


def _begins(memory: Memory) -> list[int]:
    """Return the ordinal of the first token that memory may hold of each source."""
    trace = memory.trace
    ordinals, starts = trace.origins.known()
    ends = np.append(ordinals, trace.read)
    return [int(ends[np.searchsorted(starts, base)]) for base in trace.bases]
