"""The only definition of which books and documents are held out.

Training and benchmarks import :func:`is_heldout`, so that no text is used for both. The split is by
book and document, never by record: many questions share one context.
"""

from __future__ import annotations

import hashlib

HELDOUT_PERCENT = 10


def is_heldout(name: str) -> bool:
    """Return whether a book (file name without suffixes) or document (``doc_id``) is held out.

    The answer depends only on the name (SHA-256): it does not change when data is added.
    """
    digest = hashlib.sha256(name.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") % 100 < HELDOUT_PERCENT
