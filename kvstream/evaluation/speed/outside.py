"""kvpress's SnapKV in a Python of its own: it wants an older transformers than kvstream does.

The process stays between the rounds, so that its turns alternate with the others', and does
nothing meanwhile.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from kvstream.errors import KvstreamError, UsageError
from kvstream.evaluation.records import Record
from kvstream.model.bounded import BoundedModel

WORKER = Path(__file__).with_name("kvpress_worker.py")
SET_UP = (
    "make kvpress (which prints the path), or: python -m venv DIR && DIR/bin/pip install kvpress"
)


class OutsideMemoryError(MemoryError):
    """The other process ran out of memory."""


def check(python: str | None) -> str:
    """The path of a Python that has kvpress. Raises UsageError with the remedy."""
    if not python:
        raise UsageError(
            "--against kvpress needs --kvpress-python PATH, a Python that has kvpress; set one up "
            f"with {SET_UP}."
        )
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise UsageError(f"--kvpress-python: {python} is no program. Set one up with {SET_UP}.")
    done = subprocess.run(
        [found, "-c", "from importlib.metadata import version; print(version('kvpress'))"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise UsageError(f"--kvpress-python: {python} has no kvpress. Install it with {SET_UP}.")
    return found


class Kvpress:
    """A process with the same model in it; used as a context."""

    def __init__(self, python: str, model: BoundedModel, *, random: bool, revision: str | None):
        self._python, self._model = python, model
        self._random, self._revision = random, revision
        self._stack = ExitStack()
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed by __exit__
        self._process: subprocess.Popen[str] | None = None
        self.loaded: Record = {}
        """``load_s`` and ``versions``, once it is loaded."""

    def __enter__(self) -> Kvpress:
        """Load the model there. Raises KvstreamError with what the process said."""
        self._process = subprocess.Popen(
            [self._python, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        where = self._model.model.name_or_path
        if self._random:
            where = self._stack.enter_context(tempfile.TemporaryDirectory())
            self._model.model.config.save_pretrained(where)
        try:
            reply = self._ask(
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
            self._process.kill()
            self._process.communicate()
        self._said.close()
        self._stack.close()

    def read(self, ids: Sequence[int], budget: int, question: Sequence[int], tokens: int) -> Record:
        """What reading `ids` in one pass costs, and keeping `budget` entries of each head."""
        return self._ask(
            read={"ids": list(ids), "question": list(question), "tokens": tokens, "budget": budget}
        )

    def _ask(self, **what: Any) -> Record:
        process = self._process
        assert process is not None
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
            raise KvstreamError(f"kvpress failed: {reply['error']}")
        return reply

    def _died(self) -> Exception:
        assert self._process is not None
        code = self._process.wait()
        if code == -9:
            return OutsideMemoryError("the system ended kvpress's process, as it does for memory")
        self._said.seek(0)
        last = (self._said.read().strip().splitlines() or ["it said nothing"])[-1]
        return KvstreamError(f"kvpress's process ended with code {code}: {last[:300]}")
