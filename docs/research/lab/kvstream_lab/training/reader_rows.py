"""Rows that train a pretrained chat model to answer from a bounded memory.

A row is one document and several questions about it. Each question sees the document and itself,
but no other question, and starts at the position after the document. So every question has the same
position as in use, and the document is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvstream.passages.excerpts import LENGTH as EXCERPT
from kvstream.run.prompt import REFUSAL
from kvstream.tokenization.tokenizer import Tokenizer
from kvstream_lab.synthetic import keys
from kvstream_lab.synthetic.corpus import (
    Corpus,
    HumanContext,
    QuestionAnswer,
    split_sentences,
)
from kvstream_lab.training.documents import DocumentPart
from kvstream_lab.training.rows import ANSWER, TEXT, Mixture, RowMaker

WORDINGS = (
    (
        "<document>\n",
        "\n</document>\n\nQuestion: {question}\n"
        "Answer briefly from the document. If it does not say, write: not in the text.",
    ),
    (
        "Read the text and answer the question below it.\n\nText:\n",
        "\n\nQuestion: {question}\n\nCopy the answer from the text, as short as possible. "
        "If the text does not answer the question, write: not in the text.",
    ),
    (
        "",
        "\n\nQuestion: {question}\nAnswer briefly from the text above. "
        "If the text does not say, write: not in the text.",
    ),
)
"""Text before and after the document. kvstream uses the first pair; the others keep the model from
depending on one wording."""

READER = Mixture(refusals=0.03, human=0.35, gaps=0.35, asked=0.6)


@dataclass(frozen=True)
class Row:
    """One document with its questions, as token ids."""

    document: list[int]
    """Ids of the head of the prompt and of the document."""
    asked: list[tuple[list[int], list[int]]]
    """Ids of each (question with the rest of the prompt, answer with the end of the turn)."""

    def __len__(self) -> int:
        return len(self.document) + sum(len(q) + len(a) - 1 for q, a in self.asked)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return ids [T], positions [T], segments [T], where [n] and targets [n].

        Segment 0 is the document, segment i the i-th question, from 1. ``where`` are the indices of
        the tokens that predict ``targets``, the tokens of the answers.
        """
        ids, positions = list(self.document), list(range(len(self.document)))
        segments = [0] * len(ids)
        where: list[int] = []
        targets: list[int] = []
        for number, (question, answer) in enumerate(self.asked, 1):
            first = len(ids) + len(question) - 1
            where += range(first, first + len(answer))
            targets += answer
            # The last token of the answer predicts nothing.
            behind = [*question, *answer[:-1]]
            positions += range(len(self.document), len(self.document) + len(behind))
            segments += [number] * len(behind)
            ids += behind
        made = (ids, positions, segments, where, targets)
        return tuple(torch.tensor(values) for values in made)  # type: ignore[return-value]


def visible(segments: Tensor) -> Tensor:
    """Return which tokens see which: causal, in the document and the own question.

    The shapes are [..., T] and [..., T, T], bool.
    """
    order = torch.arange(segments.shape[-1], device=segments.device)
    causal = order[:, None] >= order
    key, query = segments[..., None, :], segments[..., None]
    return causal & ((key == 0) | (query == key))


