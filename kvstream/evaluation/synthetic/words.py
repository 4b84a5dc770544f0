"""Long word lists, written as text that a person can read and edit."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """The words of ``text``, which stand apart by spaces."""
    return text.split()


def phrases(text: str) -> list[str]:
    """The phrases of ``text``, which stand apart by ``|``."""
    return text.split("|")
