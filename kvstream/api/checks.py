"""Check the types of arguments: a wrong type raises a UsageError that names the parameter."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kvstream.errors import UsageError
from kvstream.settings import is_whole


def question_of(value: object) -> str:
    """Return one question. Raises UsageError for another type."""
    if isinstance(value, str):
        return value
    several = "; read(questions=...) takes several" if isinstance(value, list | tuple) else ""
    raise UsageError(f"question= takes one question as a str, not {kind(value)}{several}.")


def questions_of(value: object) -> tuple[str, ...]:
    """Return a list of questions as a tuple. Raises UsageError, also for an empty question."""
    if isinstance(value, str):
        raise UsageError(
            "questions= takes a list of str; put a single question into a list, or give it to "
            "ask() or stream() as question=."
        )
    questions = several_of("questions", "str", value)
    for question in questions:
        if not isinstance(question, str):
            raise UsageError(f"questions= takes a list of str; one of it is {kind(question)}.")
        if not question.strip():
            raise UsageError("A question is empty.")
    return tuple(questions)


def all_of(question: object, questions: object) -> tuple[str, ...]:
    """Return the question, unless it is None, and those of a list. Raises UsageError."""
    first = () if question is None else (question_of(question),)
    return questions_of((*first, *questions_of(questions)))


def several_of(name: str, what: str, value: object) -> list[Any]:
    """Return the items of a list that was passed as the parameter `name`. Raises UsageError."""
    one = isinstance(value, str | bytes | os.PathLike) or getattr(value, "ndim", 1) == 0
    if one or not isinstance(value, Iterable):  # an array of one number is none, but says so
        raise UsageError(f"{name}= takes a list of {what}, not {kind(value)}.")
    return list(value)


def turns_of(value: object) -> Sequence[tuple[str, str]]:
    """Return earlier questions with their answers. Raises UsageError."""
    if not isinstance(value, list | tuple):
        raise UsageError(f"earlier= takes a list of (question, answer), not {kind(value)}.")
    for turn in value:
        pair = isinstance(turn, list | tuple) and len(turn) == 2
        if not pair or not all(isinstance(each, str) for each in turn):
            raise UsageError(
                "earlier= takes a list of (question, answer), both of them str, but one of it is "
                f"{turn!r:.80}."
            )
    return value


def dict_of(name: str, value: object) -> Mapping[str, Any]:
    """Return what was passed by names as the parameter `name`. Raises UsageError."""
    if isinstance(value, Mapping) and all(isinstance(each, str) for each in value):
        return value
    raise UsageError(f"{name}= takes a dict with names, not {kind(value)}.")


def settings_of(value: object) -> Mapping[str, object]:
    """Return settings of methods by name. Raises UsageError."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise UsageError(
            f'set= takes a dict of settings, such as {{"infinipot.alpha": 0.5}}, not {value!r:.80}.'
        )
    return value


def path_of(name: str, value: object) -> str:
    """Return the path that was passed as the parameter `name`. Raises UsageError."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str):
        raise UsageError(f"{name}= takes a str or a Path, not {kind(value)}.")
    if not path:
        raise UsageError(f"{name}= is empty; give a path, or leave it out.")
    with suppress(UnicodeEncodeError):  # half of a surrogate pair
        if b"\0" not in os.fsencode(path):
            return path
    raise UsageError(f"{name}= is not a path: {path!r:.80} has a character that no path has.")


def text_of(name: str, value: object) -> str:
    """Return the text that was passed as the parameter `name`. Raises UsageError."""
    if not isinstance(value, str):
        raise UsageError(f"{name}= takes a str, not {kind(value)}.")
    return value


def positive_of(name: str, value: object) -> int:
    """Return the number above 0 that was passed as the parameter `name`. Raises UsageError."""
    if not is_whole(value):
        raise UsageError(f"{name}= takes a whole number, not {value!r:.80}.")
    if value < 1:
        raise UsageError(f"{name}= is at least 1, not {value}.")
    return int(value)


def kind(value: object) -> str:
    """Return the type name of an argument, for a message."""
    return "None" if value is None else type(value).__name__
