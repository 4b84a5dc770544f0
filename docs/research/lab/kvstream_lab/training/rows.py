"""Training rows: a document, questions about it, and a code of each token for the loss.

A row is ``[BOS] document (question answer [EOS])*`` cut to one length, so that one pass through the
document trains many answers. The code of a token is ``PAD`` (never a target), ``TEXT`` (sometimes a
target) or ``ANSWER`` (nearly always a target).

Some documents look as a bounded cache would leave them, at contiguous positions: of a longer
document, the row keeps random spans of tokens, or the tokens most like the questions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import tiktoken

from kvstream.run.prompt import REFUSAL
from kvstream.store import pocket
from kvstream_lab.synthetic.corpus import Corpus, QuestionAnswer
from kvstream_lab.training.documents import DocumentMaker, DocumentPart

PAD, TEXT, ANSWER = 0, 1, 2


@dataclass(frozen=True)
class Mixture:
    """Contents of the rows, as shares."""

    refusals: float = 0.12
    """Share of questions that the text does not answer. It is small at first: a model that cannot
    find anything yet learns only to refuse from them."""
    human: float = 0.2
    """Share of planted sentences that come with human questions."""
    gaps: float = 0.4
    """Share of rows whose document has gaps, as a bounded cache leaves them."""
    asked: float = 0.6
    """Share of gapped documents that keep the tokens most like the questions, not random spans."""


USUAL = Mixture()


class RowMaker:
    """A maker of rows of token ids with codes, from one corpus and one seed.

    Args:
        corpus: the texts.
        seed: seed of all random choices.
        mixture: contents of the rows.
    """

    def __init__(self, corpus: Corpus, seed: int, mixture: Mixture = USUAL) -> None:
        self.mixture = mixture
        self.rng = random.Random(seed)
        self.documents = DocumentMaker(corpus, self.rng, mixture.refusals, mixture.human)
        self.encoding: tiktoken.Encoding = pocket.encoding()
        self.bos = self.encoding.encode_single_token(pocket.BOS)
        self.eos = self.encoding.encode_single_token(pocket.EOS)

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``. Special tokens in it are plain text."""
        return self.encoding.encode_ordinary(text)

    def question(self, asked: QuestionAnswer) -> tuple[list[int], list[int]]:
        """Return ids and codes of a question with its answer and EOS."""
        prompt = self.encode(f"\nQuestion: {asked[0]}\nAnswer:")
        answer = [*self.encode(f" {asked[1]}"), self.eos]
        return prompt + answer, [TEXT] * len(prompt) + [ANSWER] * len(answer)

    def choose(
        self, pieces: list[DocumentPart], budget: int
    ) -> tuple[list[QuestionAnswer], set[int]]:
        """Choose questions that fill about ``budget`` tokens, and return them.

        Also return the indices of the parts that they need.
        """
        rng = self.rng
        refuse = self.mixture.refusals * (0.7 if rng.random() < 0.85 else 2.7)
        pool: list[tuple[int, QuestionAnswer]] = []
        for index, piece in enumerate(pieces):
            if not piece.questions:
                continue
            most = 8 if len(piece.questions) < 9 and piece.planted else 2
            if piece.planted and len(piece.questions) > 8:
                most = rng.choice([1, 1, 2, 3])
            # Several questions with the same answer teach little more than one, so different
            # answers come first.
            order = rng.sample(piece.questions, len(piece.questions))
            firsts = {answer: question for question, answer in reversed(order)}
            order = [qa for qa in order if firsts[qa[1]] == qa[0]] + [
                qa for qa in order if firsts[qa[1]] != qa[0]
            ]
            pool += [(index, asked) for asked in order[:most]]
        rng.shuffle(pool)
        pool.sort(key=lambda item: not pieces[item[0]].planted and rng.random() < 0.3)
        chosen: list[QuestionAnswer] = []
        needed: set[int] = set()
        used = 0
        refusing = any(a == REFUSAL for p in pieces for _, a in p.questions)
        while pool and used < budget:
            if not refusing and rng.random() < refuse:
                asked = self.documents.unanswerable(pieces)
            else:
                index, asked = pool.pop()
                needed.add(index)
            chosen.append(asked)
            used += len(self.question(asked)[0])
        return chosen, needed

    def _evict(self, parts: list[tuple[list[int], bool]], size: int) -> list[int]:
        """Keep ``size`` tokens: the needed ones, the first and the last, and random spans."""
        rng = self.rng
        ids = [i for part, _ in parts for i in part]
        keep = np.zeros(len(ids), dtype=bool)
        at = 0
        for part, needed in parts:
            if needed:
                before, after = rng.choice([0, 3, 8, 15]), rng.choice([0, 3, 8, 15])
                keep[max(0, at - before) : at + len(part) + after] = True
            at += len(part)
        keep[:4] = True
        keep[-rng.choice([8, 32, 64]) :] = True
        longest = rng.choice([3, 8, 20, 60])
        for _ in range(100_000):
            missing = size - int(keep.sum())
            if missing <= 0:
                break
            start = rng.randrange(len(ids))
            keep[start : start + min(rng.randrange(1, longest + 1), missing)] = True
        return [i for i, k in zip(ids, keep, strict=True) if k]

    def _as_asked(
        self, parts: list[tuple[list[int], bool]], asked: set[int], size: int
    ) -> list[int]:
        """Keep ``size`` tokens: the needed ones, the first, the last, and those like the questions.

        A method that knows the question keeps the parts of the text that have most in common with
        it. So the tokens left around the answer are easily mistaken for it. Here these are the
        places where rare tokens of the questions (ids ``asked``) are close together.
        """
        rng = np.random.default_rng(self.rng.randrange(2**32))
        ids = np.array([i for part, _ in parts for i in part])
        needed = np.repeat([need for _, need in parts], [len(part) for part, _ in parts])
        likeness = np.isin(ids, list(asked)) / np.bincount(ids)[ids] * rng.gamma(2.0, size=len(ids))
        reach = int(rng.choice([3, 8, 15]))
        close = np.convolve(likeness, np.ones(9), "same") + 1e-6 * rng.random(len(ids))
        around = np.lib.stride_tricks.sliding_window_view(np.pad(close, reach), 2 * reach + 1)
        scores = around.max(axis=1)
        scores[needed] = np.inf
        scores[:4] = scores[-int(rng.choice([8, 32])) :] = np.inf
        most = max(size, int(np.isinf(scores).sum()))
        kept: list[int] = ids[np.sort(np.argsort(-scores, kind="stable")[:most])].tolist()
        return kept

    def row(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Make one row: ids [length] uint16 and codes [length] uint8."""
        for _ in range(100):
            made = self._reading(length)
            if made is not None:
                ids, codes = made
                ids = ids[:length] + [self.eos] * (length - len(ids))
                codes = codes[:length] + [PAD] * (length - len(codes))
                return np.array(ids, dtype=np.uint16), np.array(codes, dtype=np.uint8)
        raise RuntimeError(f"no row of {length} tokens after 100 attempts: is the data complete?")

    def _reading(self, length: int) -> tuple[list[int], list[int]] | None:
        rng = self.rng
        most = 0.65 if length <= 512 else 0.45 if length <= 1024 else 0.3
        asked_size = int(length * rng.uniform(0.3 if length <= 256 else 0.15, most))
        evicted = rng.random() < self.mixture.gaps
        budget = length - asked_size
        as_asked = evicted and rng.random() < self.mixture.asked
        longer = [2.0, 4.0, 8.0 if length <= 1024 else 4.0] if as_asked else [1.3, 2.0, 3.0]
        stretched = int(budget * (rng.choice(longer) if evicted else 1.0))
        human = rng.random() < {128: 0.0, 256: 0.2}.get(length, 0.38)
        pieces = (self.documents.of_people if human else self.documents.of_a_book)(stretched)
        asked, needed = self.choose(pieces, asked_size)
        tail = [self.question(qa) for qa in asked]
        parts = [(self.encode(p.text), i in needed) for i, p in enumerate(pieces)]
        size = length - 1 - sum(len(ids) for ids, _ in tail)
        must = sum(len(ids) for ids, need in parts if need)
        if must > size or not asked:
            return None
        if as_asked:
            document = self._as_asked(parts, {i for ids, _ in tail for i in ids}, size)
        else:
            document = (self._evict if evicted else self._trim)(parts, size)
        if len(document) > size:
            return None
        ids = [self.bos, *document]
        codes = [PAD] + [TEXT] * len(document)
        for more_ids, more_codes in tail:
            ids += more_ids
            codes += more_codes
        return ids, codes

    def _trim(self, parts: list[tuple[list[int], bool]], size: int) -> list[int]:
        """Drop tokens of unneeded parts, from either end, until ``size`` tokens are left."""
        total = sum(len(ids) for ids, _ in parts)
        kept = dict(enumerate(parts))
        free = [i for i, (_, needed) in enumerate(parts) if not needed]
        while total > size and free:
            index = free.pop(0) if self.rng.random() < 0.5 else free.pop()
            ids, _ = kept[index]
            cut = min(len(ids), total - size)
            kept[index] = (ids[: len(ids) - cut], False)
            total -= cut
        return [i for index in sorted(kept) for i in kept[index][0]]
