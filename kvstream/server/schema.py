"""The body of a chat completion: fields that have an effect, are ignored, or are refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from kvstream.api.options import PER_ANSWER
from kvstream.errors import closest
from kvstream.server.client_errors import ApiError

IGNORED = frozenset({
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls", "prediction",
})  # fmt: skip
"""Fields that do not change the answer."""
REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": ([], {}),
    "tool_choice": ("none", "auto"),
    "functions": ([], {}),
    "function_call": ("none", "auto"),
    "n": (1,),
    "response_format": ({"type": "text"},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ([], {}),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "modalities": (["text"],),
    "audio": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields that would change the answer, with the values besides null that do not."""
CHOICES = {"tools": "tool_choice", "functions": "function_call"}
"""Fields that have no effect if another field has the value ``none``."""
UNREAD = (
    "tool_calls", "function_call", "audio", "images", "image", "videos", "files", "attachments",
    "experimental_attachments",
)  # fmt: skip
"""Fields of a message with content that is not text."""
MOST_MESSAGES = 10_000
"""Maximum number of messages, and of parts of a message. Each takes more RAM than its text."""


class Loose(BaseModel):
    """Keeps unknown fields, so that they can be refused by name."""

    model_config = ConfigDict(extra="allow", strict=True)


class Closed(BaseModel):
    """Refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Part(Loose):
    type: str
    text: str | None = None


class Message(Loose):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[Part], Field(max_length=MOST_MESSAGES)] | None = None


class StreamOptions(Closed):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """Ignored: whether chunks are padded to the same length."""


class Own(Closed):
    """Fields that only kvstream has."""

    question: str | None = None
    """The question, instead of the one that is found in the last message."""
    cache: bool | None = None
    """Continue from what an earlier request of the same conversation has read."""


def unknown(name: str, names: Iterable[str], within: str = "") -> ApiError:
    """Return the error for an unknown field `within` another, with the field that was meant."""
    name = name[:40]
    close = closest(name.lower(), names, 0.7)
    remedy = "leave it out" if close is None else f"use {within + close!r}, or leave it out"
    message = f"There is no parameter {within + name!r} here; {remedy}."
    return ApiError(400, message, code="unknown_parameter", param=within + name)


def unknown_inside(outer: str, name: str) -> ApiError:
    """Return the error for an unknown field of ``stream_options`` or ``kvstream``."""
    models: dict[str, type[BaseModel]] = {"stream_options": StreamOptions, "kvstream": Own}
    return unknown(name, models[outer].model_fields, f"{outer}.")


Count = Annotated[int, Field(ge=1, le=2**31)]


def _different(value: Any) -> Any:
    """Return stop strings as a list, each once and without empty ones."""
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise PydanticCustomError("strings", "Input should be a string, or a list of strings")
    return list(dict.fromkeys(filter(None, value)))


class ChatRequest(Loose):
    """The body of ``POST /v1/chat/completions``."""

    model: str
    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1, le=10)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[str], Field(max_length=4), BeforeValidator(_different)] | None = None
    """Strings that end the answer; one may stand alone. Empty ones have no effect."""
    kvstream: Own | None = None

    def check(self) -> None:
        """Raise ApiError for fields that would change the answer and are not supported."""
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            raise invalid(
                f"max_tokens is {self.max_tokens} and max_completion_tokens is "
                f"{self.max_completion_tokens}, but they mean the same; send one of them.",
                "max_tokens",
            )
        fields = self.model_extra or {}
        for name, value in fields.items():
            idle = name in CHOICES and fields.get(CHOICES[name]) == "none"
            if name in IGNORED or value is None or idle:
                continue
            if name not in REFUSED:
                raise unknown(name, type(self).model_fields)
            harmless = REFUSED[name]
            if not any(value == each and type(value) is type(each) for each in harmless):
                why = "is not supported by kvstream, and would change the answer; leave it out."
                raise unsupported(f"{name} {why}", name)

    @property
    def answers(self) -> dict[str, Any]:
        fields = type(self).model_fields
        keys = {name: "temperature" if name == "temp" else name for name in (*PER_ANSWER, "stop")}
        options = {name: getattr(self, key) for name, key in keys.items() if key in fields}
        options["max_tokens"] = self.max_completion_tokens or self.max_tokens
        return {name: value for name, value in options.items() if value is not None}


def unsupported(message: str, param: str) -> ApiError:
    """Return the error for a field or a value that kvstream knows and cannot follow."""
    return ApiError(400, message, code="unsupported_parameter", param=param)


def invalid(message: str, param: str | None = "messages") -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)


def text_of(message: Message, index: int) -> str:
    """Return the text of a message. Raises ApiError for content that is not text."""
    param = f"messages.{index}.content"
    if message.role in ("tool", "function"):
        why = f"Messages of the role {message.role} are not supported; kvstream has no tools."
        raise unsupported(why, f"messages.{index}.role")
    for name in UNREAD:
        if (message.model_extra or {}).get(name) not in (None, [], {}):
            why = f"{name} in a message is not supported; kvstream reads text and has no tools."
            raise unsupported(why, f"messages.{index}.{name}")
    if message.content is None or isinstance(message.content, str):
        return clean(message.content or "")
    for part in message.content:
        if part.type != "text":
            why = f"A part of the type {part.type[:40]!r} cannot be read; send text."
            raise unsupported(why, param)
        if part.text is None:
            raise invalid(f"{param}: A part of the type 'text' needs the field 'text'.", param)
    # Parts are paragraphs: clients send a document and the question about it as two parts.
    return clean("\n\n".join(part.text or "" for part in message.content))


def clean(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by ``?``; leave out a byte order mark."""
    return text.encode("utf-8", "replace").decode("utf-8-sig")
