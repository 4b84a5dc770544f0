"""Quick scores on held-out books and documents, with the whole context held, to monitor a run.

Benchmarks with budgets, methods and confidence intervals are in ``kvstream bench``. ``new-facts``
uses sentences and questions that are not in ``templates.txt``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from kvstream.evaluation.metrics import best, exact_match, f1
from kvstream.run.prompt import REFUSAL
from kvstream_lab.synthetic import keys, questions, training_facts
from kvstream_lab.synthetic.corpus import Corpus, HumanContext, split_sentences
from kvstream_lab.training.rows import RowMaker

Trial = tuple[str, str, list[str]]  # document, question, accepted answers (none: refuse)

# Statement, question, answer. None is in templates.txt, so that the wording is unseen too.
_NEW_FACTS = (
    ("{P} rented a narrow house on the edge of {L}.", "Where did {P} rent a house?", "{L}"),
    ("At {L} station {P} waited for the last train.", "Who waited for the last train?", "{P}"),
    ("The village doctor, {P}, owned {O}.", "What did the village doctor own?", "{O}"),
    ("{P} locked {O} away {B}.", "Where did {P} lock {O} away?", "{B}"),
    ("{P} borrowed {O} from {R} last week.", "From whom did {P} borrow {O}?", "{R}"),
    ("{P} borrowed {O} from {R} last week.", "What did {P} borrow from {R}?", "{O}"),
    ("Only {P} knew the way to {L}.", "Who knew the way to {L}?", "{P}"),
    ("{P} grew up in {L} among fishermen.", "Where did {P} grow up?", "{L}"),
    ("The trial of {P} began {D}.", "When did the trial of {P} begin?", "{D}"),
    ("The orchestra was conducted by {P}.", "Who conducted the orchestra?", "{P}"),
    ("{P} planted {N} trees behind the house.", "How many trees did {P} plant?", "{N}"),
    ("{P} repaired {O} for {R}.", "Who repaired {O}?", "{P}"),
    ("{P} moved to {L} to {I}.", "Why did {P} move to {L}?", "to {I}"),
    ("{P} quarrelled with {R} over {O}.", "With whom did {P} quarrel?", "{R}"),
    ("The heir of {P} was {R}.", "Who was the heir of {P}?", "{R}"),
    ("{P} traded {O} for a loaf of bread.", "What did {P} trade for a loaf of bread?", "{O}"),
    ("{P} had a scar from a duel in {L}.", "Where was the duel in which {P} got a scar?", "{L}"),
    ("The lighthouse of {L} was built in {Y}.", "When was the lighthouse of {L} built?", "{Y}"),
    ("{P} could not sleep {E}.", "Why could {P} not sleep?", "{E}"),
    ("The password for the gate is {W}.", "What is the password for the gate?", "{W}"),
)


class Trials:
    """Documents with one question each, from held-out texts."""

    def __init__(self, data: Path, seed: int) -> None:
        self.maker = RowMaker(Corpus(data, heldout=True), seed)
        self.rng = self.maker.rng

    @cached_property
    def adversarial(self) -> list[HumanContext]:
        return self.maker.documents.corpus.human("squad2_unanswerable")

    def _prose(self, length: int) -> list[str]:
        text = self.maker.documents.corpus.prose(self.rng, int(length * 4.6) + 200)
        ids = self.maker.encode(text)
        kept = self.maker.encoding.decode(ids[: length - 60])
        return split_sentences(kept)

    def _plant(self, length: int, sentence: str) -> str:
        prose = self._prose(length)
        where = self.rng.randrange(len(prose) + 1)
        lead = self.rng.choice([" ", "\n\n"]) if where else ""
        return "".join([*prose[:where], lead + sentence, *prose[where:]]).lstrip()

    def passkey(self, length: int) -> Trial:
        """Plant a passkey in the usual wording of needle tests."""
        code = str(self.rng.randrange(10_000, 100_000))
        text = f"The pass key is {code}. Remember it. {code} is the pass key."
        return self._plant(length, text), "What is the pass key?", [code]

    def keys(self, length: int) -> Trial:
        """Plant a key in any of the trained wordings."""
        planted = keys.passkey(self.rng)
        question, answer = self.rng.choice(planted.questions)
        return self._plant(length, planted.text), question, [answer]

    def facts(self, length: int) -> Trial:
        """Plant a fact in a trained wording about unseen names."""
        planted = training_facts.fact(self.rng)
        question, answer = self.rng.choice(planted.questions)
        return self._plant(length, planted.text), question, [answer]

    def new_facts(self, length: int) -> Trial:
        """Plant a fact in an unseen wording."""
        forms = self.rng.choice(_NEW_FACTS)
        names = sorted(set(re.findall(r"\{(\w+)\}", " ".join(forms))))
        values = {name: training_facts.slot(self.rng, name) for name in names}
        statement, question, answer = (training_facts.put(form, values) for form in forms)
        statement = statement[0].upper() + statement[1:]
        return self._plant(length, statement), question, [answer]

    def two_steps(self, length: int) -> Trial:
        """Plant two facts about one person in different places."""
        first, second = training_facts.two_steps(self.rng)
        question, answer = self.rng.choice(second.questions)
        half = self._plant(length // 2, first.text)
        return half + "\n\n" + self._plant(length // 2, second.text), question, [answer]

    def rules(self, length: int) -> Trial:
        """Ask a question that rules made from one of the text's own sentences."""
        while True:
            prose = self._prose(length)
            asked = [
                qa
                for sentence in prose
                for qa in questions.from_sentence(sentence, self.rng)
                if qa[0].split()[0] in ("Who", "Where", "When")
            ]
            if asked:
                question, answer = self.rng.choice(asked)
                return "".join(prose).lstrip(), question, [answer]

    def refusal_human(self, length: int) -> Trial:
        """Ask a human question that the passage does not answer."""
        passages = [p for p in self.adversarial if len(p.text) < length * 4]
        while True:
            passage = self.rng.choice(passages)
            if asked := [q for q, answer in passage.questions if answer == REFUSAL]:
                return passage.text, self.rng.choice(asked), []

    def refusal_facts(self, length: int) -> Trial:
        """Ask about a fact that the document lacks; another fact is planted."""
        planted, other = training_facts.fact(self.rng), training_facts.fact(self.rng)
        return self._plant(length, planted.text), self.rng.choice(other.questions)[0], []


