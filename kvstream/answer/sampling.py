"""How the next token is chosen from the logits, and when an answer only repeats itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvstream.settings import RunSettings

COLDEST = 1e-6
"""Below this temperature logits divided by it leave float32; what is left is the greedy choice."""
LONGEST_PERIOD = 256
"""Tokens after which what repeats is no loop any more but a text with a refrain."""
REPEATS = 3
"""A loop says the same at least so many times again."""
LEAST, LEAST_WITHOUT_LETTERS = 48, 160
"""Tokens that a loop repeats at least: rows of a table are often alike, the more so if they have
digits and rules alone."""
_SENTENCE_END = (".", "!", "?", '"', "'", "”", "’", "。", "！", "？", "\n")


@dataclass(frozen=True)
class RefusalLimit:
    """How much likelier than any other answer a refusal has to be for a model to refuse."""

    tokens: tuple[int, ...]
    """Those that a refusal begins with."""
    limit: float
    """Log-odds, in nats."""

    def __call__(self, logits: Tensor) -> Tensor:
        """The logits [V] of an answer's first token, those of a refusal lowered by the limit."""
        logits = logits.clone()
        logits[list(self.tokens)] -= self.limit
        return logits


def make_sampler(run: RunSettings, refusal: RefusalLimit | None = None) -> Callable[[Tensor], int]:
    """A function from logits [V], float32, to a token: greedy at temperature 0, else sampled.

    Each answer takes a sampler of its own, whose first token obeys `refusal`. With a repetition
    penalty (Keskar et al., "CTRL", section 4.1) the logits of tokens that this answer has already
    are divided by it, or multiplied where they are negative. Tokens of the text and of the question
    are not penalized: answers consist of them.
    """
    if refusal is not None:
        return _first(refusal, make_sampler(run))
    choose = _choice(run)
    if run.repetition_penalty == 1:
        return choose
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    penalty = RepetitionPenaltyLogitsProcessor(run.repetition_penalty)
    said: list[int] = []

    def penalized(logits: Tensor) -> int:
        if said:
            ids = torch.tensor([said], device=logits.device)
            logits = torch.Tensor(penalty(ids, logits[None])[0])
        said.append(choose(logits))
        return said[-1]

    return penalized


def _first(refusal: RefusalLimit, choose: Callable[[Tensor], int]) -> Callable[[Tensor], int]:
    begun = False

    def limited(logits: Tensor) -> int:
        nonlocal begun
        first, begun = not begun, True
        return choose(refusal(logits) if first else logits)

    return limited


def _choice(run: RunSettings) -> Callable[[Tensor], int]:
    if run.temperature < COLDEST:
        return lambda logits: int(logits.argmax())
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers = LogitsProcessorList([TemperatureLogitsWarper(run.temperature)])
    if run.top_k:
        warpers.append(TopKLogitsWarper(run.top_k))
    if run.top_p < 1:
        warpers.append(TopPLogitsWarper(run.top_p))
    generator = torch.Generator().manual_seed(run.seed)
    nothing = torch.LongTensor(1, 0)  # the warpers look at scores alone

    def sample(logits: Tensor) -> int:
        scores = torch.Tensor(warpers(nothing, logits[None].cpu())[0])
        return int(torch.multinomial(scores.softmax(-1), 1, generator=generator))

    return sample


class Repetition:
    """Watches the tokens of one answer for a loop: the same tokens over and over, side by side.

    For every distance up to LONGEST_PERIOD it counts the newest tokens in a row that equal those
    the distance before. A loop is a run of at least REPEATS times its distance, and of LEAST
    tokens (LEAST_WITHOUT_LETTERS if what comes again has no letter).
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._pieces: list[str] = []
        self._runs = np.zeros(LONGEST_PERIOD, dtype=np.int64)

    def push(self, token: int, text: str) -> None:
        """Take in the next token and the text that it brought."""
        before = np.array(self.tokens[: -LONGEST_PERIOD - 1 : -1], dtype=np.int64)
        same = np.zeros(LONGEST_PERIOD, dtype=bool)
        same[: len(before)] = before == token
        self._runs = np.where(same, self._runs + 1, 0)
        self.tokens.append(token)
        self._pieces.append(text)

    @property
    def open(self) -> int:
        """Newest tokens that repeat earlier ones: the next ones show whether it is a loop."""
        return int(self._runs.max())

    @property
    def kept(self) -> int | None:
        """Tokens of the answer up to the loop and once through it; None where there is no loop."""
        lengths = np.maximum(LEAST, REPEATS * np.arange(1, LONGEST_PERIOD + 1))
        for index in np.flatnonzero(self._runs >= lengths):
            period, repeated = int(index) + 1, int(self._runs[index])
            letters = any(c.isalpha() for piece in self._pieces[-period:] for c in piece)
            if letters or repeated >= LEAST_WITHOUT_LETTERS:
                return self._whole_sentence(len(self.tokens) - repeated, period)
        return None

    def _whole_sentence(self, kept: int, period: int) -> int:
        """As many tokens, or a few more to the end of a sentence: a loop can begin in its middle.

        The full stop of the sentence before a loop may be the first token that comes again.
        """
        for more in range(period):
            if self._pieces[kept + more - 1].rstrip(" ").endswith(_SENTENCE_END):
                return kept + more
        return kept
