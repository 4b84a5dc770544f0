"""The text in a full KV cache, to measure which tokens get attention."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kvstream.model.attention import AttentionRequest
from kvstream.model.bounded import BoundedModel


class Whole:
    """A full KV cache that reads what a bounded reader reads, without eviction.

    `head` are the protected ids before the text. `tokens` is the maximum number of tokens after it,
    including the question's. The cache holds at most the model's trained length. Once it is full,
    nothing more is measured.
    """

    def __init__(self, model: BoundedModel, head: Sequence[int], tokens: int) -> None:
        self.model, self.head = model, len(head)
        self.cache = model.new_cache(min(self.head + tokens, model.trained_length))
        self.layers = [s for s in self.cache.stores if s.spec.window is None]
        self.seen = 0
        """Tokens of the text so far."""
        self.full = False
        """Whether a chunk did not fit any more."""
        self._due = list(head)

    def read(self, ids: Sequence[int]) -> list[Tensor] | None:
        """Return the attention of a chunk to each token before it, [K, n] for each layer.

        It is summed over the chunk's queries and averaged over the query heads of a KV head. Return
        None if the chunk is the first or does not fit.
        """
        if not self._fits(len(self._due) + len(ids)):
            return None
        before, head = self.seen, self._due
        request = AttentionRequest(
            accumulated_attention=True, queries=len(ids), first=len(head)
        )  # fmt: skip
        self.model.forward([*head, *ids], self.cache, request)
        self.seen, self._due = before + len(ids), []
        return self._measured("accumulated_attention", before) if before else None

    def asked(self, question: Sequence[int]) -> list[Tensor] | None:
        """Return the attention of a question's last token to the text, [K, n] for each layer.

        This token decides the first token of the answer. Return None if the question does not fit.
        """
        if not self._fits(len(question)):
            return None
        with self.cache.passing():
            self.model.forward(question, self.cache, AttentionRequest((1,)))
            return self._measured("window_attention", self.seen)

    def _fits(self, count: int) -> bool:
        self.full = self.full or self.cache.size + count > self.cache.capacity
        return not self.full

    def _measured(self, name: str, count: int) -> list[Tensor]:
        return [getattr(s, name)[:, self.head : self.head + count] for s in self.layers]
