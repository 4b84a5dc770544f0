"""Run a job over documents, in this process or on workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from kvstream.collection.cluster import Need, connected, gpus_of, room
from kvstream.collection.document_list import Document
from kvstream.collection.job import Job, Task
from kvstream.collection.results import check_folder
from kvstream.collection.serial import Tell, read_here, todo
from kvstream.collection.spread import Spread
from kvstream.collection.worker import Workers
from kvstream.events import CollectionStarted, Notice, Outcome

if TYPE_CHECKING:
    from kvstream.session.session import Session


def run(
    job: Job,
    documents: Sequence[Document],
    *,
    workers: Workers | None = None,
    session: Session | None = None,
    tell: Tell,
    interrupted: Callable[[], bool],
) -> Iterator[Outcome]:
    """Yield the outcome of every document, without `workers` from this process in turn."""
    if job.into is not None:
        check_folder(job.into)
    if workers is None:
        return read_here(job, documents, session=session, tell=tell, interrupted=interrupted)
    return _spread(job, documents, workers, tell, interrupted)


def _spread(
    job: Job,
    documents: Sequence[Document],
    workers: Workers,
    tell: Tell,
    interrupted: Callable[[], bool],
) -> Iterator[Outcome]:
    threads = job.model.threads or 1
    job = replace(job, model=replace(job.model, threads=threads))
    asked = min(workers.number or len(documents), len(documents))
    tell(CollectionStarted(len(documents), sum(d.bytes for d in documents), asked))
    longest = sorted(documents, key=lambda d: (-d.bytes, d.name))
    items = todo(job, longest, digests=workers.elsewhere)
    # A cluster takes seconds to start, and there may be nothing left to read.
    for item in items:
        if isinstance(item, Task):
            break
        yield item
    else:
        return
    yield from read_tasks(job, chain([item], items), asked, workers, tell, interrupted)


def read_tasks(
    job: Job,
    items: Iterator[Task | Outcome],
    asked: int,
    workers: Workers,
    tell: Tell,
    interrupted: Callable[[], bool],
) -> Iterator[Outcome]:
    """Yield the outcomes of tasks from `asked` workers, or as many as fit. Raises KvstreamError."""
    threads = job.model.threads or 1
    with connected(workers.address, threads * asked) as ray:
        gpus = gpus_of(ray, job.model.device, asked)
        need = Need(threads, workers.memory, gpus)
        number = min(asked, room(ray, need))
        if workers.number is not None and number < asked:
            tell(Notice(f"Only {number} of {asked} workers have room: each needs {need}."))
        spread = Spread(ray, job, need, number, workers, tell, interrupted)
        yield from spread.outcomes(items)
