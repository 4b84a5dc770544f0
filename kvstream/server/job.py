"""One request on its way: texts into a memory, the question, the answer, as a generator of events.

The worker takes a step of one job, then of another, so a job never runs beside another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from kvstream.api.files import MemoryFile, inspect
from kvstream.api.options import ANSWER_OPTIONS, effective
from kvstream.errors import KvstreamError, ModelError
from kvstream.events import (
    Answered,
    AnswerStarted,
    AnswerToken,
    Event,
    Notice,
    PartRead,
    Result,
    Started,
    StepDone,
)
from kvstream.memory.saving import check_model
from kvstream.server.catalog import named
from kvstream.server.conversation import Conversation, conversation
from kvstream.server.entry import Entry
from kvstream.server.errors import ApiError, shut_down, timed_out, unusable
from kvstream.server.question import Split
from kvstream.server.schema import ChatRequest
from kvstream.server.wording import for_clients

if TYPE_CHECKING:
    from kvstream.api.memory import Memory
    from kvstream.api.model import Model
    from kvstream.server.cache import ConversationCache

Outcome = Literal["done", "failed", "left"]
"""What a request counts as: answered, ended with an error, or its client had left."""


@dataclass(frozen=True)
class Reply:
    """An answer with the fields that the client gets."""

    result: Result
    asked: Split
    prompt_tokens: int
    """Of the messages: all that was read of them, and the question."""
    cached_tokens: int
    """Of these, what was not read again."""
    warnings: tuple[str, ...]
    """All reasons to doubt the answer, without paths of the server."""


@dataclass(frozen=True)
class Progress:
    """A step of the reading is done."""

    read: int
    """Tokens so far."""


Sent = Started | Progress | Notice | AnswerStarted | AnswerToken | Answered | Reply | ApiError


def sendable(event: Event) -> Sent:
    """An event without what leads to the memory, which a slow client would hold on to."""
    if isinstance(event, StepDone):
        return Progress(event.seen)
    if isinstance(event, AnswerStarted):
        return replace(event, kept=None)
    assert not isinstance(event, PartRead)  # the server reads no text in parts
    return event


@dataclass(eq=False)
class Job:
    """A request, and what becomes of it."""

    request: ChatRequest
    client: str
    """Whose turn it takes."""
    sink: Callable[[Sent], None]
    """Gets every event, then the reply or an error; called by the worker's thread."""
    timeout: float
    entry: Entry | None = None
    """The memory file that is asked."""
    arrived: float = field(default_factory=time.monotonic)
    begun: bool = False
    """It waits no longer."""
    canceled: bool = False
    """Nobody waits for it any more."""
    count: Outcome = "left"
    """What it counts as where it is `canceled`."""
    ending: bool = False
    """The server ends and waits no longer."""
    spent: float = 0.0
    """Seconds of the worker, by which turns are taken."""
    ready: Memory | None = None
    """A memory of `entry` that waited for a question."""
    unchanged: Memory | None = None
    """The memory of `entry` after the answer, if it is as it was."""
    told: bool = False
    """Tokens of an answer are on their way to the client."""

    @property
    def over(self) -> bool:
        """Whether there is no more time."""
        return self.canceled or self.ending or time.monotonic() > self.arrived + self.timeout

    def error(self, *, saved: bool = False) -> ApiError:
        """Why there is no more time."""
        return shut_down(saved) if self.ending else timed_out(self.timeout, saved)


