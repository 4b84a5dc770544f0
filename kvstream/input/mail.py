"""Read mail (a message, or an mbox of many) line by line: what people wrote, decoded.

Only headers and one line at a time are held. An attachment is never decoded, however large.
"""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import HeaderParser
from typing import Any

from kvstream.errors import SourceError
from kvstream.input.document_lines import Losses, Piece, Read, texts_of
from kvstream.input.encodings import codec_of

BLOCK = 64 * 1024
LONGEST_LINE = 1 << 20
"""Maximum bytes of a line that are held until it ends."""
LONGEST_HEADERS = 1 << 18
"""Maximum bytes of the headers of a part that are read."""
LONGEST_FIELD = 1 << 13
"""Characters of a type, and of a line of another header that is decoded: Python's parsers of both
take time that grows with the square."""
DEEPEST = 50
"""Maximum multiparts in each other. What is deeper is counted as an attachment."""
STUB = 200
"""Letters, at most, of a plain text that may only say that the mail is a page. The page is read,
too, if it has more, and three times as many."""
SHOWN = ("From", "To", "Cc", "Date", "Subject")
_BEGIN = re.compile(rb"From .{,400}\b\w{3} \w{3} {1,2}\d{1,2} \d{1,2}:\d\d.{,40} \d{4}")
"""The line before a message in an mbox: sender and date."""
_NAMED = re.compile(rb"[!-9;-~]+:|>From ")
"""A header, which follows this line."""
_STUFFED = re.compile(rb">+From ")
_UUENCODED = ("x-uuencode", "uuencode", "x-uue", "uue")
_BEGUN = re.compile(rb"begin [0-7]{3,4} (\S.*)")
"""The first line of a file in uuencode, which old programs put into the text."""
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/=\s]")
_HEADER = re.compile(rb"[!-9;-~]+[ \t]*:|[ \t]")
_OF_PAGES = ("text/css", "text/javascript")
"""Text that belongs to a page and is not for people."""


@dataclass
class _Multipart:
    boundary: bytes
    alternative: bool
    given: int = 0
    """Letters of the text of its parts. If there are any, the other alternatives are left out."""


