"""When a rolling answer is due: every so many tokens or seconds of a reading."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from kvstream.errors import UsageError
from kvstream.settings import parse_count

LEAST = 64
"""Tokens between two answers; to answer takes far longer than to read fewer."""
_SECONDS = {"s": 1, "min": 60, "h": 3600}


class Intervals:
    """Every `tokens` tokens, or every `seconds` seconds in which something was read."""

    def __init__(
        self,
        tokens: int | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokens, self.seconds, self.clock = tokens, seconds, clock
        self.answered = 0
        """Tokens that had been read at the latest answer."""
        self._next = None if seconds is None else clock() + seconds

    @classmethod
    def of(cls, every: int | str | Intervals | None) -> Intervals | None:
        """When to answer: ``4096``, ``"10k"``, ``"30s"``. Raises UsageError."""
        return every if every is None or isinstance(every, Intervals) else cls.parse(str(every))

    @classmethod
    def parse(cls, text: str) -> Intervals:
        """``4096``, ``10k``, ``1M`` are tokens; ``30s``, ``5min``, ``1h`` seconds. UsageError."""
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", text)
        if match is None:
            try:
                tokens = parse_count(text)
            except UsageError:
                raise UsageError(
                    f"{text!r} is not an interval; write tokens as 4096 or 10k, time as 30s or "
                    "5min."
                ) from None
            if tokens < LEAST:
                raise UsageError(
                    f"An answer every {tokens} tokens takes far longer than reading them; "
                    f"use --every {LEAST} or more."
                )
            return cls(tokens=tokens)
        seconds = float(match[1]) * _SECONDS[match[2]]
        if seconds <= 0:
            raise UsageError(f"{text!r} must be longer than zero.")
        return cls(seconds=seconds)

    def time_is_up(self) -> bool:
        """Whether whoever waits for text should stop waiting."""
        return self._next is not None and self.clock() >= self._next

    def room(self, read: int) -> int | None:
        """The most tokens to read before the next answer; `read` is how many there are now."""
        return None if self.tokens is None else self.tokens - read % self.tokens

    def due(self, read: int) -> bool:
        """Whether an answer is due; if so, the next interval begins."""
        if self.tokens is not None:
            due = read > self.answered and read % self.tokens == 0
        else:
            due = self.time_is_up()
            if due and self.seconds is not None:
                self._next = self.clock() + self.seconds
                due = read > self.answered  # nothing new, nothing to say
        if due:
            self.answered = read
        return due
