"""Split a budget between prompt, memory, chunk, catalyst, question and answer."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

from kvstream.errors import BudgetError

SMALLEST_FREE = 64
"""Minimum number of entries for the text beside prompt, question and answer, and for a chunk beside
prompt, catalyst and a memory of one entry."""


@dataclass(frozen=True)
class BudgetSplit:
    """The parts of a budget, all in entries per head."""

    budget: int
    prompt: int
    """P: the protected beginning (chat template, system, instruction)."""
    catalyst: int
    """C: all catalysts, which are appended to each chunk and then removed."""
    question: int
    """Q: the longest question with the tokens that its template adds."""
    answer: int
    """R: reserved for the answer. A longer answer has to evict while decoding."""
    least_answer: InitVar[int | None] = None
    """R if the text gets only the entries that it needs, if known. The error about a budget that is
    too small advises a budget with this R."""
    trained: InitVar[int | None] = None
    """Trained length of the model, if known. The error advises no larger budget."""
    catalysts: InitVar[int] = 1
    """Number of catalysts. Of several, one is for each question."""

    @property
    def free(self) -> int:
        """A: maximum number of entries of memory and the chunk in flight together."""
        return self.budget - self.prompt - self.catalyst

    @property
    def final(self) -> int:
        """Maximum number of entries in memory when the question is read."""
        return self.budget - self.prompt - self.question - self.answer

    def __post_init__(self, least_answer: int | None, trained: int | None, catalysts: int) -> None:
        least = min(self.free - 1, self.final)
        if least < SMALLEST_FREE:
            answer = self.answer if least_answer is None else least_answer
            last, during = self.question + answer, self.catalyst + 1
            need = self.prompt + SMALLEST_FREE + max(during, last)
            beside = f"the question {self.question:,}, its answer at least {answer:,}"
            less = "a shorter question"
            if during > last:
                beside = f"the catalyst {self.catalyst:,}, memory at least 1"
                less = "fewer questions" if catalysts > 1 else less
            remedy = f"Use --budget {need} or more, or {less}."
            if trained is not None and need > trained:
                remedy = (
                    f"Use {less}; the model was trained for {trained:,} positions, so "
                    "no larger budget helps."
                )
            raise BudgetError(
                f"A budget of {self.budget:,} entries leaves {max(0, least)} of the "
                f"{SMALLEST_FREE} that a text needs: the prompt takes {self.prompt:,}, {beside}. "
                f"{remedy}"
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
    catalysts: int = 1,
) -> BudgetSplit:
    """Return the split of a budget.

    The answer gets up to `max_tokens`, limited to an eighth of what prompt and question leave, or
    to half of it with `whole_answer`. Raises BudgetError, which names the smallest budget that is
    enough, unless it exceeds the `trained` positions of the model.
    """
    part = 2 if whole_answer else 8
    room = max(8, (budget - prompt - question) // part)
    # The answer's part if the text gets only SMALLEST_FREE entries; both grow with the budget.
    smallest = min(max_tokens, max(8, (SMALLEST_FREE - 1) // (part - 1)))
    answer = min(max_tokens, room)
    return BudgetSplit(budget, prompt, catalyst, question, answer, smallest, trained, catalysts)
