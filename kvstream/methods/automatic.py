"""``auto``: choose the method of a reading by what is known before it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

AUTO = "auto"
"""The name to give instead of the name of a method."""
QUESTIONS_KNOWN = "infinipot"
QUESTIONS_UNKNOWN = "keydiff"
QUESTIONS_LEARNED = "foresight"
"""Used if no question is known and the model comes with the trained weights of this method."""
AUTOMATIC = frozenset((QUESTIONS_KNOWN, QUESTIONS_UNKNOWN, QUESTIONS_LEARNED))
"""Methods that `auto` can choose."""
SETTINGS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"keydiff": {"pool": "15", "centered": "biased"}}
)
"""Settings that `auto` uses if the user sets none."""
ABOUT = """\
Chooses infinipot, foresight or keydiff (the default).

infinipot keeps what a question or the instruction of a summary attends to, so kvstream uses it
if it knows one of them before it reads. If questions come later, foresight keeps what a small
network expects questions to ask for; the package has this network for pocket alone. Otherwise
keydiff keeps the keys least similar to the others. --set for one of these methods chooses that
method, and --preset chooses infinipot.

  what kvstream knows before it reads        method      settings
  a question, or that it summarizes          infinipot   its defaults
  no question (remember without -Q, chat):
    pocket alone reads                       foresight   its defaults
    another model, or two models             keydiff     pool=15, centered=biased"""


def choose(
    *, known: bool, learned: bool = False, owners: Iterable[str] = (), preset: bool = False
) -> str:
    """Return the name of the method for a reading.

    `known`: questions are known, or a summary is requested. `learned`: the model comes with the
    weights that `foresight` needs. `owners`: methods for which the user gave settings; if exactly
    one of `AUTOMATIC` is among them, it is chosen. `preset`: ``--preset`` was given; its papers
    know the question.
    """
    names = set(AUTOMATIC.intersection(owners))
    if len(names) == 1:
        return names.pop()
    if known or preset:
        return QUESTIONS_KNOWN
    return QUESTIONS_LEARNED if learned else QUESTIONS_UNKNOWN
