"""How a budget is shared out between prompt, memory, chunk, catalyst, question and answer."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

from kvstream.errors import BudgetError

SMALLEST_FREE = 64
"""Entries that must be left for memory and a chunk beside prompt, catalyst, question, answer."""


@dataclass(frozen=True)
class BudgetSplit:
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
    least_answer: InitVar[int | None] = None
    """R where the text gets the least that it needs, if that is known; the error of a smaller
    budget counts with it."""
    trained: InitVar[int | None] = None
    """Positions that the model was trained for, if known; the error advises no larger budget."""

    @property
    def free(self) -> int:
        """A: what memory and the chunk in flight may take together."""
        return self.budget - self.prompt - self.catalyst

    @property
    def final(self) -> int:
        """The most that memory may hold when the question comes."""
        return self.budget - self.prompt - self.question - self.answer

    def __post_init__(self, least_answer: int | None, trained: int | None) -> None:
        least = min(self.free, self.final)
        if least < SMALLEST_FREE:
            answer = self.answer if least_answer is None else least_answer
            last = self.question + answer
            need = self.prompt + SMALLEST_FREE + max(self.catalyst, last)
            beside = f"the question {self.question}, its answer at least {answer}"
            if self.catalyst > last:  # what is read with a chunk takes more than what comes last
                beside = f"the catalyst {self.catalyst}"
            remedy = f"Use --budget {need} or more, or a shorter question."
            if trained is not None and need > trained:
                remedy = (
                    f"Use a shorter question; the model was trained for {trained} positions, so "
                    "no larger budget helps."
                )
            raise BudgetError(
                f"A budget of {self.budget} entries leaves {max(0, least)} of the {SMALLEST_FREE} "
                f"that a text needs: the prompt takes {self.prompt}, {beside}. {remedy}"
            )


def share_out(
    budget: int,
    prompt: int,
    catalyst: int,
    question: int,
    max_tokens: int,
    *,
    whole_answer: bool,
    trained: int | None = None,
) -> BudgetSplit:
    """Sizes for a budget. The answer gets an eighth of what is left, or all that it may need.

    Raises BudgetError, which names the smallest budget that would do, unless it is past the
    `trained` positions of the model.
    """
    part = 2 if whole_answer else 8
    room = max(8, (budget - prompt - question) // part)
    # Where the text gets the least that it needs, the answer's part is this (it grows with both).
    smallest = min(max_tokens, max(8, (SMALLEST_FREE - 1) // (part - 1)))
    answer = min(max_tokens, room)
    return BudgetSplit(budget, prompt, catalyst, question, answer, smallest, trained)
