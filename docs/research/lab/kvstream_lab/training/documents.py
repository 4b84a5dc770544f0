"""Documents in parts, each with its questions: prose with planted facts, passages."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from kvstream.run.prompt import REFUSAL
from kvstream_lab.synthetic import keys, questions, training_facts
from kvstream_lab.synthetic.corpus import (
    Corpus,
    HumanContext,
    QuestionAnswer,
    split_sentences,
)


@dataclass
class DocumentPart:
    """A part of a document, with the white space before it, and the questions about it."""

    text: str
    questions: list[QuestionAnswer] = field(default_factory=list)
    planted: bool = False


class DocumentMaker:
    """A maker of documents from one corpus.

    Args:
        corpus: the texts.
        rng: random generator of all choices.
        refusals: as in `Mixture`.
        human: share of the planted sentences that come with human questions.
    """

    def __init__(self, corpus: Corpus, rng: random.Random, refusals: float, human: float) -> None:
        self.corpus, self.rng = corpus, rng
        self.refusals, self.human = refusals, human

    def _planted(self, budget: int) -> list[DocumentPart]:
        """Make facts and keys for a document of ``budget`` tokens. Some of them belong together."""
        rng = self.rng
        count = max(1, round(budget / rng.choice([40, 60, 90, 130, 200, 300])))
        count = min(count, 24)
        made: list[training_facts.Planted] = []
        while len(made) < count:
            draw = rng.random()
            if draw < 0.12:
                made.append(keys.passkey(rng))
            elif draw < 0.2:
                made.extend(keys.keyring(rng, rng.choice([1, 1, 2, 3, 5])))
            elif draw < 0.25:
                made.append(keys.key_values(rng, rng.randrange(2, 6 + min(budget // 100, 12))))
            elif draw < 0.37:
                made.extend(training_facts.two_steps(rng))
            elif draw < 0.42:  # two facts about one person, in different places
                subject = training_facts.person(rng)
                made.extend(training_facts.anything(rng, subject) for _ in range(2))
            elif draw < 0.46:  # the same relation for several people
                relation = rng.choice(training_facts.relations())
                same = [training_facts.fact(rng, None, relation) for _ in range(rng.choice([2, 3]))]
                made.extend(training_facts.dressed(rng, each) for each in same)
            elif draw < 0.5:
                sentence = rng.choice(self.corpus.sentences)
                made.append(training_facts.Planted(sentence.text, sentence.questions))
            elif draw < 0.5 + self.human:
                snippet = rng.choice(self.corpus.snippets)
                rules = questions.from_sentence(snippet.text, rng) if rng.random() < 0.4 else []
                made.append(training_facts.Planted(snippet.text, snippet.questions + rules))
            else:
                made.append(training_facts.anything(rng))
        rng.shuffle(made)
        return [DocumentPart(p.text, p.questions, planted=True) for p in made]

    def of_a_book(self, budget: int) -> list[DocumentPart]:
        """Make prose of a book with facts planted between and inside its paragraphs."""
        rng = self.rng
        if budget <= 256 and rng.random() < 0.35:
            return self._facts_alone(budget)
        prose = self.corpus.prose(rng, int(budget * 4.3) + 200)
        if rng.random() < 0.06:
            prose = self._noise(int(budget * 4.3) + 200)
        pieces = [DocumentPart(s) for s in split_sentences(prose)]
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

    def _facts_alone(self, budget: int) -> list[DocumentPart]:
        """Make a document of planted sentences alone: many facts to find in few tokens."""
        pieces: list[DocumentPart] = []
        size = 0
        while size < budget:
            for planted in self._planted(budget // 2):
                lead = self.rng.choice([" ", " ", "\n\n"]) if pieces else ""
                planted.text = lead + planted.text
                pieces.append(planted)
                size += len(planted.text) // 4
        return pieces

    def _noise(self, characters: int) -> str:
        """Make the filler of needle tests: a repeated paragraph, or words in random order."""
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

    def of_people(self, budget: int) -> list[DocumentPart]:
        """Make passages with human questions, surrounded by prose of a book or other passages."""
        rng = self.rng
        pieces: list[DocumentPart] = []
        size = 0
        alone = rng.random() < 0.5
        while size < budget * 4:
            if pieces and not alone and rng.random() < 0.6:
                text = self.corpus.prose(rng, rng.randrange(200, 1500))
                pieces.append(DocumentPart("\n\n" + text))
            else:
                passage = rng.choice(self.corpus.passages)
                if len(passage.text) > max(900, budget * 4):
                    continue
                pieces.append(self._passage(passage))
            size += len(pieces[-1].text)
        rng.shuffle(pieces)
        pieces[0].text = pieces[0].text.lstrip()
        return pieces

    def _passage(self, passage: HumanContext) -> DocumentPart:
        """Return a passage with some of its questions, sometimes also unanswerable ones."""
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
        if rng.random() < 10 * self.refusals:
            # Questions about the same article are often too similar to answerable ones. Questions
            # from the same file have the same style.
            near = rng.random() < 0.3
            like = self.corpus.by_document[passage.doc_id] if near else []
            foreign = rng.choice(like or self.corpus.by_source[passage.source])
            question, answer = rng.choice(foreign.questions)
            if answer == REFUSAL or answer.lower() not in text.lower():
                asked.append((question, REFUSAL))
        return DocumentPart("\n\n" + text, asked, planted=True)

    def _without_an_answer(
        self, text: str, asked: list[QuestionAnswer]
    ) -> tuple[str, list[QuestionAnswer]]:
        """Remove the sentences that hold one answer. Questions with this answer become refusals.

        The same question occurs elsewhere with its answer. Such pairs teach the model to look in
        the text. Questions that are never answered teach it only which questions sound
        unanswerable.
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

    def unanswerable(self, pieces: list[DocumentPart]) -> QuestionAnswer:
        """Return a question that the document does not answer, sometimes about one of its names."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.03:
            other = keys.passkey(rng, plain=False)
        elif draw < 0.55:
            known = re.findall(r"\b[A-Z][a-z]{3,}\b", " ".join(p.text for p in pieces if p.planted))
            relation = rng.choice([r for r in training_facts.relations() if r.clauses])
            subject = rng.choice(known) if known and rng.random() < 0.5 else None
            other = training_facts.dressed(rng, training_facts.fact(rng, subject, relation))
        elif draw < 0.85:
            prose = split_sentences(self.corpus.prose(rng, 1500))
            asked = [q for s in prose for q in questions.from_sentence(s, rng)]
            other = training_facts.Planted("", asked)
        else:
            other = training_facts.anything(rng)
        if not other.questions:
            other = training_facts.anything(rng)
        return rng.choice(other.questions)[0], REFUSAL
