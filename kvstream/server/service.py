"""A model, its memories and the worker, which the application serves."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import Any

import psutil

from kvstream.answer.answering import peak_rss
from kvstream.api.model import Model
from kvstream.api.source_objects import open_sources
from kvstream.errors import BudgetError
from kvstream.server.bound import Bound
from kvstream.server.catalog import Catalog
from kvstream.server.compute_thread import Worker
from kvstream.server.conversation_cache import ConversationCache
from kvstream.server.request_job import Answering, Job, Reply
from kvstream.server.server_settings import ServerSettings

log = logging.getLogger("kvstream.server")


class Service:
    """Everything behind the application. `close` ends it."""

    def __init__(self, model: Model, settings: ServerSettings) -> None:
        """Raises UsageError, and BudgetError if the bound is too small for one memory."""
        self.model, self.settings = model, settings
        request = replace(settings.request, command="remember")
        example = replace(request, questions=("a question",))
        model.planned(open_sources(text="a text"), example)  # raises if it cannot read
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
                "bound": self.bound.most, "held": self.bound.held, "peak": self.bound.peak,
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
