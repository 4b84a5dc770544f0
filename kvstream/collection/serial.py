"""Read documents one after another in this process, and load the model for the first one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvstream.collection.document_list import Document
from kvstream.collection.job import Job, Task
from kvstream.collection.todo import todo, with_answers_written
from kvstream.events import CollectionStarted, DocumentStarted, DocumentStep, Notice, Outcome

if TYPE_CHECKING:
    from kvstream.collection.document_reader import DocumentReader
    from kvstream.session.session import Session

Tell = Callable[[CollectionStarted | DocumentStarted | DocumentStep | Notice], None]


def read_here(
    job: Job,
    documents: Sequence[Document],
    *,
    session: Session | None,
    tell: Tell,
    interrupted: Callable[[], bool],
) -> Iterator[Outcome]:
    """Yield the outcome of every document, in order, until `interrupted` returns True.

    Without a `session`, load the model for the first document that has to be read. Raises
    ModelError, BudgetError and UsageError for problems that concern all documents.
    """
    tell(CollectionStarted(len(documents), sum(d.bytes for d in documents), 1))
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
        tell(DocumentStarted(item.document.name, item.document.bytes, "", 0))
        yield with_answers_written(
            job, item, reader.read(item, on_step=lambda *step: tell(DocumentStep(*step)))
        )
