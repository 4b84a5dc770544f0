"""What remains of the sources once they have been read: it can be asked, again and again."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from kvstream.decoding import chooser
from kvstream.engine import Reader
from kvstream.events import Answered, AnswerStarted, AnswerToken, Event, Notice, Result
from kvstream.memory.citations import as_json, attended, best
from kvstream.memory.coverage import coverage
from kvstream.passages import Passage, Passages, TokenOrigins
from kvstream.passages import extract as best_passages
from kvstream.prompt import Prompt
from kvstream.settings import RunSettings
from kvstream.tokens import Tokenizer


@dataclass
class Trace:
    """Where in the sources the tokens that memory holds came from."""

    names: Sequence[str] = ()
    """Of the sources, in order."""
    bases: Sequence[int] = ()
    """Global byte offset of each source's beginning."""
    origins: TokenOrigins = field(default_factory=TokenOrigins)
    passages: Passages | None = None
    """Sentences and lines around retained tokens, where they are wanted."""
    read: int = 0
    """Tokens of the sources so far."""
    end: int = 0
    """Global byte offset behind the last of them."""

    def prune(self, kept: torch.Tensor) -> None:
        """Drop offsets and text of what memory no longer holds; `kept` int64, sorted, unique."""
        ordinals = kept.numpy()
        self.origins.prune(ordinals)
        if self.passages is not None:
            self.passages.prune(self.origins.starts(ordinals), self.end)


@dataclass
class Memory:
    """A reader that has read, the prompt around what it holds, and where that came from."""

    model: str
    """Name of the model."""
    tokenizer: Tokenizer
    reader: Reader
    prompt: Prompt
    run: RunSettings
    trace: Trace
    command: str = "ask"
    load_s: float = 0.0
    prefill_s: float = 0.0
    warnings: list[str] = field(default_factory=list)

    @property
    def retained(self) -> int:
        """Distinct source tokens that some head still holds."""
        return int(self.reader.retained().numel())

    def answer(
        self, question: str, number: int = 0, *, last: bool = False, extract: int = 0
    ) -> Iterator[Event]:
        """The events of one answer. Memory stays as it was, unless it is the `last` question.

        With `extract` the answer is that many passages, those that memory holds on to most.
        """
        held = self.reader.retained().numpy()
        yield AnswerStarted(question, number)
        began = time.perf_counter()
        said: list[int] = []
        if extract:
            stopped, cited = "end", self.extract(extract)
            answer = rendered(cited, self.trace.names)
            yield AnswerToken(answer, self.reader.cache.used)
        else:
            answer = ""
            for text in self._write(question, last, said):
                answer += text
                yield AnswerToken(text, self.reader.cache.used)
            stopped = self.reader.stopped
            if stopped == "budget":
                self.warnings.append(
                    f"The answer stopped after {len(said)} tokens, where the budget was full."
                )
                yield Notice(self.warnings[-1])
            cited = self.cite(question, said)
        seconds = time.perf_counter() - began
        yield Answered(self._result(question, answer, len(said), stopped, held, cited, seconds))

    def cite(self, question: str, said: Sequence[int]) -> list[Passage]:
        """The passages that the tokens `said` in answer to a question looked at, heaviest first."""
        if self.trace.passages is None:
            return []
        ordinals, weights = attended(self.reader, self.prompt.tail(question), said)
        starts = self.trace.origins.starts(ordinals.numpy())
        return best(self.trace.passages.score(starts, weights.numpy()))

    def extract(self, count: int) -> list[Passage]:
        """The passages that memory holds on to most, in document order."""
        assert self.trace.passages is not None
        ordinals, weights = self.reader.rank()
        starts = self.trace.origins.starts(ordinals.numpy())
        return best_passages(self.trace.passages.score(starts, weights.numpy()), count)

    def _write(self, question: str, last: bool, said: list[int]) -> Iterator[str]:
        """The text of every token, which is appended to `said`, and what is left at the end."""
        decoder = self.tokenizer.decoder()
        tokens = self.reader.answer(
            self.prompt.tail(question),
            chooser(self.run),
            frozenset(self.prompt.stop_ids),
            self.run.max_tokens,
            may_compress=last,
        )
        for token in tokens:
            said.append(token)
            yield decoder.push(token)
        yield decoder.flush()

    def _result(
        self,
        question: str,
        answer: str,
        generated: int,
        stopped: str,
        held: np.ndarray,
        cited: Sequence[Passage],
        answer_s: float,
    ) -> Result:
        reader, read, retained = self.reader, self.trace.read, len(held)
        peak = reader.cache.peak
        on_gpu = reader.model.device.type == "cuda"
        return Result(
            command=self.command,
            model=self.model,
            method=self.run.method,
            question=question,
            answer=answer.strip(),
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
            schedule=self.run.growth,
            chunk=self.run.chunk,
            steps=reader.steps,
            load_s=self.load_s,
            prefill_s=self.prefill_s,
            select_s=reader.select_seconds,
            answer_s=answer_s,
            tokens_per_s=read / self.prefill_s if self.prefill_s else 0.0,
            stopped=stopped,
            citations=tuple(as_json(p, self.trace.names, self.trace.bases) for p in cited),
            coverage=coverage(held, read),
            warnings=tuple(self.warnings),
        )


def rendered(passages: Sequence[Passage], names: Sequence[str]) -> str:
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
