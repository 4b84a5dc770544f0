"""Which of many memory files a question is about.

First by words: those of the passages that a file holds, and those that its whole text had. Then
the best are loaded, one at a time, and asked how likely the question is: a memory of the text that
a question is about makes it likelier than no memory does.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvstream.answer.answering import question_tail
from kvstream.answer.skim.words import PLAIN, bm25_of_documents, plain_words
from kvstream.errors import BudgetError, KvstreamError, SourceError
from kvstream.memory.base import Memory
from kvstream.memory.glance import Glance, glance
from kvstream.tokenization.forms import folded

LOADED = 50
"""Memories that are loaded to compare likelihoods."""
SUFFIX = ".kvs"
FORGOTTEN = 0.3
"""What a word counts that the text had and memory holds no passage of, beside one that it holds."""
LIKELIHOOD = 0.5
"""What a nat of the question's likelihood counts beside the score by words."""


@dataclass(frozen=True)
class Ranked:
    """A memory file with what speaks for it."""

    path: Path
    names: tuple[str, ...]
    """Of its sources."""
    words: float
    """BM25 of the question's words."""
    gain: float | None = None
    """Nats by which memory makes the question likelier; None where it was not loaded."""
    known: bool = False
    """Whether it was made for this very question, so that its memory was chosen for it."""

    @property
    def score(self) -> float:
        return self.words + LIKELIHOOD * (self.gain or 0.0)


def memory_files(folder: Path) -> list[Path]:
    """The memory files of a folder, by name. Raises SourceError where there are none to read."""
    try:
        names = sorted(name for name in os.listdir(folder) if Path(name).suffix == SUFFIX)
    except OSError as error:
        raise SourceError(f"{folder} cannot be read: {error.strerror or error}.") from error
    found = [path for name in names if os.path.isfile(path := folder / name)]
    if not found:
        raise SourceError(
            f"{folder} has no memory files (*{SUFFIX}); make them with "
            f"`kvstream remember DIR --each -o {folder}`."
        )
    return found


def by_words(question: str, files: Iterable[Path]) -> tuple[list[Ranked], list[str]]:
    """The files, best first, by BM25 over the passages they hold; and what to say of broken ones.
    Those that were made for this very question come before all others.

    A word that no passage has, but that the text had, counts a part (`FORGOTTEN`).
    """
    spelled = {folded(word): word for word in PLAIN.findall(question)}
    asked = {word: spelled.get(word, word) for word in plain_words(question)}
    rows: list[tuple[Glance, list[float], int]] = []
    broken: list[str] = []
    for path in files:
        try:
            seen = glance(path)
        except SourceError as error:
            broken.append(str(error))
            continue
        counts, size = _counts(seen, asked)
        # The text of many files need not be there at a time.
        rows.append((replace(seen, text="", words=None), counts, size))
    often = np.array([row[1] for row in rows], dtype=float).reshape(len(rows), len(asked))
    sizes = np.array([row[2] for row in rows], dtype=float)
    scores = bm25_of_documents(often, sizes)
    ranked = [
        Ranked(seen.path, seen.names, float(score), known=_known(question, seen))
        for (seen, *_), score in zip(rows, scores, strict=True)
    ]
    ranked.sort(key=lambda each: (not each.known, -each.words, each.path.name))
    return ranked, broken


def _known(question: str, seen: Glance) -> bool:
    """Whether a memory was made for a question; signs, capitals and accents do not count."""
    asked = plain_words(question)
    return any(plain_words(each) == asked for each in seen.questions)


def _counts(seen: Glance, asked: Mapping[str, str]) -> tuple[list[float], int]:
    """How often each word is in the passages, and how many words they have.

    `asked` has each word as the question spells it, too: older files know words by their accents.
    """
    words = Counter(plain_words("\n".join((seen.text, *seen.names))))
    counts = []
    for word, spelled in asked.items():
        count = float(words[word])
        if not count and seen.words is not None:
            digits = word.isdigit()
            known = seen.words.has_number(word) if digits else seen.words.has_word(spelled)
            count = FORGOTTEN if known else 0.0
        counts.append(count)
    return counts, words.total()


def rank(
    question: str, files: Iterable[Path], recall: Callable[[Path], Memory], loaded: int = LOADED
) -> tuple[list[Ranked], list[str]]:
    """The files, best first, and what to say of those that cannot be used.

    `recall` loads one; each is let go before the next, so two are never there at once. A file
    whose memory leaves no room for the question cannot be used.
    """
    ranked, problems = by_words(question, files)
    compared: list[Ranked] = []
    without: dict[tuple[str, tuple[int, ...]], float] = {}
    for each in ranked[:loaded]:
        try:
            compared.append(replace(each, gain=gain(recall(each.path), question, without)))
        except BudgetError as error:
            problems.append(f"{each.path}: {error}")
        except KvstreamError as error:
            problems.append(str(error))
    compared.sort(key=lambda each: (not each.known, -each.score, each.path.name))
    return [*compared, *ranked[loaded:]], problems


def gain(memory: Memory, question: str, without: dict[tuple[str, tuple[int, ...]], float]) -> float:
    """Nats by which what memory holds makes the question likelier than its prompt alone does.

    The memory is let go. `without` keeps the likelihood without one, by model and prompt, from call
    to call. Raises BudgetError where memory leaves no room for the question.
    """
    ids = question_tail(memory, question)
    within = float(memory.reader.score(ids[:1], ids[1:]).sum())
    memory.release()  # before there is another cache
    head = memory.model, tuple(memory.prompt.head)
    if head not in without:
        empty = memory.plan.reader(memory.reader.model, memory.run, None)
        without[head] = float(empty.score(ids[:1], ids[1:]).sum())
        empty.release()
    return without[head] - within
