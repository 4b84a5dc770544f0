"""``kvstream methods [NAME]``: list methods, or show a method and its settings."""

from __future__ import annotations

import textwrap

import click

from kvstream.api import methods
from kvstream.api.methods import ABOUT, AUTO, MethodInfo
from kvstream.cli.options.command import SectionedCommand
from kvstream.cli.options.types import MethodsType
from kvstream.cli.shared.saying import say
from kvstream.reporters.format import json_text, visible

WIDTH = 80


@click.command("methods", cls=SectionedCommand)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=MethodsType().shell_complete)
@click.option("-v", "--verbose", is_flag=True, help="Show the settings of every method.")
@click.option("--json", is_flag=True, help="Print one JSON object per method.")
def command(names: tuple[str, ...], verbose: bool, json: bool) -> None:
    """List the methods. A method decides which entries of the KV cache stay.

    With a NAME, show the settings of the method, which --set NAME.SETTING=VALUE changes.

    \b
      kvstream methods infinipot
    """
    if AUTO in names:
        if len(names) > 1 or json:
            raise click.UsageError(f"{AUTO} is not a method; show it alone, without --json.")
        click.echo(f"{AUTO}\n\n{_indented(ABOUT)}")
        return
    infos = {name: methods.method_info(name) for name in names} or methods.available_methods()
    for reason in () if names else methods.broken_methods():
        say(f"Warning: {reason}")
    if json:
        for method in infos.values():
            click.echo(json_text(method.to_json()))
        return
    if not names and not verbose:
        summaries = {AUTO: ABOUT.partition("\n")[0], **{n: m.summary for n, m in infos.items()}}
        width = max(map(len, infos)) + 2
        for name, summary in summaries.items():
            first = f"{name:{width}}"
            click.echo(click.wrap_text(visible(summary), WIDTH, first, " " * width))
        return
    click.echo(visible("\n\n".join(_page(method) for method in infos.values())))


def _indented(about: str) -> str:
    """Wrap a description to `WIDTH` columns. Keep lines of tables, which begin with a space."""
    paragraphs = about.split("\n\n")
    return "\n\n".join(
        textwrap.indent(each, "  ")
        if each.startswith(" ")
        else click.wrap_text(" ".join(each.split()), WIDTH, "  ", "  ")
        for each in paragraphs
    )


def _page(method: MethodInfo) -> str:
    name = method.name
    paragraphs = [name, _indented(method.about)]
    paper = method.source.partition(",")[0]
    if paper.casefold() not in method.about.casefold():  # the description usually names it
        paragraphs.append(f"  Source: {method.source}")
    lines = []
    for each in method.settings:
        help_text = each.help
        if limits := ", ".join(each.choices) or each.allowed:
            help_text += f" ({limits})"
        default = str(each.default)
        default = default.lower() if isinstance(each.default, bool) else default
        lines += [f"  --set {name}.{each.name}={default}", _filled(help_text)]
    if lines:
        paragraphs.append("\n".join(lines))
    if method.preset is not None:
        options = [f"--set {name}.{key}={value}" for key, value in method.preset.settings.items()]
        options += [f"--{option} {value}" for option, value in method.preset.run.items()]
        # Non-breaking spaces: an option stays on a line with its value.
        text = _filled(" ".join(option.replace(" ", "\u00a0") for option in options), whole=True)
        head = f"  --preset paper is as in {method.preset.source}:"
        paragraphs.append(f"{head}\n{text}".replace("\u00a0", " "))
    return "\n\n".join(paragraphs)


def _filled(text: str, *, whole: bool = False) -> str:
    """Wrap an indented text; with `whole`, between words only."""
    indent = " " * 6
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent,
        break_on_hyphens=not whole, break_long_words=not whole,
    )  # fmt: skip
