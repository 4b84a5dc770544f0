"""The Hugging Face hub: check that it is reachable, and block its requests for offline loading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE = 10.0
"""Seconds to connect."""
_NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ProxyError")


@contextmanager
def offline(active: bool) -> Iterator[None]:
    """Block all requests of huggingface_hub in this process if `active`.

    The library reads HF_HUB_OFFLINE only at import, which may have happened already. And
    ``local_files_only`` does not prevent every request of transformers.
    """
    if not active:
        yield
        return
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def unreachable() -> str:
    """Return why the hub cannot be reached; an empty string if it answers.

    huggingface_hub tries five times for each file, which takes 23 seconds, and reports it on
    stderr. So this function tries once before. It leaves all other errors to the library.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as error:  # of the HTTP library of the installed huggingface_hub
        if type(error).__name__ in _NO_CONNECTION:
            return str(error) or "no answer"
    return ""
