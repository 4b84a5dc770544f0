"""Errors in OpenAI's format, worded for clients.

The messages of kvstream address the user of a command: they suggest its options and name its
files. A client of a server cannot use either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstream.errors import BudgetError, KvstreamError, UsageError, is_out_of_memory

REWORDED = (
    (
        r"Use --budget ([\d,]+) or more, or (a shorter question|fewer questions)",
        r"Use \2, or set the server's budget to \1 or more",
    ),
    (
        r"Read the text again with a larger --budget",
        r"{whose} budget is too small to keep all of it",
    ),
    (r", or read with a larger --budget", ""),
    (
        r"use a larger --budget, or a method that evicts",
        "the server needs a larger budget, or a method that evicts",
    ),
    (r"raise the budget", "raise the server's budget"),
    (r"; use --budget (\d+)\.", r"; the server needs a budget of \1."),
    (r"--repetition-penalty (?=[\d.]+ makes)", "repetition_penalty "),
    (r", or --skim self", ""),
    (r"--kv-dtype (\w+) keeps it", r"a server with --kv-dtype \1 keeps it"),
    (r"use --kv-dtype", "the server needs --kv-dtype"),
)
KINDS = {401: "authentication_error", 429: "rate_limit_error"}


def for_clients(text: str, *folders: Path | None, of_memory: bool = False) -> str:
    """Return a message without options and paths; `of_memory`: of a file, with its own budget."""
    whose = "The memory's" if of_memory else "The server's"
    for pattern, words in REWORDED:
        text = re.sub(pattern, words.replace("{whose}", whose), text)
    paths = {each for folder in folders if folder for each in (folder, folder.resolve())}
    for folder in sorted(map(str, filter(Path.is_absolute, paths)), key=len, reverse=True):
        # Do not match in the middle of a longer path.
        text = re.sub(rf"(?<![\w/.-]){re.escape(folder)}/", "", text)
    return text


@dataclass(eq=False)
class ApiError(Exception):
    """An error for a client: status, message, and the wrong parameter, if any."""

    status: int
    message: str
    code: str = field(kw_only=True)
    param: str | None = None
    retry_after: int | None = None

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        of_client = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = KINDS.get(self.status, of_client)
        about = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": about}

    @property
    def headers(self) -> dict[str, str]:
        """Headers on retries (OpenAI's clients retry by themselves) and authentication."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.code == "timeout":
            headers["X-Should-Retry"] = "false"
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers


def shut_down(saved: bool) -> ApiError:
    """Return the error for a request that the server could not finish before it ends."""
    more = " Its reading is saved: send the same request again later." if saved else ""
    return ApiError(503, f"The server is shutting down.{more}", code="shutting_down")


def broken(error: BaseException) -> ApiError:
    """Return the error for a request that failed in the server itself."""
    why = f"The server failed ({type(error).__name__}); its log says more."
    return ApiError(500, why, code="internal_error")


def timed_out(seconds: float, saved: bool) -> ApiError:
    """Return the error for a request that took too long."""
    more = " Its reading is saved: the same request resumes there." if saved else ""
    why = f"The request took more than the {seconds:g} s that --timeout allows.{more}"
    return ApiError(504, why, code="timeout")


def unusable(message: str) -> ApiError:
    """Return the error for a memory file that exists and cannot be asked."""
    return ApiError(400, message, code="memory_unusable", param="model")


def error_for_client(error: BaseException, *folders: Path | None) -> ApiError:
    """Return the error for a client, reworded and without paths of these server folders."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, KvstreamError):
        message = for_clients(str(error), *folders)
        if isinstance(error, BudgetError):
            return ApiError(400, message, code="context_length_exceeded", param="messages")
        if isinstance(error, UsageError):
            return ApiError(400, message, code="invalid_request")
        return ApiError(400, message, code="request_failed")
    if is_out_of_memory(error):
        return ApiError(503, "The server is out of memory.", code="out_of_memory")
    return broken(error)