class Mail:
    """The messages of a file or stream."""

    def __init__(self, read: Read, name: str, losses: Losses, notes: list[str]) -> None:
        """`notes` gets one about the attachments, which are left out."""
        self._attachments = 0
        self._name, self._losses, self._notes = name, losses, notes
        self._lines = _message(_lines(read))
        self._line = next(self._lines, b"").removeprefix(codecs.BOM_UTF8)
        """The next line; empty at the end of the file."""
        self._after = next(self._lines, b"")
        """The line after it."""
        self._open: list[_Multipart] = []
        self._many = False
        self._blank = True
        """Whether the line before was empty, so that a message may begin."""

    def pieces(self) -> Iterator[list[Piece]]:
        """Yield the text of each message, below its sender, date and subject."""
        while not self._line.strip() and self._line:
            self._next()
        self._many = _BEGIN.match(self._line) is not None
        while self._line:
            began = b""
            if self._many and _BEGIN.match(self._line):
                began = self._line
                self._next()
            self._open.clear()
            yield from self._message(began.decode("utf-8", "replace"))
            for _ in self._body():
                pass  # what follows the last boundary
        if count := self._attachments:
            amount = "1 attachment was" if count == 1 else f"{count:,} attachments were"
            self._notes.append(f"{self._name}: {amount} left out.")

    def _message(self, began: str = "") -> Iterator[list[Piece]]:
        headers = self._headers()
        fields = {name: value for name in SHOWN if (value := _plain(str(headers.get(name, ""))))}
        if "Date" not in fields and (date := re.search(r"\b\w{3} \w{3} {1,2}\d.*", began)):
            fields["Date"] = date[0].strip()
        place = ", ".join(fields[name] for name in ("Subject", "From", "Date") if name in fields)
        head = "".join(f"{name}: {value}\n" for name, value in fields.items())
        yield [(f"{head}\n", place)] if head else []
        yield from self._entity(headers, place)
        yield [("\n", place)]

    def _entity(self, headers: Message, place: str) -> Iterator[list[Piece]]:
        kind, boundary = headers.get_content_type(), headers.get_boundary()
        whole = kind.partition("/")[0]
        inline = headers.get_content_disposition() != "attachment"
        encoding = re.split(r"[\s;(]", str(headers.get("Content-Transfer-Encoding", "")).lower())[0]
        if kind == "message/rfc822" and encoding != "base64":
            yield from self._message()
        elif whole == "multipart" and boundary:
            yield from self._multipart(kind, boundary.encode("utf-8", "replace"), place)
        elif whole in ("text", "multipart", "message") and inline and kind not in _OF_PAGES:
            known = max((part.given for part in self._open if part.alternative), default=0)
            text = self._text(headers, kind, place, encoding)
            if not known or kind == "text/calendar":  # the time and place of an invitation
                yield from text
            elif known <= STUB and kind == "text/html":
                yield from _longer(text, max(STUB, 3 * known))
        else:
            self._attachments += 1
            name = _plain(headers.get_filename() or kind)
            yield [(f"[Attachment: {name}]\n", place)]
        for _ in self._body():
            pass

    def _multipart(self, kind: str, boundary: bytes, place: str) -> Iterator[list[Piece]]:
        if len(self._open) >= DEEPEST:
            self._attachments += 1
            return
        own = _Multipart(b"--" + boundary, kind == "multipart/alternative")
        self._open.append(own)
        preamble, size = [], 0  # for programs that do not know multiparts
        for line in self._body():
            size += len(line)
            preamble += [line] * (size < LONGEST_LINE)
        if self._boundary() is not own and preamble:  # there are no parts
            text = b"".join(preamble).replace(b"\r\n", b"\n").decode("utf-8", "replace")
            yield [(text, place)]
        while self._boundary() is own and not self._line.startswith(own.boundary + b"--"):
            self._next()
            given = 0
            for pieces in self._entity(self._headers(), place):
                given += _letters(pieces)
                yield pieces
            own.given += given
        if self._boundary() is own:
            self._next()
        self._open.remove(own)

    def _text(
        self, headers: Message, kind: str, place: str, encoding: str
    ) -> Iterator[list[Piece]]:
        parts = filter(None, self._content(encoding))

        def read(_: int) -> bytes:
            return next(parts, b"")

        charset = headers.get_content_charset()
        charset = None if charset == "us-ascii" else charset  # many programs write it wrongly
        if kind == "text/html":
            try:
                from kvstream.input.markup import html_parts
            except ImportError:
                raise SourceError(
                    f"{self._name} has a body in HTML, which needs lxml: install "
                    "kvstream[documents], or read the file as it is with --text."
                ) from None
            fixed = "Content-Location" not in headers  # which a saved page has
            for pieces in html_parts(read, place, self._losses, charset, fixed=fixed):
                yield [(text, place) for text, _ in pieces or ()]
            return
        flowed = str(headers.get_param("format")).lower() == "flowed"
        texts: Iterator[str] = (text or "" for text in texts_of(read, self._losses, charset))
        if flowed:
            texts = _paragraphs(texts, joined=str(headers.get_param("delsp")).lower() == "yes")
        yield from ([(text, place)] for text in texts if text)

    def _content(self, encoding: str) -> Iterator[bytes]:
        rest, first, ended = b"", True, False
        for line in self._body():
            if (first or ended) and encoding == "base64" and _NOT_BASE64.search(line):
                # The header is wrong, or a mailing list added its own lines.
                encoding = ""
                yield b"" if first else b"\n"
            first = first and not line.strip()
            if encoding == "base64":
                letters = rest + re.sub(rb"[^A-Za-z0-9+/]", b"", line)
                whole = len(letters) // 4 * 4
                rest = letters[whole:]
                yield binascii.a2b_base64(letters[:whole])
                ended = not first and (b"=" in line or not line.strip())
                if ended and len(rest) > 1:
                    yield binascii.a2b_base64(rest + b"=" * (-len(rest) % 4))
                    rest = b""
            elif encoding == "quoted-printable":
                own = line.rstrip(b"\r\n")
                yield binascii.a2b_qp(own.rstrip(b" \t") + line[len(own) :])
            elif encoding in _UUENCODED:
                yield _of_uuencode(line)
            elif (match := _BEGUN.match(line)) and _is_uuencode(self._line):
                self._attachments += 1
                yield b"[Attachment: %s]\n" % match[1].strip()
                for each in self._body():
                    if each.strip() == b"end":
                        break
            else:
                yield line
        if len(rest) > 1:
            yield binascii.a2b_base64(rest + b"=" * (-len(rest) % 4))

    def _headers(self) -> Message:
        data = b""
        while self._line.strip() and _HEADER.match(self._line) and self._boundary() is None:
            if len(data) < LONGEST_HEADERS:
                data += self._line
            self._next()
        if not self._line.strip() and self._line:
            self._next()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode("cp1252", "replace")
        headers = HeaderParser().parsestr(text)
        for name in ("Content-Type", "Content-Disposition"):
            if len(value := headers.get(name, "")) > LONGEST_FIELD:
                headers.replace_header(name, value[:LONGEST_FIELD])
        return headers

    def _body(self) -> Iterator[bytes]:
        """Yield the lines up to the next boundary or message."""
        while self._line and not self._begins() and self._boundary() is None:
            line = self._line
            if self._many and _STUFFED.match(line):
                line = line[1:]
            self._next()
            yield line

    def _begins(self) -> bool:
        """Return whether the next line begins a message."""
        if not self._many or not _BEGIN.match(self._line):
            return False
        return _NAMED.match(self._after) is not None or (self._blank and not self._after.strip())

    def _boundary(self) -> _Multipart | None:
        """Return the open multipart with the boundary that is the next line."""
        if not self._line.startswith(b"--"):
            return None
        line = self._line.rstrip()
        for part in reversed(self._open):
            if line in (part.boundary, part.boundary + b"--"):
                return part
        return None

    def _next(self) -> None:
        self._blank = not self._line.strip()
        self._line, self._after = self._after, next(self._lines, b"")


