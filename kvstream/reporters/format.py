"""Formatting of numbers, times and text for people, and small charts made of characters.

Text has a width in cells of a terminal: a Chinese, Japanese or Korean character takes two.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from textwrap import fill
from typing import Any, Protocol
from unicodedata import category

BLOCKS = "▁▂▃▄▅▆▇█"

_MARKS = 4
"""Maximum number of combining marks on a character; more would cover the lines around it."""
_HIDDEN = "\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff"
"""Controls that JSON need not escape: they act on a terminal, or turn the text around them."""
_CONTROL = re.compile(rf"\r(?=\n)|[\x00-\x08\x0b-\x1f{_HIDDEN}]")
_IN_JSON = re.compile(rf"[{_HIDDEN}]")
_PILED = re.compile(rf"[^\w\s\x00-\x7f]{{{_MARKS + 1},}}")
"""Any run of signs that may have too many marks; letters and digits are none."""


class Sink(Protocol):
    """The methods of a stream to which answers go: stdout, or a file of the user."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


def about(name: str, message: str) -> str:
    """Return a message about a document with its name. Some messages begin with the name."""
    begins = message.startswith((f"{name}:", f"{name} "))
    return (message if begins else f"{name}: {message}").replace(name, in_line(name))


def in_line(name: str) -> str:
    """Return a name after `visible`, in one line: names of files may have ends of lines."""
    return visible(name).replace("\n", "␊").replace("\t", "␉")


def visible(text: str) -> str:
    """Replace control characters by visible signs. Every text passes here unless it is data.

    So are controls of bidirectional text, and the marks of a character after its first ones. A
    carriage return before a newline is left out.
    """
    return _CONTROL.sub(_sign, _PILED.sub(lambda run: _each_mark(run[0], lambda _: "�"), text))


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] == "\r" and match.string[match.end() : match.end() + 1] == "\n":
        return ""
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "�"


def _each_mark(run: str, replace: Callable[[str], str]) -> str:
    """Return a run of characters with the marks after the first ones of a character replaced."""
    chars, marks = [], 0
    for char in run:
        marks = marks + 1 if category(char)[0] == "M" else 0
        chars.append(replace(char) if marks > _MARKS else char)
    return "".join(chars)


def json_text(record: Any, *, ascii: bool = True) -> str:
    """Return a record as JSON, as all that is printed. NaN and infinity become null."""
    try:
        text = json.dumps(record, ensure_ascii=ascii, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), ensure_ascii=ascii, allow_nan=False)
    return escaped(text)


def escaped(text: str) -> str:
    """Escape in a text of JSON what `visible` replaces, so that nothing is lost."""
    text = _PILED.sub(lambda run: _each_mark(run[0], lambda char: json.dumps(char)[1:-1]), text)
    return _IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def json_line(record: Any, stream: Any) -> str:
    """Return a record as a line of JSON, without characters that the stream's encoding lacks."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    return json_text(record, ascii=encoding != "utf8") + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def hanging(head: str, text: str, width: int) -> str:
    """Wrap `text` between words, aligned behind `head`, into lines of at most `width` columns."""
    return fill(
        text, width, initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def in_lines(text: str) -> str:
    """Return `text` after `visible`, wrapped between words to the terminal's width."""
    width = shutil.get_terminal_size().columns
    return "\n".join(hanging("", line, width) for line in visible(text).split("\n"))


def shortened(text: str, most: int) -> str:
    """Return `text` as one line of at most `most` cells; dots mark a cut."""
    return cut(" ".join(text.split()), most)


def number(value: float) -> str:
    """Format a number with thousands separators: ``131072`` -> ``131,072``."""
    return f"{value:,.0f}"


def counted(count: int, noun: str, several: str = "") -> str:
    """Return a number with its noun, which gets an ``s`` or is `several` unless the number is 1."""
    return f"{number(count)} {noun if count == 1 else several or f'{noun}s'}"


def entries(count: int) -> str:
    """Return a number of entries: ``1 entry``, ``4,096 entries``."""
    return counted(count, "entry", "entries")


def size(count: float) -> str:
    """Format bytes in binary units, with one decimal below 100: ``6291456`` -> ``6.0 MiB``."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        del units[0]
    digits = 0 if units[0] == "B" or count >= 100 else 1
    return f"{count:.{digits}f} {units[0]}"


def duration(seconds: float) -> str:
    """Format a duration: ``4.2 s``, ``1:05``, ``2:03:04``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def share(part: float, whole: float) -> str:
    """Format a percentage that rounds no positive share to zero (``0.7%``, ``<0.1%``), and none
    below the whole to it (``99.9%``)."""
    if not whole:
        return "0%"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "<0.1%"
    if 99.5 <= percent < 100:
        return f"{min(percent, 99.9):.1f}%"
    return f"{percent:.1f}%" if percent < 9.95 else f"{percent:.0f}%"


def fit(values: Sequence[float], width: int) -> list[float]:
    """Resample values to exactly ``width`` places: average if there are more, else repeat."""
    count = len(values)
    if count <= width:
        return [values[i * count // width] for i in range(width)] if count else []
    edges = [round(i * count / width) for i in range(width + 1)]
    return [sum(values[low:high]) / (high - low) for low, high in pairwise(edges)]


def sparkline(values: Sequence[float], top: float) -> str:
    """Return one character per value >= 0, as high as its share of ``top`` > 0."""
    levels = len(BLOCKS) - 1
    return "".join(BLOCKS[min(levels, round(levels * value / top))] for value in values)


def strip(shares: Sequence[float], empty: str = " ") -> str:
    """Return one character per share: `empty` for zero, else a height relative to the maximum.

    The height follows the square root, so that a place with a tenth of the maximum is visible.
    """
    top = max(shares, default=0.0)
    levels = len(BLOCKS) - 1
    return "".join(
        empty if value <= 0 else BLOCKS[min(levels, round(levels * (value / top) ** 0.5))]
        for value in shares
    )


def cells(text: str) -> int:
    """Return the number of cells that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # slow to import

    return cell_len(text)


def beginning(text: str, width: int, least: int = 0) -> str:
    """Return the beginning of `text` in at most `width` cells, but at least `least` characters."""
    if text.isascii():
        return text[: max(width, least)]
    ends = accumulate(map(cells, text))
    fitting = next((i for i, end in enumerate(ends) if end > width), len(text))
    return text[: max(fitting, least)]


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` cells; dots mark that it goes on."""
    return text if cells(text) <= width else beginning(text, width - 3).rstrip() + "..."


def end_of(text: str, width: int) -> str:
    """Return the end of a path in at most `width` cells. It says more than the beginning."""
    if cells(text) <= width:
        return text
    return "..." + beginning(text[::-1], width - 3)[::-1]


def padded(text: str, width: int) -> str:
    """Return `text` with blanks behind it, in at least `width` cells."""
    return text + " " * (width - cells(text))
