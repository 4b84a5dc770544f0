"""How answers are scored: against references, with the normalisation each score is known for."""

from __future__ import annotations

import difflib
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from kvstream.errors import UsageError
from kvstream.memory.support import abstains as abstains

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = re.compile(r"\d+")
ABSTENTION = "not in the text"
"""What the embedded model says when the text does not answer the question."""


def normalize(text: str) -> str:
    """SQuAD's normalisation: lower case; without punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> bool:
    """Equal after `normalize` (SQuAD's EM)."""
    return normalize(answer) == normalize(reference)


def contains(answer: str, reference: str) -> bool:
    """Whether the reference's words stand in the answer, in a row, after `normalize`."""
    return f" {normalize(reference)} " in f" {normalize(answer)} "


def f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall over the words of both, as SQuAD counts them."""
    said, wanted = normalize(answer).split(), normalize(reference).split()
    if not said or not wanted:
        return float(said == wanted)
    shared = sum((Counter(said) & Counter(wanted)).values())
    return 2 * shared / (len(said) + len(wanted))


def digit_accuracy(answer: str, expected: str) -> float:
    """Share of the expected digits that stand in their place in the answer's first number."""
    found = _DIGITS.search(answer)
    said = found.group() if found else ""
    return sum(a == b for a, b in zip(said, expected, strict=False)) / len(expected)


@cache
def _scorer() -> Any:
    try:
        from rouge_score import rouge_scorer
    except ImportError:
        raise UsageError("ROUGE needs the extra: pip install 'kvstream[bench]'.") from None
    return rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)


def rouge(answer: str, references: Sequence[str]) -> dict[str, float]:
    """F-measures of ROUGE-1, -2 and -L with stemming; each the best over the references."""
    scores = [_scorer().score(reference, answer) for reference in references]
    return {
        name: max((s[key].fmeasure for s in scores), default=0.0)
        for name, key in (("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL"))
    }


def classification(answer: str, labels: Sequence[str], every: Sequence[str]) -> float:
    """LongBench's score: 1 over the number of classes named, if the right one is among them.

    A class that is part of the right one's name does not count as named.
    """
    named = [c for c in every if c in answer]
    return max((_named_share(named, label) for label in labels), default=0.0)


def _named_share(named: list[str], label: str) -> float:
    left = [c for c in named if c not in label or c == label]
    return 1 / len(left) if label in left else 0.0


def code_similarity(answer: str, reference: str) -> float:
    """LongBench's score: likeness of the answer's first line of code to the reference, 0 to 1.

    Lines that look like a comment or a fence are skipped; the likeness is the ratio of difflib,
    rounded to a percent as fuzzywuzzy does it.
    """
    lines = (line for line in answer.lstrip("\n").split("\n"))
    first = next((x for x in lines if not any(mark in x for mark in ("`", "#", "//"))), "")
    ratio = difflib.SequenceMatcher(None, first, reference).ratio()
    return round(100 * ratio) / 100


def retrieval(answer: str, reference: str) -> float:
    """LongBench's passage retrieval: share of the numbers said that are the right passage's."""
    wanted = _DIGITS.findall(reference)
    said = _DIGITS.findall(answer)
    return said.count(wanted[0]) / len(said) if said and wanted else 0.0


def count(answer: str, reference: str) -> float:
    """LongBench's passage count: share of the numbers said that are the right one."""
    said = _DIGITS.findall(answer)
    return said.count(reference.strip()) / len(said) if said else 0.0


def best(metric: Callable[[str, str], float], answer: str, references: Sequence[str]) -> float:
    """The best score over the accepted answers; 0 without any."""
    return max((float(metric(answer, reference)) for reference in references), default=0.0)
