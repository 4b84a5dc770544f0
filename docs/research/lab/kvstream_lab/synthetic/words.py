"""Long word lists, written as text that is easy to read and edit."""

from __future__ import annotations


def words(text: str) -> list[str]:
    """Return the words of ``text``, which are separated by spaces."""
    return text.split()


def phrases(text: str) -> list[str]:
    """Return the phrases of ``text``, which are separated by ``|``."""
    return text.split("|")
