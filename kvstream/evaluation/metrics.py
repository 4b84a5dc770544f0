"""Scores of answers against references, each with its usual normalization."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from kvstream.answer.support import abstains as abstains

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = re.compile(r"\d+")


def normalize(text: str) -> str:
    """Apply SQuAD's normalization: lower case; without punctuation, articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, reference: str) -> bool:
    """Return whether both are equal after `normalize` (SQuAD's EM)."""
    return normalize(answer) == normalize(reference)


def contains(answer: str, reference: str) -> bool:
    """Return whether the answer contains the reference's words in sequence, after `normalize`."""
    return f" {normalize(reference)} " in f" {normalize(answer)} "


def f1(answer: str, reference: str) -> float:
    """Return the harmonic mean of precision and recall over the words of both, as in SQuAD."""
    words, target = normalize(answer).split(), normalize(reference).split()
    return shared_f1(words, target) if words and target else float(words == target)


def shared_f1(words: Sequence[str], target: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall over words; 0 if they share none."""
    common = sum((Counter(words) & Counter(target)).values())
    return 2 * common / (len(words) + len(target)) if common else 0.0


def digit_accuracy(answer: str, expected: str) -> float:
    """Return the share of the expected digits at their place in the answer's first number."""
    match = _DIGITS.search(answer)
    digits = match.group() if match else ""
    return sum(a == b for a, b in zip(digits, expected, strict=False)) / len(expected)


@cache
def _scorer() -> Any:
    from rouge_score import rouge_scorer  # the commands check whether it is there

    return rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)


def rouge(answer: str, references: Sequence[str]) -> dict[str, float]:
    """Return F-measures of ROUGE-1, -2 and -L with stemming, each the best over the references."""
    scores = [_scorer().score(reference, answer) for reference in references]
    return {
        name: max((s[key].fmeasure for s in scores), default=0.0)
        for name, key in (("rouge_1", "rouge1"), ("rouge_2", "rouge2"), ("rouge_l", "rougeL"))
    }


def best(metric: Callable[[str, str], float], answer: str, references: Sequence[str]) -> float:
    """Return the best score over the accepted answers; 0 without any."""
    return max((float(metric(answer, reference)) for reference in references), default=0.0)
