"""Two models: the skimming model reads all of a text, and the answering model the best passages."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvstream.answer.answering import answer, answered
from kvstream.answer.citations import Basis
from kvstream.answer.reread.excerpts import Excerpts
from kvstream.answer.reread.second_pass import (
    answered_second,
    partial_refusal,
)
from kvstream.answer.skim.kept import BY, BYTES_A_TOKEN, KeptPassages, recalled
from kvstream.answer.skim.reranking import Reranker
from kvstream.errors import BudgetError, UnsupportedModelError, UsageError
from kvstream.events import Answered, AnswerStarted, Event, Result, Started, changed
from kvstream.input.replayed import Replayed
from kvstream.input.source import RereadableSource
from kvstream.memory.base import Memory
from kvstream.memory.kept import positions
from kvstream.memory.kept.positions import Kept
from kvstream.model.loading import refuse_together
from kvstream.run.request import Request
from kvstream.session.reading import started
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

GUESS = 32
"""Maximum tokens of the skimming model's own answer, whose attention helps to choose passages."""


@dataclass
class Skimmed:
    """The result of skimming: a memory, and passages for the answering model."""

    kept: KeptPassages
    request: Request
    """The request to the answering model."""
    held: Memory | None = None
    """Memory of the skimming model; None before it has read."""
    stays: bool = False
    """Whether memory stays beside the answering model's KV cache, for more questions."""

    @property
    def memory(self) -> Memory:
        """Memory of the skimming model."""
        assert self.held is not None
        return self.held


