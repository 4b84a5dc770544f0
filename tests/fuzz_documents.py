"""The target of tests/fuzz.py that parses PDF, EPUB and HTML; needs the extra ``documents``."""

from __future__ import annotations

import io
import random
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from fuzz_parsers import altered, some_text

from kvstream.sources import open_sources
from kvstream.text.documents import LIBRARIES, missing_extra

LARGEST = 10**6
"""Bytes of text that no such small document has."""
_TAGS = (
    "<p>", "</p>", "<div>", "</div>", "<pre>", "</pre>", "<br/>", "<script>", "</script>", "<td>",
    "<!--", "-->", "<![CDATA[", "]]>", "<?xml ?>", "&amp;", "&#x1b;", "&#", "<a href='", "<", ">",
    '<meta charset="utf-16">', "<svg/>", "</head>", "<h1>", "</b>", "\n", " ",
)  # fmt: skip


def _html(rng: random.Random) -> bytes:
    words = [rng.choice(_TAGS) if rng.random() < 0.6 else "It rained. " for _ in range(20)]
    page = f"<html><body><p>The gate.</p>{''.join(words)}{some_text(rng, 30)}"
    return page.encode(rng.choice(["utf-8", "utf-16"]), "replace")


def _pdf(rng: random.Random) -> bytes:
    """One page, as small as can be; its numbers may lie."""
    drawn = f"BT /F1 12 Tf 72 700 Td ({some_text(rng, 40)}) Tj [(It) -200 (rained)] TJ ET"
    content = drawn.encode("latin-1", "replace")
    packed = rng.random() < 0.6
    if packed:
        content = zlib.compress(altered(rng, content))
    filters = b"/Filter /FlateDecode" if packed else b""
    length = rng.choice([len(content)] * 4 + [0, -1, 10**9])
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count %d >>" % rng.choice([1, 1, 1, 0, -3, 10**9]),
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /MediaBox [0 0 600 800] "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d %s >>\nstream\n%s\nendstream" % (length, filters, content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    if rng.random() < 0.1:  # pages that are their own children
        objects[1] = b"<< /Type /Pages /Kids [2 0 R 3 0 R] /Count 1 >>"
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return data + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\n" % (
        len(objects) + 1, table, len(objects) + 1,
    ) + b"startxref\n%d\n%%%%EOF" % len(data)  # fmt: skip


def epub(chapter: bytes, damaged: Callable[[bytes], bytes] = bytes) -> bytes:
    """A book of one chapter; every member may be damaged before it is packed."""
    package = (
        b'<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
        b'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">1'
        b"</dc:identifier><dc:title>Rain</dc:title><dc:language>en</dc:language></metadata>"
        b'<manifest><item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest>'
        b'<spine><itemref idref="a"/></spine></package>'
    )
    container = (
        b'<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
        b'<rootfiles><rootfile full-path="p.opf" media-type="application/oebps-package+xml"/>'
        b"</rootfiles></container>"
    )
    members = {"META-INF/container.xml": container, "p.opf": package, "a.xhtml": chapter}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, data in members.items():
            archive.writestr(name, damaged(data))
    return out.getvalue()


def _epub(rng: random.Random) -> bytes:
    return epub(_html(rng), lambda data: altered(rng, data) if rng.random() < 0.2 else data)


def documents(rng: random.Random, folder: Path) -> None:
    """PDF, EPUB and HTML, whole and damaged: their text, or a refusal."""
    kind, make = rng.choice([("pdf", _pdf), ("epub", _epub), ("html", _html)])
    data = make(rng)
    path = folder / f"document.{kind}"
    path.write_bytes(altered(rng, data) if rng.random() < 0.6 else data)
    total = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in open_sources([str(path)]):
            total += len(block.text)
            assert total <= LARGEST
            assert len(block.offsets()) == len(block.text) + 1


Target = Callable[[random.Random, Path], None]
DOCUMENTS: dict[str, Target] = {"documents": documents}
MISSING = next((m for kind in LIBRARIES if (m := missing_extra(kind, "a document"))), None)
"""Why there is nothing to be tried, if there is not."""
