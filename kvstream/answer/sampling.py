"""The sampler, which chooses the next token from logits, and what ends an answer early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvstream.settings import RunSettings

COLDEST = 1e-6
"""Below this temperature the choice is greedy: logits divided by it would exceed float32."""
LONGEST_PERIOD = 256
"""Maximum period of a loop in tokens. A text that repeats at a longer distance has a refrain."""
REPEATS = 3
"""Minimum number of times that a loop repeats its first pass."""
LEAST, LEAST_WITHOUT_LETTERS = 48, 160
"""Minimum number of repeated tokens of a loop, and of a loop without letters. Rows of a table are
often alike, all the more if they consist of digits and rules."""
_SENTENCE_END = (".", "!", "?", '"', "'", "”", "’", "。", "！", "？", "\n")


@dataclass(frozen=True)
class RefusalLimit:
    """The log-odds of a refusal against other answers that a model needs in order to refuse."""

    tokens: tuple[int, ...]
    """First tokens of a refusal."""
    limit: float
    """Log-odds, in nats."""

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logits [V] of an answer's first token, those of a refusal minus the limit."""
        logits = logits.clone()
        logits[list(self.tokens)] -= self.limit
        return logits


def make_sampler(run: RunSettings, refusal: RefusalLimit | None = None) -> Callable[[Tensor], int]:
    """Return a function that chooses a token from logits [V], float32: greedily at temperature 0,
    else by sampling.

    Make a new sampler for each answer. It applies `refusal` to the first token. With a repetition
    penalty (Keskar et al., "CTRL", section 4.1), it divides positive logits of tokens that the
    answer already has by the penalty, and multiplies negative ones. It does not penalize tokens of
    the text and of the question, because answers consist of them.
    """
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    choose, tokens = _choice(run), list[int]()
    penalty = RepetitionPenaltyLogitsProcessor(float(run.repetition_penalty))

    def next_token(logits: Tensor) -> int:
        if refusal is not None and not tokens:
            logits = refusal(logits)
        if run.repetition_penalty != 1 and tokens:
            ids = torch.tensor([tokens], device=logits.device)
            logits = torch.Tensor(penalty(ids, logits[None])[0])
        tokens.append(choose(logits))
        return tokens[-1]

    return next_token


def _choice(run: RunSettings) -> Callable[[Tensor], int]:
    if run.temp < COLDEST:
        return lambda logits: int(logits.argmax())
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(run.temp))])
    if run.top_k:
        warpers.append(TopKLogitsWarper(int(run.top_k)))
    if run.top_p < 1:
        warpers.append(TopPLogitsWarper(float(run.top_p)))
    generator = torch.Generator().manual_seed(run.seed)
    nothing = torch.LongTensor(1, 0)  # the warpers use only the scores

    def sample(logits: Tensor) -> int:
        scores = torch.Tensor(warpers(nothing, logits[None].cpu())[0])
        return int(torch.multinomial(scores.softmax(-1), 1, generator=generator))

    return sample


class StopStrings:
    """Strings that end an answer before them, but not in spaces at its beginning."""

    def __init__(self, strings: Sequence[str] = ()) -> None:
        self._strings = [string for string in strings if string]
        self.count: int | None = None
        """Number of tokens with text before the string that was found."""

    def place(self, text: str) -> int | None:
        """Return where the first of the strings begins in the text of an answer."""
        begin = len(text) - len(text.lstrip())
        return min(
            (at for string in self._strings if (at := text.find(string, begin)) >= 0), default=None
        )

    def clear(self, text: str) -> int:
        """Return the length of the text without an end that may be the beginning of a string."""
        longest = len(text.lstrip())
        return len(text) - max(
            (
                size
                for string in self._strings
                for size in range(1, min(len(string), longest + 1))
                if text.endswith(string[:size])
            ),
            default=0,
        )


class Repetition:
    """Detects a loop in the tokens of one answer: the same tokens again and again, side by side.

    For each period up to LONGEST_PERIOD, it counts the run of newest tokens that equal the token
    one period before. A loop is a run of at least REPEATS periods and at least LEAST tokens
    (LEAST_WITHOUT_LETTERS if the repeated text has no letter).
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._pieces: list[str] = []
        self._runs = np.zeros(LONGEST_PERIOD, dtype=np.int64)

    def push(self, token: int, text: str) -> None:
        """Add the next token and the text that it adds."""
        before = np.array(self.tokens[: -LONGEST_PERIOD - 1 : -1], dtype=np.int64)
        same = np.zeros(LONGEST_PERIOD, dtype=bool)
        same[: len(before)] = before == token
        self._runs = np.where(same, self._runs + 1, 0)
        self.tokens.append(token)
        self._pieces.append(text)

    @property
    def open(self) -> int:
        """Number of newest tokens that repeat earlier ones and may turn out to be a loop."""
        return int(self._runs.max())

    @property
    def count(self) -> int | None:
        """Number of tokens up to the end of the first pass through the loop; None: no loop."""
        lengths = np.maximum(LEAST, REPEATS * np.arange(1, LONGEST_PERIOD + 1))
        for index in np.flatnonzero(self._runs >= lengths):
            period, run = int(index) + 1, int(self._runs[index])
            letters = any(c.isalpha() for piece in self._pieces[-period:] for c in piece)
            if letters or run >= LEAST_WITHOUT_LETTERS:
                return self._whole_sentence(len(self.tokens) - run, period)
        return None

    def _whole_sentence(self, count: int, period: int) -> int:
        """Return `count`, or more to the end of the sentence: its full stop may repeat, too."""
        for more in range(period):
            if self._pieces[count + more - 1].rstrip(" ").endswith(_SENTENCE_END):
                return count + more
        return count
