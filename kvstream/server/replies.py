"""Events of a job as objects of OpenAI's chat completions."""

from __future__ import annotations

import time
import uuid
from typing import Any

from starlette.responses import JSONResponse

from kvstream.reporters.format import json_text
from kvstream.server.client_errors import ApiError
from kvstream.server.request_job import Reply
from kvstream.version import __version__

OWN = (
    "question", "tokens", "coverage", "support", "not_in_text", "citations", "withheld", "stopped",
    "narrowed", "lines", "shards", "demonstration",
)  # fmt: skip
"""Fields of a reply that are equal to those of ``ask --json``, if that has them. The others are
fields of OpenAI, or concern the server: its files, its time and its RAM."""
DONE = b"data: [DONE]\n\n"


class Json(JSONResponse):
    """JSON that a terminal can show."""

    def render(self, content: Any) -> bytes:
        return json_text(content, ascii=False).encode()


class Refusal(Json):
    def __init__(self, error: ApiError) -> None:
        super().__init__(error.to_json(), error.status, error.headers)


class Completion:
    """One chat completion: whole, or as the chunks of a stream."""

    def __init__(self, model: str, *, with_usage: bool = False) -> None:
        self._common = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"kvstream-{__version__}",
        }
        self._frame = {**self._common, "object": "chat.completion.chunk"}
        self._with_usage = with_usage
        self._text = self._spaces = ""
        """The text so far, and spaces at its end, which are dropped if the answer ends here."""

    def whole(self, reply: Reply) -> dict[str, Any]:
        message = {"role": "assistant", "content": reply.result.answer, "refusal": None}
        finish = _finish(reply)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return {
            **self._common,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage(reply),
            "kvstream": own(reply),
        }

    def first(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> bytes:
        """Return the next piece of the answer, without spaces at the ends of the whole answer."""
        text = self._spaces + text
        if not self._text:
            text = text.lstrip()
        content = text.rstrip()
        self._spaces = text[len(content) :]
        if not content:
            return b""
        self._text += content
        return self._chunk({"content": content})

    def last(self, reply: Reply) -> bytes:
        """Return the finish reason, the fields of `own` and, if requested, the usage.

        Before them comes the answer if it became another one after it was written.
        """
        answer = reply.result.answer
        again = {"content": f"\n\n{answer}" if self._text else answer}
        end = b"" if answer == self._text else self._chunk(again)
        end += self._chunk({}, _finish(reply), kvstream=own(reply))
        if self._with_usage:
            end += encoded({**self._frame, "choices": [], "usage": usage(reply)})
        return end + DONE

    def _chunk(self, delta: dict[str, str], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._with_usage else {}
        return encoded({**self._frame, "choices": [choice], **usage, **more})


def encoded(body: dict[str, Any]) -> bytes:
    """Return an object of a stream; an error ends it without ``[DONE]``."""
    return f"data: {json_text(body, ascii=False)}\n\n".encode()


def comment(text: str) -> bytes:
    """Return a comment, which clients ignore and which keeps a connection alive."""
    return f": {text}\n\n".encode()


def usage(reply: Reply) -> dict[str, Any]:
    generated = reply.result.generated
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": reply.prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def own(reply: Reply) -> dict[str, Any]:
    """Return the fields that only kvstream has: the question and what the answer rests on."""
    record = reply.result.to_json()
    return {
        "question_from": reply.split.place,
        **{name: record[name] for name in OWN if name in record},
        "warnings": list(reply.warnings),  # worded for a client
    }


def _finish(reply: Reply) -> str:
    return "length" if reply.result.stopped in ("length", "budget", "interrupted") else "stop"
