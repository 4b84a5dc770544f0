"""A session without a model: the events of a run, at full speed or slow enough to watch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvstream.errors import ModelError
from kvstream.events import (
    Answered,
    AnswerStarted,
    AnswerToken,
    Event,
    Notice,
    Result,
    Started,
    StepDone,
)
from kvstream.run.request import Request
from kvstream.settings import ModelSettings

ENTRY_BYTES = 4608


class FakeSession:
    """Reports a document of ``tokens`` tokens; answers with ``pieces``."""

    default_extract = True
    foresees = False
    tokens: int | None = 8192
    chunk = 512
    pause = 0.0
    pieces: tuple[str, ...] = ("It is ", "51234", ".")
    notices: tuple[str, ...] = ()
    citations: tuple[dict[str, Any], ...] = ()
    reads = False
    """Whether it really reads the sources to their end."""
    fails: BaseException | None = None
    withheld: str | None = None
    """Answer that is withheld with ``strict``."""

    def __init__(self, model: ModelSettings) -> None:
        self.model_name = model.model

    @property
    def model(self) -> Any:
        """Raise ModelError. Readers of parts of a text ask for the model."""
        raise ModelError("There is no model here.")

    @classmethod
    def open(cls, model: ModelSettings) -> FakeSession:
        if model.model == "nobody/nothing":
            raise ModelError("There is no model 'nobody/nothing'; choose one that is there.")
        return cls(model)

    def plan(self, sources: Any, request: Request) -> Started:
        run = request.run
        budget = run.budget.tokens if run.budget and run.budget.tokens else 1024
        steps = math.ceil(self.tokens / self.chunk) if self.tokens else None
        return Started(
            model=self.model_name,
            method=run.method,
            budget_tokens=budget,
            budget_bytes=budget * ENTRY_BYTES,
            fixed_bytes=0,
            prompt_tokens=12,
            reserved_tokens=96,
            schedule=run.schedule,
            chunk=run.chunk,
            estimated_tokens=self.tokens,
            estimated_steps=steps,
            lossless=False,
        )

    def settle(self, request: Request) -> None:
        """Accept every run."""

    def ask(self, sources: Any, request: Request) -> Iterator[Event]:
        type(self).last = request  # type: ignore[attr-defined]
        started = self.plan(sources, request)
        yield started
        if self.reads:
            for _ in sources:
                pass
        total = self.tokens or 8192
        seen = step = 0
        while seen < total and not request.interrupted():
            step += 1
            chunk = min(self.chunk, total - seen)
            seen += chunk
            if self.pause:
                time.sleep(self.pause)
            memory = min(400, 40 + step * 400 * self.chunk // total)
            yield StepDone(
                step=step,
                chunk=chunk,
                memory=(memory,) * 4,
                seen=seen,
                estimated_tokens=self.tokens,
                kv_tokens=memory + 12,
                in_flight_tokens=min(started.budget_tokens, memory + chunk + 20),
                peak_tokens=memory + chunk + 20,
                budget_tokens=started.budget_tokens,
                kv_bytes=(memory + 12) * ENTRY_BYTES,
                seconds=step * max(self.pause, 0.01),
                coverage=lambda bins: [abs(math.sin(i / 3)) ** 4 for i in range(bins)],
                retained=lambda memory=memory: memory + 30,
            )
        for message in self.notices:
            yield Notice(message)
        if self.fails is not None:
            raise self.fails
        for number, question in enumerate(request.questions or ("",)):
            yield AnswerStarted(question, number)
            for piece in self.pieces:
                if self.pause:
                    time.sleep(self.pause)
                yield AnswerToken(piece, 500)
            result = self._result(request, question, started, seen, step)
            yield Answered(replace(result, withheld=self.withheld if request.strict else None))

    def _result(
        self, request: Request, question: str, started: Started, seen: int, steps: int
    ) -> Result:
        return Result(
            command=request.command,
            model=self.model_name,
            method=request.run.method,
            question=question,
            answer="".join(self.pieces),
            budget_tokens=started.budget_tokens,
            budget_bytes=started.budget_bytes,
            peak_kv_tokens=932,
            peak_kv_bytes=932 * ENTRY_BYTES,
            scratch_bytes=0,
            peak_rss_bytes=10**8,
            peak_device_bytes=None,
            read=seen,
            retained=430,
            evicted=max(0, seen - 430),
            generated=len(self.pieces),
            schedule=request.run.schedule,
            chunk=request.run.chunk,
            steps=steps,
            load_s=0.5,
            prefill_s=2.0,
            answer_s=0.5,
            tokens_per_s=seen / 2.0,
            warnings=self.notices,
            citations=self.citations,
        )
