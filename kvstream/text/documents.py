"""PDF, EPUB and HTML to plain text, through the libraries of the extra ``documents``.

Only here a whole document is held in memory (a PDF: one page); its offsets are those of the
extracted text.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstream.errors import SourceError

LIBRARIES = {"pdf": ("pypdf",), "epub": ("ebooklib", "bs4"), "html": ("bs4",)}
MAX_BYTES = 256 * 1024**2
_DROPPED = frozenset(["script", "style", "template", "noscript", "head", "svg"])
_APART = frozenset(["p", "h1", "h2", "h3", "h4"])
_BLOCKS = frozenset([
    "address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main",
    "nav", "ol", "p", "pre", "section", "table", "td", "th", "tr", "ul",
])  # fmt: skip

# What these libraries say of a broken file goes to whoever wants it, and not to stderr.
for _library in ("pypdf", "bs4", "ebooklib"):
    logging.getLogger(_library).addHandler(logging.NullHandler())


def missing_extra(kind: str, name: str) -> str | None:
    """What to tell where a library for ``kind`` is not installed, or None."""
    missing = [lib for lib in LIBRARIES[kind] if importlib.util.find_spec(lib) is None]
    if not missing:
        return None
    return (
        f"{name} is {kind.upper()}, which needs {' and '.join(missing)}: "
        "install kvstream[documents], or convert it to text first."
    )


def text_of(kind: str, path: Path) -> Iterator[str]:
    """The plain text of a document in pieces: pages, chapters or all at once.

    Raises SourceError where it is too large, encrypted, damaged, or holds no text.
    """
    size = path.stat().st_size
    if size > MAX_BYTES and kind != "pdf":
        raise SourceError(
            f"{path} is {size:,} bytes of {kind.upper()}, and such a file is converted as a whole "
            f"(at most {MAX_BYTES:,} bytes): convert it to text first."
        )
    if kind == "epub" and (unpacked := _unpacked(path)) > MAX_BYTES:
        raise SourceError(
            f"{path} unpacks to {unpacked:,} bytes, and an EPUB is converted as a whole (at most "
            f"{MAX_BYTES:,} bytes): convert it to text first."
        )
    pieces = {"pdf": _pdf, "epub": _epub, "html": _html}[kind](path)
    found = False
    try:
        for piece in pieces:
            found = found or bool(piece.strip())
            yield piece
    except SourceError:
        raise
    except Exception as error:  # whatever a parser raises on a file that it does not understand
        raise SourceError(f"{path} cannot be read as {kind.upper()}: {error}") from error
    if not found:
        raise SourceError(
            f"{path} holds no text that can be extracted (scanned pages?): run it through OCR."
        )


def _unpacked(path: Path) -> int:
    """Bytes that the members of a zip say they have; no more than that is ever unpacked of one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise SourceError(f"{path} cannot be read as EPUB: {error}") from error


def html_text(markup: bytes) -> str:
    """The visible text of a page; blocks become lines, white space within them one space.

    One walk, whose time grows with the page alone: pages may be as deep or as wide as they like.
    """
    from bs4 import BeautifulSoup
    from bs4.element import CData, NavigableString, Tag

    found: list[str] = []
    pre = 0
    soup = BeautifulSoup(markup, "html.parser")
    open_tags: list[tuple[Tag, Iterator[Any]]] = [(soup, iter(soup.contents))]
    while open_tags:
        tag, rest = open_tags[-1]
        node = next(rest, None)
        if node is None:
            open_tags.pop()
            pre -= tag.name == "pre"
            found.append("\n" if tag.name in _BLOCKS else "")
        elif isinstance(node, Tag):
            if node.name in _DROPPED:
                continue
            if node.name in _BLOCKS:
                found.append("\n\n" if node.name in _APART else "\n")
            pre += node.name == "pre"
            open_tags.append((node, iter(node.contents)))
        elif type(node) in (NavigableString, CData):  # no comments and the like
            found.append(str(node) if pre else re.sub(r"\s+", " ", node))
    lines = "".join(found).split("\n")
    text = "\n".join(line.strip(" \t") for line in lines)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _html(path: Path) -> Iterator[str]:
    yield html_text(path.read_bytes())


def _epub(path: Path) -> Iterator[str]:
    import ebooklib
    from ebooklib import epub

    book = epub.read_epub(str(path), options={"ignore_ncx": True})
    for entry in book.spine:
        item = book.get_item_with_id(entry[0] if isinstance(entry, tuple) else entry)
        if item is not None and item.get_type() == ebooklib.ITEM_DOCUMENT:
            yield html_text(item.content) + "\n"


def _pdf(path: Path) -> Iterator[str]:
    import pypdf

    reader = pypdf.PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise SourceError(f"{path} is encrypted: remove its password first.")
    for page in reader.pages:
        yield page.extract_text() + "\n"
