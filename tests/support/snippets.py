"""Python snippets of the documentation, and the files that they read."""

from __future__ import annotations

import re
from pathlib import Path

BOOK = "Ada hid the letter under the third stone of the garden wall. Nobody saw her do it.\n"
LOG = "12:00:01 info request served\n12:00:02 error the disk is full\n"


def snippets(page: Path) -> list[str]:
    """Return the fenced blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def write_files(folder: Path) -> None:
    """Write the files that the snippets read."""
    (folder / "book.txt").write_text(BOOK * 12)
    (folder / "letters").mkdir()
    (folder / "letters" / "ada.txt").write_text(BOOK * 12)
    (folder / "server.log").write_text(LOG * 12)
