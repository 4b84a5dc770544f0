"""The process that converts PDFs, so that a conversion that never ends can be stopped.

It is a separate program that does not import kvstream. Each line of its standard input is a request
in JSON, ``[path, state, page, most]``, with pages from 0. Each line of its output is a response:
``[pages, [[text, doubtful, damaged], ...]]`` with the number of pages, the text of the requested
page and of some after it, whether the order of its columns is doubtful, and whether it cannot be
read; or ``[null, message]``. A document stays open between the requests of one reading. For page
-1, the response has its bookmarks instead: ``[pages, [[title, level, page], ...]]``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import sys
import time
from collections import Counter
from itertools import chain, islice, pairwise, repeat
from statistics import median
from typing import Any

MEMORY = 4 * 1024**3
"""Maximum bytes of address space."""
ENOUGH = 64 * 1024
"""Characters of text after which a response ends."""
MOST_BOOKMARKS = 10_000
MOST_MARKS = 1000
"""Maximum fields and comments of a page."""
PROCESSOR = 3600
"""Maximum seconds of processor time of a request, because the parent process may have ended."""
CHANGED = "it changed while it was read"
LEAST_ROWS = 3
"""Minimum number of rows with text in several columns."""
GAP = 1.0
"""Minimum width of the gap between two columns, in heights of a row."""
FAR = 2.5
"""Rows with more space between them, in heights of a row, belong to different bands."""
MOST_BOXES = 20_000
"""On a page with more stretches of text, columns are not looked for."""
SAMPLED = 200
"""Characters of a page whose direction is looked at."""
FLOWS = 0.3
"""Minimum share of lines that the line below continues in columns of prose."""
BARELY = 0.15
"""Share of lines that go on, or of cells that end, from which the order is doubtful."""

LEAST_WORDS = 3
"""Minimum words of the middle line of a column of prose."""
FULL = 0.15
"""Share of the width of a column that a full line may leave free at its end."""
RAGGED = 0.4
"""The same, if the line below goes on in lower case."""
ENDS = (".", "!", "?", ":", ";")
APART = 1.5
"""Space between the rows of a table whose cells have several lines, in usual steps of a line."""
MOST_LINES = 4
"""Maximum lines, on average, of a cell of such a table."""
RISING = 0.8
"""Share of the lines of a page that are drawn from its bottom to its top, at least."""
MOST_RISING = 1000
"""Maximum lines of such a page, as the time grows with their square."""
FARTHEST = 1e5
LONGEST_WORD = 40
SMALLER, RAISED = 0.9, 0.15
"""Height of a raised digit, and how far above the line it begins, in heights of the word."""
_STUCK = re.compile(r"[^\s\d]\d|\d\d")
_INNER_END = re.compile(r"[.!?][\"')\]]* +[^\W\d_a-z]|[。！？]\S")
"""The end of a sentence within a line, as prose has it."""
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff]")
_WORD = re.compile(r"[a-zA-Z]{2,}|[^\W\da-zA-Z_]{2,3}")


def state_of(path: str | os.PathLike[str]) -> list[int]:
    """Return numbers that change if a file is replaced or modified. Raises OSError."""
    status = os.stat(path)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _set_limits() -> None:
    if sys.platform == "win32":
        return
    import resource

    until = int(time.process_time()) + PROCESSOR
    for what, limit in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, until)):
        with contextlib.suppress(ValueError, OSError):  # the current limit is lower
            resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))


Box = tuple[float, float, float, float]
"""Left, bottom, right and top of text on a page, in points."""
Range = tuple[float, float]


class _Row:
    """Stretches of text at the same height, numbered in the order in which they are drawn."""

    def __init__(self, number: int, box: Box) -> None:
        self.boxes = [box]
        self.numbers = [number]
        self.bottom, self.top = box[1], box[3]

    def takes(self, number: int, box: Box) -> bool:
        """Add a stretch if it is at the height of the row; return whether it is."""
        if not self.bottom < (box[1] + box[3]) / 2 < self.top:
            return False
        self.boxes.append(box)
        self.numbers.append(number)
        self.bottom, self.top = min(self.bottom, box[1]), max(self.top, box[3])
        return True

    @property
    def height(self) -> float:
        return self.top - self.bottom

    @property
    def at_once(self) -> bool:
        """Whether the row is drawn from its first to its last stretch, before other rows."""
        return max(self.numbers) - min(self.numbers) < len(self.numbers)

    def free(self) -> list[Range]:
        """Return the ranges from left to right without text."""
        ranges, reach = [], -math.inf
        for left, _, right, _ in sorted(self.boxes):
            if left > reach:
                ranges.append((reach, left))
            reach = max(reach, right)
        return [*ranges, (reach, math.inf)]

    def within(self, left: float, right: float) -> Box | None:
        """Return the box around the text of a column."""
        inside = [box for box in self.boxes if left < (box[0] + box[2]) / 2 < right]
        if not inside:
            return None
        lefts, bottoms, rights, tops = zip(*inside, strict=True)
        return min(lefts), min(bottoms), max(rights), max(tops)


class _Band:
    """Rows, one below the other, between which the same gaps are free."""

    def __init__(self, row: _Row) -> None:
        self.rows = [row]
        self.gaps = [gap for gap in row.free()[1:-1] if gap[1] - gap[0] >= GAP * row.height]

    def takes(self, row: _Row) -> bool:
        """Add the row below if it is near and leaves a gap free; return whether it does."""
        gaps = _common(self.gaps, row.free(), GAP * row.height)
        far = self.rows[-1].bottom - row.top > FAR * row.height
        if far or bool(gaps) != bool(self.gaps) or (not gaps and _Band(row).gaps):
            return False
        self.rows.append(row)
        self.gaps = gaps
        return True

    def by_row(self) -> bool:
        """Return whether most rows of several columns, not marks of a list, are drawn in turn."""
        if not self.gaps or len(self.rows) < LEAST_ROWS:
            return False
        columns = self.columns()
        wide = [row for row in self.rows if sum(row.within(*c) is not None for c in columns) > 1]
        first = [box for row in wide if (box := row.within(*columns[0])) is not None]
        marks = all(right - left < 2 * (top - bottom) for left, bottom, right, top in first)
        enough = len(wide) >= LEAST_ROWS and not (marks and len(columns) == 2)
        return enough and sum(row.at_once for row in wide) * 2 >= len(wide)

    def blocks(self) -> list[list[_Row]]:
        """Return the rows of each row of a table, if more space is between those; else all rows."""
        steps = [above.bottom - below.bottom for above, below in pairwise(self.rows)]
        apart = [step > APART * median(steps) for step in steps]
        if sum(apart) < 2 or len(self.rows) > MOST_LINES * (sum(apart) + 1):
            return [self.rows]
        blocks = [[self.rows[0]]]
        for row, new in zip(self.rows[1:], apart, strict=True):
            blocks[-1:] = [blocks[-1], [row]] if new else [[*blocks[-1], row]]
        return blocks

    def columns(self) -> list[Range]:
        """Return the columns from left to right; one if there are no gaps."""
        edges = [-math.inf, *((left + right) / 2 for left, right in self.gaps), math.inf]
        return list(pairwise(edges))


def _common(some: list[Range], others: list[Range], width: float) -> list[Range]:
    """Return the ranges of both lists that are at least so wide."""
    both = ((max(a[0], b[0]), min(a[1], b[1])) for a in some for b in others)
    return [each for each in both if each[1] - each[0] >= width]


class _TurnedText:
    """The text of a page on which it runs upward or downward, as if it were upright."""

    def __init__(self, words: Any, *, up: bool) -> None:
        self._words, self._up = words, up
        self.count_rects = words.count_rects

    def get_rect(self, number: int) -> Box:
        left, bottom, right, top = self._words.get_rect(number)
        return (bottom, -right, top, -left) if self._up else (-top, left, -bottom, right)

    def get_text_bounded(self, *box: float) -> str:
        """Return the text of a box, or all lines: PDFium writes neither line ends nor spaces."""
        if not box:
            lines = [sorted(row.boxes) for row in _rows(self)]
            return "\n".join(" ".join(_inside(self, box) for box in line) for line in lines)
        left, bottom, right, top = box
        own = (-top, left, -bottom, right) if self._up else (bottom, -right, top, -left)
        text: str = self._words.get_text_bounded(*own)
        return text


class _RisingText:
    """The text of a page whose lines are drawn from its bottom to its top, read from the top."""

    def __init__(self, words: Any, rows: list[_Row]) -> None:
        self._words, self._rows = words, rows
        self.count_rects, self.get_rect = words.count_rects, words.get_rect

    def get_text_bounded(self, *box: float) -> str:
        left, bottom, right, top = box or (-FARTHEST, -FARTHEST, FARTHEST, FARTHEST)
        lines = []
        for row in self._rows:
            if row.bottom < top and row.top > bottom and (inside := row.within(left, right)):
                lines.append(self._words.get_text_bounded(*inside))
        return "\n".join(lines)


def _falling(words: Any, rows: list[_Row]) -> Any:
    """Return the text of a page so that its lines are in the order from its top to its bottom."""
    rises = sum(max(below.numbers) < min(above.numbers) for above, below in pairwise(rows))
    if rises < RISING * len(rows) or len(rows) > MOST_RISING:
        return words
    text = _RisingText(words, rows)
    same = _letters(text.get_text_bounded()) == _letters(words.get_text_bounded())
    return text if same else words


def _upright(words: Any) -> Any:
    """Return the text of a page so that it runs from left to right."""
    from pypdfium2.raw import FPDFText_GetCharAngle

    count = words.count_chars()
    sample = range(0, count, count // SAMPLED + 1)
    angles = [math.degrees(FPDFText_GetCharAngle(words, at)) for at in sample]
    for up, angle in ((True, 270), (False, 90)):
        if 2 * sum(abs(each - angle) < 45 for each in angles) > len(angles):
            text = _TurnedText(words, up=up)
            few = words.count_rects() <= MOST_BOXES
            same = few and _letters(text.get_text_bounded()) == _letters(words.get_text_bounded())
            return text if same else words
    return words


def _letters(text: str) -> Counter[str]:
    return Counter("".join(text.split()))


def _rows(words: Any) -> list[_Row]:
    """Return the rows of a page from its top to its bottom."""
    rows: list[_Row] = []
    boxes = (words.get_rect(number) for number in range(words.count_rects()))
    for number, box in sorted(enumerate(boxes), key=lambda each: -each[1][3] - each[1][1]):
        if box[2] > box[0] and not (rows and rows[-1].takes(number, box)):
            rows.append(_Row(number, box))
    return rows


def _in_turn(rows: list[_Row]) -> bool:
    """Return whether most rows are drawn in turn on two sides of a gap, not at the same height."""
    pairs = 0
    for above, below in pairwise(rows):
        (left, _, right, _), (begin, _, end, _) = above.boxes[-1], below.boxes[0]
        near = above.bottom - below.top < above.height / 2
        follows = below.numbers[0] == above.numbers[-1] + 1
        pairs += near and follows and (right < begin or end < left)
    return 2 * pairs > len(rows)


def _page_text(words: Any) -> tuple[str, bool]:
    """Return the text of a page, and whether the order of its columns is doubtful.

    PDFium returns text in the order in which it is drawn. Where a page draws columns row by row,
    columns of prose are read one after the other, and a row of a table is a line.
    """
    words = _upright(words)
    text = words.get_text_bounded()
    if not 2 * LEAST_ROWS <= words.count_rects() <= MOST_BOXES:
        return text, False
    bands: list[_Band] = []
    rows = _rows(words)
    if (falling := _falling(words, rows)) is not words:
        words, text = falling, falling.get_text_bounded()
    for row in rows:
        if not (bands and bands[-1].takes(row)):
            bands.append(_Band(row))
    read = [_as_columns(words, band) if band.by_row() else None for band in bands]
    doubtful = any(each is not None and each[1] for each in read)
    if not any(read):
        return text, _in_turn(rows)
    areas: list[tuple[list[_Row], list[Range], str]] = []
    for band, each in zip(bands, read, strict=True):
        if each is None:
            areas.append((band.rows, [(-math.inf, math.inf)], ""))
        elif each[0]:
            areas += [(block, band.columns(), "\n") for block in band.blocks()]
        else:
            areas += [([row], band.columns(), " |") for row in band.rows]
    ends = [(a[-1].bottom + b[0].top) / 2 for (a, *_), (b, *_) in pairwise(areas)]
    from_right = len(_RIGHT_TO_LEFT.findall(text)) > len(text) / 4
    parts = []
    for (_, columns, between), (top, bottom) in zip(
        areas, pairwise([math.inf, *ends, -math.inf]), strict=True
    ):
        order = columns[::-1] if from_right else columns
        cells = [_inside(words, (left, bottom, right, top)) for left, right in order]
        parts.append((cells, between))
    whole = "".join(cell for cells, _ in parts for cell in cells)
    if _letters(whole) != _letters(text):
        return text, True
    return "\n".join(_text_of(cells, between) for cells, between in parts), doubtful


def _text_of(cells: list[str], between: str) -> str:
    """Return the text of columns, or of the cells of a row with separators `between` them."""
    if between == " |":
        cells = [" ".join(cell.split()) for cell in cells]
        if sum(map(bool, cells)) < 2:
            return "".join(cells)
        return between.join(f" {cell}" if cell else "" for cell in cells).strip(" ")
    text = "\n".join(cells)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def _as_columns(words: Any, band: _Band) -> tuple[bool, bool]:
    """Return whether a band has columns of prose, not of a table, and if that is doubtful."""
    pairs = flows = stops = inner = 0
    for column in band.columns():
        boxes = [box for row in band.rows if (box := row.within(*column)) is not None]
        lines = [" ".join(_inside(words, box).split()) for box in boxes]
        if median(len(_WORD.findall(line)) for line in lines) < LEAST_WORDS:
            return False, False
        inner += sum(_INNER_END.search(line) is not None for line in lines)
        width = max(box[2] - box[0] for box in boxes)
        for (above, box), (below, _) in pairwise(zip(lines, boxes, strict=True)):
            free = 1 - (box[2] - box[0]) / width
            goes_on = above[-1:] not in ENDS
            pairs += 1
            flows += goes_on and free <= (RAGGED if below[:1].islower() else FULL)
            stops += goes_on and free > RAGGED
    if not inner or flows < FLOWS * pairs or stops > FLOWS * pairs:
        return False, flows > stops and flows >= BARELY * pairs
    return stops <= BARELY * pairs, stops > BARELY * pairs


def _inside(words: Any, box: Box) -> str:
    """Return the text of a box; the edges may be infinite."""
    text: str = words.get_text_bounded(*(max(-FARTHEST, min(FARTHEST, edge)) for edge in box))
    return text


def _with_marks(words: Any, text: str) -> str:
    """Return the text of a page with ``^`` before digits that are set smaller and raised at the end
    of a word, as in the text of HTML."""
    if not _STUCK.search(text):
        return text
    from pypdfium2 import raw

    signs = "".join(chr(raw.FPDFText_GetUnicode(words, at)) for at in range(words.count_chars()))
    raised: dict[tuple[str, str], set[int]] = {}
    at = 1
    while at < len(signs):
        begin = at
        while at < len(signs) and signs[at].isdecimal() and _raised(words, begin - 1, at):
            at += 1
        if at == begin:
            at += 1
        elif not signs[begin - 1].isspace():
            before = signs[max(0, begin - LONGEST_WORD) : begin].split()[-1]
            raised.setdefault((before, signs[begin:at]), set()).add(begin)
    for (before, digits), places in raised.items():
        stuck = re.compile(rf"(?<={re.escape(before)})(?={digits}(?!\d))")
        marks = ["^" * (match.start() in places) for match in stuck.finditer(signs)]
        *parts, end = stuck.split(text)
        pairs = zip(parts, chain(marks, repeat("")), strict=False)
        text = "".join(map("".join, pairs)) + end
    return text


def _raised(words: Any, before: int, at: int) -> bool:
    """Return whether a character is smaller than one before it, and above its line."""
    from pypdfium2.raw import FPDFText_GetCharOrigin

    heights, lines = [], []
    for each in (before, at):
        _, bottom, _, top = words.get_charbox(each, loose=True)
        x, y = ctypes.c_double(), ctypes.c_double()
        FPDFText_GetCharOrigin(words, each, x, y)
        heights.append(top - bottom)
        lines.append(y.value)
    return heights[1] < SMALLER * heights[0] and lines[1] - lines[0] > RAISED * heights[0]


def _annotations(document: Any, page: Any, text: str) -> list[str]:
    """Return what was written on a page: values of form fields, text boxes and comments. Some
    programs repeat the marked `text` of the page as a comment.
    """
    from pypdfium2 import raw

    texts: list[str] = []
    known = " ".join(text.split())
    for index in range(min(raw.FPDFPage_GetAnnotCount(page), MOST_MARKS)):
        mark = raw.FPDFPage_GetAnnot(page, index)
        kind = raw.FPDFAnnot_GetSubtype(mark)
        drawn = raw.FPDF_ANNOT_LINE <= kind <= raw.FPDF_ANNOT_INK
        if drawn or kind in (raw.FPDF_ANNOT_TEXT, raw.FPDF_ANNOT_FREETEXT):
            own = _string(raw.FPDFAnnot_GetStringValue, mark, b"Contents")
            own = "" if drawn and own in known else own
            texts.append(own if kind == raw.FPDF_ANNOT_FREETEXT or not own else f"[Comment: {own}]")
        elif kind == raw.FPDF_ANNOT_WIDGET and document.formenv is not None:
            field = document.formenv, mark
            value = _string(raw.FPDFAnnot_GetFormFieldValue, *field)
            name = _string(raw.FPDFAnnot_GetFormFieldAlternateName, *field)
            name = name or _string(raw.FPDFAnnot_GetFormFieldName, *field).rpartition(".")[2]
            texts.append(f"{name}: {value}" if value not in ("", "Off") else "")
        raw.FPDFPage_CloseAnnot(mark)
    return [*filter(None, texts)]


def _string(read: Any, *of: Any) -> str:
    """Return a string of PDFium as one line."""
    from pypdfium2.raw import FPDF_WCHAR

    size = read(*of, None, 0)
    if not 2 < size <= ENOUGH:
        return ""
    buffer = ctypes.create_string_buffer(size)
    read(*of, ctypes.cast(buffer, ctypes.POINTER(FPDF_WCHAR)), size)
    return " ".join(buffer.raw[: size - 2].decode("utf-16-le", "replace").split())


def _bookmarks(document: Any) -> list[tuple[str, int, int]]:
    """Return title, level (from 0) and page (from 1) of the bookmarks that name a page."""
    bookmarks: list[tuple[str, int, int]] = []
    for mark in islice(document.get_toc(), MOST_BOOKMARKS):
        dest = mark.get_dest()
        page = None if dest is None else dest.get_index()
        with contextlib.suppress(UnicodeDecodeError):  # a damaged title
            if page is not None and (title := mark.get_title()).strip():
                bookmarks.append((title, mark.level, page + 1))
    return bookmarks


def main() -> None:
    """Respond to requests until the input ends."""
    # Redirect the output of libraries, so that it does not mix with the responses.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    import pypdfium2

    current: tuple[str, list[int]] | None = None
    document: Any = None
    for line in sys.stdin:
        _set_limits()
        path, state, number, most = json.loads(line)
        try:
            if current != (path, state):
                if document is not None:
                    document.close()
                current = document = None
                document = pypdfium2.PdfDocument(path)
                if document.get_formtype():
                    document.init_forms()
                # Check that this is still the same file. Only size and time are compared, because
                # some network file systems change a file's inode number later.
                if state_of(path)[2:] != state[2:]:
                    raise ValueError(CHANGED)
                current = path, state
            texts: list[tuple[str, bool, bool]] = []
            while 0 <= number < len(document) - len(texts) and len(texts) < most:
                try:
                    page = document[number + len(texts)]
                    page.set_rotation(0)  # by which PDFium may reverse the order of lines
                    words = page.get_textpage()
                except pypdfium2.PdfiumError:
                    texts.append(("", False, True))
                    continue
                text, doubtful = _page_text(words)
                text = _with_marks(words, text)
                parts = [*filter(None, [text]), *_annotations(document, page, text)]
                texts.append(("\n".join(parts), doubtful, False))
                words.close()
                page.close()
                if sum(len(text) for text, *_ in texts) > ENOUGH:
                    break
            answer: list[Any] = [len(document), texts if number >= 0 else _bookmarks(document)]
            if number + len(texts) >= len(document):
                document.close()
                current = document = None
        except Exception as error:  # any problem with the file
            answer = [None, str(error) or type(error).__name__]
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
