"""Target of tests/support/fuzz.py for documents; needs the extra ``documents``."""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

from fuzz_parsers import altered, some_text
from make_documents import docx, epub, pdf_of

from kvstream.input.documents import LIBRARIES, missing_extra
from kvstream.input.sources import open_sources

LARGEST = 10**6
"""Characters of text that no such small document has."""
_TAGS = (
    "<p>", "</p>", "<div>", "</div>", "<pre>", "</pre>", "<br/>", "<script>", "</script>", "<td>",
    "<!--", "-->", "<![CDATA[", "]]>", "<?xml ?>", "&amp;", "&#x1b;", "&#", "<a href='", "<", ">",
    "<table>", "</table>", "<tr>", "<td rowspan=3>", "<th colspan=99>", "<thead>", "<tbody>",
    '<meta charset="utf-16">', "<svg/>", "</head>", "<h1>", "</b>", "\n", " ",
)  # fmt: skip


def _html(rng: random.Random) -> bytes:
    words = [rng.choice(_TAGS) if rng.random() < 0.6 else "It rained. " for _ in range(20)]
    page = f"<html><body><p>The gate.</p>{''.join(words)}{some_text(rng, 30)}"
    return page.encode(rng.choice(["utf-8", "utf-16"]), "replace")


def _pdf(rng: random.Random) -> bytes:
    """Return one page, as small as possible; its numbers may be wrong."""
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
    return pdf_of(objects)


def _epub(rng: random.Random) -> bytes:
    chapters = [_html(rng) for _ in range(rng.randrange(1, 4))]
    sometimes = lambda data: altered(rng, data) if rng.random() < 0.2 else data  # noqa: E731
    return epub(chapters, sometimes, repeat=rng.choice([1, 1, 3]))


def _docx(rng: random.Random) -> bytes:
    lines = [(rng.choice(["Heading1", "Title", ""]), some_text(rng, 20)) for _ in range(3)]
    clean = [(style, "".join(c for c in text if c.isprintable())) for style, text in lines]
    return docx(clean, lambda data: altered(rng, data) if rng.random() < 0.3 else data)


_LINES = {
    "eml": (
        "From x@y Mon May  5 02:11:02 2025\n", "From: a <a@b>\n", "Subject: =?utf-8?q?=C3=A4?=\n",
        "Content-Type: multipart/alternative; boundary=b\n", "Content-Type: text/html\n",
        "--b\n",
        "Content-Transfer-Encoding: base64\n", "Content-Type: message/rfc822\n", "--b--\n", "\n",
        "Content-Type: text/plain; format=flowed; charset=utf-7\n", "SXQgcmFpbmVkLg==\n",
        "> It \n",
        "Content-Transfer-Encoding: quoted-printable\n", "It=20rained=\n", ">From it\n",
    ),
    "ipynb": (
        '{"cells": [', '{"cell_type": "code", ', '"source": ', '["It rained."]', '"x', "}", "]",
        ",", '"outputs": [', '{"data": {"text/html": "<b>"}}', '"text": ["a", "b"]',
        "\\\\", "\\u00", "1e9",
    ),
    "ttml": (
        '<tt xmlns="http://www.w3.org/ns/ttml">', "<head/>", "<body>", "</body>",
        "<div begin='1s'>", "<p begin='00:00:01.5' dur='2s'>", "It rained.", "<br/>", "</p>",
        "</div>", "</tt>", "&amp;", "<span begin='9f'>", "</span>",
        "<!DOCTYPE tt [<!ENTITY a 'b'>]>", "<p begin='1t'>It</p>",
    ),
    "srt": (
        "1\n", "00:00:01,000 --> 00:00:02,000\n", "It rained.\n", "\n", "<c>It</c>\n", "NOTE\n",
        "99:99:99.999 --> 0:00:00.0\n", "{\\an8}\n", "<v Liv>\n", "[br]\n",
    ),
}  # fmt: skip
"""Lines of mail, of notebooks and of captions."""


def _lines(kind: str) -> Callable[[random.Random], bytes]:
    def make(rng: random.Random) -> bytes:
        first, *_ = lines = _LINES[kind]
        text = first + "".join(rng.choices(lines, k=rng.randrange(30))) + some_text(rng, 20)
        return text.encode(rng.choice(["utf-8", "utf-16", "latin-1"]), "replace")

    return make


def documents(rng: random.Random, folder: Path) -> None:
    """Read documents, whole and damaged: their text, or a refusal."""
    makers = {"pdf": _pdf, "epub": _epub, "docx": _docx, "html": _html}
    kind, make = rng.choice([*makers.items(), *((kind, _lines(kind)) for kind in _LINES)])
    data = make(rng)
    path = folder / f"document.{kind}"
    path.write_bytes(altered(rng, data) if rng.random() < 0.6 else data)
    total = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sources = open_sources([str(path)])
        hint = sources.size_hint()
        assert hint is not None
        assert 0 <= hint <= 100 * LARGEST
        for block in sources:
            total += len(block.text)
            assert total <= LARGEST
            assert len(block.offsets()) == len(block.text) + 1


Target = Callable[[random.Random, Path], None]
DOCUMENTS: dict[str, Target] = {"documents": documents}
MISSING = next((m for kind in LIBRARIES if (m := missing_extra(kind, "a document"))), None)
"""Reason why nothing can be tested; None if it can."""
