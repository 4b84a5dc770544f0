"""Declaration of shared options, tests whether one was given, and values of the config file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kvstream.cli import config
from kvstream.cli.options.types import FileType, ModelType
from kvstream.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])
TEXTS = (click.types.StringParamType, click.Choice, click.Path, ModelType)
"""Types of options that take no numbers, so a number in the config file is an error."""


class Option(click.Option):
    """An option with a section of the help page, which shows its default, and a variable."""

    def __init__(
        self,
        *args: Any,
        section: str = "Options",
        advanced: bool = False,
        once: str = "",
        **kwargs: Any,
    ) -> None:
        own = kwargs.get("default") is not None and not kwargs.get("is_flag")
        shown = own and "[default: " not in kwargs.get("help", "")
        super().__init__(*args, **{"show_default": shown, **kwargs})
        self.section = section
        self.once = once
        """Why a second value is an error, and what to do instead; if empty, the last one counts."""
        self.advanced = advanced
        """Whether ``--help-all`` shows it and ``--help`` does not."""
        if self.envvar is None and self.name and self.expose_value and not self.hidden:
            self.envvar = variable_of(key_of(self))

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Name the option, and the environment variable if the value is from it."""
        hint = super().get_error_hint(ctx)
        source = None if ctx is None else ctx.get_parameter_source(self.name or "")
        given = source is ParameterSource.ENVIRONMENT
        return f"{hint} (environment variable {self.envvar})" if given else hint


def key_of(option: click.Option) -> str:
    """Return the name of an option in the config file: as it is typed, with ``_``."""
    return max(option.opts, key=len).removeprefix("--").replace("-", "_")


def variable_of(name: str) -> str:
    """Return the environment variable of an option, unless the option has none."""
    return f"KVSTREAM_{name.upper()}"


def option(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    """Call ``click.option`` for an `Option`."""
    return click.option(*names, cls=Option, **attributes)


def stack(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Combine decorators into one, applied so that the help page keeps their order."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


def typed(name: str) -> bool:
    """Return whether an option of the current command was given on the command line."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def first_typed(names: Iterable[str]) -> str | None:
    """Return the first of these options that was given on the command line, as it is typed."""
    for name in names:
        if typed(name):
            no = "no-" if click.get_current_context().params.get(name) is False else ""
            return f"--{no}{name.replace('_', '-')}"
    return None


def given_options() -> set[str]:
    """Return the names of the current command's options whose value is not the default."""
    ctx = click.get_current_context()
    own = (ParameterSource.DEFAULT, None)
    return {name for name in ctx.params if ctx.get_parameter_source(name) not in own}


def memory_option(help: str, *, folder: bool = False) -> Callable[[Any], Any]:
    """Return the option --memory."""
    return option(
        "--memory", type=FileType(folder=folder), metavar="FILE", envvar=(), section="Questions",
        help=help,
        once="--memory names one memory file. Join several with kvstream merge, or put them into a "
        "folder and use kvstream ask --memory FOLDER.",
    )  # fmt: skip


def configured(option: click.Option, value: Any) -> Any:
    """Convert a value of the config file to the form that the command line gives an option.

    Numbers become text, so that the type of the option checks them. Raises UsageError.
    """
    if option.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"This is true or false, not {config.short(value)}.")
        return value
    if option.multiple:
        if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise UsageError(
                f'This is a list of texts, as in ["one", "two"], not {config.short(value)}.'
            )
        return [_of_type(option, each) for each in value]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (isinstance(value, str) or (number and not isinstance(option.type, TEXTS))):
        kind = "text in quotes" if isinstance(option.type, TEXTS) else "one value"
        raise UsageError(f"This is {kind}, not {config.short(value)}.")
    if isinstance(value, int) and abs(value) >= 2**64:
        raise UsageError("This is a number beyond 64 bits; no option takes one.")
    return _of_type(option, str(value))


def _of_type(option: click.Option, text: str) -> str:
    if "\0" in text:
        raise UsageError("This has a NUL character, which no option takes.")
    parts = map(os.fsencode, text.split("/"))
    can_be_a_path = 0 < len(text) < 4096 and all(len(part) < 256 for part in parts)
    if isinstance(option.type, click.Path) and not can_be_a_path:
        raise UsageError(f"{config.short(text)} cannot be the name of a file.")
    try:
        option.type.convert(text, option, None)
    except click.UsageError as error:
        raise UsageError(error.message) from None
    return text
