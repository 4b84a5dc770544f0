"""Makes docs/help.md from the program's own help: ``python tests/help_pages.py docs/help.md``."""

from __future__ import annotations

import sys
from pathlib import Path

from click.testing import CliRunner

from kvstream.cli.app import COMMANDS, cli

HEADER = """\
# Help pages

What `kvstream COMMAND --help` prints. Made by `make docs`; a test compares it with the program.
"""


def pages() -> str:
    """All help pages as one Markdown text."""
    text = [HEADER]
    for command in ("", *COMMANDS):
        arguments = [command] if command else []
        title = " ".join(["kvstream", *arguments])
        result = CliRunner().invoke(
            cli, [*arguments, "--help"], prog_name="kvstream", terminal_width=80
        )
        assert result.exit_code == 0, result.output
        text.append(f"## {title}\n\n```text\n{result.output.rstrip()}\n```\n")
    return "\n".join(text)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(pages(), encoding="utf-8")
