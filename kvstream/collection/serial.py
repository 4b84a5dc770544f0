"""The work left: tasks for documents without a result, which this process reads one by one.

Result files are written completely or not at all, and found again by a later run.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream import events
from kvstream.collection.document_list import Document
from kvstream.collection.job import Job, Task
from kvstream.errors import KvstreamError, SourceError, UsageError
from kvstream.events import CollectionEvent, DocumentDone, DocumentFailed, Outcome
from kvstream.reporters.format import escaped
from kvstream.store.writing import digest_of, replace

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


def check_folder(folder: Path) -> None:
    """Make the folder of the results. Raises UsageError if a file is in its place, KvstreamError if
    no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{folder} is a file, or is below one; name a folder for -o.") from None
    except OSError as error:
        raise KvstreamError(
            f"Cannot write in {folder}: {error.strerror or error}. Choose another folder, or make "
            "room there."
        ) from error


def write_records(target: Path, document: str, records: tuple[dict[str, Any], ...]) -> None:
    """Write the answers of a document. Raises KvstreamError."""
    record = {"document": document, "answers": records}
    text = escaped(json.dumps(record, ensure_ascii=False, indent=1))
    try:
        replace(target, lambda file: file.write(f"{text}\n".encode()))
    except OSError as error:
        raise KvstreamError(
            f"Cannot write {target}: {error.strerror or error}. Make room, and run the command "
            "again: it continues where it stopped."
        ) from error


def found_records(target: Path, document: str) -> tuple[dict[str, Any], ...] | None:
    """Return the answers that an earlier run wrote; None if there are none that can be used."""
    try:
        content = json.loads(target.read_text("utf-8"))
        records = content["answers"]
        if content["document"] != document or not all(isinstance(r, dict) for r in records):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tuple(records)


def found_memory(target: Path) -> tuple[dict[str, Any], ...] | None:
    """Return the record of a memory that an earlier run wrote; None if it cannot be used."""
    if not target.exists():
        return None
    from kvstream.memory.saving import look

    try:
        file = look(target)
    except SourceError:
        return None
    record = {
        "command": "remember",
        "model": file.model["name"],
        "memory": {**file.to_json(), "bytes": target.stat().st_size},
        "tokens": {"read": file.tokens},
        "warnings": list(file.warnings),
    }
    return (record,)
