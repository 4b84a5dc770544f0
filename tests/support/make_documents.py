"""The smallest possible documents for tests: PDF, EPUB and DOCX."""

from __future__ import annotations

import html
import io
import zipfile
import zlib
from collections.abc import Callable, Sequence


def pdf_of(objects: Sequence[bytes]) -> bytes:
    """Return a file of these objects, numbered from 1; the first is the catalog."""
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    return data + b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d /Root 1 0 R >>\n" % (
        len(objects) + 1, table, len(objects) + 1,
    ) + b"startxref\n%d\n%%%%EOF" % len(data)  # fmt: skip


def stream(content: bytes, keys: bytes = b"") -> bytes:
    """Return an object that holds content, compressed."""
    packed = zlib.compress(content)
    return b"<< %s /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (
        keys, len(packed), packed,
    )  # fmt: skip


def pdf(contents: Sequence[bytes], more: Sequence[bytes] = (), repeat: int = 1) -> bytes:
    """Return a page for each content stream, with the list of pages repeated ``repeat`` times.

    ``more`` are further objects; the first of them is ``/X0`` of every page.
    """
    count = len(contents)
    font = 3 + 2 * count
    pages = b" ".join(b"%d 0 R" % (3 + 2 * i) for i in range(count))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (b" ".join([pages] * repeat), count * repeat),
    ]
    for number, content in enumerate(contents):
        objects += [
            b"<< /Type /Page /Parent 2 0 R /Contents %d 0 R /MediaBox [0 0 600 800] /Resources "
            b"<< /Font << /F1 %d 0 R >> /XObject << %s >> >> >>"
            % (4 + 2 * number, font, b"/X0 %d 0 R" % (font + 1) if more else b""),
            stream(content),
        ]
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    return pdf_of([*objects, *more])


def drawn(lines: Sequence[str]) -> bytes:
    """Return the content stream of a page with these lines."""
    shown = [
        line.replace("\\", r"\\")
        .replace("(", r"\(")
        .replace(")", r"\)")
        .encode("latin-1", "replace")
        for line in lines
    ]
    return (
        b"BT /F1 10 Tf 14 TL 50 780 Td "
        + b" ".join(b"(%s) Tj T*" % line for line in shown)
        + b" ET"
    )


def nested_forms(levels: int, font: int) -> list[bytes]:
    """Return drawings that each draw the next one ten times: 10 ** (levels - 1) words in all."""
    found = []
    for level in range(levels):
        content = b"/X0 Do " * 10 if level + 1 < levels else b"BT /F1 9 Tf (a) Tj ET"
        keys = (
            b"/Type /XObject /Subtype /Form /BBox [0 0 600 800] /Resources "
            b"<< /Font << /F1 %d 0 R >> /XObject << /X0 %d 0 R >> >>" % (font, font + level + 2)
        )
        found.append(stream(content, keys))
    return found


def epub(
    chapters: Sequence[bytes], damaged: Callable[[bytes], bytes] = bytes, repeat: int = 1
) -> bytes:
    """Return a book with each chapter in the spine ``repeat`` times.

    Every member may be damaged.
    """
    items = b"".join(
        b'<item id="c%d" href="c%d.xhtml" media-type="application/xhtml+xml"/>' % (i, i)
        for i in range(len(chapters))
    )
    spine = b"".join(b'<itemref idref="c%d"/>' % i for i in range(len(chapters))) * repeat
    package = (
        b'<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">'
        b'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">1'
        b"</dc:identifier><dc:title>Rain</dc:title><dc:language>en</dc:language></metadata>"
        b"<manifest>%s</manifest><spine>%s</spine></package>" % (items, spine)
    )
    container = (
        b'<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
        b'<rootfiles><rootfile full-path="p.opf" media-type="application/oebps-package+xml"/>'
        b"</rootfiles></container>"
    )
    members = {"META-INF/container.xml": container, "p.opf": package}
    members |= {f"c{i}.xhtml": data for i, data in enumerate(chapters)}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)
        for name, data in members.items():
            archive.writestr(name, damaged(data))
    return out.getvalue()


def chapter(heading: str, paragraphs: Sequence[str]) -> bytes:
    """Return a page of a book."""
    text = "".join(f'<p class="c1"><span>{html.escape(p)}</span></p>\n' for p in paragraphs)
    head = f"<h2>{html.escape(heading)}</h2>" if heading else ""
    return f"<html><head><title>T</title></head><body>{head}{text}</body></html>".encode()


def docx(paragraphs: Sequence[tuple[str, str]], damaged: Callable[[bytes], bytes] = bytes) -> bytes:
    """Return a document of (style, text) paragraphs."""
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr>'
        f'<w:r><w:t xml:space="preserve">{html.escape(text)}</w:t></w:r></w:p>'
        for style, text in paragraphs
    )
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    document = f'<w:document xmlns:w="{space}"><w:body>{body}</w:body></w:document>'
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", damaged(document.encode()))
    return out.getvalue()
