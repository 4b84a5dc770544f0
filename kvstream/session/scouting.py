"""Read a text that exceeds the budget for a model that answers from its best passages.

A *scout* reads all of the text once. It is the answering model itself, a smaller model, or None,
where the words of the questions alone choose passages. Meanwhile a `PassageMemory` keeps the best
passages. The answering model reads those of a question whole, and answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

from kvstream import events
from kvstream.answer.answering import abstains, answer, result_of
from kvstream.errors import BudgetError, SourceError, UnsupportedModelError, UsageError
from kvstream.events import Event, Notice, Result, Started, changed
from kvstream.input.source import Replay, RereadableSource, identity, nothing_in
from kvstream.memory.contents import Memory, Trace
from kvstream.memory.snapshot import positions
from kvstream.memory.snapshot.positions import Snapshot
from kvstream.methods.whole import Passages
from kvstream.model.loading import refuse_together
from kvstream.passages.excerpts import LENGTH, Excerpt, Excerpts
from kvstream.passages.judge import Judge
from kvstream.passages.memory import (
    BYTES_A_TOKEN,
    Chooser,
    PassageMemory,
    fitting,
    near_the_best,
    recalled,
)
from kvstream.run.request import Request
from kvstream.session.reading import each_of, nothing_read, started, stopped_after
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.tokenization.loading import TokenStream, WordForms

GUESS = 32
"""Maximum tokens of the scout's own answer, whose attention helps to choose passages."""
STEP = 8192
"""Number of tokens read at a time if no model scouts."""
PATIENCE, SCOUTING = 60, 20
"""Seconds that the answering model may take to read a text before it answers, and `pocket`."""
SURE = 0.8
"""Mean probability of the tokens of an answer after which no second reading follows."""
BYTES_PER_TOKEN, DENSE = 4.3, 3
"""Of English prose, for an estimate before a text is read; and of text with many tokens."""
_PEAKS = "peak_kv_tokens", "peak_kv_bytes", "scratch_bytes"
_SECOND = (
    "answer", "generated", "stopped", "citations", "support", "withheld", "absent",
    "peak_rss_bytes", "peak_device_bytes",
)  # fmt: skip
"""Fields of a result that the answering model sets; of the others, most are those of the scout."""
NO_WORD = (
    "No passage that was kept has a word of the question, so a word search cannot find its answer. "
    "Use words of the text, or let a model scout: --skim pocket."
)
NO_PASSAGE = "No passage that was judged seems to have the answer. Check the text."
COMMON_WORDS = (
    "The question has only common words, so a word search cannot find its answer. Name what it is "
    "about, or let a model scout: --skim pocket."
)


@dataclass
class Scouted:
    """What a scout leaves: passages, and its memory if a model scouted."""

    passages: PassageMemory
    request: Request
    trace: Trace
    scout: Memory | None = None
    stays: bool = False
    """Whether memory stays beside the answering model's KV cache, for more questions."""
    seconds: float = 0.0
    """Time of the reading, if no model scouts."""
    steps: int = 0
    warnings: list[str] = field(default_factory=list)
    """Of the reading, if no model scouts."""

    @property
    def memory(self) -> Memory:
        assert self.scout is not None
        return self.scout


