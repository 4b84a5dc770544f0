"""A worker: an actor that loads the model once and reads one document after the other."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kvstream.collection.documents import digest_of
from kvstream.collection.job import Job
from kvstream.collection.task import Task
from kvstream.errors import KvstreamError
from kvstream.events import Outcome
from kvstream.version import __version__


class Reads(Protocol):
    """What reads a document: `DocumentReader`, or a stand-in of a test."""

    def read(self, task: Task, path: str | None = None) -> Outcome: ...


@dataclass(frozen=True)
class Placed:
    """Where a worker runs."""

    machine: str
    process: int
    node: str
    """Ray's id of the machine."""
    version: str
    sees_results: bool
    """Whether the folder of the results is the driver's."""


@dataclass(frozen=True)
class Refusal:
    """Why no document can be read, in a form that every version can unpickle."""

    reason: str
    exit_code: int


@dataclass(frozen=True)
class Send:
    """The file of a document is not here, or is another one: send its bytes."""


class Worker:
    """The actor. Its answers are paths, texts and numbers: tensors stay where they are."""

    def __init__(self, job: Job, open_reader: Callable[[Job], Reads] | None = None) -> None:
        self.job, self.open_reader = job, open_reader
        self.reader: Reads | None = None

    def place(self, marker: str | None) -> Placed:
        """Where this is; `marker` is a file that the driver has written among the results."""
        import ray

        return Placed(
            platform.node(),
            os.getpid(),
            ray.get_runtime_context().get_node_id(),
            __version__,
            marker is None or Path(marker).exists(),
        )

    def load(self) -> Refusal | None:
        """Load the model; returns errors that concern all documents instead of raising them."""
        try:
            if self.open_reader is None:
                # Here and not above: the driver loads no torch.
                from kvstream.collection.reading import DocumentReader

                self.reader = DocumentReader(self.job)
            else:
                self.reader = self.open_reader(self.job)
        except KvstreamError as error:
            return Refusal(str(error), error.exit_code)
        return None

    def read(self, task: Task, data: bytes | None = None) -> Outcome | Send:
        """Read a document from its path, or from its bytes."""
        assert self.reader is not None
        if data is not None:
            suffix = Path(task.document.name).suffix
            with tempfile.NamedTemporaryFile(prefix="kvstream-", suffix=suffix) as file:
                file.write(data)
                file.flush()
                return self.reader.read(task, file.name)
        if task.sha256 and not self._here(task):
            return Send()
        return self.reader.read(task, task.path)

    @staticmethod
    def _here(task: Task) -> bool:
        try:
            return digest_of(task.path) == task.sha256
        except OSError:
            return False
