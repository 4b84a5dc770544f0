"""Read the cells and the text outputs of a Jupyter notebook, cell by cell, without pictures."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from typing import Any

import ijson

from kvstream.errors import SourceError
from kvstream.input.blocks import Heading
from kvstream.input.controls import LONE
from kvstream.input.document_lines import Piece, Read
from kvstream.input.formats import PeekedStream, stream_of
from kvstream.input.limits import unreadable
from kvstream.input.markup import html_parts

BLOCK = 64 * 1024
LONGEST_STRING = 1 << 20
"""Maximum characters of a string of the file that are read."""
CUT = " ... (cut)"
"""The end of a string that was cut."""
LONGEST_CELL = 1 << 20
"""Characters of a cell that are held. The file may have the outputs before the code."""
DEEPEST, LONGEST_NAME = 12, 200
"""Levels of nesting, and characters of a name, that are told apart. No text is deeper."""
_TEXTS = ("text/plain", "text/markdown", "text/latex", "text/html")
"""Types of an output that are read: the first of these that it has."""
_READ = frozenset([*_TEXTS, "traceback", "ename", "evalue"])
_OLD_TYPES = {
    "text": "text/plain", "latex": "text/latex", "html": "text/html", "png": "image/png",
    "jpeg": "image/jpeg", "svg": "image/svg+xml",
}  # fmt: skip
"""Types of outputs as notebooks of format 3 name them."""
_FILE = re.compile(r"data:(image)?[\w.+-]*/[\w.+;=-]+;base64,[A-Za-z0-9+/=]*")
_NAME_ONLY = re.compile(r"\s*<[\w.]+(?: object| at 0x[0-9A-Fa-f]+)+>\s*")
"""What an output shows where only its other types can be shown."""
_FENCE = re.compile(r"^(```|~~~).*?(?:^\1|\Z)", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#{1,6})[ \t]+(\S.*)", re.MULTILINE)
_NO_NUMBER = re.compile(r"-?(?:NaN|Infinity)")
"""What Python writes beside JSON."""
_LONG_NUMBER = re.compile(r"\d{100,}")
"""Digits that no text has. More than Python converts to an integer crash ijson."""
_BEGUN = re.compile(r"[-A-Za-z]{1,9}\Z")
_PAIR = r"\\u[dD][89abAB]..\\u[dD][c-fC-F].."
_TOKEN = re.compile(rf'"|{_PAIR}|\\u.{{0,4}}|\\.?|[^"\\]+', re.DOTALL)
_HALF = re.compile(r"\\u[dD][89a-fA-F]..")
"""Half a character, which ijson refuses."""
LONGEST_ESCAPE = 12


class Notebook:
    """The cells of a notebook from a stream."""

    def __init__(self, read: Read, name: str, notes: list[str]) -> None:
        """`notes` gets what is left out."""
        self._name, self._notes = name, notes
        self._json = stream_of(_with_short_strings(read))
        self._pictures = self._files = self._others = self._cut = self._cells = self._size = 0
        self._heading = Heading("")
        self._kind, self._level = "", 1
        self._source: list[str] = []
        self._outputs: list[str] = []
        self._output: dict[str, list[str]] = {}

    def pieces(self) -> Iterator[list[Piece]]:
        """Yield each cell: its text or code, then its outputs. Raises SourceError."""
        try:
            for path, event, value in _events(self._json):
                path = path.removeprefix("worksheets.item.")
                if event == "start_map" and path == "cells.item":
                    self._source, self._outputs = [], []
                    self._kind, self._level = "", 1
                    self._cells += 1
                    self._size = 0
                elif event == "end_map" and path == "cells.item":
                    yield self._cell()
                elif event == "end_map" and path == "cells.item.outputs.item":
                    self._outputs.append(self._output_text())
                elif event in ("string", "number"):
                    self._take(path.removesuffix(".item"), str(value))
                    if self._size > LONGEST_CELL:
                        yield self._long_outputs()
        except ijson.JSONError as error:
            raise unreadable(self._name, "notebook", error) from error
        if not self._cells:
            raise SourceError(f"{self._name} has no cells: read it as text with --text.")
        counts = {
            "picture": self._pictures,
            "file in base64": self._files,
            "output that is no text": self._others,
            f"end of a text, after {LONGEST_STRING:,} characters": self._cut,
        }
        self._notes += (f"{self._name}: left out {n:,} × {w}." for w, n in counts.items() if n)

    def _take(self, path: str, value: str) -> None:
        cell, _, name = path.partition("cells.item.")
        if cell or not name:
            return
        if value.endswith(CUT) and "image/" not in name:
            self._cut += 1
        if name in ("source", "input"):
            self._hold(self._source, value)
        elif name == "cell_type":
            self._kind = value
        elif name == "level":
            self._level = int(value) if value.isdecimal() else 1
        elif name.startswith("attachments."):
            self._pictures += 1
        elif name.startswith("outputs.item."):
            name = name.removeprefix("outputs.item.").removeprefix("data.")
            name = _OLD_TYPES.get(name, name)
            if name in _READ:
                self._hold(self._output.setdefault(name, []), value)
            elif "/" in name and not name.startswith("metadata."):
                self._output[name.partition(".")[0]] = []

    def _hold(self, texts: list[str], value: str) -> None:
        """Add to the texts of the open cell, unless it is too long already."""
        if self._size <= LONGEST_CELL:
            self._size += len(value)
            texts.append(value)
        elif texts and not texts[-1].endswith(CUT):
            self._cut += 1
            texts.append(CUT)

    def _long_outputs(self) -> list[Piece]:
        """Return the outputs so far of a cell that is too long to be held until it ends."""
        plain = self._output.get(_TEXTS[0], [])
        text = "".join([*self._outputs, *plain])
        self._size -= len(text)
        self._outputs.clear()
        plain.clear()
        return [(text, self._place)] if text else []

    @property
    def _place(self) -> str:
        heading = f"{self._heading}, " if self._heading else ""
        return Heading(f"{heading}cell {self._cells}", self._heading.level)

    def _cell(self) -> list[Piece]:
        source = self._without_pictures("".join(self._source)).strip("\n")
        if self._kind == "heading":  # of format 3
            source = f"{'#' * self._level} {source}"
        output = "".join(self._outputs).strip("\n")
        text = f"{source}\n\nOutput:\n{output}\n\n" if output else f"{source}\n\n"
        pieces, at = [], 0
        if self._kind in ("markdown", "heading"):
            prose = _FENCE.sub(lambda match: " " * len(match[0]), source)
            for match in _HEADING.finditer(prose):
                pieces.append((text[at : match.start()], self._place))
                at, title = match.start(), match[2].strip("# ")[:200]
                self._heading = Heading(title, len(match[1]))
        pieces.append((text[at:], self._place))
        return [piece for piece in pieces if piece[0].strip()]

    def _output_text(self) -> str:
        """Return the text of an output, and count what it has besides."""
        output, self._output = self._output, {}
        self._pictures += sum(kind.startswith("image/") for kind in output)
        if "traceback" in output or "ename" in output:
            error = ": ".join("".join(output.get(key, ())) for key in ("ename", "evalue"))
            return "\n".join([*output.get("traceback", ()), ""]) or f"{error}\n"
        kinds = [kind for kind in _TEXTS if kind in output]
        only_name = bool(kinds) and _NAME_ONLY.fullmatch("".join(output[kinds[0]])) is not None
        kind = kinds[only_name and len(kinds) > 1] if kinds else ""
        text = "".join(output.get(kind, ()))
        if kind == "text/html":
            read = io.BytesIO(text.encode("utf-8", "replace")).read
            blocks = html_parts(read, charset="utf-8")
            text = "".join(part for block in blocks for part, _ in block or ())
        if not text.strip() or _NAME_ONLY.fullmatch(text):
            others = [key for key in output if "/" in key and not key.startswith("image/")]
            self._others += bool(others) and others != ["text/plain"]
        text = LONE.sub("\n", self._without_pictures(text).replace("\r\n", "\n")).strip("\n")
        return f"{text}\n" if text else ""

    def _without_pictures(self, text: str) -> str:
        kinds = [match[1] for match in _FILE.finditer(text)]
        self._pictures += kinds.count("image")
        self._files += len(kinds) - kinds.count("image")
        return _FILE.sub(lambda match: "picture" if match[1] else "file", text)


def _events(json: PeekedStream) -> Iterator[tuple[str, str, Any]]:
    """Yield the same as `ijson.parse`, whose paths fill the RAM if the nesting is deep."""
    path: list[str] = []
    for event, value in ijson.basic_parse(json):
        if event == "map_key":
            path[-1] = value[:LONGEST_NAME]
            continue
        if event in ("end_map", "end_array"):
            path.pop()
        yield ".".join(path[:DEEPEST]), event, value
        if event in ("start_map", "start_array"):
            path.append("item")


def _with_short_strings(read: Read) -> Iterator[bytes]:
    """Yield JSON from a stream, with long strings cut, so that none fills the RAM."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    rest, length = "", -1  # the beginning of a token, and characters of the open string; -1: none
    ended = False
    while not ended:
        ended = not (data := read(BLOCK) or b"")
        text, rest = rest + decoder.decode(data, ended), ""
        short = []
        for match in _TOKEN.finditer(text):
            token = match[0]
            escape = token[0] == "\\"
            if escape and not ended and len(text) - match.start() < LONGEST_ESCAPE:
                rest = text[match.start() :]
                break
            token = "\\ufffd" if escape and _HALF.fullmatch(token) else token
            if token == '"':
                short.append(f"{CUT}{token}" if length > LONGEST_STRING else token)
                length = 0 if length < 0 else -1
            elif length < 0:
                start = None if ended else _BEGUN.search(token)
                rest = start[0] if start else ""
                token = _NO_NUMBER.sub("null", token[: len(token) - len(rest)])
                short.append(_LONG_NUMBER.sub("1", token))
            else:
                room = max(LONGEST_STRING - length, 0)
                length += len(token)
                short.append(token if len(token) <= room else "" if escape else token[:room])
        yield "".join(short).encode("utf-8", "replace")