class Skimming:
    """A session that answers, and a session that skims for it. Raises as `Session`.

    If a text fits the budget of the answering model, that model reads it alone.
    """

    def __init__(self, answerer: Session, skimmer: Session, by: str = "both") -> None:
        if by not in BY:
            raise UsageError(f"skim_by is one of {', '.join(BY)}, not {by!r}.")
        self.answerer, self.skimmer, self.by = answerer, skimmer, by

    @classmethod
    def open(cls, settings: ModelSettings, skim: ModelSettings, by: str = "both") -> Skimming:
        """Load both models. Raises ModelError if they do not fit in RAM or GPU memory together, and
        UnsupportedModelError if the KV cache of one of them cannot be bounded.
        """
        refuse_together(settings, skim)
        try:
            skimmer = Session.open(skim)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"{error} So it cannot skim; choose another model with --skim, such as pocket, or "
                "let one model read everything: --skim none."
            ) from error
        return cls(Session.open(settings), skimmer, by)

    @property
    def load_s(self) -> float:
        """Seconds to load both models."""
        return self.answerer.load_s + self.skimmer.load_s

    def plan(self, sources: RereadableSource, request: Request) -> Started:
        """Return the sizes, steps and memory of a run without running it.

        They are those of the model that reads all of the text; `Started.answering` has those of the
        answering model. A request for later questions gets the plan of `read`, others that of
        `ask`.
        """
        replayed = Replayed(sources)
        if self.answerer.fits(replayed, request):
            return self.answerer.plan(replayed, request)
        if request.open_ended:
            request = self._halved(request)  # as `read` does
        plan = self._named(self.skimmer.plan(replayed, self.skims(request)))
        return replace(plan, answering=self._answering(request))

    def _answering(self, request: Request) -> Started:
        """Return the sizes of the answering model, with the longest question."""
        answerer = self.answerer
        whole = answerer.whole(request, max(request.questions, key=len, default=""))
        passages = min(answerer.passage_sizes(whole))
        reader = answerer.settle(whole).reader(answerer.model, whole.run, passages)
        return replace(started(reader, whole.run), estimated_tokens=passages)

    def ask(self, sources: RereadableSource, request: Request) -> Iterator[Event]:
        """Read the sources once, then answer every question. Raises as `Session.ask`."""
        replayed = Replayed(sources)
        if self.answerer.fits(replayed, request):
            yield from self.answerer.ask(replayed, request)
            return
        skimmed = yield from self._read(replayed, request)
        memory, questions = skimmed.memory, request.questions
        guesses = [answered(memory, question) for question in questions]
        chosen = [
            self.chosen(skimmed, question, basis)
            for question, (_, basis) in zip(questions, guesses, strict=True)
        ]
        # From here on, only numbers and text of memory are used.
        held = positions.kept(memory)
        memory.release()
        for number, (first, excerpts) in enumerate(zip(guesses, chosen, strict=True)):
            yield from self.answered_from(skimmed, first[0], excerpts, number, lambda: held)

    def read(
        self, sources: RereadableSource, request: Request
    ) -> Generator[Event, None, Memory | Skimmed]:
        """Read the sources for later questions: with the answering model if they fit, else with the
        skimming model.
        """
        replayed = Replayed(sources)
        if self.answerer.fits(replayed, request):
            return (yield from self.answerer.read(replayed, request))
        skimmed = yield from self._read(replayed, self._halved(request))
        skimmed.stays = True
        return skimmed

    def answer(
        self,
        skimmed: Skimmed,
        question: str,
        number: int = 0,
        *,
        earlier: Sequence[tuple[str, str]] = (),
        stop: Sequence[str] = (),
    ) -> Generator[Event, None, None]:
        """Yield the events of one answer from skimmed passages; memory stays unchanged."""
        first, basis = answered(skimmed.memory, question)
        excerpts = self.chosen(skimmed, question, basis)
        held = partial(positions.kept, skimmed.memory)
        yield from self.answered_from(skimmed, first, excerpts, number, held, earlier, stop)

    def skims(self, request: Request) -> Request:
        """Return the request to the skimming model.

        Raises BudgetError for a budget above its trained length.
        """
        run = request.run
        budget, most = run.budget and run.budget.tokens, self.skimmer.model.trained_length
        if budget and budget > most:
            small, large = self.skimmer.model_name, self.answerer.model_name
            raise BudgetError(
                f"A budget of {budget:,} entries exceeds the {most:,} positions that {small} was "
                f"trained for, and {small} reads long texts for {large}. Use --budget {most} or "
                f"less, or let {large} read everything: --skim none."
            )
        guess = replace(run, max_tokens=min(run.max_tokens, GUESS))
        return replace(request, run=guess, strict=False)

    def _halved(self, request: Request) -> Request:
        """Halve a budget in bytes, because both KV caches exist during an answer."""
        budget = request.run.budget
        if budget is None or budget.bytes is None:
            return request
        half = Budget(bytes=max(1, budget.bytes // 2))
        return replace(request, run=replace(request.run, budget=half))

    def _named(self, event: Started) -> Started:
        return replace(event, model=f"{self.skimmer.model_name} for {self.answerer.model_name}")

    def _read(self, sources: Replayed, request: Request) -> Generator[Event, None, Skimmed]:
        skims = self.skims(request)
        room = BYTES_A_TOKEN * self.answerer.settle(request).sizes.budget
        kept = KeptPassages(room, self.by, request.questions)
        return (yield from self._kept(sources, skims, Skimmed(kept, request)))

    def _kept(
        self, sources: RereadableSource, request: Request, skimmed: Skimmed
    ) -> Generator[Event, None, Skimmed]:
        """Read the sources into `skimmed`, which may have read others before."""
        kept = skimmed.kept
        reading = self.skimmer.read(
            sources, request, skimmed.held, show=kept.feed,
            on_step=lambda memory: kept.note(memory.trace.end, memory),
        )  # fmt: skip
        memory = skimmed.held = yield from changed(
            reading, lambda event: self._named(event) if isinstance(event, Started) else event
        )
        kept.note(memory.trace.end, memory, final=True)
        memory.beside = kept.beside(
            self.answerer.model_name,
            self.answerer.model.fingerprint,
            self.answerer.settle(skimmed.request).sizes.budget,
        )
        return skimmed

    def read_on(
        self, sources: RereadableSource, request: Request, skimmed: Skimmed
    ) -> Generator[Event, None, Skimmed]:
        """Read more text, behind the text that was skimmed. Raises as `Session.read`."""
        return (yield from self._kept(sources, self.skims(request), skimmed))

    def recall(self, memory: Memory, answer: RunSettings) -> Skimmed:
        """Restore the result of skimming from a file; `memory`: the skimming model's, recalled.

        Raises UsageError if the file is of one model, SourceError if it is damaged.
        """
        beside = memory.beside
        if beside is None:
            raise UsageError(f"The memory was read by {memory.model} alone; ask it without --skim.")
        run = replace(answer, budget=Budget(tokens=beside.budget))
        request = Request(run=run, command="chat", system=memory.plan.system)
        return Skimmed(recalled(memory), request, memory, stays=True)

    def chosen(self, skimmed: Skimmed, question: str, basis: Basis) -> Excerpts:
        sizes = self.answerer.passage_sizes(self.answerer.whole(skimmed.request, question))
        memory, tokenizer = skimmed.memory, self.answerer.tokenizer
        chosen = skimmed.kept.choose(question, memory, basis.regions, tokenizer, sizes)
        return Excerpts(chosen, memory.trace.names, memory.trace.bases)

    def answered_from(
        self,
        skimmed: Skimmed,
        first: Result,
        excerpts: Excerpts,
        number: int,
        held: Callable[[], Kept],
        earlier: Sequence[tuple[str, str]] = (),
        stop: Sequence[str] = (),
    ) -> Iterator[Event]:
        """Yield the events of the answering model's answer.

        `held` returns which tokens the skimming model's memory holds.
        """
        yield AnswerStarted(first.question, number, held)
        began = time.perf_counter()
        memory, request = skimmed.memory, skimmed.request
        whole = self.answerer.whole(request, first.question)
        second = self.answerer.read_excerpts(excerpts, whole, memory.trace.words)
        for event in answer(
            second, first.question, number,
            last=True, strict=request.strict, earlier=earlier, stop=stop,
        ):  # fmt: skip
            if isinstance(event, Answered):
                seconds = time.perf_counter() - began
                event = Answered(self._together(skimmed, first, event.result, excerpts, seconds))
                yield event
            elif not isinstance(event, AnswerStarted):
                yield event
        second.release()

    def _together(
        self, skimmed: Skimmed, first: Result, second: Result, excerpts: Excerpts, seconds: float
    ) -> Result:
        """Return the answer as the result of both models.

        Its sizes are the larger ones. If memory stays, bytes include the capacity of its KV cache.
        """
        kept = skimmed.kept
        larger = max(first, second, key=lambda result: result.peak_kv_bytes)
        beside = skimmed.memory.reader.cache.capacity_bytes if skimmed.stays else 0
        refusal = partial_refusal(second)
        if refusal and kept.dropped:
            refusal = (
                f"The answer is not in the {second.read:,} tokens that {self.answerer.model_name} "
                f"read; it may be in the rest, of which {kept.dropped:,} bytes were dropped and "
                "cannot be read again. Read the text again with a larger --budget.",
            )
        return replace(
            answered_second(first, second, seconds),
            model=self.answerer.model_name,
            narrowed=None,  # it concerns the skimming model; passages come from all sources
            load_s=self.load_s,
            budget_tokens=max(first.budget_tokens, second.budget_tokens),
            budget_bytes=(second.budget_bytes + beside if beside else larger.budget_bytes),
            peak_kv_bytes=(second.peak_kv_bytes + beside if beside else larger.peak_kv_bytes),
            warnings=tuple(dict.fromkeys((*skimmed.memory.warnings, *second.warnings, *refusal))),
            skim=told(self.skimmer.model_name, kept, excerpts, first, second, seconds),
        )


def told(
    model: str | None,
    kept: KeptPassages,
    excerpts: Excerpts,
    first: Result | None,
    second: Result,
    seconds: float,
    reranker: Reranker | None = None,
) -> dict[str, Any]:
    """Return the object ``skim`` of a result; `model` and `first` are None for a word search."""
    seen = {} if first is None or first.narrowed is None else {"narrowed": first.narrowed}
    said = first and {"answer": first.answer, "citations": list(first.citations), **seen}
    return {
        "model": model,
        "by": kept.by,
        "pieces": excerpts.to_json(),
        "tokens": second.read,
        "reranked": 0 if reranker is None else reranker.reranked,
        "kept": kept.to_json(),
        "peak": {"skim": _peak(first), "answer": _peak(second)},
        "seconds": round(seconds, 3),
        "first": said,
    }


def _peak(result: Result | None) -> dict[str, int]:
    tokens, size = (result.peak_kv_tokens, result.peak_kv_bytes) if result else (0, 0)
    return {"kv_tokens": tokens, "kv_bytes": size}
