"""A worker: a Ray actor that loads the model once and reads one document after another."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvstream.collection.job import Job, Task
from kvstream.errors import KvstreamError
from kvstream.events import Notice, Outcome
from kvstream.store.writing import digest_of
from kvstream.version import __version__

if TYPE_CHECKING:
    from kvstream.collection.document_reader import DocumentReader


def open_reader(job: Job) -> DocumentReader:
    """Return a reader for the documents of a job."""
    from kvstream.collection.document_reader import DocumentReader  # the driver loads no torch

    return DocumentReader(job)


@dataclass(frozen=True)
class Workers:
    """The workers that read documents at the same time."""

    number: int | None = None
    """Number of workers; None: as many as fit in the cluster."""
    address: str | None = None
    """Address of a running cluster, ``HOST:PORT`` or ``auto``; None: only this machine."""
    memory: int = 0
    """Bytes of RAM that each worker reserves."""
    open_reader: Callable[[Job], DocumentReader] = open_reader

    def count(self, tasks: int, tell: Callable[[Notice], None]) -> int:
        """Return how many workers have a task, and note if that is less than their number."""
        if self.number is not None and tasks < self.number:
            message = f"{tasks:,} of {self.number:,} workers start: each has one task at a time."
            tell(Notice(message, note=True))
        return min(self.number or tasks, tasks)

    @property
    def elsewhere(self) -> bool:
        """Whether they may run on other machines, which may lack the files."""
        return self.address is not None


@dataclass(frozen=True)
class Place:
    """The place where a worker runs."""

    machine: str
    process: int
    node: str
    """Id of the machine in Ray."""
    version: str
    sees_results: bool
    """Whether the worker sees the driver's folder of results."""


@dataclass(frozen=True)
class Refusal:
    """Why this worker cannot read any document, in a form that every version can unpickle."""

    reason: str
    exit_code: int


class Send:
    """A request for the bytes of a document whose file is missing or different on this machine."""


class Worker:
    """The actor. It returns only paths, texts and numbers; tensors stay in its process."""

    def __init__(self, job: Job, open_reader: Callable[[Job], DocumentReader]) -> None:
        self.job, self.open_reader = job, open_reader
        self.reader: DocumentReader | None = None

    def place(self, marker: str | None) -> Place:
        """Return where this worker runs; `marker`: a file that the driver wrote to the results."""
        import ray

        return Place(
            platform.node(),
            os.getpid(),
            ray.get_runtime_context().get_node_id(),
            __version__,
            marker is None or Path(marker).exists(),
        )

    def load(self) -> Refusal | None:
        """Load the model. Return errors that concern all documents instead of raising them."""
        try:
            self.reader = self.open_reader(self.job)
        except KvstreamError as error:
            return Refusal(str(error), error.exit_code)
        return None

    def read(self, task: Task, data: bytes | None = None) -> Outcome | Send:
        """Read a document from `data` or its path; Send: the file here is missing or another."""
        assert self.reader is not None
        if data is not None:
            suffix = Path(task.document.name).suffix
            with tempfile.NamedTemporaryFile(prefix="kvstream-", suffix=suffix) as file:
                file.write(data)
                file.flush()
                return self.reader.read(task, file.name)
        same = not task.sha256
        with suppress(OSError):
            same = same or digest_of(task.place) == task.sha256
        return self.reader.read(task, task.place) if same else Send()
