"""``kvstream methods [NAME]``: what decides which entries stay, and with which settings."""

from __future__ import annotations

import dataclasses
import inspect
import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from kvstream.cli.commands.methods.learning import actions
from kvstream.cli.shared.options import MethodsType, SectionedCommand
from kvstream.reporters.format import json_text

if TYPE_CHECKING:
    from kvstream.methods.base import Method, Preset

WIDTH = 80


class MethodsCommand(SectionedCommand):
    """Shows methods, unless the first word is one of `actions`: then these take over."""

    actions = actions

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args and args[0] in self.actions.commands:
            return self.actions.make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("methods", cls=MethodsCommand)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=MethodsType().shell_complete)
@click.option("-v", "--verbose", is_flag=True, help="With all settings.")
@click.option("--json", is_flag=True, help="One JSON object a method.")
def command(names: tuple[str, ...], verbose: bool, json: bool) -> None:
    """List the methods: what decides which entries of the KV cache stay.

    With a NAME its settings are shown, which --set NAME.SETTING=VALUE changes. What a method has
    to learn for a model is trained and measured by a command of its own.

    \b
      kvstream methods infinipot
      kvstream methods train edgeinfinite --data FOLDER
      kvstream methods measure edgeinfinite --data FOLDER
    """
    from kvstream.methods.registry import available, named

    chosen = {name: named(name) for name in names or available()}
    if json:
        for name, method in chosen.items():
            click.echo(json_text(_record(name, method)))
        return
    width = max(map(len, chosen)) + 2
    for index, (name, method) in enumerate(chosen.items()):
        if not names and not verbose:
            click.echo(f"{name:{width}}{summary(method)}")
            continue
        click.echo(("\n" if index else "") + _page(name, method))


def summary(method: type[Method]) -> str:
    """The first line of the docstring."""
    return (inspect.getdoc(method) or "").partition("\n")[0]


def _page(name: str, method: type[Method]) -> str:
    paragraphs = [name, textwrap.indent(inspect.getdoc(method) or "", "  ")]
    if method.source:
        paragraphs.append(f"  Paper: {method.source}")
    from kvstream.methods.base import in_words, limits

    lines = []
    for field in dataclasses.fields(method):
        choices = field.metadata.get("choices") or ()
        help_text = field.metadata.get("help", "")
        if choices:
            help_text += f" ({', '.join(choices)})"
        elif (allowed := limits(field)) is not None:
            help_text += f" ({in_words(allowed)})"
        lines.append(f"  --set {name}.{field.name}={_typed(field.default)}")
        lines.append(
            textwrap.fill(help_text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
        )
    if lines:
        paragraphs.append("\n".join(lines))
    if method.learning:
        paragraphs.append(f"  It learns: see kvstream methods train {name} --help")
    if method.paper is not None:
        # Non-breaking spaces: an option stays on a line with its value.
        typed = " ".join(o.replace(" ", "\u00a0") for o in _preset(name, method.paper))
        paragraphs.append(
            f"  --preset paper is as in {method.paper.source}:\n"
            + textwrap.fill(
                typed,
                WIDTH,
                initial_indent=" " * 6,
                subsequent_indent=" " * 6,
                break_on_hyphens=False,
                break_long_words=False,
            ).replace("\u00a0", " ")
        )
    return "\n\n".join(paragraphs)


def _preset(name: str, paper: Preset) -> Iterator[str]:
    """The options that a preset stands for, as a user would type them."""
    yield from (f"--set {name}.{setting}={value}" for setting, value in paper.settings.items())
    yield from (f"--{option} {value}" for option, value in paper.run.items())


def _typed(value: Any) -> str:
    """A default as a user would type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _record(name: str, method: type[Method]) -> dict[str, Any]:
    from kvstream.methods.base import limits

    def limit(field: dataclasses.Field[Any], which: int) -> float | None:
        value = (limits(field) or (math.inf, math.inf))[which]
        return value if value < math.inf else None  # JSON knows no infinity

    return {
        "method": name,
        "summary": summary(method),
        "source": method.source,
        "preset": None if method.paper is None else dataclasses.asdict(method.paper),
        "settings": {
            field.name: {
                "default": field.default,
                "help": field.metadata.get("help", ""),
                "choices": list(field.metadata.get("choices") or ()),
                "least": limit(field, 0),
                "most": limit(field, 1),
            }
            for field in dataclasses.fields(method)
        },
    }
