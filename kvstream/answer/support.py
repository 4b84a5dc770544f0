"""How far an answer can be trusted: a calibrated probability, and what the text does not have.

Which signals count, and how much, was measured for one model's weights and stands in a file
``support.json`` beside them; without one no probability is given (docs/guide/citations.md).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from kvstream.answer.citations import Basis
from kvstream.errors import ModelError
from kvstream.tokenization.forms import NUMBER, WordForms

FILE = "support.json"
"""The calibration of a model, in its folder."""
SIGNALS = ("mean", "asked_in_first", "fresh", "sum")
"""What a calibration may weigh: the best of some twenty signals that were tried."""
CLEAR = 0.5
"""The heaviest passage is clear if it has this share of the answer's attention, and this share of
the question's words.
"""
LONGEST = 40
"""Characters of a word that a warning shows; an answer that loops can make one of hundreds."""
_ABSTAINS = re.compile(
    r"\bnot (?:in|mentioned in|stated in|given in|found in|provided in|answered (?:in|by)) "
    r"the (?:text|passage|document|context|article|story)\b"
    r"|\bunanswerable\b|\bcannot be (?:answered|determined)\b"
    r"|\bdoes not (?:say|mention|state|contain|answer)\b|\bno (?:answer|information)\b",
    re.IGNORECASE,
)
_LETTERS = re.compile(r"[^\W\d_]+")
_MATTER = re.compile(r"[^\W\d_]{2,}|\d+")
_SENTENCE = re.compile(r"[.!?:;]\s+|\n")
STEM = 5
"""Letters by which words are compared: ``established`` is ``establish``."""
_SHORT = 3
"""An answer of so many words may begin with a name; a longer one begins with any word."""
_COMMON_WORDS = """
the an and or but of to in on at by for from with as is was were are be been being am do does
did has have had he she it they we you his her its their our your him them us me my this that
these those there here who whom whose what which when where why how not no yes so if than then
into about after before up down out over under will would can could shall should may might must
one all any some such very because none nobody nothing nowhere never unknown
"""
COMMON = frozenset(_COMMON_WORDS.split())


def abstains(answer: str) -> bool:
    """Whether the answer says that the text has none."""
    return bool(_ABSTAINS.search(answer))


def absent(answer: str, question: str, forms: WordForms) -> tuple[str, ...]:
    """Numbers and capitalized words of the answer that a text does not have.

    Words of the question do not count, nor does the first word of a sentence of more than three,
    which any word may be.
    """
    asked = {word.casefold() for word in _LETTERS.findall(question)}
    numbers = set(NUMBER.findall(question))
    found: dict[int, str] = {}
    for match in NUMBER.finditer(answer):
        if match[0] not in numbers and not forms.has_number(match[0]):
            found[match.start()] = match[0]
    for start, word in _names(answer):
        plain = word.casefold()
        known = plain in asked or plain in COMMON or forms.has_word(word)
        if not known and not (plain.endswith("s") and forms.has_word(plain[:-1])):
            found[start] = word
    return tuple(dict.fromkeys(found[start] for start in sorted(found)))


def _names(text: str) -> Iterable[tuple[int, str]]:
    """Places and words that are written with a capital for their own sake."""
    starts = [0, *(m.end() for m in _SENTENCE.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        words = list(_LETTERS.finditer(text, start, end))
        for number, match in enumerate(words):
            capital = len(match[0]) > 1 and match[0][0].isupper()
            if capital and (number or len(words) <= _SHORT):
                yield match.start(), match[0]


def matter(text: str) -> set[str]:
    """Words and numbers of a text that are not common ones, by their first letters."""
    found = (word.casefold() for word in _MATTER.findall(text))
    return {word[:STEM] for word in found if word not in COMMON}


@dataclass(frozen=True)
class Calibration:
    """A logistic regression: signals to the probability that an answer is right."""

    bias: float
    weights: Mapping[str, float]
    threshold: float
    """An answer with a smaller probability gets a warning."""
    refusal_limit: float = 0.0
    """Log-odds that the first token of a refusal needs; 0 is the model's own choice."""

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, folder: str | Path, fingerprint: str) -> Calibration | None:
        """That of the weights in a folder; None where there is none, or it is of other weights.

        `fingerprint` is that of the weights as they are loaded. The file is read once for each
        model: every answer asks for it. Raises ModelError where the file is no calibration.
        """
        path = Path(folder) / FILE
        if not folder or not path.is_file():
            return None
        try:
            found = json.loads(path.read_text("utf-8"))
            weights = {str(name): float(weight) for name, weight in found["weights"].items()}
            limit = float(found.get("refusal_limit", 0.0))
            made = cls(float(found["bias"]), weights, float(found["threshold"]), limit)
            made.probability(dict.fromkeys(SIGNALS, 0.0))
            return made if fingerprint in found["fingerprints"] else None
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(
                f"{path} is not a valid calibration file ({type(error).__name__}: {error}); "
                "remove it, or create it again with docs/research/scripts/support.py."
            ) from error

    def probability(self, signals: Mapping[str, float]) -> float:
        """That an answer with these signals is right, as it was where the model was measured."""
        total = self.bias + sum(w * signals[name] for name, w in self.weights.items())
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


