"""What remains of the sources once they have been read: it can be asked, again and again."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from kvstream.decoding import chooser
from kvstream.engine import Reader
from kvstream.errors import BudgetError
from kvstream.events import Answered, AnswerStarted, AnswerToken, Event, Notice, Result
from kvstream.memory.citations import NOTHING, Look, as_json, attended, look
from kvstream.memory.coverage import coverage
from kvstream.passages import Passage, Passages, TokenOrigins
from kvstream.passages import extract as best_passages
from kvstream.preparation import Setting
from kvstream.prompt import Prompt
from kvstream.settings import RunSettings
from kvstream.sources import SourceRecord
from kvstream.tokens import Tokenizer

NOT_SUPPORTED = "What memory holds of the text does not support an answer."
"""Said by --strict in place of an answer."""


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
    records: Sequence[SourceRecord] = ()
    """Sizes and digests of the sources, as far as they were read."""
    ended_line: bool = True
    """Whether the last of them ended with a newline."""

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
    setting: Setting
    run: RunSettings
    trace: Trace
    command: str = "ask"
    load_s: float = 0.0
    prefill_s: float = 0.0
    warnings: list[str] = field(default_factory=list)
    look: Look = NOTHING
    """What the latest answer rests on."""

    @property
    def prompt(self) -> Prompt:
        """What stands around what memory holds."""
        return self.setting.prompt

    @property
    def tokens_per_s(self) -> float:
        """Of reading; 0 where it was done at another time."""
        return self.trace.read / self.prefill_s if self.prefill_s else 0.0

    @property
    def retained(self) -> int:
        """Distinct source tokens that some head still holds."""
        return int(self.reader.retained().numel())

    def answer(
        self,
        question: str,
        number: int = 0,
        *,
        last: bool = False,
        extract: int = 0,
        strict: bool = False,
        earlier: Sequence[tuple[str, str]] = (),
    ) -> Iterator[Event]:
        """The events of one answer. Memory stays as it was, unless it is the `last` question.

        With `extract` the answer is that many passages, those that memory holds on to most. One
        that rests on little gets a warning, and with `strict` it is withheld. Of `earlier`
        questions and answers the model is told the newest, as far as they fit. Raises BudgetError
        where the question alone does not fit.
        """
        tail = self.tail(question, earlier)
        held = self.reader.retained().numpy()
        yield AnswerStarted(question, number)
        began = time.perf_counter()
        said: list[int] = []
        if extract:
            answer, stopped = rendered(cited := self.extract(extract), self.trace.names), "end"
            yield AnswerToken(answer, self.reader.cache.used)
            self.look = replace(NOTHING, cited=tuple(cited))
        else:
            answer = ""
            for text in self._write(tail, last, said):
                answer += text
                yield AnswerToken("" if strict else text, self.reader.cache.used)
            stopped = self.reader.stopped
            if stopped == "budget":
                self.warnings.append(
                    f"The answer stopped after {len(said)} tokens, where the budget was full."
                )
                yield Notice(self.warnings[-1])
            self.look = self._look(tail, said)
        result = self._result(question, answer, len(said), stopped, held, began)
        # A summary rests on everything, and an extract is the text itself.
        if not extract and self.prompt.task == "ask" and self.look.doubts:
            result = doubted(result, self.look, withhold=strict)
        if strict and not extract:
            yield AnswerToken(result.answer, self.reader.cache.used)
        yield Answered(result)

    def release(self) -> None:
        """Give the room of keys and values back; the memory can no longer be asked."""
        cache = self.reader.cache
        for store in cache.stores:
            store.keys, store.values = store.keys[:, :0].clone(), store.values[:, :0].clone()
        for recurrent in cache.recurrent:
            recurrent.release()
        cache.free_scratch()

    def tail(self, question: str, earlier: Sequence[tuple[str, str]] = ()) -> list[int]:
        """What is put behind memory: the question, and the newest of `earlier` ones that fit.

        Raises BudgetError where the question alone does not.
        """
        room = self.reader.sizes.budget - self.reader.cache.used
        answer = min(self.run.max_tokens, self.reader.sizes.answer)
        for first in range(len(earlier)):
            tail = self.prompt.tail(question, earlier[first:])
            if len(tail) + answer <= room:
                return tail
        tail = self.prompt.tail(question)
        if len(tail) >= room:
            raise BudgetError(
                f"The question takes {len(tail)} entries, and memory leaves {room} of "
                f"{self.reader.sizes.budget}; ask a shorter one, or read with a larger --budget."
            )
        return tail

    def _look(self, tail: Sequence[int], said: Sequence[int]) -> Look:
        """What the tokens `said` in answer to a question looked at."""
        found = attended(self.reader, tail, said)
        passages = self.trace.passages
        if found is None or passages is None:
            return NOTHING
        starts = self.trace.origins.starts(found.ordinals.numpy())
        by_answer = passages.score(starts, found.by_answer.numpy())
        by_question = passages.score(starts, found.by_question.numpy())
        return look(by_answer, by_question, found.confidence)

    def extract(self, count: int) -> list[Passage]:
        """The passages that memory holds on to most, in document order; in a summary from all over
        the document.
        """
        assert self.trace.passages is not None
        ordinals, weights = self.reader.rank()
        starts = self.trace.origins.starts(ordinals.numpy())
        parts = count if self.command == "summarize" else 1
        return best_passages(self.trace.passages.score(starts, weights.numpy()), count, parts=parts)

    def _write(self, tail: Sequence[int], last: bool, said: list[int]) -> Iterator[str]:
        """The text of every token, which is appended to `said`, and what is left at the end."""
        decoder = self.tokenizer.decoder()
        tokens = self.reader.answer(
            tail,
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
        began: float,
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
            answer_s=time.perf_counter() - began,
            tokens_per_s=self.tokens_per_s,
            stopped=stopped,
            citations=tuple(
                as_json(p, self.trace.names, self.trace.bases) for p in self.look.cited
            ),
            support=self.look.to_json() if generated else None,
            coverage=coverage(held, read),
            warnings=tuple(self.warnings),
        )


def doubted(result: Result, look: Look, *, withhold: bool) -> Result:
    """The same result with a warning that it rests on little, or with the answer withheld."""
    why = ", and ".join(look.doubts)
    if withhold:
        warning = f"An answer that rests on little was withheld: {why}."
        return replace(
            result,
            answer=NOT_SUPPORTED,
            withheld=result.answer,
            warnings=(*result.warnings, warning),
        )
    return replace(
        result, warnings=(*result.warnings, f"The answer rests on little: {why}. Check it.")
    )


def rendered(passages: Sequence[Passage], names: Sequence[str]) -> str:
    """One passage a line behind its line number, and its source's name where there are several."""
    several = len(names) > 1
    return "\n".join(
        f"{names[p.source] + ':' if several else ''}{p.spot}: {' '.join(p.text.split())}"
        for p in passages
    )


def _peak_rss() -> int:
    """The most memory that this process ever had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
