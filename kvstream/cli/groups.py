"""Groups of commands. A command is imported when it is called; unknown names are errors."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from kvstream.errors import hint


class Group(click.Group):
    """Lists the existing commands if an unknown one is called."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if args[0].startswith("-"):
                raise
            names = self.list_commands(ctx)
            close = hint(args[0], names)
            raise click.UsageError(
                f"No such command {args[0]!r}.{close} There are {', '.join(names)}.", ctx
            ) from None


class Modules(Group):
    """Commands that are each ``command`` of a module of `package`. `modules` has their help lines,
    so that the help imports none.
    """

    def __init__(self, *args: Any, package: str, modules: Mapping[str, str], **more: Any) -> None:
        super().__init__(*args, **more)
        self.package, self.modules = package, modules

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.modules.items()))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.modules)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.modules:
            return None
        return import_module(f"{self.package}.{name}").command
