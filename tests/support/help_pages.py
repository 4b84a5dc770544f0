"""Write docs/reference/help.md from the program's own help.

Command: ``python tests/support/help_pages.py docs/reference/help.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click.testing import CliRunner

from kvstream.cli.app import COMMANDS, cli

HEADER = """\
# Help pages

What `kvstream COMMAND --help-all` prints: every option. `--help` shows the dozen that people use
most. Made by `make docs`; a test compares it with the program.
"""


def commands() -> dict[str, click.Command]:
    """Return every command by its name; the commands of a group follow it."""
    found: dict[str, click.Command] = {"": cli}
    with cli.make_context("kvstream", ["--help"], resilient_parsing=True) as context:
        for name in COMMANDS:
            command = cli.get_command(context, name)
            assert command is not None
            found[name] = command
            found |= inner(name, command, context)
    return found


def inner(name: str, command: click.Command, context: click.Context) -> dict[str, click.Command]:
    """Return the commands of a group, at any depth."""
    found: dict[str, click.Command] = {}
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            one = command.get_command(context, word)
            assert one is not None
            found[f"{name} {word}"] = one
            found |= inner(f"{name} {word}", one, context)
    return found


def pages() -> str:
    """Return all help pages as one Markdown text."""
    text = [HEADER]
    for command, found in commands().items():
        arguments = command.split()
        every = any("--help-all" in param.opts for param in found.params)
        how = "--help-all" if every else "--help"
        title = " ".join(["kvstream", *arguments])
        result = CliRunner().invoke(cli, [*arguments, how], prog_name="kvstream", terminal_width=80)
        assert result.exit_code == 0, result.output
        text.append(f"## {title}\n\n```text\n{result.output.rstrip()}\n```\n")
    return "\n".join(text)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(pages(), encoding="utf-8")
