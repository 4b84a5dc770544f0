"""The only definition of which books and documents are held out.

Training, tests and benchmarks all import :func:`is_heldout`, so that a text is used either for
training or for measuring, never for both. The split is by book and by document, never by record:
many questions share one context.
"""

from __future__ import annotations

import hashlib

HELDOUT_PERCENT = 10


def is_heldout(name: str) -> bool:
    """Return whether the book or document called ``name`` is held out from training.

    Args:
        name: a book's file name without directory and suffixes (``austen-emma``, from
            ``books/austen-emma.txt.gz``), or a record's ``doc_id``.

    The answer depends only on the name (SHA-256). So it is the same on every machine, and does not
    change when data is added.
    """
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") % 100 < HELDOUT_PERCENT
