"""The work left: tasks for documents without a result, which this process reads one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvstream import events
from kvstream.collection.document_list import Document, digest_of
from kvstream.collection.job import Job, Task
from kvstream.collection.results import found_memory, found_records, write_records
from kvstream.errors import KvstreamError, SourceError
from kvstream.events import CollectionEvent, DocumentDone, DocumentFailed, Outcome

if TYPE_CHECKING:
    from kvstream.collection.document_reader import DocumentReader
    from kvstream.session.session import Session

Tell = Callable[[CollectionEvent], None]


def read_here(
    job: Job,
    documents: Sequence[Document],
    *,
    session: Session | None,
    tell: Tell,
    interrupted: Callable[[], bool],
) -> Iterator[Outcome]:
    """Yield outcomes in order, until `interrupted`; without a `session` load the model once.

    Raises ModelError, BudgetError and UsageError for problems that concern all documents.
    """
    tell(events.CollectionStarted(len(documents), sum(d.bytes for d in documents), 1))
    reader: DocumentReader | None = None
    for item in todo(job, documents, digests=False):
        if interrupted():
            return
        if not isinstance(item, Task):
            yield item
            continue
        if reader is None:
            from kvstream.collection.document_reader import DocumentReader  # loads torch

            reader = DocumentReader(job, session)
        tell(events.DocumentStarted(item.document.name, item.document.bytes, "", 0))
        yield with_answers_written(job, item, reader.read(item, on_step=tell))


def todo(job: Job, documents: Iterable[Document], *, digests: bool) -> Iterator[Task | Outcome]:
    """Yield a task for each document to read, and outcomes of others; `digests`: with SHA-256."""
    for document in documents:
        if document.problem:
            yield DocumentFailed(document.name, document.problem, SourceError.exit_code)
            continue
        place = os.path.abspath(document.name)
        target, records, sha256 = None, None, ""
        try:
            if job.into is not None or digests:
                sha256 = digest_of(document.name)
        except OSError as error:
            yield unread(document, error)
            continue
        if job.into is not None:
            target = job.target(document, sha256)
            own = job.makes_memories
            records = found_memory(target) if own else found_records(target, document.name)
        if records is None:
            yield Task(document, target, place, sha256 if digests else "")
        else:
            yield DocumentDone(document.name, records, str(target), present=True)


def unread(document: Document, error: OSError) -> DocumentFailed:
    """Return the failure of a document whose file cannot be opened."""
    reason = f"{document.name} cannot be read: {error.strerror or error}."
    return DocumentFailed(document.name, reason, SourceError.exit_code)


def with_answers_written(job: Job, task: Task, outcome: Outcome) -> Outcome:
    """Write the answers, and return the outcome; if that fails, a failure that has them."""
    if job.makes_memories or task.target is None or not isinstance(outcome, DocumentDone):
        return outcome
    try:
        write_records(task.target, outcome.name, outcome.records)
    except KvstreamError as error:
        return DocumentFailed(outcome.name, str(error), error.exit_code, outcome.records)
    return outcome
