"""The application: OpenAI's paths, and the model, memories and worker behind them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import psutil
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from kvstream.answer.answering import peak_rss
from kvstream.api.model import Model
from kvstream.api.source_objects import open_sources
from kvstream.errors import BudgetError
from kvstream.events import AnswerToken
from kvstream.server.bound import Bound
from kvstream.server.catalog import Catalog
from kvstream.server.client_errors import ApiError, error_for_client, shut_down, timed_out
from kvstream.server.compute_thread import Worker
from kvstream.server.conversation_cache import ConversationCache
from kvstream.server.replies import Completion, Json, Refusal, comment, encoded
from kvstream.server.request_checks import KNOWN, LONGEST_PATH, QUEUED
from kvstream.server.request_job import Answering, Job, Outcome, Reply, Sent
from kvstream.server.schema import MOST_MESSAGES, ChatRequest, invalid, unknown_inside
from kvstream.server.server_settings import ServerSettings
from kvstream.version import __version__

log = logging.getLogger("kvstream.server")
COMMENT_SECONDS = 5.0
"""Seconds without an event after which a stream gets a comment to show that it is alive."""
PATHS = "POST /v1/chat/completions, GET /v1/models and GET /health"

Got = int | AnswerToken | Reply
WORDED = {
    "model_attributes_type": "Input should be an object",
    "too_short": "Input should have at least {min_length} item",
    "too_long": "Input should have at most {max_length:,} items, not {actual_length:,}",
}
"""Errors of pydantic in words for clients."""


class Service:
    """Everything behind the application. `close` ends it."""

    def __init__(self, model: Model, settings: ServerSettings) -> None:
        """Raises UsageError, and BudgetError if the bound is too small for one memory."""
        self.model, self.settings = model, settings
        request = replace(settings.request, command="remember")
        example = replace(request, questions=("a question",))
        model.plan_of(open_sources(text="a text"), example)  # raises if it cannot read
        self.memory_bytes = model.room_of(request)
        self.bound = Bound(settings.bound or settings.parallel * self.memory_bytes)
        if self.memory_bytes > self.bound.most:
            raise BudgetError(
                f"--bound allows {self.bound.most:,} bytes, and one memory of --budget takes "
                f"{self.memory_bytes:,}. Use a larger --bound, or a smaller --budget."
            )
        self.catalog = Catalog(model, settings.memories, self.bound)
        self.cache = ConversationCache(settings.cache_dir, settings.cache)
        answering = Answering(model, request, self.cache)
        self.worker = Worker(answering, self.catalog, self.bound, settings.parallel, settings.queue)
        self._began = time.monotonic()

    def note(self, job: Job, reply: Reply) -> None:
        """Write a line to the log for a request, without any of its text."""
        result = reply.result
        log.info(
            "%s: %.2f s, %s", job.request.model, time.monotonic() - job.arrived,
            f"{reply.prompt_tokens:,} tokens read ({reply.cached_tokens:,} cached), "
            f"{result.retained:,} kept, {result.generated:,} written",
        )  # fmt: skip

    def health(self) -> dict[str, Any]:
        """Return what the server holds and does, in numbers only."""
        return {
            "status": "ok",
            "model": self.model.name,
            "memories": len(self.catalog.files()),
            "requests": self.worker.load,
            "kv_bytes": {
                "bound": self.bound.most, "held": self.bound.bytes, "peak": self.bound.peak,
            },
            "cache": {
                "bound": self.cache.most, "bytes": self.cache.bytes, "memories": self.cache.count,
            },
            "rss_bytes": int(psutil.Process().memory_info().rss),
            "peak_rss_bytes": peak_rss(),
            "uptime_s": round(time.monotonic() - self._began, 1),
        }  # fmt: skip

    def close(self) -> None:
        self.worker.close()
        self.cache.close()


def make_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="kvstream", version=__version__, docs_url=None, redoc_url=None,
        default_response_class=Json,
        exception_handlers={
            ApiError: _failed, RequestValidationError: _failed, HTTPException: _http,
            Exception: _failed,
        },
    )  # fmt: skip

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(request: Request) -> dict[str, Any]:
        """Return whether the server runs and, for a client with the key, what it holds."""
        if not request.scope.get(KNOWN):
            return {"status": "ok"}
        return service.health()

    @app.head("/v1/models", include_in_schema=False)
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Return the loaded model and every memory."""
        return {"object": "list", "data": service.catalog.listing()}

    @app.head("/v1/models/{name:path}", include_in_schema=False)
    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """Return one of the models."""
        return service.catalog.row(name)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Return an answer, whole or as a stream."""
        body.check()
        service.catalog.path(body.model)
        talk = _Talk(service, body, request)
        if body.stream:
            return await talk.streamed()
        return await talk.whole()

    return app


class _Talk:
    """One request: a job for the worker, and the events that it sends."""

    def __init__(self, service: Service, body: ChatRequest, request: Request) -> None:
        self._service, self._request = service, request
        self._events: asyncio.Queue[Sent | None] = asyncio.Queue()
        call, put = asyncio.get_running_loop().call_soon_threadsafe, self._events.put_nowait
        self._job = Job(body, lambda event: call(put, event), service.settings.timeout)
        usage = body.stream_options is not None and body.stream_options.include_usage
        self._completion = Completion(body.model, with_usage=bool(usage))
        service.worker.submit(self._job)
        request.scope[QUEUED] = True
        self._departure = asyncio.create_task(self._leaving())
        self._count: Outcome = "left"
        """How the job counts if the worker has not ended it by then."""

    async def whole(self) -> Response:
        try:
            while (event := await self._next()) is not None:
                if isinstance(event, Reply):
                    return Json(self._completion.whole(event))
            return Response(status_code=499)  # the client has disconnected
        finally:
            self._end()

    async def streamed(self) -> Response:
        """Return the reply as a stream. An error before the stream begins is an ordinary reply."""
        try:
            first = await self._next()
        except BaseException:
            self._end()
            raise
        return StreamingResponse(
            self._pieces(first),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    async def _pieces(self, event: Got | None) -> AsyncGenerator[bytes, None]:
        try:
            yield self._completion.first()
            last_comment = time.monotonic()
            while event is not None:
                if isinstance(event, Reply):
                    yield self._completion.last(event)
                    return
                if isinstance(event, AnswerToken):
                    if piece := self._completion.piece(event.text):
                        yield piece
                elif event and time.monotonic() - last_comment > 1:
                    last_comment = time.monotonic()
                    yield comment(f"{event} tokens read")
                while True:
                    try:
                        event = await self._next(COMMENT_SECONDS)
                        break
                    except TimeoutError:
                        yield comment("at work")
        except ApiError as error:
            yield encoded(error.to_json())
        finally:
            self._end()

    async def _next(self, seconds: float | None = None) -> Got | None:
        """Return the next event of the worker, or None if the client has left.

        Raises the error of the job, an error if the request still waits for its turn when its time
        is over, or if the server ends at once and cancels this task; TimeoutError after `seconds`.
        """
        job = self._job
        end = job.arrived + job.timeout
        try:
            while True:
                rest = end - time.monotonic()
                wait = seconds if job.begun else rest if seconds is None else min(rest, seconds)
                try:
                    event = await asyncio.wait_for(self._events.get(), wait)
                    break
                except TimeoutError:
                    if not job.begun and time.monotonic() > end:
                        self._count = "failed"
                        raise timed_out(job.timeout, saved=False) from None
                    if seconds is not None:
                        raise
        except asyncio.CancelledError:
            if not self._service.worker.draining:
                raise
            self._service.worker.stop()
            raise shut_down(saved=False) from None
        if isinstance(event, ApiError):
            raise event
        if isinstance(event, Reply):
            self._service.note(job, event)
        return event

    async def _leaving(self) -> None:
        """Wait until the client has left, and cancel the job.

        The response cannot do that alone: if the client leaves just before a stream begins, the
        framework never iterates over its pieces.
        """
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self._service.worker.cancel(self._job, self._count)
        self._events.put_nowait(None)

    def _end(self) -> None:
        """Cancel the job. This has no effect if the worker is done with it."""
        self._departure.cancel()
        if not self._job.ending:  # the worker ends it, and saves its reading
            self._service.worker.cancel(self._job, self._count)


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = _invalid(error.errors()[0])
    return Refusal(error_for_client(error))


def _invalid(first: dict[str, Any]) -> ApiError:
    """Return the first error of pydantic in one line that names the parameter."""
    kind, place = first["type"], [str(part) for part in first["loc"] if part != "body"]
    if kind == "json_invalid":
        return _no_json(f"{first['ctx']['error']}, at character {place[-1]}")
    if kind == "extra_forbidden":
        return unknown_inside(*place)
    if kind == "missing" and not place:
        return _no_json("it is empty")
    param = ".".join(place)[:80] or None
    message = WORDED.get(kind, first["msg"]).format_map(first.get("ctx", {}))
    if "content" in place:  # pydantic names each member of the union, which clients do not know
        param = ".".join(place[: place.index("content") + 1])
        message = f"Input should be a string, or at most {MOST_MESSAGES:,} parts of the type text"
    return invalid(f"{param or 'The body'}: {message}.", param)


def _no_json(why: str) -> ApiError:
    return ApiError(400, f"The body is not valid JSON: {why}.", code="invalid_json")


async def _http(request: Request, error: Exception) -> Response:
    """Return errors of the framework: unknown paths, other methods, bodies it cannot parse."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        cause = error.__cause__
        if isinstance(cause, RecursionError):
            return Refusal(_no_json("it is nested too deep"))
        of_text = isinstance(cause, UnicodeError) or not isinstance(cause, ValueError)
        return Refusal(_no_json("it is not UTF-8" if of_text else "a number has too many digits"))
    message = f"{error.detail}."
    if error.status_code in (404, 405):
        line = f"{request.method[:20]} {request.url.path[:LONGEST_PATH]}"
        message = f"The server has no {line}; it has {PATHS}."
    reply = Refusal(ApiError(error.status_code, message, code="http_error"))
    reply.headers.update(error.headers or {})
    return reply
