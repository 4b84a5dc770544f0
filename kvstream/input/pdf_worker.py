"""The process that converts PDFs, so that a conversion that never ends can be stopped.

It is a separate program that does not import kvstream. Each line of its standard input is a request
in JSON, ``[path, state, page, most]``, with pages from 0. Each line of its output is a response:
``[pages, [text, ...]]`` with the number of pages and the text of the requested page and some after
it, or ``[null, message]``. A document stays open between the requests of one reading.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

MEMORY = 4 * 1024**3
"""Maximum bytes of address space."""
ENOUGH = 64 * 1024
"""Characters of text after which a response ends."""
PROCESSOR = 3600
"""Maximum seconds of processor time, because the parent process may have ended."""
CHANGED = "it changed while it was read"


def state_of(path: str | os.PathLike[str]) -> list[int]:
    """Return numbers that change if a file is replaced or modified. Raises OSError."""
    status = os.stat(path)
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]


def _limited() -> None:
    if sys.platform == "win32":
        return
    import resource

    for what, limit in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, PROCESSOR)):
        with contextlib.suppress(ValueError, OSError):  # the current limit is lower
            resource.setrlimit(what, (limit, limit))


def main() -> None:
    """Respond to requests until the input ends."""
    # Redirect the output of libraries, so that it does not mix with the responses.
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
                # Check that this is still the same file. Only size and time are compared, because
                # some network file systems change a file's inode number later.
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
        except Exception as error:  # any problem with the file
            answer = [None, str(error) or type(error).__name__]
        out.write(json.dumps(answer) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
