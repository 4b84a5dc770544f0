"""How a budget is shared out between prompt, memory, chunk, catalyst, question and answer."""

from __future__ import annotations

from dataclasses import dataclass

from kvstream.errors import BudgetError

SMALLEST_FREE = 64
"""Entries that must be left for memory and a chunk beside prompt, catalyst, question, answer."""


@dataclass(frozen=True)
class Sizes:
    """How the budget is shared out; all in entries a head."""

    budget: int
    prompt: int
    """P: the protected beginning (chat template, system, instruction)."""
    catalyst: int
    """C: appended to each chunk, then removed."""
    question: int
    """Q: the longest question with what its template puts around it."""
    answer: int
    """R: kept free for the answer before memory would have to be compressed again."""

    @property
    def free(self) -> int:
        """A: what memory and the chunk in flight may take together."""
        return self.budget - self.prompt - self.catalyst

    @property
    def final(self) -> int:
        """The most that memory may hold when the question comes."""
        return self.budget - self.prompt - self.question - self.answer

    def __post_init__(self) -> None:
        least = min(self.free, self.final)
        if least < SMALLEST_FREE:
            need = self.budget + SMALLEST_FREE - least
            raise BudgetError(
                f"A budget of {self.budget} tokens leaves {least} for the text: the prompt takes "
                f"{self.prompt}, the question {self.question}, its answer at least {self.answer}, "
                f"the catalyst {self.catalyst}. Use --budget {need} or more, or a shorter question."
            )


def share_out(
    budget: int, prompt: int, catalyst: int, question: int, max_tokens: int, *, whole_answer: bool
) -> Sizes:
    """Sizes for a budget. The answer gets an eighth of what is left, or all that it may need."""
    room = max(8, (budget - prompt - question) // (2 if whole_answer else 8))
    return Sizes(budget, prompt, catalyst, question, min(max_tokens, room))
