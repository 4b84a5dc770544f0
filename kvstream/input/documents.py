"""Convert documents to plain text in parts, with the libraries of the extra ``documents``.

No document is ever completely in memory: a PDF is read page by page, the others in blocks. Byte
offsets of a document are those of the extracted text.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvstream.errors import SourceError
from kvstream.input.blocks import Part
from kvstream.input.document_lines import Losses, Piece, Read, bytes_in, parts
from kvstream.input.formats import DOCX_BODY, PeekedStream, reader_of
from kvstream.input.limits import Patience, unreadable

if TYPE_CHECKING:
    from kvstream.input.pdf import Pdf
    from kvstream.input.zipped import Package

LIBRARIES: dict[str, tuple[str, ...]] = {
    "pdf": ("pypdfium2",), "epub": ("lxml",), "docx": ("lxml",), "html": ("lxml",),
    "mail": (), "captions": (), "notebook": ("lxml", "ijson"),
}  # fmt: skip
"""Every kind of document, with the libraries that it needs."""
STREAMED = ("html", "mail", "captions", "notebook")
"""The formats that are read from a stream, such as a pipe or a compressed file."""
_OFFICE = {
    "xl/workbook.xml": ("a workbook of Excel", "CSV"),
    "xl/workbook.bin": ("a workbook of Excel", "CSV"),
    "ppt/presentation.xml": ("a presentation of PowerPoint", "PDF"),
    "content.xml": ("an OpenDocument file", "DOCX, or a table as CSV"),
}
"""Members of other documents in a ZIP file, what these are, and as what they can be read."""
SAMPLE = 256 * 1024
"""Bytes at the beginning of a stream from which the size of its text is estimated."""


def missing_extra(kind: str, name: str) -> str | None:
    """Return an error message if a library for ``kind`` is not installed, or None."""
    missing = [lib for lib in LIBRARIES[kind] if importlib.util.find_spec(lib) is None]
    if not missing:
        return None
    return (
        f"{name} is {kind.upper()}, which needs {' and '.join(missing)}: "
        "install kvstream[documents], or convert it to text first."
    )


def kind_of_zip(path: Path, name: str) -> str:
    """Return ``epub``, ``docx`` or ``plain`` by the members of a ZIP file.

    Raises SourceError for a damaged file, and for documents that cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.NameToInfo
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise SourceError(
            f"{name} is damaged: it begins as a ZIP file (DOCX and EPUB are such files), but the "
            "list of its members, at the end, is missing or damaged; fetch it again."
        ) from error
    if "META-INF/container.xml" in members:
        return "epub"
    if any(map(DOCX_BODY.fullmatch, members)):
        return "docx"
    for member, (what, form) in _OFFICE.items():
        if member in members:
            raise SourceError(f"{name} is {what}, which is not read; save it as {form} first.")
    return "plain"


def parts_of(kind: str, path: Path, notes: list[str], warnings: list[str]) -> Iterator[Part]:
    """Yield the text of a document, part after part.

    Adds text that was left out to ``notes``, and missing text to ``warnings``. Raises SourceError
    if the document is too large, encrypted or damaged, takes too long or has no text.
    """
    has_text = False
    with _readable(kind, path):
        for part in _parts(kind, path, notes, warnings):
            has_text = has_text or bool(part.text.strip())
            yield part
    if not has_text:
        advice = " (scanned pages?): run it through OCR" if kind == "pdf" else ""
        raise SourceError(f"{path} has no text that can be extracted{advice}.")


@contextmanager
def _readable(
    kind: str, path: object, known: tuple[type[Exception], ...] = (SourceError,)
) -> Iterator[None]:
    """Raise SourceError for the many kinds of errors of parsers for a file they cannot read."""
    try:
        yield
    except known:
        raise
    except Exception as error:
        raise unreadable(path, kind, error) from error


def check(kind: str, path: Path) -> int | None:
    """Return the number of pages of a PDF; None for others, if they open. Raises SourceError."""
    with _readable(kind, path):
        return None if kind in STREAMED else _file(kind, path, [], []).check()


def _parts(kind: str, path: Path, notes: list[str], warnings: list[str]) -> Iterator[Part]:
    if kind in STREAMED:
        with path.open("rb") as file:
            head, size = PeekedStream(reader_of(file)), path.stat().st_size
            yield from filter(None, stream_parts(kind, head, str(path), notes, warnings, size))
    else:
        yield from _file(kind, path, notes, warnings).parts()


def stream_parts(
    kind: str, head: PeekedStream, name: str, notes: list[str], warnings: list[str], size: int = 0
) -> Iterator[Part | None]:
    """Yield a document from a stream of `size` bytes, if known; None when the stream pauses."""
    patience, share = Patience(name, size), 0.0
    read = patience.outside(head.read)
    with _readable(kind, name, (SourceError, OSError)):
        for block in patience.over(_blocks(kind, read, name, notes, warnings)):
            if block is None:
                yield None
                continue
            patience.size = max(patience.size, head.offset)
            before, share = share, min(1.0, head.offset / max(size, 1)) if size else 0.0
            yield from parts(block, before, share)


def _blocks(
    kind: str, read: Read, name: str, notes: list[str], warnings: list[str]
) -> Iterator[list[Piece] | None]:
    losses = Losses()
    if kind == "html":
        from kvstream.input.markup import html_parts

        yield from html_parts(read, losses=losses)
    elif kind == "captions":
        from kvstream.input.captions import caption_parts

        yield from caption_parts(read, losses, name, warnings)
    elif kind == "mail":
        from kvstream.input.mail import Mail

        yield from Mail(read, name, losses, notes).pieces()
    else:
        from kvstream.input.notebook import Notebook

        yield from Notebook(read, name, notes).pieces()
    warnings += losses.warnings(name)


def estimate(kind: str, path: Path) -> int:
    """Estimate the bytes of text in a document from its structure and a sample; 0 if that fails."""
    try:
        if kind not in STREAMED:
            return _file(kind, path, [], []).estimate()
        with path.open("rb") as file:
            sample = file.read(SAMPLE)
        blocks = Patience("").over(_blocks(kind, io.BytesIO(sample).read, "", [], []))
        size = 0
        with suppress(Exception):  # the sample may end anywhere
            for block in blocks:
                size += bytes_in([block])
        return round(size * path.stat().st_size / max(len(sample), 1))
    except Exception:  # reading the document reports the error
        return 0


def _file(kind: str, path: Path, notes: list[str], warnings: list[str]) -> Package | Pdf:
    if kind == "pdf":
        from kvstream.input.pdf import Pdf

        return Pdf(path, notes, warnings)
    from kvstream.input.zipped import Docx, Epub

    return {"epub": Epub, "docx": Docx}[kind](path, notes, warnings)
