"""The hub's library while a model is loaded offline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def offline(wanted: bool) -> Iterator[None]:
    """While this is open and `wanted`, huggingface_hub makes no request in this process.

    The library reads HF_HUB_OFFLINE when it is imported, which may have happened, and transformers
    asks it for more than ``local_files_only`` forbids.
    """
    if not wanted:
        yield
        return
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
