"""Which model answers if none is named."""

from __future__ import annotations

import pytest

from kvstream.api import models
from kvstream.store import offered


@pytest.mark.parametrize(
    ("here", "best", "default"),
    [
        ((), "qwen-1.5b", "pocket"),
        (("reader",), "qwen-1.5b", "reader"),
        (("reader", "qwen-0.5b"), "qwen-1.5b", "qwen-0.5b"),
        (("reader", "qwen-0.5b", "reader-0.5b"), "qwen-1.5b", "reader-0.5b"),
        (("reader", "qwen-0.5b", "qwen-1.5b"), "qwen-1.5b", "qwen-1.5b"),
        (("reader", "qwen-0.5b", "qwen-1.5b"), "qwen-0.5b", "qwen-0.5b"),
        (("reader", "qwen-1.5b"), "qwen-0.5b", "reader"),
        (("qwen-1.5b",), "pocket", "pocket"),
    ],
)
def test_the_best_fetched_model_answers(
    monkeypatch: pytest.MonkeyPatch, here: tuple[str, ...], best: str, default: str
) -> None:
    monkeypatch.setattr(offered.Offer, "is_here", lambda offer: offer.name in here)
    monkeypatch.setattr(models, "best_model", lambda: offered.OFFERS.get(best))
    assert models.default_model() == default
