"""One way through: sources in, events out. A session is a loaded model that can be asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from kvstream.engine import Reader, StepReport
from kvstream.errors import SourceError
from kvstream.events import Event, Notice, Started, StepDone
from kvstream.feed import TokenFeed
from kvstream.memory.base import Memory, Trace
from kvstream.model.bounded import BoundedModel
from kvstream.model.loading import POCKET, folder, load
from kvstream.passages import Passages
from kvstream.preparation import Setting
from kvstream.rereading.look import Reread, second_look
from kvstream.settings import ModelSettings, RunSettings
from kvstream.tokens import Tokenizer, load_tokenizer, open_stream

if TYPE_CHECKING:
    from kvstream.sources import SourceSet

PRUNE_EVERY = 65536
"""Byte offsets of evicted tokens are forgotten after this many tokens."""
BYTES_A_TOKEN = 3.6
"""A guess for English text, used before the first token has been read."""


class Session:
    """A model, its tokenizer, and what they cost to load."""

    def __init__(self, model: BoundedModel, tokenizer: Tokenizer, load_s: float = 0.0) -> None:
        self.model, self.tokenizer, self.load_s = model, tokenizer, load_s

    @classmethod
    def open(cls, settings: ModelSettings) -> Session:
        """Load tokenizer and model and probe them. Raises ModelError, UnboundedError."""
        started = time.perf_counter()
        tokenizer = load_tokenizer(
            settings.name if settings.name == POCKET else folder(settings),
            revision=settings.revision,
            offline=settings.offline,
            trust_remote_code=settings.trust_remote_code,
        )
        model = load(settings)
        return cls(model, tokenizer, time.perf_counter() - started)

    @property
    def model_name(self) -> str:
        return self.model.name

    @property
    def default_extract(self) -> bool:
        """Whether summaries are extracted rather than written: pocket cannot write one."""
        return self.model.name == POCKET

    def settle(
        self,
        questions: Sequence[str],
        run: RunSettings,
        *,
        command: str = "ask",
        system: str | None = None,
        extract: bool = False,
    ) -> Setting:
        """Settle a run before its first token. Raises BudgetError."""
        return Setting.of(
            self.model,
            self.tokenizer,
            questions,
            run,
            command=command,
            system=system,
            extract=extract,
        )

    def plan(
        self,
        sources: SourceSet,
        questions: Sequence[str],
        run: RunSettings,
        *,
        command: str = "ask",
        system: str | None = None,
    ) -> Started:
        """Sizes, steps and memory of a run, without running it."""
        setting = self.settle(questions, run, command=command, system=system)
        size = sources.size_hint()
        estimate = None if size is None else int(size / BYTES_A_TOKEN)
        return self._started(setting.reader(self.model, run, estimate), run)

    def ask(
        self,
        sources: SourceSet,
        questions: Sequence[str],
        run: RunSettings,
        *,
        command: str = "ask",
        system: str | None = None,
        extract: int = 0,
        strict: bool = False,
        reread: Reread | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        """Read the sources under the budget, then answer every question from what remains.

        With `extract` the answer is that many passages of the sources, those that memory holds on
        to most; with `strict` one that rests on little is withheld; with `reread` it is given from
        a second look. Raises SourceError where nothing could be read.
        """
        setting = self.settle(questions, run, command=command, system=system, extract=bool(extract))
        memory = yield from self.read(
            sources, setting, run, command=command, extract=bool(extract), interrupted=interrupted
        )
        asked = setting.questions or ("",)
        if reread is not None:
            yield from second_look(self, memory, asked, reread, system=system, strict=strict)
            return
        for number, question in enumerate(asked):
            last = number + 1 == len(asked)
            yield from memory.answer(question, number, last=last, extract=extract, strict=strict)

    def read(
        self,
        sources: SourceSet,
        setting: Setting,
        run: RunSettings,
        *,
        command: str = "ask",
        extract: bool = False,
        passages: Passages | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Generator[Event, None, Memory]:
        """Read the sources under the budget; what remains is returned. Raises SourceError.

        The text around retained tokens is kept for citations, unless the `passages` are known
        already; with `extract` there will be evidence of every chunk, to rank it by.
        """
        known = passages is not None
        passages = passages or Passages()
        trace = Trace(sources.names, sources.bases, passages=passages)
        stream = open_stream(self.tokenizer, sources, None if known else passages.feed)
        feed = setting.feed(stream, interrupted)
        trace.origins = feed.origins
        # A first look tells how many bytes a token has here, before the schedule is solved.
        feed.exhausted()
        reader = setting.reader(self.model, run, feed.estimate(), measure_always=extract)
        memory = Memory(
            self.model_name,
            self.tokenizer,
            reader,
            setting.prompt,
            run,
            trace,
            command,
            self.load_s,
        )
        yield self._started(reader, run)
        began = time.perf_counter()
        pruned = 0
        for report in reader.read(feed, interrupted):
            yield self._step_done(reader, report, feed, time.perf_counter() - began)
            trace.read, trace.end = feed.read_tokens, feed.end
            if trace.read - pruned >= PRUNE_EVERY:
                trace.prune(reader.retained())
                pruned = trace.read
        trace.read, trace.end = feed.read_tokens, feed.end
        stream.close()
        if not trace.read:
            raise SourceError("There is no text in what was given; nothing to read.")
        if interrupted():
            memory.warnings.append(
                f"Reading was stopped after {trace.read} tokens; what follows is from those."
            )
        memory.warnings += sources.warnings
        for message in memory.warnings:
            yield Notice(message)
        memory.prefill_s = time.perf_counter() - began
        return memory

    def _started(self, reader: Reader, run: RunSettings) -> Started:
        sizes = reader.sizes
        return Started(
            model=self.model_name,
            method=run.method,
            budget_tokens=sizes.budget,
            budget_bytes=reader.cache.capacity_bytes,
            prompt_tokens=sizes.prompt,
            reserved_tokens=sizes.question + sizes.answer,
            schedule=run.growth,
            chunk=run.chunk,
            estimated_tokens=reader.schedule.length,
            estimated_steps=reader.schedule.steps,
            lossless=reader.schedule.whole,
        )

    def _step_done(
        self, reader: Reader, report: StepReport, feed: TokenFeed, seconds: float
    ) -> StepDone:
        seen = feed.read_tokens

        def coverage(bins: int) -> list[float]:
            bins = max(1, min(bins, seen))
            counts = torch.histc(reader.retained().float(), bins, 0, seen)
            return [min(1.0, float(c) * bins / seen) for c in counts]

        return StepDone(
            step=reader.steps,
            chunk=report.chunk,
            memory=report.memory,
            seen=seen,
            estimated_tokens=feed.estimate(),
            kv_tokens=reader.cache.used,
            in_flight_tokens=report.in_flight,
            peak_tokens=reader.cache.peak.tokens,
            budget_tokens=reader.sizes.budget,
            kv_bytes=reader.cache.bytes,
            seconds=seconds,
            coverage=coverage,
            retained=lambda: int(reader.retained().numel()),
        )
