"""Source texts of training rows: books, passages with human questions, single sentences."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import itertools
import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from kvstream.evaluation.splits import is_heldout
from kvstream.run.prompt import REFUSAL

QuestionAnswer = tuple[str, str]
HUMAN_FILES = (
    "squad_dev_train",
    "squadshifts_newwiki",
    "fairytaleqa_train",
    "nq_oracle_train",
    "squad2_unanswerable",
    "quac_subset",
)
SENTENCES = "qamr_sentences"
"""Name of the file of single sentences with many questions each."""


@dataclass
class HumanContext:
    """A passage and human questions about it."""

    text: str
    doc_id: str
    source: str  # the file of the passage
    questions: list[QuestionAnswer]  # unanswerable ones have the answer REFUSAL
    accepted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """All accepted answers of each question with an answer."""


class Corpus:
    """The texts of a data folder, either those for training or the held-out ones.

    Args:
        folder: as described in its README (``books/``, ``qa/``).
        heldout: use the held-out books and documents instead of those for training.

    Raise FileNotFoundError if the folder lacks something.
    """

    def __init__(self, folder: Path, heldout: bool = False) -> None:
        self.folder = folder
        self.heldout = heldout
        side = "is" if heldout else "is not"
        lacking = [] if self.book_files() else [f"books/*.txt.gz whose name {side} held out"]
        files = [f"qa/{name}.jsonl.gz" for name in (*HUMAN_FILES, SENTENCES)]
        lacking += [name for name in files if not (folder / name).is_file()]
        if lacking:
            raise FileNotFoundError(
                f"{folder} has no {lacking[0]}; name the folder that has books/ and qa/"
            )

    def book_files(self) -> list[Path]:
        """Return the books on this side of the split."""
        files = sorted((self.folder / "books").glob("*.txt.gz"))
        return [f for f in files if is_heldout(f.name.removesuffix(".txt.gz")) == self.heldout]

    @cached_property
    def books(self) -> list[str]:
        """The texts of the books."""
        return [gzip.decompress(f.read_bytes()).decode("utf-8") for f in self.book_files()]

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(book) for book in self.books])

    def prose(self, rng: random.Random, characters: int) -> str:
        """Return a random passage of about ``characters`` characters that starts at a paragraph."""
        where = rng.randrange(int(self._ends[-1]))
        index = int(np.searchsorted(self._ends, where, side="right"))
        book = self.books[index]
        start = where - int(self._ends[index]) + len(book)
        start = max(0, min(start, len(book) - 2 * characters))
        aligned = book.find("\n\n", start)
        start = aligned + 2 if 0 <= aligned < len(book) - characters else 0
        return book[start : start + characters]

    def human(self, name: str) -> list[HumanContext]:
        """Return the passages of ``qa/<name>.jsonl.gz`` with all their usable questions."""
        found: dict[tuple[str, str], HumanContext] = {}
        with gzip.open(self.folder / "qa" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if is_heldout(record["doc_id"]) != self.heldout:
                    continue
                context, answers = record["context"], record["answers"]
                inside = [a for a in answers if a.lower().strip(" .") in context.lower()]
                if answers and not inside:
                    continue  # an answer in other words cannot be learned by copying
                answer = inside[0].strip().rstrip(".") if inside else REFUSAL
                if len(answer) > 160:
                    continue
                doc, question = record["doc_id"], record["question"].strip()
                passage = found.setdefault((context, doc), HumanContext(context, doc, name, []))
                passage.questions.append((question, answer))
                if answers:
                    passage.accepted[question] = (*passage.accepted.get(question, ()), *answers)
        return list(found.values())

    @cached_property
    def passages(self) -> list[HumanContext]:
        """All passages with human questions, from all files."""
        merged: dict[str, HumanContext] = {}
        for name in HUMAN_FILES:
            for context in self.human(name):
                empty = dataclasses.replace(context, questions=[])
                passage = merged.setdefault(context.text, empty)
                passage.questions.extend(context.questions)
                passage.accepted.update(context.accepted)
        return list(merged.values())

    @cached_property
    def by_document(self) -> dict[str, list[HumanContext]]:
        """The passages of each document."""
        return self._grouped("doc_id")

    @cached_property
    def by_source(self) -> dict[str, list[HumanContext]]:
        """The passages of each file. They are of one kind and have questions of one kind."""
        return self._grouped("source")

    def _grouped(self, field: str) -> dict[str, list[HumanContext]]:
        grouped: dict[str, list[HumanContext]] = defaultdict(list)
        for passage in self.passages:
            grouped[getattr(passage, field)].append(passage)
        return grouped

    @cached_property
    def sentences(self) -> list[HumanContext]:
        """QAMR's single sentences, each with many questions."""
        return self.human(SENTENCES)

    @cached_property
    def snippets(self) -> list[HumanContext]:
        """The sentence that answers each human question, sometimes with the one before it.

        One to two sentences with human questions can be planted like a fact, also in short rows.
        They give many more questions per token than whole passages.
        """
        rng = random.Random(0)
        made: list[HumanContext] = []
        for passage in self.passages:
            sentences = split_sentences(passage.text)
            found: dict[tuple[int, int], list[QuestionAnswer]] = defaultdict(list)
            for question, answer in passage.questions:
                asked = set(re.findall(r"\w{4,}", question.lower()))
                holding = [i for i, text in enumerate(sentences) if answer in text]
                if not holding or len(answer) > 90:
                    continue
                shared = [len(asked & set(re.findall(r"\w{4,}", s.lower()))) for s in sentences]
                best = max(holding, key=lambda i: shared[i])
                before = best > 0 and (shared[best] < 2 or rng.random() < 0.3)
                found[best - before, best + 1].append((question, answer))
            for (start, end), asked_here in found.items():
                text = "".join(sentences[start:end]).strip()
                if len(text) < 500 and "\n" not in text:
                    made.append(dataclasses.replace(passage, text=text, questions=asked_here))
        return made

    def hashes(self) -> dict[str, str]:
        """Return SHA-256 (first 16 digits) of all books together and of every question file."""
        books = hashlib.sha256()
        for file in sorted((self.folder / "books").glob("*.txt.gz")):
            books.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
        found = {"books/*.txt.gz": books.hexdigest()[:16]}
        for name in (*HUMAN_FILES, SENTENCES):
            file = self.folder / "qa" / f"{name}.jsonl.gz"
            found[f"qa/{file.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        return found


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, each with the white space before it. Joined, they are `text`."""
    guard = r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\b[A-Z]\.)"
    end = rf"[.!?][\"'”’)]*{guard}(?=\s+[\"'“‘(]*[A-Z])|(?=\n\n)"
    ends = [match.end() for match in re.finditer(end, text)]
    cuts = [0, *sorted(set(ends) - {0, len(text)}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(cuts) if b > a]
