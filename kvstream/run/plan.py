"""What is settled before the first token is read: method, prompt, catalysts and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvstream.engine.budget import BudgetSplit, share_out
from kvstream.engine.reader import Reader
from kvstream.errors import BudgetError
from kvstream.methods.base import Method
from kvstream.methods.registry import make
from kvstream.model.bounded import BoundedModel
from kvstream.run.feed import ShortenedFeed, TokenFeed
from kvstream.run.prompt import Prompt, Task, build_prompt, wording_of
from kvstream.run.request import Request
from kvstream.settings import Budget, RunSettings
from kvstream.tokenization.loading import ReadAhead, Tokenizer, TokenStream

DEFAULT_BUDGET = 4096
LATER_QUESTION, LATER_SHARE = 48, 16
"""A question that comes later has room for this many tokens, or this part of the budget if more."""


@dataclass(frozen=True)
class RunPlan:
    """Everything that is settled before the first token is read."""

    method: Method
    prompt: Prompt
    questions: tuple[str, ...]
    catalysts: tuple[tuple[int, ...], ...]
    sizes: BudgetSplit
    system: str | None = None
    """What the prompt was given beside the text and the questions."""
    extract: bool = False
    """Measure every chunk, the last one too, so that passages can be ranked."""

    @classmethod
    def of(
        cls,
        model: BoundedModel,
        tokenizer: Tokenizer,
        request: Request,
        head: Sequence[int] = (),
    ) -> RunPlan:
        """Settle a run. Raises BudgetError where the budget cannot hold what belongs in it.

        `head` is the prompt before the text, of a checkpoint that is gone on from: an earlier
        version may have worded it otherwise, and what follows must be worded alike.

        An open-ended request without questions has room for one that nobody knows yet. With
        several questions, or answers during the reading, no answer has to compress memory.
        """
        questions, run = request.questions, request.run
        method = make(run.method, run.method_settings)
        task: Task = "summarize" if request.command == "summarize" else "ask"
        wording = wording_of(head, tokenizer, system=request.system, task=task) if head else None
        prompt = build_prompt(
            tokenizer, questions, system=request.system, task=task, layout=request.layout,
            wording=wording,
        )  # fmt: skip
        catalysts = tuple(
            tuple(prompt.tail(text) if text in questions else prompt.catalyst(text))
            for text in method.catalyst(questions)
        )
        catalyst = sum(len(c) for c in catalysts)
        question = max((len(prompt.tail(q)) for q in questions or ("",)), default=0)
        budget = budget_tokens(model, run.budget, method)
        unknown = request.open_ended and not questions
        if unknown:
            question += max(LATER_QUESTION, budget // LATER_SHARE)
        sizes = share_out(
            budget,
            len(prompt.head),
            catalyst if method.evicts else 0,
            max(question, catalyst) if request.extract or unknown else question,
            run.max_tokens,
            whole_answer=len(questions) > 1 or request.every is not None,
            trained=model.trained_length,
        )
        extract = request.extract or request.open_ended
        return cls(method, prompt, questions, catalysts, sizes, request.system, extract)

    @property
    def shortens(self) -> bool:
        """Whether the method reads two ends of the text alone."""
        return self._ends is not None

    @property
    def _ends(self) -> tuple[int, int] | None:
        return self.method.shorten(self.sizes.prompt, min(self.sizes.free, self.sizes.final))

    def feed(self, stream: TokenStream | ReadAhead, interrupted: Callable[[], bool]) -> TokenFeed:
        """The tokens that the model will see: all, or two ends where the method cuts."""
        ends = self._ends
        return ShortenedFeed(stream, *ends, interrupted) if ends else TokenFeed(stream)

    def reader(self, model: BoundedModel, run: RunSettings, estimate: int | None) -> Reader:
        """A reader with empty memory; `estimate` is the expected length in tokens."""
        return Reader(
            model,
            self.method,
            run,
            self.sizes,
            self.prompt.head,
            self.catalysts,
            estimate,
            extract=self.extract,
        )


def budget_tokens(model: BoundedModel, budget: Budget | None, method: Method) -> int:
    """The budget in entries a head. Raises BudgetError where its bytes hold not one."""
    if budget is None:
        return min(DEFAULT_BUDGET, model.trained_length)
    if budget.tokens is not None:
        return budget.tokens
    assert budget.bytes is not None
    one = model.new_cache(1, method.tensors(), method.head_tensors())
    fixed = one.fixed_bytes
    each = one.capacity_bytes - fixed
    tokens = (budget.bytes - fixed) // each
    if tokens < 1:
        beside = f", what its layers carry {fixed:,}" if fixed else ""
        raise BudgetError(
            f"{budget.bytes:,} bytes cannot hold one entry of {model.name}: it takes "
            f"{each:,} bytes over all layers{beside}. Use a larger --budget."
        )
    # Bytes are a ceiling, and what a model was trained for is another.
    return min(tokens, model.trained_length)
