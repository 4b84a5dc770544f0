"""Extract the text of a PDF page by page, without running headers, footers and page numbers."""

from __future__ import annotations

import atexit
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstream.errors import SourceError
from kvstream.input import pdf_worker
from kvstream.input.blocks import Part
from kvstream.input.limits import Patience, unreadable

SAMPLES = 24
"""Number of pages from which the size of the whole text is estimated."""
BATCH = 50
NAMED = 10
"""Damaged pages that a warning names."""
NEAR = 4
"""Number of pages before and after that are searched for the same line."""
REPEATED = 2
"""A line at the edge of a page that at least this many nearby pages repeat is a header or footer.
"""
EDGE = 2
"""Number of lines at the top and at the bottom that may be headers or footers."""


class _Worker:
    """The process that converts all PDFs. If it had to be ended, a new one is started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, pdf: Pdf, number: int, most: int = 1) -> tuple[int, list[Any]]:
        """Return the response to a request, as `pdf_worker` describes it. Raises SourceError."""
        path, patience = pdf.path, pdf.patience
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            late = threading.Timer(max(patience.rest, 0.1), process.kill)
            late.daemon = True
            late.start()
            began = time.perf_counter()
            try:
                request = json.dumps([str(path.absolute()), pdf.state, number, most])
                process.stdin.write(request.encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            except BaseException:  # after an interrupt, the next request would get this response
                self._end()
                raise
            finally:
                late.cancel()
                patience.seconds += time.perf_counter() - began
            if not line:
                self._end()
                if not patience.rest:
                    raise patience.error()
                raise SourceError(
                    f"{path} cannot be read as PDF: converting page {number + 1:,} takes too much "
                    "memory or crashes the PDF library. Convert it to text first."
                )
        if not patience.rest:
            raise patience.error()
        count, content = json.loads(line)
        if count is None:
            if content == pdf_worker.CHANGED:
                raise SourceError(f"{path} changed while it was read; read it again.")
            if "password" in content.lower():
                raise SourceError(f"{path} is encrypted: remove its password first.")
            raise unreadable(path, "PDF", content)
        return count, [(_plain(text), *rest) for text, *rest in content]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                # -P: modules in the script's folder must not hide those of other libraries.
                [sys.executable, "-P", pdf_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C must not reach the worker
            )
            atexit.register(self._process.kill)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            atexit.unregister(self._process.kill)
            self._process.kill()
            with contextlib.suppress(BrokenPipeError), self._process:
                pass  # close its streams
            self._process = None


_worker = _Worker()


class Pdf:
    """A PDF in its current state. Its methods raise SourceError if it cannot be read."""

    def __init__(self, path: Path, notes: list[str], warnings: list[str]) -> None:
        """`notes` gets what was left out, `warnings` what is damaged. Raises OSError."""
        self.path, self.notes, self.warnings = path, notes, warnings
        self.state = pdf_worker.state_of(path)
        """State of the file. The worker refuses a file that replaced it."""
        self.patience = Patience(str(path), self.state[2])

    def check(self) -> int:
        """Return the number of pages."""
        return _worker.ask(self, 0)[0]

    def bookmarks(self) -> list[tuple[str, int, int]]:
        """Return title, level (from 0) and page (from 1) of the bookmarks."""
        return _worker.ask(self, -1)[1]

    def estimate(self) -> int:
        """Estimate the bytes of text from some pages."""
        count, texts = _worker.ask(self, 0)
        spread = [round((i + 0.5) * count / SAMPLES) for i in range(SAMPLES)]
        numbers = range(1, count) if count <= SAMPLES else spread
        texts = [*texts, *(_worker.ask(self, n)[1][0] for n in numbers)]
        return round(sum(len(text.encode()) for text, *_ in texts) * count / max(len(texts), 1))

    def parts(self) -> Iterator[Part]:
        """Yield every page."""
        near: deque[_Page] = deque()
        """The pages around the one that is yielded next."""
        left_out: Counter[str] = Counter()
        ahead: deque[tuple[str, bool, bool]] = deque()
        missing: list[int] = []
        count, read = 1, 0
        number = empty = doubts = 0
        while number < count:
            while read < count and read <= number + NEAR:
                if not ahead:
                    count, texts = _worker.ask(self, read, BATCH)
                    ahead.extend(texts)
                if ahead:
                    page, doubtful, lost = ahead.popleft()
                    missing += [read + 1] * lost
                    near.append(_Page(page))
                    doubts += doubtful
                    read += 1
            if not near:
                return
            at = min(number, NEAR)
            others = [(i - at, page.edges) for i, page in enumerate(near) if i != at]
            within = set().union(*(page.within for page in near))
            text = near[at].without(others, within, left_out)
            empty += not text.strip() and number + 1 not in missing
            yield Part(text + "\n", number + 1, (number + 1) / count)
            if number >= NEAR:
                near.popleft()
            number += 1
        if len(missing) == count:
            raise unreadable(self.path, "PDF", "no page can be loaded")
        if missing:
            which = ", ".join(map(str, missing[:NAMED])) + ", ..." * (len(missing) > NAMED)
            pages = f"page {which} is" if len(missing) == 1 else f"pages {which} are"
            self.warnings.append(f"{self.path}: {pages} damaged, and missing.")
        notes = []
        if left_out:
            lines = f"{left_out.total():,} running headers, footers and page numbers"
            notes.append(f"{lines} were left out.")
        if doubts:
            notes.append(f"the order of the columns is doubtful on {doubts:,} of {count:,} pages.")
        if 0 < empty < count:
            scans = "if these are scans, run OCR first"
            notes.append(f"{empty:,} of {count:,} pages without text; {scans}.")
        self.notes += (f"{self.path}: {note}" for note in notes)


class _Page:
    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self._places = [i for i, line in enumerate(self.lines) if line.strip()]
        ends = {*self._places[:EDGE], *self._places[-EDGE:]}
        self.edges: dict[str, list[list[int]]] = {}
        """Numbers of the lines at top and bottom, by their shapes without numbers."""
        for i in ends:
            self.edges.setdefault(_shape(self.lines[i]), []).append(_numbers(self.lines[i]))
        self.within = {_shape(self.lines[i]) for i in self._places[EDGE:-EDGE]}
        """Shapes of the lines between them."""

    def without(
        self,
        others: list[tuple[int, dict[str, list[list[int]]]]],
        within: set[str],
        left_out: Counter[str],
    ) -> str:
        """Return the text without lines at its edges that at least REPEATED other pages, so many
        pages away, have there. A line of which the shape is `within` a page is text."""
        extras: set[int] = set()
        for side in (self._places[:EDGE], self._places[: -EDGE - 1 : -1]):
            for index in side:
                shape = _shape(self.lines[index])
                if shape in within or _pages_with(self.lines[index], shape, others) < REPEATED:
                    break
                extras.add(index)
        if len(extras) == len(self._places):  # the page has no other lines
            return "\n".join(self.lines)
        left_out.update(_shape(self.lines[index]) for index in extras)
        return "\n".join(line for i, line in enumerate(self.lines) if i not in extras)


_NUMBER = re.compile(r"\d+|\b[ivxlc]+\b")


def _shape(line: str) -> str:
    return _NUMBER.sub("#", " ".join(line.casefold().split()))


def _numbers(line: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,18}", line)]


def _pages_with(line: str, shape: str, others: list[tuple[int, dict[str, list[list[int]]]]]) -> int:
    """Return how many pages have a line. Its numbers are the same, or grow with the pages."""
    own = _numbers(line)
    return sum(
        any(
            all(b in (a, a + away) for a, b in zip(own, numbers, strict=False))
            for numbers in edges.get(shape, ())
        )
        for away, edges in others
    )


def _plain(text: str) -> str:
    """Normalize line ends in PDFium's text, and join words that were cut at the end of a line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    text = re.sub("(.?)[\ufffe\x02]\n?(.?)", _whole, text)
    return text.encode("utf-8", "replace").decode()


def _whole(match: re.Match[str]) -> str:
    """Return the two sides of a hyphen at the end of a line; with it, unless it divides a word."""
    before, after = match.groups()
    divides = before.isalpha() and after.isalpha() and not (before.islower() and after.isupper())
    return before + after if divides else f"{before}-{after}"
