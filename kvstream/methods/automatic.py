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
Chooses infinipot or keydiff (the default).

infinipot keeps what a question or the instruction of a summary attends to, so kvstream uses it
whenever one of them is known before it reads. keydiff keeps the keys least similar to the others
and needs no question, so kvstream uses it if questions come later. --set for one of the two methods
chooses that method, and --preset chooses infinipot.

  what kvstream knows before it reads        method      settings
  a question, or that it summarizes          infinipot   its defaults
  no question (remember without -Q, chat)    keydiff     pool=15"""


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