def _letters(pieces: list[Piece]) -> int:
    return sum(len("".join(text.split())) for text, _ in pieces)


def _longer(blocks: Iterator[list[Piece]], least: int) -> Iterator[list[Piece]]:
    """Yield a text if it has more letters."""
    begin: list[list[Piece]] = []
    for pieces in blocks:
        begin.append(pieces)
        if sum(map(_letters, begin)) > least:
            yield from begin
            yield from blocks


def _lines(read: Read) -> Iterator[bytes]:
    """Yield lines with their ends; a very long one in pieces."""
    rest, returns = b"", None
    while data := read(BLOCK):
        if returns is None:
            returns = b"\n" not in data and b"\r" in data[:-1]
        data = data.replace(b"\r", b"\n") if returns else data
        *lines, rest = (rest + data).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > LONGEST_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


def _message(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of mail; of an EMLX of Apple Mail, those of the message: its first line has
    the number of their bytes."""
    first = next(lines, b"")
    if not re.fullmatch(rb"\d{1,12} *\n", first):
        yield first
        yield from lines
        return
    size = int(first)
    while size > 0 and (line := next(lines, b"")):
        yield line[:size]
        size -= len(line)


def _of_uuencode(line: bytes) -> bytes:
    """Return the bytes of a line; it may be longer than its first character says."""
    if re.match(rb"begin \d|end\s|\s*$", line):
        return b""
    length = (line[0] - 32) & 63
    with suppress(binascii.Error):
        return binascii.a2b_uu(line[: (length * 4 + 5) // 3])
    return line


def _is_uuencode(line: bytes) -> bool:
    """Return whether a line is as long as its first character says, with a checksum or without."""
    line = line.rstrip(b"\r\n")
    length = (line[0] - 32) & 63 if line else 0
    return length > 0 and len(line) - 1 - (length + 2) // 3 * 4 in (0, 1)


def _plain(value: str) -> str:
    """Return the value of a header as one line, decoded, without control characters."""
    with suppress(HeaderParseError, LookupError, ValueError):  # else it is shown as it stands
        if max(map(len, value.splitlines()), default=0) <= LONGEST_FIELD:
            value = str(make_header([_in_utf8(*each) for each in decode_header(value)]))
    value = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", value)
    return " ".join(value.encode("utf-8", "replace").decode().split())


def _in_utf8(data: Any, charset: str | None) -> tuple[Any, str | None]:
    if charset is None or isinstance(data, str):
        return data, charset
    return data.decode(codec_of(charset) or "utf-8", "replace").encode(), "utf-8"


def _paragraphs(texts: Iterator[str], *, joined: bool) -> Iterator[str]:
    """Join the lines of each paragraph (RFC 3676); ``joined``: the space at an end is no text."""
    rest, last = "", -1  # the depth of quotes of a line that goes on; -1: none does
    for text in texts:
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            body = line.lstrip(">")
            depth = len(line) - len(body)
            body = body.removeprefix(" ")
            goes_on = body.endswith(" ") and body != "-- "
            quotes = "" if depth == last and body != "-- " else ">" * depth + " " * bool(depth)
            between = "\n" if last >= 0 and (depth != last or body == "-- ") else ""
            last = depth if goes_on else -1
            yield between + quotes + (body[:-1] if goes_on and joined else body)
            yield "" if goes_on else "\n"
    yield rest
