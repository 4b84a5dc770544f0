"""What remains of the sources once they have been read: it can be asked, again and again."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from kvstream.decoding import Repetition, make_sampler
from kvstream.engine.reader import Reader
from kvstream.errors import BudgetError
from kvstream.events import Answered, AnswerStarted, AnswerToken, Event, Notice, Result
from kvstream.input.sources import SourceRecord
from kvstream.memory.citations import NOTHING, Look, as_json, attended, look
from kvstream.memory.coverage import coverage
from kvstream.memory.support import Calibration, Support, abstains, judge
from kvstream.passages.passages import Passage, Passages, TokenOrigins
from kvstream.passages.passages import extract as best_passages
from kvstream.run.plan import RunPlan
from kvstream.run.prompt import Prompt
from kvstream.settings import RunSettings
from kvstream.tokenization.loading import Tokenizer, WordForms

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
    words: WordForms | None = None
    """Which words and numbers all of the text has; None where that was not gathered."""
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
    setting: RunPlan
    run: RunSettings
    trace: Trace
    command: str = "ask"
    load_s: float = 0.0
    prefill_s: float = 0.0
    warnings: list[str] = field(default_factory=list)
    look: Look = NOTHING
    """What the latest answer rests on."""
    digest: str | None = None
    """Of the file that it came from."""
    _before_loop: int | None = None
    """Tokens of the latest answer that stay, where it ended in a loop."""

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
        if broken := self.prompt.broken(question):
            self.warnings.append(broken_apart("question", broken))
            yield Notice(self.warnings[-1])
        held = self.reader.retained().numpy()
        yield AnswerStarted(question, number)
        began = time.perf_counter()
        said: list[int] = []
        written = 0
        if extract:
            answer, stopped = rendered(cited := self.extract(extract), self.trace.names), "end"
            yield AnswerToken(answer, self.reader.cache.used)
            self.look = replace(NOTHING, cited=tuple(cited))
        else:
            answer = ""
            for text in self._write(tail, last, said):
                answer += text
                yield AnswerToken("" if strict else text, self.reader.cache.used)
            stopped, written = self.reader.stopped, len(said)
            if stopped == "budget":
                self.warnings.append(
                    f"The answer stopped after {len(said)} tokens, where the budget was full."
                )
                yield Notice(self.warnings[-1])
            elif kept := self._before_loop:
                stopped = "repetition"
                self.warnings.append(
                    f"The answer began to repeat itself: it was stopped after {written} tokens, "
                    f"and the last {written - kept}, which say the same again, were cut. "
                    "--repetition-penalty 1.2 makes repetition less likely."
                )
                yield Notice(self.warnings[-1])
                del said[kept:]
            self.look = self._look(tail, said)
        result = self._result(question, answer, written, stopped, held, began)
        # A summary rests on everything, and an extract is the text itself.
        if not extract and self.prompt.task == "ask":
            if abstains(result.answer):
                result = forgotten(result)
            else:
                result = judged(result, self._support(result), withhold=strict)
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
        return look(by_answer, by_question, found)

    def _support(self, result: Result) -> Support:
        """What speaks for the answer of a result and against it."""
        model, trace = self.reader.model, self.trace
        forms, known = trace.words, "the text"
        if forms is None and trace.passages is not None:
            forms, known = WordForms(), _kept(result)
            trace.prune(self.reader.retained())
            forms.add("\n".join(passage.text for passage in trace.passages.held()[0]))
        calibration = Calibration.of(model.facts.folder, model.fingerprint)
        return judge(calibration, self.look, result.question, result.answer, forms, known)

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
        """The text of the tokens, which are appended to `said`, and what is left at the end.

        Text that repeats what came before waits until it is clear that it is no loop; a loop ends
        the answer, and its text never appears.
        """
        decoder, repetition = self.tokenizer.decoder(), Repetition()
        self._before_loop = None
        waiting: list[str] = []
        shown = ""
        tokens = self.reader.answer(
            tail,
            make_sampler(self.run),
            frozenset(self.prompt.stop_ids),
            self.run.max_tokens,
            may_compress=last,
        )
        with closing(tokens):  # type: ignore[type-var]
            for token in tokens:
                said.append(token)
                waiting.append(decoder.push(token))
                repetition.push(token, waiting[-1])
                if (kept := repetition.kept) is not None:
                    self._before_loop = kept
                    decoder = self.tokenizer.decoder()
                    text = "".join(map(decoder.push, said[:kept])) + decoder.flush()
                    yield text[len(shown) :]
                    return
                ready = max(0, len(waiting) - repetition.open)
                text = "".join(waiting[:ready])
                del waiting[:ready]
                shown += text
                yield text
        yield "".join(waiting) + decoder.flush()

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


def broken_apart(what: str, count: int) -> str:
    """The warning of a text that holds control sequences."""
    sequences = "control sequences" if count > 1 else "control sequence"
    return (
        f"The {what} holds {count:,} {sequences} of the model's chat template; the model reads "
        "their characters one by one, as plain text."
    )


def judged(result: Result, support: Support, *, withhold: bool) -> Result:
    """The same result with what is known of its support; a doubtful answer gets a warning, or is
    withheld.
    """
    told = result.support
    if told is not None and support.probability is not None:
        told = {**told, "probability": round(support.probability, 4)}
    result = replace(result, support=told, absent=support.absent)
    if not support.doubts:
        return result
    why = ". ".join(support.doubts)
    if withhold:
        warnings = (*result.warnings, f"The answer was withheld. {why}.")
        return replace(result, answer=NOT_SUPPORTED, withheld=result.answer, warnings=warnings)
    return replace(result, warnings=(*result.warnings, f"{why}. Check the text."))


def forgotten(result: Result) -> Result:
    """The same result; where memory has lost parts of the text, a refusal holds for the rest."""
    if not result.evicted:
        return result
    warning = (
        f"The answer is not in {_kept(result)}; it may be in the rest. Read the text again with a "
        "larger --budget, or with --reread."
    )
    return replace(result, warnings=(*result.warnings, warning))


def _kept(result: Result) -> str:
    """What a memory could know of the text."""
    if not result.evicted or result.coverage is None:
        return "the text"
    share = result.coverage["share"]
    if share >= 0.995:  # something of every stretch
        return f"the {result.retained:,} of {result.read:,} tokens that memory kept"
    return f"the {share:.0%} of the text that memory kept"


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
