"""One way through: sources in, events out. A session is a loaded model that can be asked."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kvstream.decoding import chooser
from kvstream.engine import Reader, StepReport
from kvstream.errors import BudgetError, SourceError
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
from kvstream.feed import ShortenedFeed, TokenFeed
from kvstream.methods.base import Method
from kvstream.methods.registry import make
from kvstream.model.bounded import BoundedModel
from kvstream.model.loading import POCKET, folder, load
from kvstream.passages import Passage, Passages
from kvstream.passages import extract as best_passages
from kvstream.prompt import Prompt, Task, build_prompt
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.sizes import Sizes, share_out
from kvstream.tokens import Tokenizer, TokenStream, load_tokenizer

if TYPE_CHECKING:
    from kvstream.sources import SourceSet

DEFAULT_BUDGET = 4096
PRUNE_EVERY = 65536
"""Byte offsets of evicted tokens are forgotten after this many tokens."""


@dataclass(frozen=True)
class Setting:
    """Everything that is settled before the first token is read."""

    method: Method
    prompt: Prompt
    questions: tuple[str, ...]
    catalysts: tuple[tuple[int, ...], ...]
    sizes: Sizes


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
        setting = self._settle(questions, run, command, system)
        size = sources.size_hint()
        estimate = None if size is None else int(size / BYTES_A_TOKEN)
        return self._started(self._reader(setting, run, estimate), run)

    def ask(
        self,
        sources: SourceSet,
        questions: Sequence[str],
        run: RunSettings,
        *,
        command: str = "ask",
        system: str | None = None,
        extract: int = 0,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        """Read the sources under the budget, then answer every question from what remains.

        With `extract` the answer is that many passages of the sources, those that memory holds on
        to most. Raises SourceError where nothing could be read.
        """
        setting = self._settle(questions, run, command, system, extract=extract)
        passages = Passages() if extract else None
        shown = passages.feed if passages is not None else None
        stream = TokenStream(self.tokenizer, sources, shown)
        feed = self._feed(stream, setting, interrupted)
        # A first look tells how many bytes a token has here, before the schedule is solved.
        feed.exhausted()
        reader = self._reader(setting, run, feed.estimate(), measure_always=bool(extract))
        yield self._started(reader, run)
        began = time.perf_counter()
        warnings: list[str] = []
        pruned = 0
        for report in reader.read(feed, interrupted):
            yield self._step_done(reader, report, feed, time.perf_counter() - began)
            if feed.read_tokens - pruned >= PRUNE_EVERY:
                self._forget(reader, feed, passages)
                pruned = feed.read_tokens
        if not feed.read_tokens:
            raise SourceError("There is no text in what was given; nothing to read.")
        if interrupted():
            warnings.append(
                f"Reading was stopped after {feed.read_tokens} tokens; what follows is from those."
            )
            yield Notice(warnings[-1])
        for message in sources.warnings:
            warnings.append(message)
            yield Notice(message)
        prefill_s = time.perf_counter() - began
        retained = int(reader.retained().numel())
        asked = setting.questions or ("",)
        for number, question in enumerate(asked):
            yield AnswerStarted(question, number)
            answering = time.perf_counter()
            if passages is not None:
                generated, stopped = 0, "end"
                answer = _rendered(self._extract(reader, feed, passages, extract), sources.names)
                yield AnswerToken(answer, reader.cache.used)
            else:
                answer, generated = "", 0
                last = number + 1 == len(asked)
                for text, count in self._write(reader, setting, run, question, last):
                    answer, generated = answer + text, count
                    yield AnswerToken(text, reader.cache.used)
                stopped = reader.stopped
                if stopped == "budget":
                    warnings.append(
                        f"The answer stopped after {generated} tokens, where the budget was full."
                    )
                    yield Notice(warnings[-1])
            yield Answered(
                self._result(
                    reader, run, command, question, answer.strip(), generated, stopped,
                    read=feed.read_tokens, retained=retained, prefill_s=prefill_s,
                    answer_s=time.perf_counter() - answering, warnings=tuple(warnings),
                )
            )  # fmt: skip

    # Before reading

    def _settle(
        self,
        questions: Sequence[str],
        run: RunSettings,
        command: str,
        system: str | None,
        *,
        extract: int = 0,
    ) -> Setting:
        method = make(run.method, run.method_settings)
        task: Task = "summarize" if command == "summarize" else "ask"
        prompt = build_prompt(self.tokenizer, list(questions), system=system, task=task)
        catalysts = tuple(
            tuple(prompt.tail(text) if text in questions else prompt.catalyst(text))
            for text in method.catalyst(questions)
        )
        catalyst = sum(len(c) for c in catalysts)
        question = max((len(prompt.tail(q)) for q in questions or ("",)), default=0)
        budget = self._budget(run.budget, method)
        sizes = share_out(
            budget,
            len(prompt.head),
            catalyst if method.evicts else 0,
            max(question, catalyst) if extract else question,
            run.max_tokens,
            whole_answer=len(questions) > 1,
        )
        return Setting(method, prompt, tuple(questions), catalysts, sizes)

    def _budget(self, budget: Budget | None, method: Method) -> int:
        """The budget in entries a head."""
        if budget is None:
            return min(DEFAULT_BUDGET, self.model.trained_length)
        if budget.tokens is not None:
            return budget.tokens
        assert budget.bytes is not None
        one = self.model.new_cache(1, method.tensors(), method.head_tensors())
        fixed = sum(s.head_bytes() for s in one.layers)
        each = one.capacity_bytes - fixed
        tokens = (budget.bytes - fixed) // each
        if tokens < 1:
            raise BudgetError(
                f"{budget.bytes} bytes hold not one token of {self.model_name}: an entry takes "
                f"{each} bytes over all layers. Use a larger --budget."
            )
        # Bytes are a ceiling, and what a model was trained for is another.
        return min(tokens, self.model.trained_length)

    def _feed(
        self, stream: TokenStream, setting: Setting, interrupted: Callable[[], bool]
    ) -> TokenFeed:
        sizes = setting.sizes
        ends = setting.method.shorten(sizes.prompt, min(sizes.free, sizes.final))
        return ShortenedFeed(stream, *ends, interrupted) if ends else TokenFeed(stream)

    def _reader(
        self,
        setting: Setting,
        run: RunSettings,
        estimate: int | None,
        *,
        measure_always: bool = False,
    ) -> Reader:
        return Reader(
            self.model,
            setting.method,
            run,
            setting.sizes,
            setting.prompt.head,
            setting.catalysts,
            estimate,
            measure_always=measure_always,
        )

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

    # While reading

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

    @staticmethod
    def _forget(reader: Reader, feed: TokenFeed, passages: Passages | None) -> None:
        """Drop offsets and text of what memory no longer holds, so that neither grows."""
        kept = reader.retained().numpy()
        feed.origins.prune(kept)
        if passages is not None:
            passages.prune(feed.origins.starts(kept), feed.end)

    # Answering

    def _write(
        self, reader: Reader, setting: Setting, run: RunSettings, question: str, last: bool
    ) -> Iterator[tuple[str, int]]:
        """(text, tokens so far) for every token, and once more at the end."""
        decoder = self.tokenizer.decoder()
        count = 0
        tokens = reader.answer(
            setting.prompt.tail(question),
            chooser(run),
            frozenset(setting.prompt.stop_ids),
            run.max_tokens,
            may_compress=last,
        )
        for token in tokens:
            count += 1
            yield decoder.push(token), count
        yield decoder.flush(), count

    @staticmethod
    def _extract(reader: Reader, feed: TokenFeed, passages: Passages, count: int) -> list[Passage]:
        """The passages that memory holds on to most, in document order."""
        ordinals, weights = reader.rank()
        starts = feed.origins.starts(ordinals.numpy())
        return best_passages(passages.score(starts, weights.numpy()), count)

    def _result(
        self,
        reader: Reader,
        run: RunSettings,
        command: str,
        question: str,
        answer: str,
        generated: int,
        stopped: str,
        *,
        read: int,
        retained: int,
        prefill_s: float,
        answer_s: float,
        warnings: tuple[str, ...],
    ) -> Result:
        peak = reader.cache.peak
        on_gpu = self.model.device.type == "cuda"
        return Result(
            command=command,
            model=self.model_name,
            method=run.method,
            question=question,
            answer=answer,
            budget_tokens=reader.sizes.budget,
            budget_bytes=reader.cache.capacity_bytes,
            peak_kv_tokens=peak.tokens,
            peak_kv_bytes=peak.bytes,
            scratch_bytes=peak.scratch,
            peak_rss_bytes=_peak_rss(),
            peak_device_bytes=torch.cuda.max_memory_allocated() if on_gpu else None,
            read=read,
            retained=retained,
            evicted=read - retained,
            generated=generated,
            schedule=run.growth,
            chunk=run.chunk,
            steps=reader.steps,
            load_s=self.load_s,
            prefill_s=prefill_s,
            select_s=reader.select_seconds,
            answer_s=answer_s,
            tokens_per_s=read / prefill_s if prefill_s else 0.0,
            stopped=stopped,
            warnings=warnings,
        )


BYTES_A_TOKEN = 3.6
"""A guess for English text, used before the first token has been read."""


def _rendered(passages: Sequence[Passage], names: Sequence[str]) -> str:
    """One passage a line behind its line number, and its source's name where there are several."""
    several = len(names) > 1
    return "\n".join(
        f"{names[p.source] + ':' if several else ''}{p.line_start}: {' '.join(p.text.split())}"
        for p in passages
    )


def _peak_rss() -> int:
    """The most memory that this process ever had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
