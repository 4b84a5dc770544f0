"""Charts of readings: what they show between the steps of a reading."""

from __future__ import annotations

from kvstream.api.html_report import Series, charts_of


def series(*kept: tuple[int, int]) -> Series:
    return Series(rows=[(seen, 10, 5, 15, 20, tokens) for seen, tokens in kept])


def test_a_comparison_shows_only_values_that_a_step_had() -> None:
    """Two methods end their steps at different tokens, and one of them stops before the other."""
    readings = [("a", series((100, 90), (300, 50))), ("b", series((200, 80), (400, 40)))]
    kept = charts_of(readings)[0]
    assert list(kept.x) == [100, 200, 300, 400]
    assert dict(kept.lines) == {"a": [90, 90, 50, None], "b": [None, 80, 80, 40]}
