"""The plan of a run, made before the first token: method, prompt, catalysts and sizes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from kvstream.engine.budget import BudgetSplit, share_out
from kvstream.engine.reader import Reader
from kvstream.errors import BudgetError
from kvstream.methods.base import Method
from kvstream.methods.registry import make
from kvstream.model.bounded import BoundedModel
from kvstream.run.feed import ShortenedFeed, TokenFeed
from kvstream.run.prompt import Prompt, Task, build_prompt, wording_for
from kvstream.run.request import Request
from kvstream.settings import Budget, RunSettings
from kvstream.tokenization.loading import Tokenizer, TokenStream

DEFAULT_BUDGET = 4096
LATER_QUESTION, LATER_SHARE = 48, 16
"""A later question gets room for LATER_QUESTION tokens, or 1/LATER_SHARE of the budget if more."""


@dataclass(frozen=True)
class RunPlan:
    """The parameters of a run that are fixed before the first token is read."""

    method: Method
    prompt: Prompt
    questions: tuple[str, ...]
    catalysts: tuple[tuple[int, ...], ...]
    sizes: BudgetSplit
    system: str | None = None
    extract: bool = False
    """Measure every chunk, also the last one, so that passages can be ranked."""

    @classmethod
    def of(cls, model: BoundedModel, tokenizer: Tokenizer, request: Request) -> RunPlan:
        """Make the plan of a run. Raises BudgetError if the budget is too small.

        An open-ended request without questions reserves room for a later question. With several
        questions, or with answers during the reading, answers get more room, so that they do not
        evict entries of memory.
        """
        questions, run = request.questions, request.run
        method = make(run.method, run.set)
        task: Task = "summarize" if request.command == "summarize" else "ask"
        wording = wording_for(model.facts.folder)
        prompt = build_prompt(
            tokenizer, system=request.system, task=task, layout=request.layout, wording=wording
        )
        catalysts = tuple(
            tuple(prompt.tail(text) if text in questions else prompt.catalyst(text))
            for text in method.catalyst(questions)
        )
        catalyst = sum(len(c) for c in catalysts)
        question = max((len(prompt.tail(q)) for q in questions or ("",)), default=0)
        budget = budget_tokens(model, run.budget, method)
        unknown = request.open_ended and not questions
        if unknown:
            # Errors name a budget that is enough: it must not give the question more room.
            least = len(prompt.head) + question + 3 * LATER_QUESTION
            question += max(LATER_QUESTION, budget // LATER_SHARE, least // (LATER_SHARE - 1))
        sizes = share_out(
            budget,
            len(prompt.head),
            catalyst if method.evicts else 0,
            max(question, catalyst) if request.extract or unknown else question,
            run.max_tokens,
            whole_answer=len(questions) > 1 or request.every is not None,
            trained=model.trained_length,
            catalysts=len(catalysts),
        )
        extract = request.extract or request.open_ended
        return cls(method, prompt, questions, catalysts, sizes, request.system, extract)

    @property
    def shortens(self) -> bool:
        return self.ends is not None

    @property
    def ends(self) -> tuple[int, int] | None:
        """Tokens of the beginning and of the end that the model sees; None: it sees all."""
        return self.method.shorten(self.sizes.prompt, min(self.sizes.free, self.sizes.final))

    def feed(self, stream: TokenStream, interrupted: Callable[[], bool]) -> TokenFeed:
        """Return the feed of the tokens that the model sees: all, or the two ends of the text."""
        ends = self.ends
        return ShortenedFeed(stream, *ends, interrupted) if ends else TokenFeed(stream)

    def reader(self, model: BoundedModel, run: RunSettings, estimate: int | None) -> Reader:
        """Return a reader with empty memory; `estimate`: expected length of the text in tokens."""
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
    """Return the budget in entries per head. Raises BudgetError if its bytes hold no entry."""
    if budget is None:
        return min(DEFAULT_BUDGET, model.trained_length)
    if budget.tokens is not None:
        return budget.tokens
    assert budget.bytes is not None
    one = model.new_cache(1, method.tensors(), method.head_tensors())
    fixed = one.fixed_bytes
    each = one.capacity_bytes - fixed
    tokens = min((budget.bytes - fixed) // each, model.trained_length)
    if tokens > 0 and cache_bytes(model, method, tokens) > budget.bytes:
        # What the method stores grows with the budget, or depends on the model.
        sizes = range(1, tokens)
        tokens = bisect_right(sizes, budget.bytes, key=lambda n: cache_bytes(model, method, n))
    if tokens < 1:
        beside = f", what its layers carry {fixed:,}" if fixed else ""
        raise BudgetError(
            f"{budget.bytes:,} bytes cannot hold one entry of {model.name}: it takes "
            f"{each:,} bytes over all layers{beside}. Use a larger --budget."
        )
    return tokens  # both the bytes and the trained length are limits


def cache_bytes(model: BoundedModel, method: Method, tokens: int) -> int:
    """Return the bytes of a full KV cache of a budget of `tokens` entries per head."""
    method = method.sized(tokens).fitted(model.facts)
    one = model.new_cache(1, method.tensors(), method.head_tensors())
    return one.fixed_bytes + tokens * (one.capacity_bytes - one.fixed_bytes)
