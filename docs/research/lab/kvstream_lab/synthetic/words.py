"""Long lists of words and phrases, which ``words.toml`` has."""

from __future__ import annotations

import tomllib
from pathlib import Path


def listed(text: str) -> list[str]:
    """Return the phrases of ``text`` between ``|``, or without any the words between spaces."""
    return text.split("|") if "|" in text else text.split()


class _Lists:
    """Has each list as an attribute."""

    def __init__(self) -> None:
        texts = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
        self._lists = {name: listed(text) for name, text in texts.items()}

    def __getattr__(self, name: str) -> list[str]:
        return self._lists[name]


lists = _Lists()
