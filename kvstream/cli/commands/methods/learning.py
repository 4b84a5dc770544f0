"""``kvstream methods train|measure NAME``: the commands of methods that learn."""

from __future__ import annotations

from importlib import import_module

import click

from kvstream.cli.groups import Group

COMMANDS = {
    "edgeinfinite": "kvstream.cli.commands.methods.edgeinfinite",
    "foresight": "kvstream.cli.commands.methods.foresight",
}
"""Modules with the commands of built-in methods. A plugin's method names its own module."""


def learning_of(name: str) -> str:
    """Return the module that trains a method, empty if there is none or no such method."""
    from kvstream.api.methods import available_methods

    method = available_methods().get(name)
    return "" if method is None else method.learning or COMMANDS.get(name, "")


class Learners(Group):
    """A command for each method whose module has `action`."""

    def __init__(self, action: str, help: str) -> None:
        super().__init__(action, help=help, short_help=help)

    def list_commands(self, ctx: click.Context) -> list[str]:
        from kvstream.api.methods import available_methods

        return [name for name in available_methods() if self.get_command(ctx, name) is not None]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module = learning_of(name)
        found: click.Command | None = None
        if module:
            found = getattr(import_module(module), str(self.name), None)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from kvstream.api.methods import available_methods

        known = self.list_commands(ctx)
        if args[0] in available_methods() and args[0] not in known:
            raise click.UsageError(
                f"{args[0]} has nothing to {self.name}. There are {', '.join(known)}.", ctx
            )
        return super().resolve_command(ctx, args)


actions = Group(
    "methods",
    commands={
        "train": Learners("train", "Train what a method has to learn for a model."),
        "measure": Learners("measure", "Measure what a method has learned."),
    },
)
"""Groups behind ``kvstream methods``, used if the first word is not a method to show."""
