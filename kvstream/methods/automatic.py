"""``auto``: which method suits a reading, by what is known before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

AUTO = "auto"
"""The name to give in place of a method's."""
QUESTIONS_KNOWN = "infinipot"
QUESTIONS_UNKNOWN = "keydiff"
AUTOMATIC = frozenset((QUESTIONS_KNOWN, QUESTIONS_UNKNOWN))
"""What it may choose."""
SETTINGS: Mapping[str, Mapping[str, str]] = MappingProxyType({"keydiff": {"pool": "15"}})
"""What `auto` sets where the user sets nothing."""
ABOUT = """\
Chooses the method by what is known before the reading.

With a question, or for a summary, it is `infinipot`: the question is the catalyst, and the entries
that it attends to stay. If questions come later (`remember` without -Q, `chat`), it is `keydiff`
with keydiff.pool=15, which keeps the keys least similar to the others and needs no question. --set
for one of the two methods chooses that method; --preset chooses `infinipot`.

  questions           method      settings
  known, or summary   infinipot
  not known yet       keydiff     pool=15"""


def chosen(*, known: bool, owners: Iterable[str] = (), preset: bool = False) -> str:
    """The method for a reading.

    `known`: questions are known, or a summary is asked for. `owners`: methods that the user gave
    settings for; if only one of the two is among them, it is the method. `preset`: ``--preset`` was
    given, whose papers know the question.
    """
    named = set(AUTOMATIC.intersection(owners))
    if len(named) == 1:
        return named.pop()
    return QUESTIONS_KNOWN if known or preset else QUESTIONS_UNKNOWN
