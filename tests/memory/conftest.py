"""Fixtures for the tests of memory files and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def story(write_story: Callable[..., Path]) -> Iterator[Path]:
    """A text of several budgets whose passages are cut while it is read, like those of a book."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstream.tokenization.passages.SAMPLE", 4096)
        yield write_story(tokens=1300, seed=3, facts=4)
