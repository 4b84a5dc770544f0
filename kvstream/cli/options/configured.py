"""Values of the config file for options."""

from __future__ import annotations

import os
from typing import Any

import click

from kvstream.cli import config
from kvstream.cli.options.types import ModelType
from kvstream.errors import UsageError

TEXTS = (click.types.StringParamType, click.Choice, click.Path, ModelType)
"""Types of options that take no numbers, so a number in the config file is an error."""


def configured(option: click.Option, value: Any) -> Any:
    """Convert a value of the config file to the form that the command line gives an option.

    Numbers become text, so that the type of the option checks them. Raises UsageError.
    """
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"This is true or false, not {config.shown(value)}.")
        return value
    if option.multiple:
        if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise UsageError(
                f'This is a list of texts, as in ["one", "two"], not {config.shown(value)}.'
            )
        return [_of_type(option, each) for each in value]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, str) or (number and not isinstance(option.type, TEXTS))):
        kind = "text in quotes" if isinstance(option.type, TEXTS) else "one value"
        raise UsageError(f"This is {kind}, not {config.shown(value)}.")
    if isinstance(value, int) and abs(value) >= 2**64:
        raise UsageError("This is a number beyond 64 bits; no option takes one.")
    return _of_type(option, str(value))


def _of_type(option: click.Option, text: str) -> str:
    if "\0" in text:
        raise UsageError("This has a NUL character, which no option takes.")
    if isinstance(option.type, click.Path) and not _can_be_a_path(text):
        raise UsageError(f"{config.shown(text)} cannot be the name of a file.")
    try:
        option.type.convert(text, option, None)
    except click.UsageError as error:
        raise UsageError(error.message) from None
    return text


def _can_be_a_path(text: str) -> bool:
    return 0 < len(text) < 4096 and all(len(os.fsencode(part)) < 256 for part in text.split("/"))
