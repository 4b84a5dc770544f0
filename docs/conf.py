"""Settings of the documentation site: `make docs` builds it with Sphinx from the Markdown files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_VERSION = (ROOT / "kvstream" / "version.py").read_text(encoding="utf-8")

project = "kvstream"
author = "The kvstream authors"
release = re.search(r'__version__ = "(.+?)"', _VERSION).group(1)  # type: ignore[union-attr]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["research/lab"]
# Headings get the anchors that GitHub gives them.
myst_heading_anchors = 4
# With -W, a link to a page, a file or a heading that does not exist ends the build.
nitpicky = True

html_theme = "furo"
html_title = f"kvstream {release}"
html_copy_source = False
# Code without a language, such as output in the middle of a list.
highlight_language = "none"

REPOSITORY = "https://github.com/kvstream/kvstream/blob/main/"


def link_out(app: Any, docname: str, source: list[str]) -> None:
    """Replaces links to files outside docs/ with links to the repository."""

    def replaced(match: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join("docs", os.path.dirname(docname), match[1]))
        inside = path.startswith("docs" + os.sep)
        return match[0] if inside else f"]({REPOSITORY}{path}{match[2] or ''})"

    source[0] = re.sub(r"\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)", replaced, source[0])


def setup(app: Any) -> None:
    app.connect("source-read", link_out)
