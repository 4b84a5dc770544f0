"""Other programs in their own Python: kvpress needs an older transformers than kvstream.

The process stays alive between rounds, so that it can take turns with the other systems. It is idle
meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvstream.errors import KvstreamError, UsageError
from kvstream.evaluation.records import Record
from kvstream.model.bounded import BoundedModel


class OutsideMemoryError(MemoryError):
    """The other process ran out of memory."""


@dataclass(frozen=True)
class Program:
    """A program that needs its own Python, and how to set that up."""

    package: str
    worker: Path
    set_up: str
    option: str

    def check(self, python: str | None) -> str:
        """Return the path of a Python that has the package. Raise UsageError with the remedy."""
        if not python:
            name = self.option.removeprefix("--").removesuffix("-python")
            raise UsageError(
                f"--against {name} needs {self.option} PATH, a Python that has {self.package}; set "
                f"one up with {self.set_up}."
            )
        found = shutil.which(os.path.expanduser(python))
        if found is None:
            raise UsageError(
                f"{self.option}: {python} is not a program. Set one up with {self.set_up}."
            )
        look = f"from importlib.metadata import version; print(version({self.package!r}))"
        if subprocess.run([found, "-c", look], capture_output=True, text=True).returncode:
            raise UsageError(
                f"{self.option}: {python} has no {self.package}. Install it with {self.set_up}."
            )
        return found


KVPRESS = Program(
    "kvpress",
    Path(__file__).with_name("kvpress_worker.py"),
    "make kvpress (which prints the path), or: python -m venv DIR && DIR/bin/pip install kvpress",
    "--kvpress-python",
)


class Process:
    """A worker that answers lines of JSON."""

    def __init__(self, program: Program, python: str) -> None:
        self._program = program
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by `close`
        self._process = subprocess.Popen(
            [python, str(program.worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def ask(self, **what: Any) -> Record:
        """Send a request and return the answer. Raise KvstreamError or OutsideMemoryError."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(what) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._died()
        reply: Record = json.loads(line)
        if reply.get("memory"):
            raise OutsideMemoryError(reply["error"])
        if "error" in reply:
            raise KvstreamError(f"{self._program.package} failed: {reply['error']}")
        return reply

    def _died(self) -> Exception:
        code, package = self._process.wait(), self._program.package
        if code == -9:
            return OutsideMemoryError(
                f"the system ended {package}'s process, as it does for memory"
            )
        self._said.seek(0)
        last = (self._said.read().strip().splitlines() or ["it said nothing"])[-1]
        return KvstreamError(f"{package}'s process ended with code {code}: {last[:300]}")


class Kvpress:
    """A process with the same model; a context manager."""

    def __init__(self, python: str, model: BoundedModel, *, random: bool, revision: str | None):
        self._python, self._model = python, model
        self._random, self._revision = random, revision
        self._stack = ExitStack()
        self._process: Process | None = None
        self.loaded: Record = {}
        """``load_s`` and ``versions``, after loading."""

    def __enter__(self) -> Kvpress:
        """Load the model in the process. Raise KvstreamError with the message of the process."""
        self._process = Process(KVPRESS, self._python)
        where = self._model.model.name_or_path
        if self._random:
            where = self._stack.enter_context(tempfile.TemporaryDirectory())
            self._model.model.config.save_pretrained(where)
        try:
            reply = self._process.ask(
                model={
                    "folder": where,
                    "random": self._random,
                    "dtype": str(self._model.layers[0].dtype).removeprefix("torch."),
                    "device": str(self._model.device),
                    "threads": torch.get_num_threads(),
                    "revision": self._revision,
                }
            )
            self.loaded = {**reply, "load_s": round(reply["load_s"], 3)}
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process is not None:
            self._process.close()
        self._stack.close()

    def read(self, ids: Sequence[int], budget: int, question: Sequence[int], tokens: int) -> Record:
        """Return the cost of reading `ids` in one pass and keeping `budget` entries per head."""
        assert self._process is not None
        return self._process.ask(
            read={"ids": list(ids), "question": list(question), "tokens": tokens, "budget": budget}
        )
