"""The feed of tokens to the engine: with lookahead, or only the two ends of a text."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from kvstream.errors import SourceError
from kvstream.run import feed
from kvstream.run.feed import ShortenedFeed, TokenFeed
from kvstream.run.request import never
from kvstream.tokenization.stream import TokenBatch


class Stream:
    """Tokens 100, 101, ... of two bytes each. Before each of `pauses` one read returns no token."""

    def __init__(self, length: int, pauses: tuple[int, ...] = ()) -> None:
        self.length, self.pauses = length, set(pauses)
        self.seen, self.paused = 0, False

    @property
    def at_end(self) -> bool:
        return self.seen == self.length

    def read(self, count: int) -> TokenBatch:
        ahead = [p for p in self.pauses if p >= self.seen]
        end = min([self.length, self.seen + count, *ahead])
        self.paused = end in self.pauses and end < self.seen + count
        if self.paused and end == self.seen:
            self.pauses.remove(end)
        ids = np.arange(self.seen, end, dtype=np.int32)
        self.seen = end
        return TokenBatch(ids + 100, ids.astype(np.int64) * 2, end * 2)

    def estimate(self) -> int:
        return self.length


def rest(reading: TokenFeed, count: int) -> list[tuple[int, list[int]]]:
    """Read until the feed is exhausted. Return the first ordinal and the ordinals of each chunk."""
    found = []
    while not reading.exhausted():
        chunk = reading.read(count)
        if chunk.ids:
            found.append((chunk.first, [i - 100 for i in chunk.ids]))
    return found


@pytest.mark.parametrize("ahead", [0, 3, 12, 40])
@pytest.mark.parametrize("pauses", [(), (0, 5), (7, 20)])
def test_what_was_looked_at_ahead_is_read_once_and_in_order(
    ahead: int, pauses: tuple[int, ...]
) -> None:
    stream = Stream(20, pauses)
    reading = TokenFeed(cast(Any, stream))
    if ahead:
        reading.look_ahead(2)
        reading.look_ahead(ahead)
        assert stream.seen <= ahead
    assert reading.read_tokens == 0
    chunks = rest(reading, 6)
    assert [i for _, ids in chunks for i in ids] == list(range(20))
    assert all(first == ids[0] and len(ids) <= 6 for first, ids in chunks)
    assert (reading.read_tokens, reading.end, reading.ended) == (20, 40, True)
    assert reading.origins.starts(np.arange(20)).tolist() == list(range(0, 40, 2))


@pytest.mark.parametrize("pauses", [(), (10,), (2, 10, 20)])
def test_of_a_text_that_is_shortened_the_two_ends_are_read(
    pauses: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "DROP_BLOCK", 4)
    reading = ShortenedFeed(cast(Any, Stream(20, pauses)), first=3, last=5, interrupted=never)
    assert reading.estimate() == 8
    chunks = rest(reading, 3)
    assert [i for _, ids in chunks for i in ids] == [0, 1, 2, 15, 16, 17, 18, 19]
    assert all(first == ids[0] for first, ids in chunks)
    assert reading.read_tokens == 20, "what lies between counts as read"
    ends = np.array([0, 2, 15, 19])
    assert reading.origins.starts(ends).tolist() == [0, 4, 30, 38]


def test_pruning_keeps_the_tokens_of_the_end_that_the_model_has_not_read() -> None:
    reading = ShortenedFeed(cast(Any, Stream(20)), first=3, last=5, interrupted=never)
    handed = [0, 1, 2]
    reading.read(3)
    assert not reading.exhausted()  # reads to the end
    for end in (15, 17, 19):
        reading.origins.prune(np.array(handed))
        assert reading.origins.known()[0].tolist() == [0, 1, 2, *range(15, 20)]
        handed += [end, end + 1]
        reading.read(2)
    reading.origins.prune(np.array([0, 19]))
    assert reading.origins.known()[0].tolist() == [0, 19]


def test_a_shortened_text_ends_with_its_last_token() -> None:
    reading = ShortenedFeed(cast(Any, Stream(20)), first=3, last=5, interrupted=never)
    for count in (3, 2, 2):
        reading.read(count)
        assert not reading.ended
    reading.read(2)
    assert reading.ended
    assert ShortenedFeed(cast(Any, Stream(6)), first=3, last=5, interrupted=never).estimate() == 6


def test_an_interrupted_reading_has_the_newest_tokens_as_its_end() -> None:
    stops = iter([False, True])
    reading = ShortenedFeed(cast(Any, Stream(20)), 3, 5, interrupted=lambda: next(stops, True))
    assert [reading.read(9).first for _ in range(2)] == [0, 15]
    assert reading.exhausted()


def test_a_source_that_fails_leaves_the_count_of_tokens_at_those_that_were_returned() -> None:
    """The reading of another source can follow, and ordinals must go on without a gap."""

    class Failing(Stream):
        def read(self, count: int) -> TokenBatch:
            if self.seen + count > self.length:
                raise SourceError("It is damaged.")
            return super().read(count)

    reading = TokenFeed(cast(Any, Failing(9)))
    assert len(reading.read(6).ids) == 6
    assert not reading.exhausted()  # looks one token ahead
    with pytest.raises(SourceError):
        reading.read(6)
    assert (reading.read_tokens, reading.origins.appended, reading.end) == (6, 6, 12)