class ReaderRows(RowMaker):
    """A maker of rows for the tokenizer and the chat template of a model.

    Args:
        corpus: the texts.
        seed: seed of all random choices.
        tokenizer: of the model.
        paragraphs: share of rows with whole passages and all human questions about them.
        excerpts: share of rows with excerpts from several places, as in a second pass.
        part: (number, count) of this maker, if several makers share out the whole passages.
    """

    def __init__(
        self,
        corpus: Corpus,
        seed: int,
        tokenizer: Tokenizer,
        paragraphs: float = 0.0,
        excerpts: float = 0.0,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(corpus, seed, READER)
        self.tokenizer, self.paragraphs, self.excerpts = tokenizer, paragraphs, excerpts
        self.wordings = [_rendered(tokenizer, before, behind) for before, behind in WORDINGS]
        self.stop = tokenizer.eos_ids[0]
        self._tail = self.wordings[0][1]
        self._part = part
        self._passages_left: list[HumanContext] = []

    def _next_passage(self) -> HumanContext:
        """Return the next passage: all passages in random order, then all again in a new order.

        A passage with an unanswerable question comes twice per round: there are few such passages,
        and they are the hardest to learn from.
        """
        if not self._passages_left:
            number, count = self._part
            passages = self.documents.corpus.passages[number::count]
            misleading = [p for p in passages if any(a == REFUSAL for _, a in p.questions)]
            self._passages_left = [*passages, *misleading]
            self.rng.shuffle(self._passages_left)
        return self._passages_left.pop()

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, continuing=True)

    def question(self, asked: QuestionAnswer) -> tuple[list[int], list[int]]:
        question, answer = self._asked(asked)
        return question + answer, [TEXT] * len(question) + [ANSWER] * len(answer)

    def _asked(self, asked: QuestionAnswer) -> tuple[list[int], list[int]]:
        tail = self._tail.replace("{question}", asked[0])
        question = self.tokenizer.encode_template(tail, continuing=True)
        return question, [*self.encode(asked[1]), self.stop]

    def reading(self, length: int) -> Row:
        """Make a row of about ``length`` tokens, document and questions together."""
        while True:
            draw = self.rng.random()
            if draw < self.paragraphs:
                made = self._paragraphs(length)
            elif draw < self.paragraphs + self.excerpts:
                made = self._excerpts()
            else:
                made = self._made(length)
            if made is not None:
                return made

    def _head(self) -> list[int]:
        """Return the ids before a document, and set the wording of the questions after it."""
        head, self._tail = self.wordings[self.rng.choices(range(len(WORDINGS)), (4, 1, 1))[0]]
        return head

    def _paragraphs(self, length: int) -> Row | None:
        """Make a row of whole passages with their questions: at most as many refusals as answers.

        People wrote the unanswerable questions to mislead, so these decide what a model learns
        about reading the passage. Such rows have three to four times as many questions per token as
        others.
        """
        rng, head = self.rng, self._head()
        document: list[int] = []
        answered: list[QuestionAnswer] = []
        refused: list[QuestionAnswer] = []
        size = 0
        while size < 0.8 * length:
            passage = self._next_passage()
            text = self.encode("\n\n" * bool(document) + passage.text.strip())
            answers = [qa for qa in passage.questions if qa[1] != REFUSAL]
            refusals = [qa for qa in passage.questions if qa[1] == REFUSAL]
            document, size = document + text, size + len(text)
            answered, refused = answered + answers, refused + refusals
            size += 60 * (len(answers) + min(len(answers), len(refusals)))
        asked = rng.sample(answered, min(len(answered), 16))
        asked += rng.sample(refused, min(len(refused), max(1, len(asked))))
        if len(document) > 1.5 * length:
            return None
        rng.shuffle(asked)
        return Row([*head, *document], [self._asked(qa) for qa in asked])

    def _excerpts(self) -> Row | None:
        """Make a row of excerpts: keys with similar names in prose, and parts of passages.

        The excerpts that a search finds all share words with the question. So the excerpt with the
        answer is among others that look like it.
        """
        rng, head = self.rng, self._head()
        count = rng.choice([3, 4, 4, 5])
        ring = keys.keyring(rng, 1 + rng.choice([0, 0, 2, 3, count]))
        pieces: list[str] = []
        asked: list[QuestionAnswer] = []
        for key in ring[1:]:
            pieces.append(self._around(key.text))
            asked.append(rng.choice(key.questions))
        if len(ring) > 1 and rng.random() < 0.15:
            asked.append((rng.choice(ring[0].questions)[0], REFUSAL))
        passage: HumanContext | None = None
        while len(pieces) < count:
            near = self._others_of_its_document(passage) if passage else []
            passage = rng.choice(near) if near and rng.random() < 0.5 else self._next_passage()
            text, about = self._excerpt_of(passage)
            pieces.append(text)
            asked += about
        if not asked:
            return None
        asked = rng.sample(asked, min(len(asked), 8))
        order = rng.sample(pieces, len(pieces))
        document = self.encode(rng.choice(["\n\n", "\n"]).join(order))
        return Row([*head, *document], [self._asked(qa) for qa in asked])

    def _others_of_its_document(self, passage: HumanContext) -> list[HumanContext]:
        return [p for p in self.documents.corpus.by_document[passage.doc_id] if p is not passage]

    def _around(self, sentence: str) -> str:
        """Plant the sentence in prose of the length of an excerpt."""
        rng = self.rng
        prose = split_sentences(self.documents.corpus.prose(rng, EXCERPT).strip())
        where = rng.randrange(len(prose) + 1)
        gap = rng.choice([" ", "\n\n"])
        return gap.join(filter(None, ("".join(prose[:where]), sentence, "".join(prose[where:]))))

    def _excerpt_of(self, passage: HumanContext) -> tuple[str, list[QuestionAnswer]]:
        """Take the sentences around an answer, with questions they answer and unanswerable ones."""
        rng = self.rng
        sentences = split_sentences(passage.text.strip())
        answer = rng.choice(passage.questions)[1]
        holding = [i for i, sentence in enumerate(sentences) if answer in sentence]
        first = max(0, rng.choice(holding or [0]) - rng.choice([0, 0, 1]))
        text = ""
        for sentence in sentences[first:]:
            text += sentence
            if len(text.encode()) >= EXCERPT:
                break
        answered = [qa for qa in passage.questions if qa[1] != REFUSAL and qa[1] in text]
        refused = [qa for qa in passage.questions if qa[1] == REFUSAL]
        asked = rng.sample(answered, min(len(answered), 4))
        return text.strip(), asked + rng.sample(refused, min(len(refused), len(asked), 2))

    def _made(self, length: int) -> Row | None:
        rng = self.rng
        head = self._head()
        evicted = rng.random() < self.mixture.gaps
        asked_size = int(length * rng.uniform(0.45, 0.75))
        budget = length - asked_size
        as_asked = evicted and rng.random() < self.mixture.asked
        stretched = int(budget * (rng.choice([1.5, 3.0, 6.0]) if evicted else 1.0))
        people = rng.random() < 0.75
        make = self.documents.of_people if people else self.documents.of_a_book
        pieces: list[DocumentPart] = make(stretched)
        asked, needed = self.choose(pieces, asked_size)
        if not asked:
            return None
        parts = [(self.encode(p.text), i in needed) for i, p in enumerate(pieces)]
        size = max(budget, sum(len(ids) for ids, need in parts if need))
        if size > 2 * budget:
            return None
        if as_asked:
            words = {i for question, _ in asked for i in self.encode(" " + question)}
            document = self._as_asked(parts, words, size)
        else:
            document = (self._evict if evicted else self._trim)(parts, size)
        return Row([*head, *document], [self._asked(qa) for qa in asked])


def _rendered(tokenizer: Tokenizer, before: str, behind: str) -> tuple[list[int], str]:
    """Return the ids before the document, and the text after it with ``{question}`` in it."""
    mark = "kvstream0document0"
    turn = {"role": "user", "content": before + mark + behind}
    head, tail = tokenizer.render([turn], add_generation_prompt=True).split(mark)
    return tokenizer.encode_template(head, continuing=False), tail
