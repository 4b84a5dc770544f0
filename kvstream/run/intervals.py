"""Intervals of a reading, in tokens or seconds, after which an answer is due."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from kvstream.errors import UsageError
from kvstream.settings import count_of

LEAST = 64
"""Minimum number of tokens between two answers. Reading fewer is much faster than answering."""
_SECONDS = {"s": 1, "min": 60, "h": 3600}


class Intervals:
    """An answer every `tokens` tokens, or every `seconds` seconds if new text was read."""

    def __init__(
        self,
        tokens: int | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tokens, self.seconds, self.clock = tokens, seconds, clock
        self.answered = 0
        """Number of tokens read before the latest answer."""
        self._next = None if seconds is None else clock() + seconds

    def __str__(self) -> str:
        return f"{self.seconds:g}s" if self.tokens is None else str(self.tokens)

    @classmethod
    def of(cls, every: int | str | Intervals | None) -> Intervals | None:
        """Return intervals: ``4096`` and ``10k`` are tokens, ``30s``, ``5min`` and ``1h`` time.

        Raises UsageError.
        """
        if every is None or isinstance(every, Intervals):
            return every
        text = str(every)
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h)\s*", text)
        if match is None:
            try:
                tokens = count_of(text)
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
        """Return whether the interval in seconds is over; then a reader stops waiting for text."""
        return self._next is not None and self.clock() >= self._next

    def room(self, read: int) -> int | None:
        """Return how many tokens to read before the next answer after `read`; None for seconds."""
        return None if self.tokens is None else self.tokens - read % self.tokens

    def due(self, read: int) -> bool:
        """Return whether an answer is due after `read` tokens; if so, begin the next interval."""
        if self.tokens is not None:
            due = read > self.answered and read % self.tokens == 0
        else:
            due = self.time_is_up()
            if due and self.seconds is not None:
                self._next = self.clock() + self.seconds
                due = read > self.answered  # no answer without new text
        if due:
            self.answered = read
        return due
