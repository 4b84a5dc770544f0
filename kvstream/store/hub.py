"""The hub: whether it can be reached, and its library while a model is loaded offline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_PATIENCE = 10.0
"""Seconds to connect."""
_NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ProxyError")


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


def unreachable() -> str:
    """Why nothing connects to the hub, or nothing if it answers.

    huggingface_hub asks five times for each file, which takes 23 seconds, and says so on stderr. So
    this asks once before it. Whatever else goes wrong is left to the library.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as error:  # of the HTTP library of the installed huggingface_hub
        if type(error).__name__ in _NO_CONNECTION:
            return str(error) or "no answer"
    return ""
