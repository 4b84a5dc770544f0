"""Support of an answer: a calibrated probability, and words that the text does not have.

The signals and their weights were measured for one model, and are in the file ``support.json``
beside the model's weights. Without the file there is no probability (docs/guide/citations.md).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from kvstream.answer.citations import Basis
from kvstream.errors import ModelError
from kvstream.store.small_files import small_text
from kvstream.tokenization.forms import COMMON, NUMBER, STEM, WordForms, words

FILE = "support.json"
"""Name of the calibration file in the folder of a model."""
SIGNALS = ("mean", "asked_in_first", "fresh", "sum")
"""The signals of a calibration: the best of about twenty that were tried."""
CLEAR = 0.5
"""The heaviest passage is clear if it has at least this share of the answer's attention, and of the
question's words.
"""
LONGEST = 40
"""Maximum characters of a word in a warning. An answer that loops can have a word of hundreds."""
ENDING = 3
"""Letters by which the forms of a word differ at most in length."""
_ABSTAINS = re.compile(
    r"\bnot (?:in|mentioned in|stated in|given in|found in|provided in|answered (?:in|by)) "
    r"the (?:text|passage|document|context|article|story)\b"
    r"|\bunanswerable\b|\bcannot be (?:answered|determined)\b"
    r"|\bdoes not (?:say|mention|state|contain|answer)\b|\bno (?:answer|information)\b",
    re.IGNORECASE,
)
_LETTERS = re.compile(r"[^\W\d_]+")
_SENTENCE = re.compile(r"[.!?:;]\s+|\n")
_SHORT = 3
"""The first word of a sentence of at most this many words may be a name; in a longer sentence it
may be any word."""


def abstains(answer: str) -> bool:
    """Return whether the answer is a refusal: it says that the text has no answer."""
    return bool(_ABSTAINS.search(answer))


def absent(answer: str, question: str, forms: WordForms) -> tuple[str, ...]:
    """Return numbers and capitalized words of the answer that text and question lack."""
    terms = {word.casefold() for word in _LETTERS.findall(question)}
    numbers = set(NUMBER.findall(question))
    missing: dict[int, str] = {}
    for match in NUMBER.finditer(answer):
        if match[0] not in numbers and not forms.has_number(match[0]):
            missing[match.start()] = match[0]
    for start, word in _names(answer):
        plain = word.casefold()
        known = plain in terms or plain in COMMON or forms.has_word(word)
        if not known and not (plain.endswith("s") and forms.has_word(plain[:-1])):
            missing[start] = word
    return tuple(dict.fromkeys(missing[start] for start in sorted(missing)))


def _names(text: str) -> Iterable[tuple[int, str]]:
    """Yield offsets and words that have a capital, but not because they begin a sentence."""
    starts = [0, *(m.end() for m in _SENTENCE.finditer(text)), len(text)]
    for start, end in pairwise(starts):
        words = list(_LETTERS.finditer(text, start, end))
        for number, match in enumerate(words):
            capital = len(match[0]) > 1 and match[0][0].isupper()
            if capital and (number or len(words) <= _SHORT):
                yield match.start(), match[0]


def matter(text: str) -> set[str]:
    """Return the words and numbers of a text that are not common, by their first letters."""
    return {word[:STEM] for word in _uncommon(text)}


def _uncommon(text: str) -> set[str]:
    terms = (w for w in words(text) if len(w) > 1 or w.isdigit() or not w.isascii())
    return {word for word in terms if word not in COMMON}


def repeats(question: str, answer: str) -> bool:
    """Return whether the answer has only words of the question, or forms of them."""
    old, new = _uncommon(question), _uncommon(answer)
    return bool(new) and all(
        any(a[:STEM] == w[:STEM] and abs(len(a) - len(w)) <= ENDING for a in old) for w in new
    )


@dataclass(frozen=True)
class Calibration:
    """A logistic regression from signals to the probability that an answer is right."""

    bias: float
    weights: Mapping[str, float]
    threshold: float
    """An answer with a smaller probability gets a warning."""
    refusal_limit: float = 0.0
    """Log-odds that the first token of a refusal needs, in nats; 0: the model decides alone."""

    @classmethod
    @lru_cache(maxsize=8)
    def of(cls, folder: str | Path) -> Calibration | None:
        """Return the calibration of the model in a folder, or None. Raises ModelError.

        It holds for every number type: merging an adapter rounds differently on other CPUs.
        """
        path = Path(folder) / FILE
        if not folder or not path.is_file():
            return None
        try:
            values = json.loads(small_text(path))
            weights = {str(name): float(weight) for name, weight in values["weights"].items()}
            limit = float(values.get("refusal_limit", 0.0))
            calibration = cls(float(values["bias"]), weights, float(values["threshold"]), limit)
            calibration.probability(dict.fromkeys(SIGNALS, 0.0))
            return calibration
        except (
            OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError,
            RecursionError,  # JSON that is nested too deep
        ) as error:  # fmt: skip
            raise ModelError(
                f"{path} is not a valid calibration file ({type(error).__name__}: {error}); "
                "remove it, or create it again with docs/research/lab/support.py."
            ) from error

    def probability(self, signals: Mapping[str, float]) -> float:
        """Return the probability that an answer with these signals is right."""
        total = self.bias + sum(w * signals[name] for name, w in self.weights.items())
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


@dataclass(frozen=True)
class Support:
    """How well the text supports an answer."""

    probability: float | None = None
    """Probability that the answer is right; None if the model has no calibration."""
    doubtful: bool = False
    """Whether the probability is below the threshold of the calibration."""
    weight: float = 1.0
    """Share of the answer's attention that the heaviest passage gets."""
    overlap: float = 1.0
    """Share of the question's words that the heaviest passage has."""
    absent: tuple[str, ...] = ()
    """Numbers and names of the answer that are not in the text."""
    name: str = "the text"
    """Name of the text that they are not in, for a message."""
    silent: bool = False
    repeats: bool = False
    """Whether all words of the answer that matter are words of the question."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons to check the answer, each a clause."""
        doubts = ["The model gave no answer"] if self.silent else []
        if self.doubtful and self.probability is not None:
            doubts.append(f"Low confidence ({self.probability:.0%}){self._passage}")
        if self.repeats:
            doubts.append("The answer only repeats words of the question")
        if self.absent:
            words = _list(self.absent)
            doubts.append(f"The answer has words that are not in {self.name}: {words}")
        return tuple(doubts)

    @property
    def _passage(self) -> str:
        """Problem of the heaviest passage, as the end of a clause; empty if there is none."""
        if self.weight < CLEAR:
            return ", and no clear passage supports it"
        if self.overlap < CLEAR:
            return ", and the main passage has few words of the question"
        return ""


