"""Rank memory files by how likely a question is about them.

The first ranking is by words: those of the passages that a file holds, and those of its whole text.
Then the best files are loaded, one at a time, to measure the likelihood of the question: the memory
of the text that a question is about makes it more likely than no memory does.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvstream.answer.answering import question_tail
from kvstream.errors import BudgetError, KvstreamError, SourceError
from kvstream.memory.contents import Memory
from kvstream.memory.glance import Glance, glance
from kvstream.passages.bm25 import bm25_of_documents
from kvstream.tokenization.forms import WORD, words

LOADED = 50
"""Maximum number of memories that are loaded to compare likelihoods."""
SUFFIX = ".kvs"
FORGOTTEN = 0.3
"""Count of a word that the text has, but none of the held passages. Each occurrence in a held
passage counts 1."""
LIKELIHOOD = 0.5
"""Weight of a nat of the question's likelihood, relative to the score by words."""


@dataclass(frozen=True)
class Ranked:
    """A memory file with its scores for a question."""

    path: Path
    names: tuple[str, ...]
    words: float
    """BM25 score of the question's words."""
    gain: float | None = None
    """Nats by which memory makes the question more likely; None if it was not loaded."""
    known: bool = False
    """Whether the file was made for this question, so that memory was chosen for it."""

    @property
    def score(self) -> float:
        return self.words + LIKELIHOOD * (self.gain or 0.0)


def memory_files(folder: Path) -> list[Path]:
    """Return the memory files of a folder, sorted by name. Raises SourceError if there are none."""
    try:
        names = sorted(name for name in os.listdir(folder) if Path(name).suffix == SUFFIX)
    except OSError as error:
        raise SourceError(f"{folder} cannot be read: {error.strerror or error}.") from error
    files = [path for name in names if os.path.isfile(path := folder / name)]
    if not files:
        raise SourceError(
            f"{folder} has no memory files (*{SUFFIX}); make them with "
            f"`kvstream remember DIR --each -o {shlex.quote(str(folder))}`."
        )
    return files


def by_words(question: str, files: Iterable[Path]) -> tuple[list[Ranked], list[str]]:
    """Rank files by BM25, those made for the question first; return messages about others."""
    forms = {form: word for word in WORD.findall(question) for form in words(word)}
    own = words(question)
    rows: list[tuple[Glance, list[float], int]] = []
    messages: list[str] = []
    for path in files:
        try:
            seen = glance(path)
        except SourceError as error:
            messages.append(str(error))
            continue
        counts, size = _counts(seen, forms)
        # Drop the texts, so that RAM does not hold those of all files.
        rows.append((replace(seen, text="", words=None), counts, size))
    often = np.array([row[1] for row in rows], dtype=float).reshape(len(rows), len(forms))
    sizes = np.array([row[2] for row in rows], dtype=float)
    scores = bm25_of_documents(often, sizes)
    ranking = [
        Ranked(seen.path, seen.names, float(score), known=own in map(words, seen.questions))
        for (seen, *_), score in zip(rows, scores, strict=True)
    ]
    ranking.sort(key=lambda each: (not each.known, -each.words, each.path.name))
    return ranking, messages


def _counts(seen: Glance, forms: Mapping[str, str]) -> tuple[list[float], int]:
    """Return the count of each of the words (with spelling in the question), and of all."""
    tally = Counter(words("\n".join((seen.text, *seen.names))))
    counts = []
    for word, spelling in forms.items():
        count = float(tally[word])
        if not count and seen.words is not None:
            has = seen.words.has_number if word.isdigit() else seen.words.has_word
            count = FORGOTTEN if has(word) or has(spelling) else 0.0
        counts.append(count)
    return counts, tally.total()


def rank(
    question: str, files: Iterable[Path], recall: Callable[[Path], Memory], loaded: int = LOADED
) -> tuple[list[Ranked], list[str]]:
    """Rank the files, best first, one memory at a time; also return messages about others."""
    ranking, problems = by_words(question, files)
    compared: list[Ranked] = []
    without: dict[tuple[str, tuple[int, ...]], float] = {}
    for each in ranking[:loaded]:
        try:
            compared.append(replace(each, gain=gain(recall(each.path), question, without)))
        except BudgetError as error:
            problems.append(f"{each.path}: {error}")
        except KvstreamError as error:
            problems.append(str(error))
    compared.sort(key=lambda each: (not each.known, -each.score, each.path.name))
    return [*compared, *ranking[loaded:]], problems


def gain(memory: Memory, question: str, without: dict[tuple[str, tuple[int, ...]], float]) -> float:
    """Return the nats by which memory, which is released, makes the question more likely.

    `without` caches the likelihoods of prompts alone. Raises BudgetError without room.
    """
    ids = question_tail(memory, question)
    within = float(memory.reader.score(ids[:1], ids[1:]).sum())
    memory.reader.release()  # before another KV cache is made
    head = memory.model, tuple(memory.prompt.head)
    if head not in without:
        empty = memory.plan.reader(memory.reader.model, memory.run, None)
        without[head] = float(empty.score(ids[:1], ids[1:]).sum())
        empty.release()
    return without[head] - within