class Scouting:
    """A session that answers, and the scout that reads long texts for it. Raises as `Session`.

    If a text fits the budget of the answering model, that model reads it alone. The scout is None
    if the words of the questions alone choose passages; then the questions must be known.
    """

    def __init__(self, answerer: Session, scout: Session | None = None, why: str = "") -> None:
        self.answerer, self.scout, self.why = answerer, scout, why
        """`why` says how the scout was chosen, if kvstream chose it."""

    @classmethod
    def open(cls, settings: ModelSettings, skim: ModelSettings) -> Scouting:
        """Load both models. Raises ModelError without room, UnsupportedModelError."""
        refuse_together(settings, skim)
        try:
            scout = Session.open(skim)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(
                f"{error} So it cannot scout; choose another model with --skim, such as pocket, or "
                "let one model read everything: --skim none."
            ) from error
        return cls(Session.open(settings), scout)

    @property
    def reader(self) -> Session:
        """The session of the model that reads long texts."""
        return self.scout or self.answerer

    # Reading.

    def plan(self, sources: RereadableSource, request: Request) -> Started:
        """Return the sizes and steps of a run: of the scout, and of the answering model."""
        replayed = Replay(sources)
        if self.answerer.fits(replayed, request):
            return self.answerer.plan(replayed, request)
        if self.scout is None:
            length = TokenStream(self.answerer.tokenizer, replayed).estimate()
            return self._started_by_words(request, length)
        if request.open_ended:
            request = self._halved(request)  # as `read` does
        plan = self._named(self.scout.plan(replayed, self.scouts(request)))
        return replace(plan, answering=self._answering(request))

    def _answering(self, request: Request) -> Started:
        answerer = self.answerer
        whole = answerer.whole(request, max(request.questions, key=len, default=""))
        passages = min(answerer.passage_sizes(whole))
        reader = answerer.settle(whole).reader(answerer.model, whole.run, passages)
        return replace(started(reader, whole.run), estimated_tokens=passages)

    def _started_by_words(self, request: Request, length: int | None) -> Started:
        plan = self.answerer.settle(request)
        whole = self.answerer.whole(request, "")
        return Started(
            model=f"word search for {self.answerer.model_name}",
            method=Passages.name,
            budget_tokens=plan.sizes.budget,
            budget_bytes=self.answerer.kv_bytes(whole.run),
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

    def ask(self, sources: RereadableSource, request: Request) -> Iterator[Event]:
        """Read the sources once, then answer every question. Raises as `Session.ask`."""
        replayed = Replay(sources)
        if self.answerer.fits(replayed, request):
            yield from self.answerer.ask(replayed, request)
            return
        scouted = yield from self._read(replayed, request)
        if scouted.scout is None:
            for number, question in enumerate(request.questions):
                choose = scouted.passages.ranked(question, None, ())
                yield from self._from_passages(scouted, question, choose, number)
            return
        memory, questions = scouted.memory, request.questions
        guesses = [result_of(memory, question) for question in questions]
        snapshot = positions.snapshot(memory)
        # The guesses cite passages; what memory holds of each breaks ties. Both need the memory.
        ready = [
            scouted.passages.ranked(question, memory, basis.regions)
            for question, (_, basis) in zip(questions, guesses, strict=True)
        ]
        memory.reader.release()
        for number, ((first, _), choose) in enumerate(zip(guesses, ready, strict=True)):
            yield from self._from_passages(
                scouted, first.question, choose, number, first, lambda: snapshot
            )

    def read(
        self, sources: RereadableSource, request: Request
    ) -> Generator[Event, None, Memory | Scouted]:
        """Read for later questions: with the answering model if the text fits, else the scout."""
        replayed = Replay(sources)
        if self.answerer.fits(replayed, request):
            return (yield from self.answerer.read(replayed, request))
        scouted = yield from self._read(replayed, self._halved(request))
        scouted.stays = True
        return scouted

    def scouts(self, request: Request) -> Request:
        """Return the request to the scout. Raises BudgetError above its trained length."""
        run, scout = request.run, self.reader
        budget, most = run.budget and run.budget.tokens, scout.model.trained_length
        if budget and budget > most:
            small, large = scout.model_name, self.answerer.model_name
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
        small, large = self.reader.model_name, self.answerer.model_name
        return event if small == large else replace(event, model=f"{small} for {large}")

    def _read(self, sources: Replay, request: Request) -> Generator[Event, None, Scouted]:
        if self.why:
            yield Notice(self.why, note=True)
        room = BYTES_A_TOKEN * self.answerer.settle(request).sizes.budget
        scouted = Scouted(PassageMemory(room, request.questions), request, Trace())
        read = self.read_on if self.scout else self._read_words
        return (yield from read(sources, request, scouted))

    def read_on(
        self, sources: RereadableSource, request: Request, scouted: Scouted
    ) -> Generator[Event, None, Scouted]:
        """Read the sources behind those that `scouted` has read, if any. As `Session.read`."""
        passages, answerer = scouted.passages, self.answerer
        reading = self.reader.read(
            sources, self.scouts(request), scouted.scout, show=passages.feed,
            on_step=lambda memory: passages.note(memory.trace.end, memory),
        )  # fmt: skip
        memory = yield from changed(
            reading, lambda event: self._named(event) if isinstance(event, Started) else event
        )
        passages.note(memory.trace.end, memory, final=True)
        scouted.scout, scouted.trace = memory, memory.trace
        budget = answerer.settle(scouted.request).sizes.budget
        memory.beside = passages.beside(answerer.model_name, answerer.model.fingerprint, budget)
        return scouted

    def _read_words(
        self, sources: Replay, request: Request, scouted: Scouted
    ) -> Generator[Event, None, Scouted]:
        """Read the sources without a model: the words of the questions choose passages."""
        self.scouts(request)  # raises above the trained length
        words, passages = WordForms(), scouted.passages
        trace = scouted.trace = Trace(sources.names, sources.bases, words=words)
        began = time.perf_counter()
        show = each_of([passages.feed, words.feed])
        stream = TokenStream(self.answerer.tokenizer, sources, show)
        yield self._started_by_words(scouted.request, stream.estimate())
        # After Ctrl-C a pipe ends by itself, after the text that has already arrived.
        while sources.ends_on_interrupt or not request.interrupted():
            batch = stream.read(STEP)
            if not batch:
                if stream.paused and not request.interrupted():
                    continue
                break
            trace.read, trace.end = stream.seen, batch.end
            passages.note(trace.end)
            scouted.steps += 1
            scouted.seconds = time.perf_counter() - began
            yield self._step(scouted, len(batch), stream.estimate())
        ended = stream.at_end  # before `close`, after which nothing more can be read
        if not trace.read:
            raise nothing_read(interrupted=request.interrupted())
        passages.note(trace.end, final=True)
        if not len(passages) and not passages.dropped:
            raise SourceError(nothing_in(sources.names, "only spaces and line ends"))
        if request.interrupted() and (sources.ends_on_interrupt or not ended):
            trace.interrupted, trace.waiting = True, sources.bytes_read - trace.end
            scouted.warnings.append(stopped_after(trace.read, stream.estimate() or 0))
        trace.records, trace.notes = sources.records, sources.notes
        scouted.warnings += sources.warnings
        for message in scouted.warnings:
            yield Notice(message)
        for message in sources.notes:
            yield Notice(message, note=True)
        scouted.seconds = time.perf_counter() - began
        return scouted

    def _step(self, scouted: Scouted, tokens: int, length: int | None) -> events.StepDone:
        """Return the progress of a reading without a model; the KV cache is still empty."""
        return events.StepDone(
            step=scouted.steps,
            chunk=tokens,
            memory=(0,),
            seen=scouted.trace.read,
            estimated_tokens=length,
            kv_tokens=0,
            in_flight_tokens=0,
            peak_tokens=0,
            budget_tokens=self.answerer.settle(scouted.request).sizes.budget,
            kv_bytes=0,
            seconds=scouted.seconds,
            coverage=lambda bins: [0.0] * max(1, min(bins, scouted.trace.read)),
            retained=lambda: 0,
        )

    def recall(self, memory: Memory, answer: RunSettings) -> Scouted:
        """Restore a file and the scout's `memory`. Raises UsageError, SourceError."""
        beside = memory.beside
        if beside is None:
            raise UsageError(f"The memory was read by {memory.model} alone; ask it without --skim.")
        run = replace(answer, budget=Budget(tokens=beside.budget))
        request = Request(run=run, command="chat", system=memory.plan.system)
        return Scouted(recalled(memory), request, memory.trace, memory, stays=True)

    # Answering.

    def answer(
        self, scouted: Scouted, question: str, number: int = 0, **how: Any
    ) -> Generator[Event, None, None]:
        """Yield the events of one answer from passages; memory stays unchanged.

        `how`: `earlier` and `stop`, as in `answering.answer`.
        """
        first, basis = result_of(scouted.memory, question)
        choose = scouted.passages.ranked(question, scouted.scout, basis.regions)
        snapshot = partial(positions.snapshot, scouted.memory)
        yield from self._from_passages(scouted, question, choose, number, first, snapshot, **how)

    def _from_passages(
        self,
        scouted: Scouted,
        question: str,
        choose: Chooser,
        number: int,
        first: Result | None = None,
        snapshot: Callable[[], Snapshot] | None = None,
        **how: Any,
    ) -> Iterator[Event]:
        """Yield the events of an answer; a scout answered `first`, and `snapshot` is what it holds.

        A calibrated model that does not judge reads twice: the best passages, and, if the answer is
        not sure, the best one with the text around it. The more probable answer counts.
        """
        if snapshot is not None:
            yield events.AnswerStarted(question, number, snapshot)
        began = time.perf_counter()
        session, trace = self.answerer, scouted.trace
        whole = session.whole(scouted.request, question)
        sizes = session.passage_sizes(whole)
        judge = session.judge(whole, question, sizes[0])
        passages = choose(judge)
        if judge is not None:
            judge.reader.release()

        def reading(some: Sequence[Excerpt]) -> Generator[Event, None, Second]:
            pieces = fitting(some, session.tokenizer, sizes)
            excerpts = Excerpts(pieces, trace.names, trace.bases)
            memory = session.read_excerpts(excerpts, whole, trace.words)
            if judge is not None:
                memory.reader.cache.peak.include(judge.reader.cache.peak)
            strict = scouted.request.strict
            for event in answer(memory, question, number, last=True, strict=strict, **how):
                if isinstance(event, events.Answered):
                    result = event.result
                elif snapshot is None or not isinstance(event, events.AnswerStarted):
                    yield event
            memory.reader.release()
            return Second(result, excerpts, judge)

        if passages and judge is None and session.calibrated:
            second = yield from _likelier([reading(passages), reading(near_the_best(passages))])
        else:
            second = yield from reading(passages)
        second = replace(second, seconds=time.perf_counter() - began)
        yield events.Answered(
            self._together(scouted, first, second) if first else self._of_words(scouted, second)
        )

    def _together(self, scouted: Scouted, first: Result, second: Second) -> Result:
        """Return the result of both models: the larger sizes, with the bytes that memory keeps."""
        result = second.result
        larger = max(first, result, key=lambda result: result.peak_kv_bytes)
        beside = scouted.memory.reader.cache.capacity_bytes if scouted.stays else 0
        return replace(
            first,
            **{name: getattr(result, name) for name in _SECOND},
            model=self.answerer.model_name,
            answer_s=first.answer_s + second.seconds,
            peak_kv_tokens=max(first.peak_kv_tokens, result.peak_kv_tokens),
            scratch_bytes=max(first.scratch_bytes, result.scratch_bytes),
            narrowed=None,  # it concerns the scout; passages come from all sources
            load_s=sum(session.load_s for session in {self.answerer, self.reader}),
            budget_tokens=max(first.budget_tokens, result.budget_tokens),
            budget_bytes=(result.budget_bytes + beside if beside else larger.budget_bytes),
            peak_kv_bytes=(result.peak_kv_bytes + beside if beside else larger.peak_kv_bytes),
            warnings=second.warnings(scouted.memory.warnings, scouted.passages),
            skim=second.to_json(self.reader.model_name, scouted.passages, first),
            receipt={
                **_receipt(first, max_tokens=scouted.request.run.max_tokens),
                "model_digest": self.answerer.model.fingerprint,
                "skim_digest": self.reader.model.fingerprint,
            },
        )

    def _of_words(self, scouted: Scouted, second: Second) -> Result:
        """Return the answer as the result of a run that read all of the text."""
        result, read = second.result, scouted.trace.read
        unfound = _unfound(scouted.passages, result.question)
        return replace(
            result,
            method=Passages.name,
            read=read,
            evicted=read - result.retained,
            steps=scouted.steps,
            prefill_s=scouted.seconds,
            answer_s=second.seconds,
            tokens_per_s=read / scouted.seconds if scouted.seconds else 0.0,
            coverage=None,
            interrupted=scouted.trace.interrupted,
            waiting=scouted.trace.waiting,
            warnings=second.warnings(scouted.warnings, scouted.passages, unfound),
            of_reading=tuple(scouted.warnings),
            skim=second.to_json(None, scouted.passages, None),
            receipt={
                **_receipt(result, method=Passages.name),
                "input": identity(scouted.trace.records),
            },
        )


def road(session: Session, request: Request) -> Session | Scouting:
    """Return what reads and answers a request: the session alone, or passages by words."""
    return Scouting(session) if request.run.method == Passages.name else session


def choose_scout(session: Session, size: int | None, request: Request) -> Scouting | None:
    """Return the scout for a text of `size` bytes (None: unknown), decided by what reading costs.

    The answering model scouts on a GPU, or if it reads the text within PATIENCE. It is not timed
    for a text that fits the budget, since no scout reads that. Else `pocket` scouts, if that takes
    at most SCOUTING, or if questions come later. Else the words of the questions alone choose
    passages. None: the budget has no room for passages.
    """
    whole = session.whole(request, max(request.questions, key=len, default=""))
    if session.passage_sizes(whole)[0] < LENGTH:
        return None
    name = session.model_name
    if session.model.device.type != "cpu":
        return Scouting(session, session, f"{name} reads all of the text, on a GPU.")
    if size is not None and size <= DENSE * session.settle(request).sizes.budget:  # fits: no timing
        return Scouting(session, session, f"{name} reads all of the text.")
    tokens = None if size is None else round(size / BYTES_PER_TOKEN)
    cost = inf if tokens is None else tokens / session.speed
    if cost <= PATIENCE:
        return Scouting(session, session, f"{name} reads all of the text, in about {cost:.0f} s.")
    slow = f"all of the text would take it {cost / 60:,.0f} minutes" if tokens else (
        "the length of the text is unknown"
    )  # fmt: skip
    scout = Session.open(ModelSettings(threads=session.settings.threads))
    quick = inf if tokens is None else tokens / scout.speed
    if quick <= SCOUTING or not request.questions:
        return Scouting(
            session, scout, f"{scout.model_name} chooses the passages that {name} reads: {slow}."
        )
    return Scouting(
        session, None, f"Words of the question choose the passages that {name} reads: {slow}."
    )


@dataclass(frozen=True)
class Second:
    """An answer from passages, and what was read for it."""

    result: Result
    excerpts: Excerpts
    judge: Judge | None
    seconds: float = 0.0
    """Time to judge and read the passages and to answer."""
    other: Result | None = None
    """The less probable answer from other passages, if there are two."""

    @property
    def confidence(self) -> float:
        """The mean probability of the answer's tokens; 0 if it was not measured."""
        return (self.result.support or {}).get("confidence", 0.0)

    def warnings(
        self, reading: Sequence[str], passages: PassageMemory, unfound: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return all warnings: of the `reading`, of the answer, and of what was read for it."""
        warnings, judge = [*reading, *self.result.warnings], self.judge
        if abstains(self.result.answer):
            tokens = " and ".join(f"{each.read:,}" for each in (self.result, self.other) if each)
            rest = "the rest of the text. Use words of the text in the question."
            if passages.dropped:
                rest = (
                    f"the rest, of which {passages.dropped:,} bytes were dropped and cannot be "
                    "read again. Read the text again with a larger --budget."
                )
            warnings.append(
                f"The answer is not in the {tokens} tokens of passages that were read; it may be "
                f"in {rest}"
            )
        elif judge is not None and judge.judged and judge.best < 0:
            unfound = (*unfound, NO_PASSAGE)
        return tuple(dict.fromkeys((*warnings, *unfound)))

    def to_json(
        self, model: str | None, passages: PassageMemory, first: Result | None
    ) -> dict[str, Any]:
        """Return the object ``skim`` of a result; `model` and `first` are None without a scout."""
        narrowed = {} if first is None or first.narrowed is None else {"narrowed": first.narrowed}
        guess = first and {"answer": first.answer, "citations": list(first.citations), **narrowed}
        return {
            "model": model,
            "pieces": self.excerpts.to_json(),
            "tokens": self.result.read,
            "judged": 0 if self.judge is None else self.judge.judged,
            "other": self.other and {"answer": self.other.answer, "tokens": self.other.read},
            "kept": passages.to_json(),
            "peak": {"skim": _peak(first), "answer": _peak(self.result)},
            "seconds": round(self.seconds, 3),
            "first": guess,
        }


def _likelier(readings: Sequence[Generator[Event, None, Second]]) -> Generator[Event, None, Second]:
    """Yield the events of the reading with the more probable answer; none follows a sure answer."""
    runs: list[tuple[Second, list[Event]]] = []
    for reading in readings:
        seen: list[Event] = []
        runs.append((events.returned(changed(reading, _settled), seen.append), seen))
        if runs[-1][0].confidence >= SURE:
            break
    best, seen = max(runs, key=lambda run: run[0].confidence)
    yield from seen
    results = [run.result for run, _ in runs]
    peaks = {name: max(getattr(result, name) for result in results) for name in _PEAKS}
    other = next((result for result in results if result is not best.result), None)
    return replace(best, result=replace(best.result, **peaks), other=other)


def _settled(event: Event) -> Event:
    """Return an event that does not need the memory, which is released before it is seen."""
    if not isinstance(event, events.AnswerStarted) or event.kept is None:
        return event
    snapshot = event.kept()
    return replace(event, kept=lambda: snapshot)


def _receipt(result: Result, **settings: Any) -> dict[str, Any]:
    """Return the receipt of one model with the settings of the run that it is a part of."""
    receipt = result.receipt or {}
    return {**receipt, "settings": {**receipt.get("settings", {}), **settings}}


def _peak(result: Result | None) -> dict[str, int]:
    tokens, size = (result.peak_kv_tokens, result.peak_kv_bytes) if result else (0, 0)
    return {"kv_tokens": tokens, "kv_bytes": size}


def _unfound(passages: PassageMemory, question: str) -> tuple[str, ...]:
    """Return a warning that says why no passage has a word of the question; empty if one has."""
    if passages.speaks(question):
        return ()
    _, _, *having = passages.totals(question) or (0, 0)
    return (NO_WORD,) if having else (COMMON_WORDS,)