@dataclass(frozen=True)
class Support:
    """What speaks for an answer and against it."""

    probability: float | None = None
    """That it is right; None where the model has no calibration."""
    doubtful: bool = False
    """Whether that is below the calibrated limit."""
    weight: float = 1.0
    """Share of the answer's attention that the heaviest passage has."""
    asked: float = 1.0
    """Share of the question's words that this passage has."""
    absent: tuple[str, ...] = ()
    """Numbers and names of the answer that are not in the text."""
    known: str = "the text"
    """What they are not in."""
    silent: bool = False
    """Whether there is no answer at all."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the answer should be checked, each a clause."""
        found = ["The model gave no answer"] if self.silent else []
        if self.doubtful and self.probability is not None:
            found.append(f"Low confidence ({self.probability:.0%}){self._passage}")
        if self.absent:
            words = _listed(self.absent)
            found.append(f"The answer has words that are not in {self.known}: {words}")
        return tuple(found)

    @property
    def _passage(self) -> str:
        """What is wrong with the heaviest passage."""
        if self.weight < CLEAR:
            return ", and no clear passage supports it"
        if self.asked < CLEAR:
            return ", and the main passage has few words of the question"
        return ""


def _listed(words: Sequence[str]) -> str:
    more = len(words) - 5
    shown = (w if len(w) <= LONGEST else w[: LONGEST - 3] + "..." for w in words[:5])
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def signals(basis: Basis, question: str, answer: str) -> dict[str, float]:
    """All of SIGNALS."""
    asked, said = matter(question), matter(answer)
    first = matter(basis.cited[0].text) if basis.cited else set()
    return {
        # Logarithms of the probability of the answer: the mean of its tokens, and their sum.
        "mean": math.log(max(basis.confidence, 1e-9)),
        "sum": basis.likelihood,
        # Share of the question's words in the heaviest passage.
        "asked_in_first": len(asked & first) / max(len(asked), 1),
        # Whether the answer says more than the question did.
        "fresh": float(bool(said - asked)),
    }


def judge(
    calibration: Calibration | None,
    basis: Basis,
    question: str,
    answer: str,
    forms: WordForms | None,
    known: str,
) -> Support:
    """What speaks for an answer that is no refusal; `forms` are of what `known` names."""
    if not answer:
        return Support(silent=True)
    missing = () if forms is None else absent(answer, question, forms)
    if calibration is None:
        return Support(absent=missing, known=known)
    found = signals(basis, question, answer)
    probability = calibration.probability(found)
    weight = basis.cited[0].weight if basis.cited else 0.0
    return Support(
        probability,
        probability < calibration.threshold,
        weight,
        found["asked_in_first"],
        missing,
        known,
    )
