"""A reader without a model, for tests of workers: its results depend on the text alone."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from kvstream.collection.job import Job, Task
from kvstream.errors import ModelError
from kvstream.events import DocumentDone, DocumentFailed, Outcome
from kvstream.store.writing import replace

POISON = "poison"
"""Beginning of a document that kills the process that reads it."""


class StandIn:
    """Reads a document in ``pause`` seconds."""

    pause = 0.02

    def __init__(self, job: Job) -> None:
        self.job = job

    def read(self, task: Task, path: str | None = None) -> Outcome:
        name = task.document.name
        try:
            text = Path(path or name).read_bytes()
        except OSError as error:
            return DocumentFailed(name, f"{name} cannot be read: {error.strerror}.", 3)
        if text.startswith(POISON.encode()):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause)
        record = record_of(name, text)
        if self.job.makes_memories:
            assert task.target is not None
            replace(task.target, lambda file: file.write(record["answer"].encode()))
            record["command"] = "remember"
        return DocumentDone(name, (record,), None if task.target is None else str(task.target))


class Instant(StandIn):
    """Reads in no time."""

    pause = 0.0


class Elsewhere(StandIn):
    """Reads on a machine where every document's path leads to another text, or to none."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        from kvstream.collection import worker

        worker.digest_of = lambda path: "that of another text"

    def read(self, task: Task, path: str | None = None) -> Outcome:
        assert path is not None
        assert path != task.place, "the bytes were not sent"
        return super().read(task, path)


class Refuses(StandIn):
    """Fails to load: there is no model."""

    def __init__(self, job: Job) -> None:
        raise ModelError("There is no such model.")


class Ends(StandIn):
    """Kills its process while it loads the model."""

    def __init__(self, job: Job) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def record_of(name: str, text: bytes) -> dict[str, Any]:
    """Return the record of a result for a document."""
    answer = hashlib.sha256(text + name.encode()).hexdigest()
    return {
        "command": "ask",
        "method": "standin",
        "question": "Who?",
        "answer": answer,
        "tokens": {"read": len(text), "retained": 1, "evicted": len(text) - 1},
        "budget": {"tokens": 8, "bytes": 64},
        "peak": {"kv_tokens": 8, "kv_bytes": 64},
        "support": {"focus": int(answer[:2], 16) / 255},
        "warnings": [],
    }
