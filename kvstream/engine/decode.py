"""Decoding: read a question after memory, and yield the answer token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from kvstream.engine.eviction import Evictor
from kvstream.errors import ModelError
from kvstream.model.attention import AttentionRequest
from kvstream.model.bounded import BoundedModel


class Decoder:
    """Answers questions from the cache of `evictor`, and restores memory after each."""

    def __init__(self, model: BoundedModel, evictor: Evictor) -> None:
        self.model, self.evictor, self.cache = model, evictor, evictor.cache
        self.evidence = evictor.method.evidence()
        self.stopped = "end"
        """Why the last answer ended: end, length, budget or interrupted."""
        self._accumulates = False
        """Whether the method absorbs the evidence of the current answer."""

    def answer(
        self,
        question: Sequence[int],
        choose: Callable[[Tensor], int],
        stop: frozenset[int],
        max_tokens: int,
        *,
        may_compress: bool,
        final: bool,
    ) -> Iterator[int]:
        """Yield the tokens of the answer; see `Reader.answer`. Raises ModelError for NaN logits."""
        evictor, budget = self.evictor, self.cache.capacity
        evictor.resume_compressive_memory()
        if final:
            self.cache.rotate()
        self.stopped = "interrupted"
        may_compress = may_compress and evictor.method.evicts
        # Scores have to include the answer's attention only if the answer may fill the budget.
        longest = self.cache.held + len(question) + max_tokens - 1
        follows = may_compress and self.evidence.accumulated_attention
        self._accumulates = follows and longest > budget
        if self._accumulates:
            for store in evictor.layers:
                store.set_state_aside()
        try:
            with self.cache.answering(), self.cache.passing() as ends:
                hidden = self._forward(question)
                for count in range(max_tokens):
                    token = choose(self._logits(hidden))
                    if token in stop:
                        self.stopped = "end"
                        return
                    yield token
                    if count + 1 == max_tokens:
                        self.stopped = "length"
                        return
                    if self.cache.held == budget and not (
                        may_compress and evictor.evict_while_decoding(ends, len(question))
                    ):
                        self.stopped = "budget"
                        return
                    hidden = self._forward([token])
        finally:
            evictor.forget_answer()
            for store in evictor.layers:
                store.restore_state()

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [V] of the next token. Raises ModelError if one is NaN.

        The probe runs only a few tokens: in float16 a text can still overflow.
        """
        logits = self.model.logits(hidden[-1:])[0]
        if bool(logits.isnan().any()):
            kind = str(self.model.dtype).removeprefix("torch.")
            raise ModelError(
                f"{self.model.name} computed numbers that are not finite in {kind} from this text, "
                "so it cannot answer; use another number type, such as --dtype float32."
            )
        return logits

    def _forward(self, ids: Sequence[int]) -> Tensor:
        """Run tokens of a question or an answer, measure evidence, and return hidden states [n, d].

        Window attention is measured only if the pass fills the budget, because eviction follows.
        Accumulated attention is measured if the answer may fill the budget and the method uses it.
        """
        n, evidence = len(ids), self.evidence
        full = self.cache.held + n == self.cache.capacity
        request = AttentionRequest(
            (1,) if full else (), self._accumulates, n, evidence.decay, evidence.reduce
        )
        hidden = self.model.forward(ids, self.cache, request)
        self.cache.tag(n, None)
        if self._accumulates:
            self.evictor.absorb(n, None)
        return hidden