def _list(words: Sequence[str]) -> str:
    more = len(words) - 5
    first = (w if len(w) <= LONGEST else w[: LONGEST - 3] + "..." for w in words[:5])
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def signals(basis: Basis, question: str, answer: str) -> dict[str, float]:
    """Return the value of each of SIGNALS."""
    old, new = matter(question), matter(answer)
    first = matter(basis.citations[0].text) if basis.citations else set()
    return {
        # Log-probability of the answer's tokens: the mean and the sum.
        "mean": math.log(max(basis.confidence, 1e-9)),
        "sum": basis.likelihood,
        # Share of the question's words in the heaviest passage.
        "asked_in_first": len(old & first) / max(len(old), 1),
        # Whether the answer has words that the question does not have.
        "fresh": float(bool(new - old)),
    }


def judge(
    calibration: Calibration | None,
    basis: Basis,
    question: str,
    answer: str,
    forms: WordForms | None,
    name: str,
) -> Support:
    """Judge an answer that is no refusal; `forms` are the words of the text with this `name`."""
    if not answer:
        return Support(silent=True)
    missing = () if forms is None else absent(answer, question, forms)
    plain = Support(absent=missing, name=name, repeats=repeats(question, answer))
    if calibration is None:
        return plain
    values = signals(basis, question, answer)
    probability = calibration.probability(values)
    return replace(
        plain,
        probability=probability,
        doubtful=probability < calibration.threshold,
        weight=basis.citations[0].weight if basis.citations else 0.0,
        overlap=values["asked_in_first"],
    )
