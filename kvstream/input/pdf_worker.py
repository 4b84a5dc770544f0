"""The process that PDFs are converted in, so that one that never ends can be ended.

A program of its own, which knows nothing of kvstream: each line of its standard input asks, as
JSON ``[path, state, page, most]`` with pages from 0; each line of its output answers, with the
number of pages and the text of that page and some behind it, as ``[pages, [text, ...]]``, or with
``[null, message]``.  A document stays open between the requests of one reading.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

MEMORY = 4 * 1024**3
"""Bytes of address space."""
ENOUGH = 64 * 1024
"""Characters of text in one answer."""
PROCESSOR = 3600
"""Seconds: whoever asked may be gone."""
CHANGED = "it changed while it was read"


def state_of(path: str | os.PathLike[str]) -> list[int]:
    """What differs where a file was replaced, by another one or in place. Raises OSError."""
    status = os.stat(path)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _limited() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    for what, limit in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, PROCESSOR)):
        with contextlib.suppress(ValueError, OSError):  # less is allowed already
            resource.setrlimit(what, (limit, limit))


def main() -> None:
    """Answer until the input ends."""
    # What a library prints must not come between the answers.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    _limited()
    import pypdfium2

    asked: tuple[str, list[int]] | None = None
    document: Any = None
    for line in sys.stdin:
        path, state, number, most = json.loads(line)
        try:
            if document is None or asked != (path, state):
                if document is not None:
                    document.close()
                document, asked = None, (path, state)
                document = pypdfium2.PdfDocument(path)
                # Is it another file than the pages before are from? Size and time decide: some
                # network file systems give a file another number later.
                if state_of(path)[2:] != state[2:]:
                    document.close()
                    document = None
                    raise ValueError(CHANGED)
            texts: list[str] = []
            while number + len(texts) < len(document) and len(texts) < most:
                page = document[number + len(texts)]
                words = page.get_textpage()
                texts.append(words.get_text_bounded())
                words.close()
                page.close()
                if sum(map(len, texts)) > ENOUGH:
                    break
            answer: list[Any] = [len(document), texts]
            if number + len(texts) >= len(document):
                document.close()
                document = None
        except Exception as error:  # whatever is wrong with the file
            answer = [None, str(error) or type(error).__name__]
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
