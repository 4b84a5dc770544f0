"""Feeds that hand the tokens of the sources to the engine and record their byte offsets."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

import numpy as np

from kvstream.engine.reader import Chunk
from kvstream.tokenization.loading import TokenBatch, TokenStream
from kvstream.tokenization.passages import TokenOrigins

DROP_BLOCK = 16384
"""Tokens read at a time if the model does not see them."""


class TokenFeed:
    """Hands the engine every token of a stream, in order."""

    def __init__(self, stream: TokenStream, origins: TokenOrigins | None = None) -> None:
        self.stream = stream
        self.origins = TokenOrigins() if origins is None else origins
        self.read_tokens = stream.seen
        self.end = 0
        """Global byte offset behind the last token that was read."""
        self.limit: Callable[[], int] | None = None
        """Returns the maximum number of tokens to hand out at a time."""
        self.handed = 0
        """Number of tokens that were handed out."""
        self._digest = hashlib.sha256()
        self._ahead: TokenBatch | None = None

    def read(self, count: int) -> Chunk:
        """Return up to `count` tokens; fewer at the end, a pause or `limit`.

        Raises SourceError before any of them counts as read.
        """
        piece = self._read(count if self.limit is None else min(count, self.limit()))
        self.handed += len(piece.ids)
        self._digest.update(np.array(piece.ids, dtype="<i4").tobytes())
        return piece

    @property
    def sha256(self) -> str:
        """SHA-256 of the tokens that were handed out, in hex."""
        return self._digest.hexdigest()

    def _read(self, count: int) -> Chunk:
        first = self.read_tokens
        if not count:
            return Chunk([], first)
        now, self._ahead = _split(self.look_ahead(count), count)
        self.origins.append(now)
        self.read_tokens += len(now)
        self.end = now.end
        return Chunk(now.ids.tolist(), first)

    def exhausted(self) -> bool:
        """Return whether the stream has ended. Looks one token ahead, which may wait for a pipe."""
        return not self.look_ahead(1) and not self.stream.paused

    @property
    def paused(self) -> bool:
        """Whether the last read returned less because the source pauses, not because it ended."""
        return self.stream.paused

    @property
    def ended(self) -> bool:
        """Whether all tokens were handed out, as far as known without another read."""
        return not self._ahead and self.stream.at_end

    def look_ahead(self, count: int) -> TokenBatch:
        """Buffer the next `count` tokens or more, or all up to the end, and return them."""
        ahead = self._ahead
        if not ahead:
            ahead = self.stream.read(count)
        elif len(ahead) < count:
            ahead = _joined(ahead, self.stream.read(count - len(ahead)))
        self._ahead = ahead
        return ahead

    def estimate(self) -> int | None:
        return self.stream.estimate()


def _split(chunk: TokenBatch, count: int) -> tuple[TokenBatch, TokenBatch | None]:
    """Split a batch into its first `count` tokens and the others, or None if there are none."""
    if len(chunk) <= count:
        return chunk, None
    end = int(chunk.starts[count])
    first = TokenBatch(chunk.ids[:count], chunk.starts[:count], end)
    return first, TokenBatch(chunk.ids[count:], chunk.starts[count:], chunk.end)


def _joined(first: TokenBatch, second: TokenBatch) -> TokenBatch:
    ids = np.concatenate([first.ids, second.ids])
    return TokenBatch(ids, np.concatenate([first.starts, second.starts]), second.end)


class ShortenedFeed(TokenFeed):
    """Hands out the first and the last tokens of a stream; counts and drops those between."""

    def __init__(
        self, stream: TokenStream, first: int, last: int, interrupted: Callable[[], bool]
    ) -> None:
        super().__init__(stream)
        self._first, self._last = first, last
        self._interrupted = interrupted
        self._tail: deque[int] = deque(maxlen=last)
        self._settled = False
        """Whether the stream has ended, so that `_tail` has the last tokens of the text."""

    def _read(self, count: int) -> Chunk:
        """Return at most `count` tokens: first those of the beginning, then those of the end."""
        room = self._first - self.read_tokens
        if room > 0:
            return super()._read(min(count, room))
        tail = self._collect()
        first = self.read_tokens - len(tail)
        ids = [tail.popleft() for _ in range(min(count, len(tail)))]
        self.origins.waiting = len(tail)
        return Chunk(ids, first)

    def exhausted(self) -> bool:
        if self.read_tokens < self._first:
            return super().exhausted()
        return not self._collect() and self._settled

    @property
    def ended(self) -> bool:
        return super().ended and not self._tail

    def estimate(self) -> int | None:
        """Return the expected number of tokens that the model sees: at most the two ends."""
        total = self.stream.estimate()
        return None if total is None else min(total, self._first + self._last)

    def _collect(self) -> deque[int]:
        """Read to the end of the stream and return its last tokens; empty if the source pauses."""
        while not (self._settled or self._interrupted()):
            piece = super()._read(DROP_BLOCK)
            if not piece.ids:
                if self.stream.paused:
                    return deque()
                break
            self._tail.extend(piece.ids)
            self.origins.waiting = len(self._tail)
            oldest = self.read_tokens - len(self._tail)
            self.origins.prune(np.arange(min(self._first, oldest), dtype=np.int64))
        self._settled = True
        return self._tail