class Answering:
    """What all jobs need: the model, its options, and the memories of earlier requests."""

    def __init__(self, model: Model, options: dict[str, Any], cache: ConversationCache) -> None:
        self.model, self.options, self.cache = model, options, cache
        self.bytes = model.kv_bytes(**options)
        """Of the KV cache of one memory."""
        self._base = repr((model.name, sorted((k, repr(v)) for k, v in options.items())))
        self._longest_system = self._entries() // 8

    def _entries(self) -> int:
        """The budget in entries."""
        one = {**self.options, "budget": 1}
        two = {**self.options, "budget": 2}
        each = self.model.kv_bytes(**two) - self.model.kv_bytes(**one)
        return self.bytes // max(1, each)

    def events(self, job: Job) -> Generator[Event, None, Reply]:
        """All of a job. Raises ApiError, KvstreamError."""

        def count(text: str) -> int:
            if job.over:  # a conversation may have thousands of messages
                raise job.error()
            return self.model.count(text)

        talk = conversation(
            job.request,
            count,
            of_memory=job.entry is not None,
            longest_system=self._longest_system,
        )
        base = self._base if job.entry is None else f"{self._base} {job.entry.digest}"
        keys = talk.keys(base)
        memory, done = self._go_on(job, talk, keys) if self._uses_cache(job) else (None, 0)
        if memory is not None:
            try:
                return (yield from self._answer(job, talk, keys[-1], memory, done))
            except KvstreamError:
                # Made for a shorter question it may have no room for this one, and what some
                # methods make cannot be read on. That shows before the first token; what fails
                # later cannot begin again, since a stream would say its answer twice.
                if job.told:
                    raise
                memory = None
        return (yield from self._answer(job, talk, keys[-1], None, 0))

    def _uses_cache(self, job: Job) -> bool:
        own = job.request.kvstream
        return bool(self.cache.most) and (own is None or own.cache)

    def _answer(
        self, job: Job, talk: Conversation, key: str, kept: Memory | None, done: int
    ) -> Generator[Event, None, Reply]:
        """Read what is left, and answer; `kept` is of an earlier request and has read `done`."""
        own = 0 if job.entry is None else job.entry.tokens
        memory = kept
        if memory is None and job.entry is not None:
            memory, job.ready = job.ready or self._recalled(job.entry), None
        cached = 0 if memory is None else memory.read_tokens - own
        if done < len(talk.pieces) or memory is None:
            memory = yield from self._read(job, talk, memory, done, key)
        before = memory.entries
        result: Result | None = None
        options = effective({**self._answers, **job.request.answers})
        events = memory.stream(talk.asked.question, last=True, **options)
        try:
            for event in events:
                if job.over:
                    raise job.error()
                if isinstance(event, Answered):
                    result = event.result
                # Who asks for no stream gets the reply alone.
                job.told |= isinstance(event, AnswerToken) and bool(job.request.stream)
                yield event
        finally:
            events.close()
            if memory.entries == before and not talk.pieces:
                job.unchanged = memory
        assert result is not None
        if self._uses_cache(job) and talk.pieces and memory.entries == before:
            self.cache.save(key, memory)
        system = self.model.count(talk.system) if talk.system else 0
        tokens = memory.read_tokens - own + self.model.count(talk.asked.question) + system
        warnings = (*talk.warnings, *self._warnings(job.entry, result))
        return Reply(result, talk.asked, tokens, cached, warnings)

    def _recalled(self, entry: Entry) -> Memory:
        """The memory of a file. Raises ApiError."""
        file = None
        try:
            file = inspect(entry.path)
            memory = self.model.recall(file)
        except KvstreamError as error:
            message = for_clients(str(error), entry.path.parent)
            if file is not None and not self._made(file):  # the error names options of a command
                message = (
                    f"The memory {entry.path.stem!r} cannot be used here: it was made by "
                    f"{named(file.model['name'])} with other weights than those of this server."
                )
            raise unusable(message) from error
        memory.file = None  # its warning names the path; see `_warnings`
        return memory

    def _made(self, file: MemoryFile) -> bool:
        """Whether the weights of the loaded model made a file."""
        try:
            check_model(file.kind, self.model.session.model)
        except ModelError:
            return False
        return True

    def _warnings(self, entry: Entry | None, result: Result) -> Iterator[str]:
        """Those of an answer, for a client."""
        folder = None if entry is None else entry.path.parent
        for warning in result.warnings:
            yield for_clients(warning, folder, self.cache.folder, of_memory=entry is not None)
        if entry is not None and entry.answering is not None:
            name = self.model.name
            yield (
                f"The memory {entry.path.stem!r} was made by {name} for {entry.answering}. This "
                f"server uses one model: {name} answered alone, without the passages that were "
                f"kept for {entry.answering}."
            )

    @property
    def _answers(self) -> dict[str, Any]:
        names = (*ANSWER_OPTIONS, "strict", "seed")
        return {name: self.options[name] for name in names if name in self.options}

    def _go_on(self, job: Job, talk: Conversation, keys: list[str]) -> tuple[Memory | None, int]:
        """The memory of the newest question that was asked before, and the pieces it has read.

        Where more is to be read than it has read, all is read anew, for the new question.
        """
        sizes = [len(piece.text) for piece in talk.pieces]
        for turn, key in zip(reversed(talk.turns), reversed(keys), strict=True):
            count = turn.pieces
            path = self.cache.find(key) if count else None
            if path is None or sum(sizes[count:]) > sum(sizes[:count]):
                continue
            job.ready = None  # only one memory of a job is counted, so it goes before another comes
            try:
                memory = self.model.recall(path)
            except KvstreamError:  # damaged, or of another model
                self.cache.drop(path)
                continue
            memory.file = None  # as in `_recalled`
            return memory, count
        return None, 0

    def _read(
        self, job: Job, talk: Conversation, memory: Memory | None, done: int, key: str
    ) -> Generator[Event, None, Memory]:
        """The pieces that are not read yet, in a memory. Raises ApiError where time is over."""
        # Where the client does not want what was read before, a checkpoint is no use either.
        place = self.cache.checkpoint(key) if self._uses_cache(job) else None
        options: dict[str, Any] = {"interrupted": lambda: job.over}
        if place is not None:
            options["checkpoint"] = place
        begun = place is not None and place.exists()
        pieces = talk.pieces[done:]
        try:
            if memory is not None:
                memory = yield from memory.reading(pieces, **options)
            else:
                own = {**self.options, **options}
                if talk.system:
                    own["system"] = talk.system
                if "max_tokens" in job.request.answers:
                    own["max_tokens"] = job.request.answers["max_tokens"]
                asked = [talk.asked.question]
                memory = yield from self.model.reading(pieces, questions=asked, **own)
        except KvstreamError as error:
            if job.over:
                raise job.error(saved=place is not None and place.exists()) from error
            if begun and place is not None:
                self.cache.drop(place)
                raise ApiError(
                    503,
                    "The saved part of this reading cannot be used and was removed; send the "
                    "request again.",
                    kind="server_error",
                    code="checkpoint_unusable",
                    retry_after=1,
                ) from error
            raise
        if job.over:
            self.cache.shrink()
            raise job.error(saved=place is not None and place.exists())
        if place is not None:
            self.cache.drop(place)
        return memory
