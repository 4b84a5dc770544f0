"""The process that PDFs are converted in, so that one that never ends can be ended.

A program of its own, which knows nothing of kvstream: each line of its standard input asks, as
JSON ``[path, page]`` with pages from 0; each line of its output answers, as ``[pages, text]``,
or ``[null, message]``.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

MEMORY = 4 * 1024**3
"""Bytes of address space."""
PROCESSOR = 3600
"""Seconds: whoever asked may be gone."""


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

    opened: tuple[str, Any] | None = None
    for line in sys.stdin:
        path, number = json.loads(line)
        try:
            if opened is None or opened[0] != path:
                if opened is not None:
                    opened[1].close()
                    opened = None
                opened = path, pypdfium2.PdfDocument(path)
            document = opened[1]
            pages, text = len(document), ""
            if number < pages:
                page = document[number]
                words = page.get_textpage()
                text = words.get_text_bounded()
                words.close()
                page.close()
            answer: list[Any] = [pages, text]
        except Exception as error:  # whatever is wrong with the file
            answer = [None, f"{type(error).__name__}: {error}"]
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
