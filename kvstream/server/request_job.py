"""One request as a generator of events: texts into a memory, the question, the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from kvstream.api.memory import Memory, MemoryFile, inspect
from kvstream.api.model import Model
from kvstream.api.options import PER_ANSWER, TABLE, Request, effective
from kvstream.api.source_objects import open_sources
from kvstream.errors import KvstreamError, ModelError
from kvstream.events import Answered, AnswerToken, Event, Result
from kvstream.memory.saving import check_model
from kvstream.server.bound import Entry
from kvstream.server.catalog import label
from kvstream.server.client_errors import ApiError, for_clients, shut_down, timed_out, unusable
from kvstream.server.conversation import Conversation, conversation
from kvstream.server.conversation_cache import ConversationCache
from kvstream.server.question import Split
from kvstream.server.schema import ChatRequest
from kvstream.settings import Budget

Outcome = Literal["done", "failed", "left"]
"""How a request counts: answered, ended with an error, or left by its client."""


@dataclass(frozen=True)
class Reply:
    result: Result
    split: Split
    prompt_tokens: int
    """Tokens of the messages: all that was read of them, system message and question included."""
    cached_tokens: int
    """The part of them that was not read again."""
    warnings: tuple[str, ...]
    """All reasons to doubt the answer, without paths of the server."""


Sent = int | AnswerToken | Reply | ApiError
"""A number stands for an event that is no text: the tokens read so far, or 0 for another one than a
step. Such an event refers to memory, which a slow client would keep alive."""


@dataclass(eq=False)
class Job:
    request: ChatRequest
    sink: Callable[[Sent], object]
    """Gets every event, then the reply or an error. The thread of the worker calls it."""
    timeout: float
    entry: Entry | None = None
    arrived: float = field(default_factory=time.monotonic)
    begun: bool = False
    """Whether the job has left the queue."""
    canceled: bool = False
    count: Outcome = "left"
    """How the job counts if it is `canceled`."""
    ending: bool = False
    """Whether the server ends and cannot wait for the job."""
    spent: float = 0.0
    """Seconds of the worker so far; the job with the lowest value has the next turn."""
    memory: Memory | None = None
    """The memory of `entry` as its file has it, which the next question can use."""
    answer_begun: bool = False

    @property
    def over(self) -> bool:
        """Whether the job must stop: it is canceled, the server ends, or its time is over."""
        return self.canceled or self.ending or time.monotonic() > self.arrived + self.timeout

    def error(self, *, saved: bool = False) -> ApiError:
        """Return the error that explains why the job must stop."""
        return shut_down(saved) if self.ending else timed_out(self.timeout, saved)


class Answering:
    """State that all jobs share: the model, its options, and memories of earlier requests."""

    def __init__(self, model: Model, request: Request, cache: ConversationCache) -> None:
        self.model, self.request, self.cache = model, request, cache
        self.bytes = model.room_of(request)
        """Bytes of the KV cache of one memory."""
        options, names = {**vars(request.run), **vars(request)}, request.choices & TABLE.keys()
        self._base = repr((model.name, sorted((name, repr(options[name])) for name in names)))
        per_answer = names & set(PER_ANSWER) - {"extract", "passages"}
        self._answers = {name: options[name] for name in per_answer}
        one, two = (
            model.room_of(replace(request, run=replace(request.run, budget=Budget(tokens=tokens))))
            for tokens in (1, 2)
        )
        self._longest_system = self.bytes // max(1, two - one) // 8

    def events(self, job: Job) -> Generator[Event, None, Reply]:
        """Run a job and yield its events. Raises ApiError, KvstreamError."""

        def count(text: str) -> int:
            if job.over:  # a conversation may have thousands of messages
                raise job.error()
            return self.model.count(text)

        talk = conversation(
            job.request, count, of_memory=job.entry is not None, longest_system=self._longest_system
        )
        base = self._base if job.entry is None else f"{self._base} {job.entry.digest}"
        keys = talk.keys(base)
        memory, done = self._go_on(job, talk, keys) if self._uses_cache(job) else (None, 0)
        if memory is not None:
            try:
                return (yield from self._answer(job, talk, keys[-1], memory, done))
            except KvstreamError:
                # A memory made for a shorter question may lack room for this one, and memories of
                # some methods cannot read on. Both fail before the first token. A later failure
                # cannot start over, because a stream would contain the answer twice.
                if job.answer_begun:
                    raise
                memory = None
        return (yield from self._answer(job, talk, keys[-1], None, 0))

    def _uses_cache(self, job: Job) -> bool:
        own = job.request.kvstream
        return bool(self.cache.most) and (own is None or own.cache is not False)

    def _answer(
        self, job: Job, talk: Conversation, key: str, memory: Memory | None, done: int
    ) -> Generator[Event, None, Reply]:
        """Read the remaining pieces and answer; an earlier `memory` has read `done` of them."""
        own = 0 if job.entry is None else job.entry.tokens
        if memory is None and job.entry is not None:
            memory = job.memory = job.memory or self._recall(job.entry)
        cached = 0 if memory is None else memory.read_tokens - own
        if done < len(talk.pieces) or memory is None:
            job.memory = None
            memory = yield from self._read(job, talk, memory, done, key)
        before = memory.entries
        result: Result | None = None
        options = effective({**self._answers, **job.request.answers})
        events = memory.stream(talk.last.question, last=True, always=talk.around, **options)
        try:
            for event in events:
                if job.over:
                    raise job.error()
                if isinstance(event, Answered):
                    result = event.result
                # Without a stream, the client only gets the reply.
                job.answer_begun |= isinstance(event, AnswerToken) and bool(job.request.stream)
                yield event
        finally:
            of_file, job.memory = job.memory, None
            events.close()
            whole = memory.entries == before and not memory.lost
            if whole:
                job.memory = of_file
        assert result is not None
        if self._uses_cache(job) and talk.pieces and whole:
            self.cache.save(key, memory)
        system = self.model.count(talk.system) if talk.system else 0
        tokens = memory.read_tokens - own + self.model.count(talk.last.question) + system
        warnings = (*talk.warnings, *self._warnings(job.entry, result))
        return Reply(result, talk.last, tokens, cached, warnings)

    def _recall(self, entry: Entry) -> Memory:
        """Open the memory of a file. Raises ApiError."""
        file = None
        try:
            file = inspect(entry.path)
            if file.digest != entry.digest:  # the bound counts the bytes of the earlier file
                why = f"The file of the memory {entry.path.stem!r} was replaced just now"
                raise ApiError(
                    503, f"{why}; send the request again.", code="memory_changed", retry_after=1
                )
            memory = self.model.recall(file)
        except KvstreamError as error:
            message = for_clients(str(error), entry.path.parent)
            if file is not None and not self._made(file):  # the message names command-line options
                message = (
                    f"The memory {entry.path.stem!r} cannot be used here: it was made by "
                    f"{label(file.model['name'])} with other weights than those of this server."
                )
            raise unusable(message) from error
        memory.file = None  # its warning contains the path; see `_warnings`
        return memory

    def _made(self, file: MemoryFile) -> bool:
        for session in self.model.readers:
            with suppress(ModelError):
                check_model(file, session.model)
                return True
        return False

    def _warnings(self, entry: Entry | None, result: Result) -> Iterator[str]:
        """Yield the warnings of an answer, worded for a client."""
        folder = None if entry is None else entry.path.parent
        for warning in result.warnings:
            yield for_clients(warning, folder, self.cache.folder, of_memory=entry is not None)
        alone = self.model.scouting is None
        if entry is not None and entry.answering is not None and alone:
            name = self.model.name
            yield (
                f"The memory {entry.path.stem!r} was made by {name} for {entry.answering}. This "
                f"server uses one model: {name} answered alone, without the passages that were "
                f"kept for {entry.answering}."
            )

    def _go_on(self, job: Job, talk: Conversation, keys: list[str]) -> tuple[Memory | None, int]:
        """Return the memory of the newest earlier question, and the number of pieces it has read.

        If more text is left to read than the memory has read, read everything again, for the new
        question.
        """
        sizes = [len(piece.text) for piece in talk.pieces]
        for turn, key in zip(reversed(talk.turns), reversed(keys), strict=True):
            count = turn.pieces
            path = self.cache.find(key) if count else None
            if path is None or sum(sizes[count:]) > sum(sizes[:count]):
                continue
            job.memory = None  # the bound counts one memory per job: drop this one first
            try:
                memory = self.model.recall(path)
            except KvstreamError:  # damaged, or made by another model
                self.cache.drop(path)
                continue
            memory.file = None  # as in `_recall`
            return memory, count
        return None, 0

    def _read(
        self, job: Job, talk: Conversation, memory: Memory | None, done: int, key: str
    ) -> Generator[Event, None, Memory]:
        """Read the remaining pieces into a memory. Raises ApiError if the time is over."""
        # A client that does not want earlier readings needs no checkpoint either.
        alone = self.model.scouting is None  # a scout's reading has no checkpoint
        place = self.cache.checkpoint(key) if alone and self._uses_cache(job) else None
        request = replace(self.request, checkpoint=place, interrupted=lambda: job.over)
        begun = place is not None and place.exists()
        pieces = talk.pieces[done:]
        try:
            if memory is not None:
                memory = yield from memory.read_on(open_sources(pieces), request)
            else:
                run, answers = request.run, job.request.answers
                if "max_tokens" in answers:
                    run = replace(run, max_tokens=answers["max_tokens"])
                request = replace(
                    request,
                    questions=(talk.last.question,),
                    run=run,
                    system=talk.system or request.system,
                )
                memory = yield from self.model.memory_of(open_sources(pieces), request)
        except KvstreamError as error:
            if job.over:
                raise job.error(saved=place is not None and place.exists()) from error
            if begun and place is not None:
                self.cache.drop(place)
                raise ApiError(
                    503,
                    "The saved part of this reading cannot be used and was removed; send the "
                    "request again.",
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
