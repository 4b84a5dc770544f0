"""Read one document with a session; write its memory file, or return its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import partial
from typing import Any

from kvstream import events
from kvstream.answer.support import abstains
from kvstream.collection.job import Job, Task
from kvstream.errors import BudgetError, KvstreamError, SourceError, is_out_of_memory
from kvstream.events import DocumentDone, DocumentFailed, DocumentStep, Outcome, returned
from kvstream.exact.scopes import restrict
from kvstream.input.inspection import NamedPath
from kvstream.input.source import EmptyError
from kvstream.input.sources import SourceSet, open_sources
from kvstream.memory.saving import record, save
from kvstream.session.scouting import road
from kvstream.session.session import Session
from kvstream.session.sharding import read_part

OUT_OF_MEMORY = 5
OnStep = Callable[[DocumentStep], None]


class DocumentReader:
    """Reads documents one after another with one loaded model."""

    def __init__(self, job: Job, session: Session | None = None) -> None:
        """Load the model without a session. Raises ModelError, BudgetError, UsageError."""
        self.job = job
        self.session = session or Session.open(job.model)
        for request in job.parts:
            self.session.settle(request)

    def read(self, task: Task, path: str | None = None, on_step: OnStep | None = None) -> Outcome:
        """Return the outcome of a document, its bytes at `path`. Raises only KeyboardInterrupt."""
        began = time.perf_counter()
        name = task.document.name
        try:
            if self.job.makes_memories:
                records: tuple[dict[str, Any], ...] = (self._memory(task, path or name, on_step),)
            else:
                records = tuple(self._answers(name, path or name, on_step))
        except EmptyError as error:  # the advice of its message is for a single text
            return DocumentFailed(name, f"{name} is empty.", error.exit_code)
        except KvstreamError as error:
            return DocumentFailed(name, str(error), error.exit_code)
        except Exception as error:
            if is_out_of_memory(error):
                return DocumentFailed(name, f"Out of memory ({error}).", OUT_OF_MEMORY)
            return DocumentFailed(name, f"Unexpected {type(error).__name__}: {error}")
        file = None if task.target is None else str(task.target)
        return DocumentDone(name, records, file, seconds=time.perf_counter() - began)

    def _answers(self, name: str, path: str, on_step: OnStep | None) -> Iterator[dict[str, Any]]:
        for before, request in enumerate(self.job.parts):
            sources = self._sources(name, path)
            try:
                for event in road(self.session, request).ask(sources, request):
                    _tell(event, name, on_step, before, len(self.job.parts))
                    if isinstance(event, events.Answered):
                        answer = event.result.answer
                        yield {**event.result.to_json(), "abstains": abstains(answer)}
            except (BudgetError, SourceError) as error:
                # A method that cannot read the text (full) must not prevent the others' answers.
                if len(self.job.parts) == 1 or isinstance(error, SourceError):
                    raise
                yield {"command": "compare", "method": request.run.method, "error": str(error)}

    def _memory(self, task: Task, path: str, on_step: OnStep | None) -> dict[str, Any]:
        assert task.target is not None
        name = task.document.name
        (request,) = self.job.parts
        tell = partial(_tell, name=name, on_step=on_step)
        if task.part is not None:
            with chdir(task.part.folder):
                sources = task.part.opening()
                reading = read_part(self.session, sources, task.part.stretch, request)
                memory = returned(reading, tell)
        else:
            memory = returned(self.session.read(self._sources(name, path), request), tell)
        try:
            digest = save(memory, task.target)
        except KvstreamError as error:
            raise KvstreamError(f"{error} The same command continues where it stopped.") from error
        result = record(memory)
        file = {"file": str(task.target), "bytes": task.target.stat().st_size, "sha256": digest}
        return {**result, "memory": {**file, **result["memory"]}}

    def _sources(self, name: str, path: str) -> SourceSet:
        request = self.job.parts[0]
        sources = open_sources(
            [NamedPath(name, path)], plain=request.plain, max_unpacked=request.max_unpacked
        )
        return restrict(sources, request.only or "", request.since or "", request.until or "")


def _tell(
    event: events.Event, name: str, on_step: OnStep | None, before: int = 0, readings: int = 1
) -> None:
    """Report a step; `before`: complete readings of the document, of `readings` in all."""
    if on_step is not None and isinstance(event, events.StepDone):
        whole = max(event.seen, event.estimated_tokens or 0)
        now = event.seen / whole if event.estimated_tokens else 0.0
        on_step(DocumentStep(name, event.seen, (before + now) / readings))
