"""Read one long text in parts, with workers of this machine at the same time."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvstream.collection.document_list import Document
from kvstream.collection.job import Job, PartTask, Task
from kvstream.collection.spread import Spread
from kvstream.collection.worker import Workers
from kvstream.errors import KvstreamError
from kvstream.events import DocumentDone, Event, Notice, PartRead
from kvstream.input.sources import SourceSet
from kvstream.memory.contents import Memory, Shards
from kvstream.memory.merging import Joiner
from kvstream.memory.saving import look
from kvstream.run.request import Request, never
from kvstream.session.session import Session
from kvstream.session.sharding import cut, read_part, tell_changes
from kvstream.settings import ModelSettings


def read_shards(
    session: Session,
    settings: ModelSettings,
    sources: SourceSet,
    request: Request,
    shards: int,
    workers: Workers,
) -> Generator[Event, None, Memory]:
    """Read the parts of a text on workers; return their memory, which this process joins.

    Until then the memories of the parts are in temporary files. Raises as
    `kvstream.session.sharding.cut`, KvstreamError if a part cannot be read or no worker can be
    used, and KeyboardInterrupt if the user interrupts before all parts are read.
    """
    parts, start, before = cut(session, sources, request, shards)
    if len(parts) == 1:
        memory = yield from read_part(session, sources.again(), parts[0], request)
        memory.shards = Shards(1, 1, memory.reader.cache.capacity_bytes)
        return memory
    yield start
    opening, here = sources.opening(), os.getcwd()
    alone = replace(request, interrupted=never)
    events: list[Any] = []
    number = workers.count(len(parts), events.append)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kvstream-") as place:
        job = Job(settings, (alone,), Path(place), memories=True)
        numbers = {str(part): part.number for part in parts}
        targets = [Path(place, f"{part.number:0>12}.kvs") for part in parts]
        items = (
            Task(Document(str(part), 0), target, part=PartTask(opening, here, part))
            for part, target in zip(parts, targets, strict=True)
        )
        done = 0
        spread = Spread(job, workers, events.append, request.interrupted)
        for outcome in spread.tasks(items, number):
            yield from (event for event in events if isinstance(event, Notice))
            events.clear()
            if not isinstance(outcome, DocumentDone):
                failed = KvstreamError(f"{outcome.name} could not be read: {outcome.reason}")
                failed.exit_code = outcome.exit_code
                raise failed
            yield PartRead(numbers[outcome.name], len(parts), outcome.tokens, outcome.seconds)
            done += 1
        if done < len(parts):
            raise KeyboardInterrupt
        joiner = Joiner(start.budget_tokens)
        for target in targets:
            memory = session.recall(look(target), request.run)
            memory.command = request.command
            joiner.add(memory)
        memory = joiner.finish()
    yield from tell_changes(before, memory)
    memory.prefill_s, memory.loaded_s = time.perf_counter() - began, 0.0  # all parts, by the clock
    memory.shards = Shards(len(parts), max(number, joiner.most), memory.reader.cache.capacity_bytes)
    return memory
