"""Training rows: a document, questions about it, and which tokens are worth a loss.

A row is ``[BOS] document (question answer [EOS])*`` cut to one length, so that one pass through
the document trains many answers.  Each token carries a code: ``PAD`` (never a target), ``TEXT``
(a target now and then) or ``ANSWER`` (nearly always).  Rows are written in shards ahead of the
training, because making text is slower than it looks and must never be what the model waits for.

Part of the documents arrive as a bounded cache would leave them: longer ones of which only spans
of tokens are kept, cut anywhere, at contiguous positions.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import os
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import tiktoken

from kvstream import pocket
from kvstream.training import facts, keys, questions
from kvstream.training.facts import REFUSAL
from kvstream.training.splits import is_heldout

PAD, TEXT, ANSWER = 0, 1, 2
QuestionAnswer = tuple[str, str]
EVICTED_SHARE = 0.4
"""Part of the rows whose document has gaps, as a bounded cache leaves them."""
HUMAN_FILES = (
    "squad_dev_train",
    "squadshifts_newwiki",
    "fairytaleqa_train",
    "nq_oracle_train",
    "squad2_unanswerable",
    "quac_subset",
)


@dataclass
class Piece:
    """A stretch of a document, with the white space before it, and what may be asked about it."""

    text: str
    questions: list[QuestionAnswer] = field(default_factory=list)
    planted: bool = False


@dataclass
class HumanContext:
    """A passage and what people asked about it."""

    text: str
    doc_id: str
    questions: list[QuestionAnswer]  # unanswerable ones answer REFUSAL


class Corpus:
    """The texts of a data folder on one side of the split.

    Args:
        folder: as described in its README (``books/``, ``qa/``).
        heldout: take the held-out books and documents in place of those for training.
    """

    def __init__(self, folder: Path, heldout: bool = False) -> None:
        self.folder = folder
        self.heldout = heldout
        if not (folder / "books").is_dir():
            raise FileNotFoundError(f"no books/ in {folder}: give the data folder with --data")

    def book_files(self) -> list[Path]:
        """The books on this side of the split."""
        files = sorted((self.folder / "books").glob("*.txt.gz"))
        return [f for f in files if is_heldout(f.name.removesuffix(".txt.gz")) == self.heldout]

    @cached_property
    def books(self) -> list[str]:
        """Their texts."""
        return [gzip.decompress(f.read_bytes()).decode("utf-8") for f in self.book_files()]

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(book) for book in self.books])

    def prose(self, rng: random.Random, characters: int) -> str:
        """A random passage of about ``characters`` characters, whole paragraphs at its start."""
        where = rng.randrange(int(self._ends[-1]))
        index = int(np.searchsorted(self._ends, where, side="right"))
        book = self.books[index]
        start = where - int(self._ends[index]) + len(book)
        start = max(0, min(start, len(book) - 2 * characters))
        aligned = book.find("\n\n", start)
        start = aligned + 2 if 0 <= aligned < len(book) - characters else 0
        return book[start : start + characters]

    def human(self, name: str) -> list[HumanContext]:
        """The passages of ``qa/<name>.jsonl.gz`` with all their usable questions."""
        grouped: dict[tuple[str, str], list[QuestionAnswer]] = defaultdict(list)
        with gzip.open(self.folder / "qa" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if is_heldout(record["doc_id"]) != self.heldout:
                    continue
                context, answers = record["context"], record["answers"]
                found = [a for a in answers if a.lower().strip(" .") in context.lower()]
                if answers and not found:
                    continue  # an answer in other words cannot be learned by copying
                answer = found[0].strip().rstrip(".") if found else REFUSAL
                if len(answer) > 160:
                    continue
                grouped[context, record["doc_id"]].append((record["question"].strip(), answer))
        return [HumanContext(text, doc, asked) for (text, doc), asked in grouped.items()]

    @cached_property
    def passages(self) -> list[HumanContext]:
        """All passages with human questions, one list over the files."""
        merged: dict[str, HumanContext] = {}
        for name in HUMAN_FILES:
            for context in self.human(name):
                known = merged.setdefault(
                    context.text, HumanContext(context.text, context.doc_id, [])
                )
                known.questions.extend(context.questions)
        return list(merged.values())

    @cached_property
    def by_document(self) -> dict[str, list[HumanContext]]:
        """The passages of each document."""
        grouped: dict[str, list[HumanContext]] = defaultdict(list)
        for passage in self.passages:
            grouped[passage.doc_id].append(passage)
        return grouped

    @cached_property
    def sentences(self) -> list[HumanContext]:
        """QAMR's single sentences, each with many questions."""
        return self.human("qamr_sentences")

    @cached_property
    def snippets(self) -> list[HumanContext]:
        """The sentence that answers each human question, the one before it sometimes too.

        One to two sentences with human questions can be planted like a fact, in short rows as well:
        far more questions in the same number of tokens than whole passages have.
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
                    made.append(HumanContext(text, passage.doc_id, asked_here))
        return made

    def hashes(self) -> dict[str, str]:
        """SHA-256 (first 16 digits) of the books together and of every question file."""
        books = hashlib.sha256()
        for file in sorted((self.folder / "books").glob("*.txt.gz")):
            books.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
        found = {"books/*.txt.gz": books.hexdigest()[:16]}
        for name in (*HUMAN_FILES, "qamr_sentences"):
            file = self.folder / "qa" / f"{name}.jsonl.gz"
            found[f"qa/{file.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        return found


def split_sentences(text: str) -> list[str]:
    """Sentences with the white space before each; their concatenation is ``text``."""
    guard = r"(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\b[A-Z]\.)"
    end = rf"[.!?][\"'”’)]*{guard}(?=\s+[\"'“‘(]*[A-Z])|(?=\n\n)"
    ends = [match.end() for match in re.finditer(end, text)]
    cuts = [0, *sorted(set(ends) - {0, len(text)}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(cuts) if b > a]


class RowMaker:
    """Makes rows of token ids with codes, from one corpus and one seed.

    Args:
        corpus: the texts.
        seed: of every choice.
        human: share of the planted sentences that come with human questions.
        refusals: share of questions that the text does not answer.  Few at first: before a model
            can find anything, refusing is all it learns from them.
    """

    def __init__(
        self, corpus: Corpus, seed: int, refusals: float = 0.12, human: float = 0.2
    ) -> None:
        self.corpus = corpus
        self.human = human
        self.refusals = refusals
        self.rng = random.Random(seed)
        self.encoding: tiktoken.Encoding = pocket.encoding()
        self.bos = self.encoding.encode_single_token(pocket.BOS)
        self.eos = self.encoding.encode_single_token(pocket.EOS)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, special tokens in it taken as plain text."""
        return self.encoding.encode_ordinary(text)

    def question(self, asked: QuestionAnswer) -> tuple[list[int], list[int]]:
        """Ids and codes of a question with its answer and EOS."""
        prompt = self.encode(f"\nQuestion: {asked[0]}\nAnswer:")
        answer = [*self.encode(f" {asked[1]}"), self.eos]
        return prompt + answer, [TEXT] * len(prompt) + [ANSWER] * len(answer)

    # Documents -----------------------------------------------------------------------------

    def _planted(self, budget: int) -> list[Piece]:
        """Facts and keys for a document of ``budget`` tokens; those that belong together too."""
        rng = self.rng
        count = max(1, round(budget / rng.choice([40, 60, 90, 130, 200, 300])))
        count = min(count, 24)
        made: list[facts.Planted] = []
        while len(made) < count:
            draw = rng.random()
            if draw < 0.12:
                made.append(keys.passkey(rng))
            elif draw < 0.2:
                made.extend(keys.keyring(rng, rng.choice([1, 1, 2, 3, 5])))
            elif draw < 0.25:
                made.append(keys.key_values(rng, rng.randrange(2, 6 + min(budget // 100, 12))))
            elif draw < 0.37:
                made.extend(facts.two_steps(rng))
            elif draw < 0.42:  # several facts about one person, apart from each other
                subject = facts.person(rng)
                made.extend(facts.anything(rng, subject) for _ in range(2))
            elif draw < 0.46:  # the same said of several people
                relation = rng.choice(facts.relations())
                same = [facts.fact(rng, None, relation) for _ in range(rng.choice([2, 3]))]
                made.extend(facts.dressed(rng, each) for each in same)
            elif draw < 0.5:
                sentence = rng.choice(self.corpus.sentences)
                made.append(facts.Planted(sentence.text, sentence.questions))
            elif draw < 0.5 + self.human:
                snippet = rng.choice(self.corpus.snippets)
                rules = questions.from_sentence(snippet.text, rng) if rng.random() < 0.4 else []
                made.append(facts.Planted(snippet.text, snippet.questions + rules))
            else:
                made.append(facts.anything(rng))
        rng.shuffle(made)
        return [Piece(p.text, p.questions, planted=True) for p in made]

    def book_document(self, budget: int) -> list[Piece]:
        """Prose of a book with facts planted between and inside its paragraphs."""
        rng = self.rng
        if budget <= 256 and rng.random() < 0.35:
            return self._facts_alone(budget)
        prose = self.corpus.prose(rng, int(budget * 4.3) + 200)
        if rng.random() < 0.06:
            prose = self._noise(int(budget * 4.3) + 200)
        pieces = [Piece(s) for s in split_sentences(prose)]
        for piece in pieces:
            piece.questions = questions.from_sentence(piece.text, rng)
        for planted in self._planted(budget):
            where = rng.randrange(len(pieces) + 1)
            if rng.random() < 0.45 or "\n" in planted.text:
                planted.text = "\n\n" + planted.text
                if where < len(pieces) and not pieces[where].text.startswith("\n\n"):
                    pieces[where].text = "\n\n" + pieces[where].text.lstrip()
            else:
                planted.text = " " + planted.text
                if where < len(pieces) and pieces[where].text[:1].strip():
                    pieces[where].text = " " + pieces[where].text
            pieces.insert(where, planted)
        return pieces

    def _facts_alone(self, budget: int) -> list[Piece]:
        """Planted sentences one after the other: the most to find in the fewest tokens."""
        pieces: list[Piece] = []
        size = 0
        while size < budget:
            for planted in self._planted(budget // 2):
                lead = self.rng.choice([" ", " ", "\n\n"]) if pieces else ""
                planted.text = lead + planted.text
                pieces.append(planted)
                size += len(planted.text) // 4
        return pieces

    def _noise(self, characters: int) -> str:
        """Filler as needle tests use it: one paragraph again and again, or words in no order."""
        rng = self.rng
        words = self.corpus.prose(rng, 4000).split()
        if rng.random() < 0.5:
            sentence = " ".join(rng.choices(words, k=rng.randrange(4, 9))).lower()
            base = [
                "The grass is green. The sky is blue. The sun is yellow.",
                "Here we go. There and back again.",
                sentence.capitalize().strip(",.;:") + ".",
            ]
            unit = " ".join(rng.sample(base, rng.randrange(1, 4))) + " "
            return (unit * (characters // len(unit) + 1))[:characters]
        made = ""
        while len(made) < characters:
            made += " ".join(rng.choices(words, k=rng.randrange(5, 20))).strip(",.;:") + ". "
        return made

    def human_document(self, budget: int) -> list[Piece]:
        """Passages with human questions, prose of a book or other passages around them."""
        rng = self.rng
        pieces: list[Piece] = []
        size = 0
        alone = rng.random() < 0.5
        while size < budget * 4:
            if pieces and not alone and rng.random() < 0.6:
                text = self.corpus.prose(rng, rng.randrange(200, 1500))
                pieces.append(Piece("\n\n" + text))
            else:
                passage = rng.choice(self.corpus.passages)
                if len(passage.text) > max(900, budget * 4):
                    continue
                pieces.append(self._passage(passage))
            size += len(pieces[-1].text)
        rng.shuffle(pieces)
        pieces[0].text = pieces[0].text.lstrip()
        return pieces

    def _passage(self, passage: HumanContext) -> Piece:
        """A passage with some of its questions, and perhaps some that it does not answer."""
        rng = self.rng
        asked = [
            qa
            for qa in rng.sample(passage.questions, min(len(passage.questions), 10))
            if qa[1] != REFUSAL or rng.random() < 5 * self.refusals
        ]
        text = passage.text.strip()
        if rng.random() < 5 * self.refusals:
            text, asked = self._without_an_answer(text, asked)
        rules = [qa for s in split_sentences(text) for qa in questions.from_sentence(s, rng)]
        asked += rng.sample(rules, min(len(rules), rng.choice([0, 0, 1, 2])))
        if rng.random() < 3 * self.refusals:
            # Of the same article, it is about what the passage is about.
            near = self.corpus.by_document[passage.doc_id] if rng.random() < 0.7 else []
            foreign = rng.choice(near or self.corpus.passages)
            question, answer = rng.choice(foreign.questions)
            if answer == REFUSAL or answer.lower() not in text.lower():
                asked.append((question, REFUSAL))
        return Piece("\n\n" + text, asked, planted=True)

    def _without_an_answer(
        self, text: str, asked: list[QuestionAnswer]
    ) -> tuple[str, list[QuestionAnswer]]:
        """The passage less the sentences that have one answer; what they answered is refused.

        The same question stands elsewhere with its answer: such pairs teach to look, where a
        question that nothing answers teaches which questions sound as if nothing did.
        """
        answers = [a for _, a in asked if a != REFUSAL]
        if not answers:
            return text, asked
        gone = self.rng.choice(answers)
        sentences = split_sentences(text)
        kept = "".join(s for s in sentences if gone.lower() not in s.lower()).strip()
        if len(kept) < 150 or gone.lower() in kept.lower():
            return text, asked
        left = [(q, a if a.lower() in kept.lower() else REFUSAL) for q, a in asked]
        lost = [qa for qa, before in zip(left, asked, strict=True) if qa != before]
        self.rng.shuffle(lost)
        return kept, [qa for qa in left if qa not in lost] + lost[:2]

    # Rows ------------------------------------------------------------------------------------

    def _choose(self, pieces: list[Piece], budget: int) -> tuple[list[QuestionAnswer], set[int]]:
        """Questions to fill about ``budget`` tokens, and the pieces they need."""
        rng = self.rng
        refuse = self.refusals * (0.7 if rng.random() < 0.85 else 2.7)
        pool: list[tuple[int, QuestionAnswer]] = []
        for index, piece in enumerate(pieces):
            if not piece.questions:
                continue
            most = 8 if len(piece.questions) < 9 and piece.planted else 2
            if piece.planted and len(piece.questions) > 8:
                most = rng.choice([1, 1, 2, 3])
            # Questions with the same answer teach little twice: different answers first.
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
                asked = self._unanswerable(pieces)
            else:
                index, asked = pool.pop()
                needed.add(index)
            chosen.append(asked)
            used += len(self.question(asked)[0])
        return chosen, needed

    def _unanswerable(self, pieces: list[Piece]) -> QuestionAnswer:
        """A question that the document does not answer, sometimes about a name that it has."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.03:
            other = keys.passkey(rng, plain=False)
        elif draw < 0.55:
            known = re.findall(r"\b[A-Z][a-z]{3,}\b", " ".join(p.text for p in pieces if p.planted))
            relation = rng.choice([r for r in facts.relations() if r.clauses])
            subject = rng.choice(known) if known and rng.random() < 0.5 else None
            other = facts.dressed(rng, facts.fact(rng, subject, relation))
        elif draw < 0.85:
            prose = split_sentences(self.corpus.prose(rng, 1500))
            asked = [q for s in prose for q in questions.from_sentence(s, rng)]
            other = facts.Planted("", asked)
        else:
            other = facts.anything(rng)
        if not other.questions:
            other = facts.anything(rng)
        return rng.choice(other.questions)[0], REFUSAL

    def _evict(self, parts: list[tuple[list[int], bool]], size: int) -> list[int]:
        """Keep ``size`` tokens: those needed, the first and last ones, and random spans."""
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

    def row(self, length: int, copying: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """One row: ids [length] uint16 and codes [length] uint8."""
        rng = self.rng
        for _ in range(100):
            make = self._copying if rng.random() < copying else self._reading
            made = make(length)
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
        evicted = rng.random() < EVICTED_SHARE
        budget = length - asked_size
        stretched = int(budget * (rng.choice([1.3, 2, 3]) if evicted else 1.0))
        human = rng.random() < {128: 0.0, 256: 0.15}.get(length, 0.27)
        pieces = (self.human_document if human else self.book_document)(stretched)
        asked, needed = self._choose(pieces, asked_size)
        tail = [self.question(qa) for qa in asked]
        parts = [(self.encode(p.text), i in needed) for i, p in enumerate(pieces)]
        size = length - 1 - sum(len(ids) for ids, _ in tail)
        must = sum(len(ids) for ids, need in parts if need)
        if must > size or not asked:
            return None
        shorten = self._evict if evicted else self._trim
        document = shorten(parts, size)
        if len(document) > size:
            return None
        ids = [self.bos, *document]
        codes = [PAD] + [TEXT] * len(document)
        for more_ids, more_codes in tail:
            ids += more_ids
            codes += more_codes
        return ids, codes

    def _trim(self, parts: list[tuple[list[int], bool]], size: int) -> list[int]:
        """Drop parts that no question needs, from either end, until ``size`` tokens are left."""
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

    def _copying(self, length: int) -> tuple[list[int], list[int]]:
        """Prose or random tokens that come again: practice for the copying heads."""
        rng = self.rng
        ids, codes = [self.bos], [PAD]
        while len(ids) < length:
            size = rng.randrange(10, max(12, length // 2))
            if rng.random() < 0.5:
                span = [rng.randrange(256, self.bos) for _ in range(size)]
            else:
                span = self.encode(self.corpus.prose(rng, size * 5))[:size]
            ids += span
            codes += [TEXT] * len(span)
            for _ in range(rng.choice([1, 1, 2])):
                start = rng.randrange(max(1, len(span) // 2))
                again = span[start : start + rng.randrange(8, size + 8)]
                ids += again
                codes += [PAD] + [ANSWER] * (len(again) - 1)
        return ids, codes


def write_shards(
    corpus: Corpus,
    folder: Path,
    seed: int,
    lengths: tuple[int, ...],
    ahead: int = 3,
    copying: float = 0.0,
    tokens: int = 131_072,
    forever: bool = True,
    refusals: float = 0.12,
) -> None:
    """Keep ``ahead`` unread shards of every length in ``folder`` (``<length>-<number>.npz``)."""
    folder.mkdir(parents=True, exist_ok=True)
    maker = RowMaker(corpus, seed, refusals)
    while True:
        short = {t: len(list(folder.glob(f"{t:05d}-*.npz"))) for t in lengths}
        length = min(lengths, key=lambda t: short[t])
        if short[length] >= ahead:
            if not forever:
                return
            time.sleep(1.0)
            continue
        share = copying if length <= 512 else 0.0
        rows = [maker.row(length, share) for _ in range(tokens // length)]
        name = folder / f"{length:05d}-{time.time_ns():020d}-{seed}.npz"
        part = name.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, ids=np.stack([r[0] for r in rows]), codes=np.stack([r[1] for r in rows]))
        os.replace(part, name)


def read_shards(folder: Path, length: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of one length, oldest shard first; a shard is deleted when it has been read.

    When the makers fall behind, the last shard is read again rather than the training waiting.
    """
    last: tuple[np.ndarray, np.ndarray] | None = None
    order = np.random.default_rng(seed)
    while True:
        files = sorted(folder.glob(f"{length:05d}-*.npz"))
        if files:
            with np.load(files[0]) as shard:
                last = shard["ids"], shard["codes"]
            files[0].unlink()
        elif last is None:
            time.sleep(1.0)
            continue
        for index in order.permutation(len(last[0])):
            yield last[0][index], last[1][index]
