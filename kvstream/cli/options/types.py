"""Types of option values, which are checked before torch is imported."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from kvstream.api.methods import method_names, plugins
from kvstream.api.options import AUTO, SELF, WORDS
from kvstream.cli import config
from kvstream.errors import ModelError, UsageError, hint
from kvstream.settings import count_of, seed_of

NONE = "none"
"""Value of --skim: one model reads everything."""


class Parsed(click.ParamType):
    """A value that a function makes of text, or refuses with a UsageError."""

    def __init__(self, parse: Callable[[Any], Any], name: str) -> None:
        self.parse, self.name = parse, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value)
        except UsageError as error:
            self.fail(str(error))


COUNT = Parsed(count_of, "n")
SEED = Parsed(seed_of, "integer")


class Finite(click.FloatRange):
    """A finite number: ``nan`` and ``inf`` are refused."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.")
        return number


class MethodsType(click.ParamType):
    """Names of methods, separated by commas. They are checked before torch is imported."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        names = (AUTO, *method_names())
        for name in filter(None, (each.strip() for each in str(value).split(","))):
            # The name of a plugin's method may differ from its entry point; it is checked later.
            if name not in names and not any(plugins()):
                close = hint(name, names) or " If a plugin adds it, install the plugin."
                self.fail(f"Unknown method {name[:40]!r}.{close} There are: {', '.join(names)}.")
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        others = before.split(",")
        return [
            CompletionItem(f"{before}{comma}{name}")
            for name in (AUTO, *method_names())
            if name.startswith(last) and name not in others
        ]


class ModelType(click.ParamType):
    """A model: a hub id, a folder, or a short name from the config file."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name = str(value)
        if len(name) > config.LONGEST_NAME:
            self.fail(
                f"The model name has {len(name)} characters, too many for any model; check it."
            )
        return config.model_name(name)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = [n for n in (config.EMBEDDED, *config.aliases()) if n.startswith(incomplete)]
        return [CompletionItem(n) for n in names] or [CompletionItem(incomplete, type="dir")]


class SkimType(ModelType):
    """A model that reads first, or ``auto``, ``none``, ``self`` or ``words``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in (AUTO, NONE, SELF, WORDS):
            return value
        try:
            return super().convert(value, param, ctx)
        except ModelError as error:
            message = str(error).replace("--model", "--skim", 1)
            raise ModelError(f"{message} --skim also takes auto, self, words and none.") from error


def complete_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete file names, for arguments that are files or a question."""
    return [CompletionItem(incomplete, type="file")]


class FileType(click.Path):
    """Path of a file, which need not exist. ``-`` is only for an option that `streams`."""

    def __init__(self, *, folder: bool = False, streams: bool = False) -> None:
        super().__init__(dir_okay=folder, path_type=Path)
        self.streams = streams

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail("The name is empty; name a file, or leave the option out.")
        if str(value) == "-" and not self.streams:
            self.fail("This needs a file, and - stands for standard input or output.")
        return super().convert(value, param, ctx)
