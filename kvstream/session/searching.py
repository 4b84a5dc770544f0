"""A word search reads all of a text; a model reads only the passages that it finds."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

from kvstream.answer.answering import answer
from kvstream.answer.reread.excerpts import Excerpts
from kvstream.answer.reread.second_pass import partial_refusal, whole_request
from kvstream.answer.skim.kept import BYTES_A_TOKEN, KeptPassages
from kvstream.answer.skim.reranking import Reranker
from kvstream.errors import SourceError
from kvstream.events import Answered, Event, Notice, Result, Started, StepDone
from kvstream.input.blocks import TextBlock
from kvstream.input.replayed import Replayed
from kvstream.input.source import RereadableSource, nothing_in
from kvstream.memory.base import Trace
from kvstream.run.plan import RunPlan
from kvstream.run.request import Request
from kvstream.session.reading import nothing_read, stopped_after
from kvstream.session.session import Session
from kvstream.session.skimming import told
from kvstream.tokenization.loading import TokenStream, WordForms, open_stream

METHOD = "bm25"
NO_WORD = (
    "No passage that was kept has a word of the question, so a word search cannot find its answer. "
    "Use words of the text, or let a model skim: --skim pocket."
)
COMMON_WORDS = (
    "The question has only common words, so a word search cannot find its answer. Name what it is "
    "about, or let a model skim: --skim pocket."
)
STEP = 8192
"""Number of tokens searched at a time."""


@dataclass
class Found:
    """The result of a word search in a text."""

    kept: KeptPassages
    trace: Trace
    seconds: float = 0.0
    """Time of the search."""
    steps: int = 0
    warnings: list[str] = field(default_factory=list)


class Searching:
    """Answers questions that are known before a text is read. Raises as `Session.ask`.

    The text is read once. The passages with the questions' words are kept, up to 64 bytes for each
    entry of the budget, as with a skimming model (`session/skimming.py`). The model alone reads a
    text that fits the budget.
    """

    def __init__(self, answerer: Session) -> None:
        self.answerer = answerer

    def ask(self, sources: RereadableSource, request: Request) -> Iterator[Event]:
        """Search the sources once, then answer every question."""
        replayed = Replayed(sources)
        if self.answerer.fits(replayed, request):
            yield from self.answerer.ask(replayed, request)
            return
        plan = self.answerer.settle(request)
        found = yield from self._search(replayed, request, plan)
        for number, question in enumerate(request.questions):
            yield from self._answer(found, request, question, number)

    def plan(self, sources: RereadableSource, request: Request) -> Started:
        """Return the sizes of a run without running it."""
        replayed = Replayed(sources)
        if self.answerer.fits(replayed, request):
            return self.answerer.plan(replayed, request)
        length = TokenStream(self.answerer.tokenizer, replayed).estimate()
        return self._started(self.answerer.settle(request), request, length)

    def _started(self, plan: RunPlan, request: Request, length: int | None) -> Started:
        return Started(
            model=f"word search for {self.answerer.model_name}",
            method=METHOD,
            budget_tokens=plan.sizes.budget,
            budget_bytes=self.answerer.kv_bytes(whole_request(request, "", plan.sizes.budget).run),
            fixed_bytes=0,
            prompt_tokens=plan.sizes.prompt,
            reserved_tokens=plan.sizes.question + plan.sizes.answer,
            schedule="",
            chunk="",
            estimated_tokens=length,
            estimated_steps=None if length is None else -(-length // STEP),
            lossless=False,
            precision=self.answerer.model.precision,
        )

    def _search(
        self, sources: Replayed, request: Request, plan: RunPlan
    ) -> Generator[Event, None, Found]:
        """Search all of the sources, without a model."""
        kept = KeptPassages(BYTES_A_TOKEN * plan.sizes.budget, "words", request.questions)
        words = WordForms()
        trace = Trace(sources.names, sources.bases, words=words)
        found = Found(kept, trace)

        def show(block: TextBlock) -> None:
            kept.feed(block)
            words.feed(block)

        began = time.perf_counter()
        stream = open_stream(self.answerer.tokenizer, sources, show)
        yield self._started(plan, request, stream.estimate())
        # After Ctrl-C a pipe ends by itself, after the text that has already arrived.
        while sources.ends_on_interrupt or not request.interrupted():
            batch = stream.read(STEP)
            if not batch:
                if stream.paused and not request.interrupted():
                    continue
                break
            trace.read, trace.end = stream.seen, batch.end
            kept.note(trace.end)
            found.steps += 1
            found.seconds = time.perf_counter() - began
            yield self._step(found, len(batch), plan, stream.estimate())
        ended = stream.at_end  # before `close`, after which nothing more can be read
        stream.close()
        if not trace.read:
            raise nothing_read(interrupted=request.interrupted())
        kept.note(trace.end, final=True)
        if not len(kept) and not kept.dropped:
            raise SourceError(nothing_in(sources.names, "only spaces and line ends"))
        if request.interrupted() and (sources.ends_on_interrupt or not ended):
            trace.interrupted = True
            found.warnings.append(stopped_after(trace.read, stream.estimate() or 0))
        found.warnings += sources.warnings
        for message in found.warnings:
            yield Notice(message)
        for message in sources.notes:
            yield Notice(message, note=True)
        found.seconds = time.perf_counter() - began
        return found

    def _step(self, found: Found, tokens: int, plan: RunPlan, length: int | None) -> StepDone:
        """Return the progress of the search; the KV cache is still empty."""
        return StepDone(
            step=found.steps,
            chunk=tokens,
            memory=(0,),
            seen=found.trace.read,
            estimated_tokens=length,
            kv_tokens=0,
            in_flight_tokens=0,
            peak_tokens=0,
            budget_tokens=plan.sizes.budget,
            kv_bytes=0,
            seconds=found.seconds,
            coverage=lambda bins: [0.0] * max(1, min(bins, found.trace.read)),
            retained=lambda: 0,
        )

    def _answer(
        self, found: Found, request: Request, question: str, number: int
    ) -> Iterator[Event]:
        began, session, trace = time.perf_counter(), self.answerer, found.trace
        whole = session.whole(request, question)
        sizes = session.passage_sizes(whole)
        reranker = session.reranker(whole, question, sizes[0])
        chosen = found.kept.choose(question, None, (), session.tokenizer, sizes, reranker)
        if reranker is not None:
            reranker.reader.release()
        excerpts = Excerpts(chosen, trace.names, trace.bases)
        memory = session.read_excerpts(excerpts, whole, trace.words)
        if reranker is not None:
            memory.reader.cache.peak.include(reranker.reader.cache.peak)
        nothing = _unfound(found.kept, question)
        for event in answer(memory, question, number, last=True, strict=request.strict):
            if isinstance(event, Answered):
                seconds = time.perf_counter() - began
                result = self._result(found, event.result, excerpts, seconds, reranker)
                event = Answered(replace(result, warnings=(*result.warnings, *nothing)))
            yield event
        memory.release()

    def _result(
        self,
        found: Found,
        said: Result,
        excerpts: Excerpts,
        seconds: float,
        reranker: Reranker | None,
    ) -> Result:
        """Return the answer as the result of a run that read all of the text."""
        read, refusal = found.trace.read, partial_refusal(said)
        return replace(
            said,
            method=METHOD,
            read=read,
            evicted=read - said.retained,
            steps=found.steps,
            prefill_s=found.seconds,
            answer_s=seconds,
            tokens_per_s=read / found.seconds if found.seconds else 0.0,
            coverage=None,
            interrupted=found.trace.interrupted,
            warnings=tuple(dict.fromkeys((*found.warnings, *said.warnings, *refusal))),
            of_reading=tuple(found.warnings),
            skim=told(None, found.kept, excerpts, None, said, seconds, reranker),
        )


def _unfound(kept: KeptPassages, question: str) -> tuple[str, ...]:
    """Return a warning that says why no passage has a word of the question; empty if one has."""
    if kept.speaks(question):
        return ()
    _, _, *having = kept.totals(question) or (0, 0)
    return (NO_WORD,) if having else (COMMON_WORDS,)
