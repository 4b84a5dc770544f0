"""Rows of paragraphs and excerpts with the questions of people, in one wording.

A document is one or two whole paragraphs, or three to six excerpts of which some have no answer: as
the road hands passages to the model. About every third question has no answer in the document.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstream.evaluation.splits import is_heldout
from kvstream.passages.excerpts import LENGTH as EXCERPT
from kvstream.run.prompt import BRIEF, REFUSAL
from kvstream_lab.synthetic.corpus import split_sentences
from kvstream_lab.training.reader_rows import Row

SHARES = {"squad": 0.38, "newwiki": 0.24, "nq": 0.12, "fairy": 0.19, "quac": 0.07}
"""Share of each kind of question."""
FILES = {
    "squad": ("squad_dev_train", "squad2_unanswerable"),
    "newwiki": ("squadshifts_newwiki",),
    "nq": ("nq_oracle_train",),
    "fairy": ("fairytaleqa_train",),
    "quac": ("quac_subset",),
}
PARAGRAPH, ROW, ANSWER = 1900, 620, 260
"""Most characters of a paragraph, tokens of a document, and characters of an answer."""
BOOKS = 40
"""Number of books whose prose stands between excerpts."""
BLIND = ("dracula", "frankenstein", "pride", "treasure", "war-and-peace", "baskerville")
"""Parts of the names of books that are kept for a blind check."""

Asked = tuple[str, str]


@dataclass
class Paragraph:
    """A paragraph with its questions."""

    text: str
    document: str
    answered: list[Asked] = field(default_factory=list)
    unanswerable: list[str] = field(default_factory=list)


def paragraphs(data: Path) -> dict[str, list[Paragraph]]:
    """Return the paragraphs of each kind that are not held out."""
    made = {}
    for kind, names in FILES.items():
        known: dict[str, Paragraph] = {}
        for name in names:
            with gzip.open(data / "qa" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
                for record in map(json.loads, lines):
                    _add(known, record)
        made[kind] = [p for p in known.values() if p.answered or p.unanswerable]
    return made


def _add(known: dict[str, Paragraph], record: dict[str, Any]) -> None:
    text = record["context"].strip()
    if is_heldout(record["doc_id"]) or len(text) > PARAGRAPH:
        return
    paragraph = known.setdefault(text, Paragraph(text, record["doc_id"]))
    question = record["question"].strip()
    if not record["answers"]:
        paragraph.unanswerable.append(question)
        return
    answer = re.sub(r"\s+([.,;:!?'’])", r"\1", record["answers"][0].strip()).rstrip(".")
    if len(answer) < ANSWER:
        paragraph.answered.append((question, answer))


class ParagraphRows:
    """Makes rows for the tokenizer and the chat template of a model."""

    def __init__(self, data: Path, tokenizer: Any, seed: int) -> None:
        """`tokenizer` is that of transformers."""
        self.rng, self._tokenizer = random.Random(seed), tokenizer
        self.kinds = paragraphs(data)
        self._near: dict[str, dict[str, list[Paragraph]]] = {}
        for kind, some in self.kinds.items():
            self._near[kind] = defaultdict(list)
            for paragraph in some:
                self._near[kind][paragraph.document].append(paragraph)
        self._left: dict[str, list[Paragraph]] = {kind: [] for kind in self.kinds}
        files = [
            file
            for file in sorted((data / "books").glob("*.txt.gz"))
            if not is_heldout(file.name.removesuffix(".txt.gz"))
            and not any(part in file.name for part in BLIND)
        ]
        some_books = self.rng.sample(files, min(BOOKS, len(files)))
        self._books = [gzip.decompress(f.read_bytes()).decode() for f in some_books]
        mark, self._mark = "kvstream0document", "kvstream0question"
        content = f"{BRIEF.opening}{mark}{BRIEF.closing}{BRIEF.question}".replace("{}", self._mark)
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        head, self._tail = text.split(mark)
        self._head = self._encode(head)
        self._stop = tokenizer.eos_token_id

    def row(self) -> Row:
        """Return the next row."""
        while True:
            made = self._whole() if self.rng.random() < 0.55 else self._excerpts()
            document = [] if made is None else self._encode(made[0])
            if made is None or not made[1] or len(document) > ROW:
                continue
            asked = dict(reversed(made[1]))  # each question once, with its first answer
            order = dict.fromkeys(question for question, _ in made[1])
            tails = [self._encode(self._tail.replace(self._mark, q)) for q in order]
            answers = [[*self._encode(asked[q]), self._stop] for q in order]
            return Row(self._head + document, list(zip(tails, answers, strict=True)))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _next(self) -> tuple[str, Paragraph]:
        kind = self.rng.choices(list(SHARES), list(SHARES.values()))[0]
        if not self._left[kind]:
            self._left[kind] = self.rng.sample(self.kinds[kind], len(self.kinds[kind]))
        return kind, self._left[kind].pop()

    def _elsewhere(self) -> Asked:
        """Return a question about another document."""
        _, paragraph = self._next()
        asked = [q for q, _ in paragraph.answered] or paragraph.unanswerable
        return self.rng.choice(asked), REFUSAL

    def _whole(self) -> tuple[str, list[Asked]]:
        rng = self.rng
        kind, paragraph = self._next()
        texts = [paragraph]
        if rng.random() < 0.3 and len(paragraph.text) < 900:
            near = [p for p in self._near[kind][paragraph.document] if p is not paragraph]
            texts += rng.sample(near, min(1, len(near)))
        rng.shuffle(texts)
        answered = [qa for t in texts for qa in rng.sample(t.answered, min(len(t.answered), 8))]
        refused = [
            (question, REFUSAL)
            for t in texts
            for question in rng.sample(t.unanswerable, min(len(t.unanswerable), 4))
        ][: max(2, len(answered) + 1)]
        if rng.random() < 0.6 and kind != "quac":
            refused.append(self._elsewhere())
        asked = answered[:10] + refused[:6]
        rng.shuffle(asked)
        return "\n\n".join(t.text for t in texts), asked

    def _excerpts(self) -> tuple[str, list[Asked]] | None:
        rng, count = self.rng, self.rng.choice([3, 4, 5, 6])
        kind, paragraph = self._next()
        prosaic = rng.random() < 0.3
        text, answered, unanswerable = self._cut(paragraph)
        pieces = [text]
        near = [
            p
            for p in self._near[kind][paragraph.document]
            if p is not paragraph and len(p.text) < 1200
        ]
        while len(pieces) < count:
            if prosaic and rng.random() < 0.7:
                pieces.append(self._prose(rng.choice([200, 300, 400])))
                continue
            other = rng.choice(near) if near and rng.random() < 0.75 else self._next()[1]
            text, more, _ = self._cut(other)
            if text in pieces:
                pieces.append(self._prose(300))
                continue
            pieces.append(text[:1000])
            if text == pieces[-1] and rng.random() < 0.5:
                answered = answered + rng.sample(more, min(2, len(more)))
        if not answered:
            return None
        refused = [(q, REFUSAL) for q in rng.sample(unanswerable, min(len(unanswerable), 3))]
        if kind != "quac":
            refused += [
                (question, REFUSAL)
                for p in near[:4]
                if p.text not in pieces and not any(piece in p.text for piece in pieces)
                for question, _ in p.answered[:1]
            ][:1]
            if rng.random() < 0.4:
                refused.append(self._elsewhere())
        asked = rng.sample(answered, min(len(answered), 8)) + refused[:4]
        rng.shuffle(asked)
        rng.shuffle(pieces)
        return "\n\n".join(pieces), asked

    def _cut(self, paragraph: Paragraph) -> tuple[str, list[Asked], list[str]]:
        """Return the sentences around one answer, with the questions that they answer."""
        rng, sentences = self.rng, split_sentences(paragraph.text)
        everything = paragraph.text, paragraph.answered, paragraph.unanswerable
        if not paragraph.answered or len(paragraph.text) < 2 * EXCERPT:
            return everything
        answer = rng.choice(paragraph.answered)[1]
        holding = [i for i, sentence in enumerate(sentences) if answer in sentence]
        if not holding:
            return everything
        text = ""
        for sentence in sentences[max(0, rng.choice(holding) - rng.choice([0, 0, 1])) :]:
            text += sentence
            if len(text) >= 1.4 * EXCERPT:
                break
        text = text.strip()
        return text, [qa for qa in paragraph.answered if qa[1] in text], paragraph.unanswerable

    def _prose(self, size: int) -> str:
        """Return about `size` characters of a book, from the beginning of a paragraph."""
        book = self.rng.choice(self._books)
        start = self.rng.randrange(max(1, len(book) - 3 * size))
        after = book.find("\n\n", start)
        start = after + 2 if 0 <= after < len(book) - size else start
        text = ""
        for sentence in split_sentences(book[start : start + size + 300])[:-1]:
            text += sentence
            if len(text) >= size:
                break
        return text.strip()[: size + 250]
