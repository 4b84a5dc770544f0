"""Errors in OpenAI's format, which clients understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvstream.errors import BudgetError, KvstreamError, UsageError, is_out_of_memory
from kvstream.server.wording import for_clients


class ApiError(Exception):
    """An error for a client: status, message, and the wrong parameter, if any."""

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
        """Return the body of the reply."""
        return {
            "error": {
                "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
            }
        }  # fmt: skip

    @property
    def headers(self) -> dict[str, str]:
        """Headers on retries and authentication.

        OpenAI's clients retry on their own unless a header forbids it.
        """
        found = {}
        if self.retry_after is not None:
            found["Retry-After"] = str(self.retry_after)
        if self.code == "timeout":
            found["X-Should-Retry"] = "false"
        if self.status == 401:
            found["WWW-Authenticate"] = "Bearer"
        return found


def shut_down(saved: bool) -> ApiError:
    """Return the error for a request that the server could not finish before it ends."""
    more = " Its reading is saved: send the same request again later." if saved else ""
    return ApiError(
        503, f"The server is shutting down.{more}", kind="server_error", code="shutting_down"
    )


def broken(error: BaseException) -> ApiError:
    """Return the error for a request that failed in the server itself."""
    return ApiError(
        500,
        f"The server failed ({type(error).__name__}); its log says more.",
        kind="server_error",
        code="internal_error",
    )


def timed_out(seconds: float, saved: bool) -> ApiError:
    """Return the error for a request that took too long."""
    more = " Its reading is saved: the same request resumes there." if saved else ""
    return ApiError(
        504,
        f"The request took more than the {seconds:g} s that --timeout allows.{more}",
        kind="server_error",
        code="timeout",
    )


def unusable(message: str) -> ApiError:
    """Return the error for a memory file that exists and cannot be asked."""
    return ApiError(400, message, code="memory_unusable", param="model")


def changed(name: str) -> ApiError:
    """Return the error for a memory file that was replaced while a request waited for its turn."""
    return ApiError(
        503,
        f"The file of the memory {name!r} was replaced just now; send the request again.",
        kind="server_error",
        code="memory_changed",
        retry_after=1,
    )


def told(error: BaseException, *folders: Path | None) -> ApiError:
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
        return ApiError(
            503, "The server is out of memory.", kind="server_error", code="out_of_memory"
        )
    return broken(error)