TASKS: dict[str, Callable[[Trials, int], Trial]] = {
    "passkey": Trials.passkey,
    "keys": Trials.keys,
    "facts": Trials.facts,
    "new-facts": Trials.new_facts,
    "two-steps": Trials.two_steps,
    "rules": Trials.rules,
    "refusal-human": Trials.refusal_human,
    "refusal-facts": Trials.refusal_facts,
}


@torch.no_grad()
def evaluate(
    model_folder: Path,
    data: Path,
    lengths: tuple[int, ...],
    trials: int,
    seed: int = 0,
    tasks: tuple[str, ...] = (),
    show: int = 0,
) -> Iterator[dict[str, Any]]:
    """Yield rows of scores in percent, one per task and length.

    ``exact`` and ``f1`` are as in SQuAD. ``refused`` is the share of answers that are refusals.
    """
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    for task in tasks or tuple(TASKS):
        for length in lengths:
            maker = Trials(data, seed)
            exact = overlap = refused = 0.0
            for trial in range(trials):
                document, question, accepted = TASKS[task](maker, length)
                encode = maker.maker.encode
                prompt = [maker.maker.bos, *encode(document)]
                prompt += encode(f"\nQuestion: {question}\nAnswer:")
                out = model.generate(
                    torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=8191
                )[0, len(prompt) :].tolist()
                out = out[: out.index(maker.maker.eos)] if maker.maker.eos in out else out
                answer = maker.maker.encoding.decode(out).strip()
                refused += answer == REFUSAL
                exact += best(exact_match, answer, accepted)
                overlap += best(f1, answer, accepted)
                if trial < show:
                    print(f"  {task} {length}: {question} | {accepted} | {answer}")
            yield {
                "task": task,
                "length": length,
                "trials": trials,
                "exact": round(100 * exact / trials, 1),
                "f1": round(100 * overlap / trials, 1),
                "refused": round(100 * refused / trials, 1),
            }
