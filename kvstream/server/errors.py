"""Errors in the shape of OpenAI's, so that clients understand them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvstream.errors import BudgetError, KvstreamError, UsageError, is_out_of_memory
from kvstream.server.wording import for_clients


class ApiError(Exception):
    """The error that a client gets: status, message, and the wrong parameter, if any."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.code, self.param, self.retry_after = code, param, retry_after

    def to_json(self) -> dict[str, Any]:
        """The body of the reply."""
        return {
            "error": {
                "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
            }
        }  # fmt: skip

    @property
    def headers(self) -> dict[str, str]:
        """When to ask again; OpenAI's clients retry by themselves unless a header forbids it."""
        found = {}
        if self.retry_after is not None:
            found["Retry-After"] = str(self.retry_after)
        if self.code == "timeout":
            found["X-Should-Retry"] = "false"
        if self.status == 401:
            found["WWW-Authenticate"] = "Bearer"
        return found


def shut_down(saved: bool) -> ApiError:
    """For a request that the server could not finish before it ends."""
    more = " Its reading is saved: send the same request again later." if saved else ""
    return ApiError(
        503, f"The server is shutting down.{more}", kind="server_error", code="shutting_down"
    )


def broken(error: BaseException) -> ApiError:
    """For a request that failed in the server itself."""
    return ApiError(
        500,
        f"The server failed ({type(error).__name__}); its log says more.",
        kind="server_error",
        code="internal_error",
    )


def timed_out(seconds: float, saved: bool) -> ApiError:
    """For a request that took too long."""
    more = " Its reading is saved: the same request resumes there." if saved else ""
    return ApiError(
        504,
        f"The request took more than the {seconds:g} s that --timeout allows.{more}",
        kind="server_error",
        code="timeout",
    )


def unusable(message: str) -> ApiError:
    """For a memory file that is there and cannot be asked."""
    return ApiError(400, message, code="memory_unusable", param="model")


def told(error: BaseException, *folders: Path | None) -> ApiError:
    """The error for a client, in words for it, without paths of these folders of the server."""
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
        return ApiError(
            503, "The server is out of memory.", kind="server_error", code="out_of_memory"
        )
    return broken(error)
