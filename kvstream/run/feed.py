"""Tokens of the sources on their way to the engine, and where in the bytes they came from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from kvstream.engine.reader import Chunk
from kvstream.tokenization.loading import ReadAhead, TokenBatch, TokenStream
from kvstream.tokenization.passages import TokenOrigins

DROP_BLOCK = 16384
"""Tokens read at a time where they are not shown to the model."""


class TokenFeed:
    """Hands the engine every token of a stream, in order."""

    def __init__(
        self, stream: TokenStream | ReadAhead, origins: TokenOrigins | None = None
    ) -> None:
        self.stream = stream
        self.origins = TokenOrigins() if origins is None else origins
        self.read_tokens = stream.seen
        self.end = 0
        """Global byte offset behind the last token that was read."""
        self._ahead: TokenBatch | None = None

    def read(self, count: int) -> Chunk:
        """At most `count` tokens; fewer only at the end, or where the source pauses."""
        first = self.read_tokens
        ids: list[int] = []
        if self._ahead is not None and count:
            now, self._ahead = _split(self._ahead, count)
            ids += self._take(now)
        if len(ids) < count:
            ids += self._take(self.stream.read(count - len(ids)))
        return Chunk(ids, first)

    def exhausted(self) -> bool:
        """Whether the stream has ended; looks one token ahead, which may wait for a pipe."""
        if not self._ahead:
            self._ahead = self.stream.read(1)
        return not self._ahead and not self.stream.paused

    @property
    def paused(self) -> bool:
        """Whether the last read got less because there is nothing now, though it is not the end."""
        return self.stream.paused

    @property
    def ended(self) -> bool:
        """Whether all tokens were handed out, as far as is known without another read."""
        return not self._ahead and self.stream.at_end

    def look_ahead(self, count: int) -> None:
        """Have the next `count` tokens ready, or know the end."""
        held = self._ahead
        if held is None or len(held) < count:
            more = self.stream.read(count - (0 if held is None else len(held)))
            self._ahead = more if held is None else _joined(held, more)

    def estimate(self) -> int | None:
        """Expected tokens in all."""
        return self.stream.estimate()

    def _take(self, chunk: TokenBatch) -> list[int]:
        self.origins.append(chunk)
        self.read_tokens += len(chunk.ids)
        self.end = chunk.end
        return [int(i) for i in chunk.ids]


def _split(chunk: TokenBatch, count: int) -> tuple[TokenBatch, TokenBatch | None]:
    """The first `count` tokens, and the others if there are any."""
    if len(chunk) <= count:
        return chunk, None
    end = int(chunk.starts[count])
    first = TokenBatch(chunk.ids[:count], chunk.starts[:count], end)
    return first, TokenBatch(chunk.ids[count:], chunk.starts[count:], chunk.end)


def _joined(first: TokenBatch, second: TokenBatch) -> TokenBatch:
    ids = np.concatenate([first.ids, second.ids])
    return TokenBatch(ids, np.concatenate([first.starts, second.starts]), second.end)


class ShortenedFeed(TokenFeed):
    """The first and the last tokens of a stream; what lies between is read, counted and dropped."""

    def __init__(
        self,
        stream: TokenStream | ReadAhead,
        first: int,
        last: int,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(stream)
        self._first, self._last = first, last
        self._interrupted = interrupted
        self._tail: deque[int] = deque(maxlen=last)
        self._settled = False
        """Whether the end was reached, so that the tail is that of the text."""

    def read(self, count: int) -> Chunk:
        """Tokens of the beginning, then of the end."""
        room = self._first - self.read_tokens
        if room > 0:
            return super().read(min(count, room))
        tail = self._collect()
        first = self.read_tokens - len(tail)
        return Chunk([tail.popleft() for _ in range(min(count, len(tail)))], first)

    def exhausted(self) -> bool:
        """Whether the end has been handed out too."""
        if self.read_tokens < self._first:
            return super().exhausted()
        return not self._collect() and self._settled

    @property
    def ended(self) -> bool:
        """Whether the end was reached, and handed out too."""
        return super().ended and not self._tail

    def estimate(self) -> int | None:
        """What the model will see cannot be more than the two ends."""
        total = self.stream.estimate()
        return None if total is None else min(total, self._first + self._last)

    def _collect(self) -> deque[int]:
        """Read to the end of the stream, keeping the newest tokens only; none before the end."""
        while not (self._settled or self._interrupted()):
            piece = super().read(DROP_BLOCK)
            if not piece.ids:
                if self.stream.paused:
                    return deque()
                break
            self._tail.extend(piece.ids)
            oldest = self.read_tokens - len(self._tail)
            self.origins.prune(
                np.r_[0 : min(self._first, oldest), oldest : self.read_tokens].astype(np.int64)
            )
        self._settled = True
        return self._tail
