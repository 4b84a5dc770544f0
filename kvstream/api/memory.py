"""A memory, the result of a reading: it can be asked, saved, and extended with more text. Its files
and checkpoints can be inspected without a model.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Unpack

from kvstream.api import options as api
from kvstream.api.answer import Answer, Progress, answer_of, value_of
from kvstream.api.checks import path_of, positive_of, question_of, several_of, text_of, turns_of
from kvstream.api.options import AnswerOptions, MemoryOptions, Request, ShownOptions
from kvstream.api.source_objects import SourceLike, refuse_over, sources_for
from kvstream.errors import KvstreamError, SourceError, UsageError
from kvstream.events import Answered, Event
from kvstream.memory.memory_file import MemoryFile as MemoryFile
from kvstream.store.writing import same

if TYPE_CHECKING:
    from kvstream.input.sources import SourceSet
    from kvstream.memory.contents import Memory as HeldMemory
    from kvstream.session.scouting import Scouted, Scouting
    from kvstream.session.session import Session


class QuestionOptions(AnswerOptions, ShownOptions, total=False):
    """How a memory answers a question."""

    last: bool
    """Whether this is the last question, so that a long answer may evict entries of memory."""
    earlier: Sequence[tuple[str, str]]
    """Earlier questions and answers. The model sees the newest ones that fit."""
    always: Sequence[str]
    """Names of sources that the answer sees, even if another source has more of the question's
    words."""
    stop: Sequence[str]
    """Strings that end the answer; it has the text before the first of them."""
    seed: int
    """Seed of sampling; by default that of the reading."""
    command: str
    """The command named in the result; by default ``ask``."""


class Memory:
    """A text that was read under a budget. `Model.read` and `Model.recall` create it."""

    def __init__(
        self,
        session: Session,
        engine: HeldMemory,
        file: MemoryFile | None = None,
        checkpoint: Path | None = None,
        skim: tuple[Scouting, Scouted] | None = None,
    ) -> None:
        self._session, self._engine, self._checkpoint = session, engine, checkpoint
        self._skim = skim
        self._number = 0
        self._problem = ""
        """Why it cannot be used any more."""
        self._turn = Lock()
        self._folder = ""
        """The folder in which the names of its sources are."""
        with suppress(OSError):  # it was removed
            self._folder = os.getcwd()
        self.file = file
        """The file that it was recalled from; None if there is none, or if more text was read."""
        self.warnings: tuple[str, ...] = tuple(engine.warnings)
        """Warnings of its reading."""

    def ask(
        self, question: str, *, progress: Progress = None, **options: Unpack[QuestionOptions]
    ) -> Answer:
        """Answer a question. Memory stays unchanged unless the option `last` is set.

        Raises BudgetError if the question does not fit beside memory.
        """
        # If `progress` fails, the memory can be used again at once.
        with closing(self.stream(question, **options)) as events:
            return answer_of(events, progress)

    def stream(
        self, question: str, **options: Unpack[QuestionOptions]
    ) -> Generator[Event, None, None]:
        """Yield the events of an answer: AnswerStarted, AnswerToken for each piece of text, Notice,
        and Answered with the result. Raises as `ask`.
        """
        if not question_of(question).strip():
            raise UsageError("A question is empty.")
        api.check_options(options, QuestionOptions.__annotations__)
        with self._in_use():
            yield from self._events(question, options)

    def _events(self, question: str, options: QuestionOptions) -> Generator[Event, None, None]:
        from kvstream.answer.answering import answer

        engine, number = self._engine, self._number
        earlier = turns_of(options.get("earlier", ()))
        extract = options.get("extract")
        if extract and engine.trace.passages is None:
            place = self.file.path if self.file is not None else "This memory"
            raise UsageError(f"{place} has no passages, because its reading was not finished.")
        run = engine.run
        strict = options.get("strict", False)
        Request(strict=strict, extract=extract)  # refuses other values
        if not isinstance(last := options.get("last", False), bool):
            raise UsageError(f"last= is True or False, not {last!r:.80}.")
        api.refuse_idle(options, options.get("temp", run.temp))
        self._number += 1
        engine.command = text_of("command", options.get("command", "ask"))
        names = several_of("always", "names", options.get("always", ()))
        engine.always = frozenset(text_of("always", name) for name in names)
        changes = api.answer_settings(options)
        engine.run = replace(run, **changes)
        stop = [text_of("stop", s) for s in several_of("stop", "strings", options.get("stop", ()))]
        events: Generator[Event, None, Any]
        try:
            if self._skim is not None and not extract:
                skimming, state = self._skim
                answering = replace(state.request.run, **{"seed": run.seed, **changes})
                request = replace(state.request, run=answering, strict=strict)
                events = skimming.answer(
                    replace(state, request=request), question, number, earlier=earlier, stop=stop
                )
            else:
                events = answer(
                    engine,
                    question,
                    number,
                    last=last,
                    extract=bool(extract),
                    passages=positive_of("passages", options.get("passages", Request.passages)),
                    strict=strict,
                    earlier=earlier,
                    stop=stop,
                    stays=True,  # even after the last question it can be saved, or read more
                )
            # If the caller stops in the middle of an answer, `closing` restores memory or raises.
            with closing(events):
                for event in events:
                    yield self._of_file(event, answers_alone=self._skim is None and not extract)
        finally:
            engine.run = run

    @contextmanager
    def _in_use(self, *, released: bool = False) -> Iterator[None]:
        """Used for one answer, reading or file at a time. Raises UsageError where it cannot be."""
        if self._problem and not released:
            raise UsageError(self._problem)
        if not self._turn.acquire(blocking=False):
            raise UsageError(
                "This memory is in use: another answer or reading is not finished. Read its events "
                "to the end, or close it."
            )
        try:
            yield
        finally:
            self._turn.release()

    def _of_file(self, event: Event, *, answers_alone: bool) -> Event:
        """Return the event; in a result, add the file of the memory."""
        if not isinstance(event, Answered) or self.file is None:
            return event
        result = replace(event.result, memory=self.file.to_json())
        if self.file.answering is not None and answers_alone:
            reader, answerer = self.file.model["name"], self.file.answering
            alone = (
                f"{self.file.path} was read by {reader} for {answerer}; {reader} answered alone, "
                f"and the passages kept for {answerer} were not used."
            )
            result = replace(
                result, warnings=(*result.warnings, alone), of_reading=(*result.of_reading, alone)
            )
        return Answered(result)

    def read(
        self,
        source: SourceLike | None = None,
        *,
        text: str | Iterable[str] | None = None,
        progress: Progress = None,
        **options: Unpack[MemoryOptions],
    ) -> Memory:
        """Read more text into this memory, after the text that it has read; return this memory.

        The only options allowed are `checkpoint`, `checkpoint_every`, `interrupted` and `command`;
        all others are those of the first reading. Raises as `Model.read`.
        """
        return value_of(self.reading(source, text=text, **options), progress)

    def reading(
        self,
        source: SourceLike | None = None,
        *,
        text: str | Iterable[str] | None = None,
        **options: Unpack[MemoryOptions],
    ) -> Generator[Event, None, Memory]:
        """Yield the events of `read`; return this memory.

        Closing the generator before its end stops the reading, and the memory cannot be used then.
        """
        api.check_options(options, MemoryOptions.__annotations__)
        others = options.keys() - {"checkpoint", "checkpoint_every", "interrupted", "command"}
        if others:
            raise UsageError(
                f"The first reading sets {min(others)}=; leave it out, or read everything again."
            )
        values: dict[str, Any] = {"command": "remember", **options}
        request = api.request_of((), **values)
        sources = sources_for(request, source, text)
        return (yield from self.read_on(sources, request))

    def read_on(self, sources: SourceSet, request: Request) -> Generator[Event, None, Memory]:
        """Yield the events of reading more text by a request; return this memory."""
        request = api.with_method(request)
        with self._in_use():
            try:
                if self._skim is not None:
                    skimming, state = self._skim
                    state = yield from skimming.read_on(sources, request, state)
                    self._engine = state.memory
                else:
                    self._engine = yield from self._session.read(sources, request, self._engine)
            except KvstreamError:  # it holds what was read before
                raise
            except BaseException:
                self._problem = (
                    "This memory cannot be used: a reading into it was stopped. Recall its file, "
                    "or read the sources again."
                )
                raise
        self._checkpoint = request.checkpoint
        self.warnings, self.file = tuple(self._engine.warnings), None
        return self

    def save(self, path: str | os.PathLike[str]) -> str:
        """Write the memory to a file; return the SHA-256 of its content, in hex.

        The size of the file depends on the budget, not on the length of the text. Then remove the
        checkpoint of the reading, unless it was interrupted. Raises KvstreamError if the file
        cannot be written, and UsageError if it is a source of the memory.
        """
        from kvstream.memory.saving import save

        place = Path(path_of("path", path))
        names = (record.name for record in self._engine.trace.records)
        refuse_over(place, (os.path.join(self._folder, name) for name in names))
        with self._in_use():
            digest = save(self._engine, place)
        if self._checkpoint is not None and not self._engine.trace.interrupted:
            if not same(self._checkpoint, place):  # otherwise the memory has replaced it
                self._checkpoint.unlink(missing_ok=True)
            self._checkpoint = None
        return digest

    def release(self) -> None:
        """Free its keys and values. The memory can no longer be asked."""
        with self._in_use(released=True):
            self._engine.reader.release()
        self._problem = "This memory was released; recall its file, or read the sources again."

    @property
    def interrupted(self) -> bool:
        """Whether its reading was stopped, so that it holds only a part of the text."""
        return self._engine.trace.interrupted

    @property
    def model(self) -> str:
        """Name of the model that read it."""
        return self._engine.model

    @property
    def method(self) -> str:
        """Name of the method that decided which entries stay."""
        return self._engine.run.method

    @property
    def questions(self) -> tuple[str, ...]:
        """The questions that memory was chosen for; empty if it was made without a question."""
        return self._engine.plan.questions

    @property
    def sources(self) -> tuple[dict[str, Any], ...]:
        """``name``, ``bytes`` and ``sha256`` of each unpacked source."""
        return tuple(record.to_json() for record in self._engine.trace.records)

    @property
    def read_tokens(self) -> int:
        """Number of tokens of the sources that were read."""
        return self._engine.trace.read

    @property
    def bytes_read(self) -> tuple[int, int]:
        """Bytes of the sources that were read, and those of the whole text, if it is a part."""
        trace = self._engine.trace
        whole = sum(record.bytes for record in trace.records)
        some = sum(r.bytes if r.part is None else r.part for r in trace.records)
        return some - trace.waiting, whole - trace.waiting

    @property
    def retained(self) -> int:
        """Number of distinct source tokens that at least one head holds."""
        return self._engine.retained

    def ordinals(self) -> dict[int, list[list[int]]]:
        """Return which tokens of the sources each head holds, counted from 0: for each layer with
        a KV cache, by its index in the model, one sorted list per head.
        """
        with self._in_use():
            return self._engine.reader.ordinals()

    @property
    def evicted(self) -> int:
        """Number of source tokens that no head holds."""
        return self.read_tokens - self.retained

    @property
    def partial(self) -> bool:
        """Whether some heads evicted tokens, though nothing is `evicted`."""
        return self._engine.partial

    @property
    def entries(self) -> int:
        """Entries of the fullest head; fewer after an answer that evicted entries."""
        return self._engine.reader.cache.size

    @property
    def lost(self) -> bool:
        """Whether an interruption or a failure tore the memory, so that it cannot be asked."""
        return self._engine.reader.cache.torn

    @property
    def budget(self) -> tuple[int, int]:
        """Maximum size of the KV cache: entries per head, and bytes in all."""
        reader = self._engine.reader
        return reader.sizes.budget, reader.cache.capacity_bytes

    @property
    def peak(self) -> tuple[int, int]:
        """Peak of the KV cache, chunk, question and answers included: entries per head, bytes."""
        peak = self._engine.reader.cache.peak
        return peak.tokens, peak.bytes

    @property
    def seconds(self) -> float:
        """Time of reading in this process; 0 if memory was only loaded from a file."""
        return self._engine.prefill_s

    @property
    def tokens_per_s(self) -> float:
        """Speed of reading in this process; 0 if memory was only loaded from a file."""
        return self._engine.tokens_per_s

    @property
    def lines(self) -> dict[str, Any] | None:
        """For logs, the number of ``lines``, of those ``read`` and ``thinned``; else None."""
        counts = self._engine.trace.line_counts
        return None if counts is None else counts.to_json()

    @property
    def shards(self) -> dict[str, int] | None:
        """For a text that was read in parts, their ``count``, and the maximum number of
        ``budgets`` and ``bytes`` held at a time; else None."""
        shards = self._engine.shards
        return None if shards is None else shards.to_json()

    @property
    def answering(self) -> dict[str, Any] | None:
        """What is kept for the answering model: its name (``model``) and ``budget``, the number of
        ``passages``, their ``bytes``, the ``room_bytes`` for them, and the ``dropped_bytes``; None
        if one model reads and answers."""
        beside = self._engine.beside
        return None if beside is None else beside.to_json()

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``kvstream remember --json`` prints, without the file."""
        from kvstream.memory.saving import record

        lines = {} if self.lines is None else {"lines": self.lines}
        return {**record(self._engine), "warnings": list(self.warnings), **lines}

    def __repr__(self) -> str:
        return (
            f"<kvstream.Memory of {self.read_tokens:,} tokens, {self.retained:,} kept, "
            f"by {self.method}>"
        )


def inspect(path: str | os.PathLike[str]) -> MemoryFile:
    """Read and check a memory file or a checkpoint. Raises SourceError."""
    from kvstream.memory.saving import look

    return look(Path(path_of("path", path)))


def with_entries(path: str | os.PathLike[str] | MemoryFile) -> MemoryFile:
    """Return a file with its entries. Raises SourceError, also if it has changed since."""
    if not isinstance(path, MemoryFile):
        return inspect(path)
    if path.whole:
        return path
    file = inspect(path.path)
    if file.digest != path.digest:
        raise SourceError(f"{path.path} changed since it was recalled; give its path.")
    return file


def checkpoint_tokens(path: str | os.PathLike[str]) -> int | None:
    """Return how many tokens a checkpoint has read, by its header; None if there is no file yet.

    Raises UsageError for a memory, SourceError for any other file, and KvstreamError if it cannot
    be written.
    """
    from kvstream.memory.checkpoint import tokens_of

    return tokens_of(Path(path))
