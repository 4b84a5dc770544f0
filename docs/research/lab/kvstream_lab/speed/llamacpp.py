"""llama.cpp with the same GGUF file, with the fastest of its types and settings.

They are compared on a short text: every type with flash attention on and off, then the fastest of
them with other batch sizes. A new process does the reading, so that its memory is that of one
setting.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kvstream.errors import UsageError
from kvstream.evaluation.records import Record
from kvstream.model.bounded import BoundedModel
from kvstream_lab.speed.outside import Process, Program

LLAMACPP = Program(
    "xllamacpp",
    Path(__file__).with_name("llamacpp_worker.py"),
    "make llamacpp (which prints the path), or: python -m venv DIR && DIR/bin/pip install "
    "xllamacpp gguf psutil",
    "--llamacpp-python",
)
FULL, SLIDING = "full", "sliding"
"""Keep everything, or keep a window of the newest entries that slides by half of its size."""
OTHER_TYPES = ("Q8_0", "F16")
FIRST_UBATCH, OTHER_UBATCHES = 512, (128, 2048)
TUNE = 512
"""Tokens of the text on which settings are compared."""
TRAINED = 1 << 20
"""Trained length that the copies claim: llama.cpp's server refuses prompts longer than that."""
SPARE = 64
"""Additional entries besides text, question and answer."""


@dataclass(frozen=True)
class Setting:
    """Settings of llama.cpp."""

    path: str
    kind: str
    """Type of the matrices, or ``as given``."""
    ubatch: int = FIRST_UBATCH
    flash: bool = True

    def __str__(self) -> str:
        attention = "flash attention" if self.flash else "no flash attention"
        return f"{self.kind}, ubatch {self.ubatch}, {attention}"


def gguf_of(model: BoundedModel) -> Path:
    """Return the GGUF file that a model was converted from. Raise UsageError if there is none."""
    try:
        origin = json.loads(Path(model.model.name_or_path, "origin.json").read_text("utf-8"))
        path = Path(origin["files"][0])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise UsageError(
            f"--against llamacpp reads the same GGUF file, and {model.name} is not one; use "
            "-m MODEL.gguf, or -m smollm2."
        ) from None
    if len(origin["files"]) > 1 or not path.is_file():
        raise UsageError(
            f"--against llamacpp needs the GGUF file that {model.name} was converted from, in one "
            f"piece, and {path} is not that; put it back, or join its parts."
        )
    return path


class Llamacpp:
    """A process with llama.cpp in its fastest setting; a context manager."""

    def __init__(self, python: str, model: BoundedModel) -> None:
        self._python = python
        self._source = gguf_of(model)
        self._stack = ExitStack()
        self._process: Process | None = None
        self._context = 0
        self.best: Setting | None = None
        self.tried: dict[str, float] = {}
        """Tokens per second of processor time, by setting."""
        self.loaded: Record = {}

    def __enter__(self) -> Llamacpp:
        return self

    def __exit__(self, *_: Any) -> None:
        self._end()
        self._stack.close()

    def tune(self, ids: Sequence[int]) -> None:
        """Find the fastest setting. Raise KvstreamError with the message of the process."""
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        source = str(folder / "as-given.gguf")
        settings = [Setting(source, "as given")]
        process = Process(LLAMACPP, self._python)
        try:
            copied = {"source": str(self._source), "target": source, "trained": TRAINED}
            process.ask(copy=copied)
            for kind in OTHER_TYPES:
                path = str(folder / f"{kind}.gguf")
                process.ask(write={"source": source, "target": path, "kind": kind})
                settings.append(Setting(path, kind))
            every = [replace(s, flash=flash) for s in settings for flash in (True, False)]
            speeds = {setting: self._speed(process, setting, ids) for setting in every}
            best = max(speeds, key=lambda s: speeds[s])
            for ubatch in OTHER_UBATCHES:
                other = replace(best, ubatch=ubatch)
                speeds[other] = self._speed(process, other, ids)
        finally:
            process.close()
        self.best = max(speeds, key=lambda s: speeds[s])
        self.tried = {str(s): round(speed, 1) for s, speed in speeds.items()}

    def _speed(self, process: Process, setting: Setting, ids: Sequence[int]) -> float:
        few = list(ids[:TUNE])
        self._load(process, setting, TUNE + SPARE)
        read = {"ids": few, "question": [], "tokens": 0, "mode": FULL, "budget": None}
        return len(few) / process.ask(read=read)["cpu_s"]

    def _load(self, process: Process, setting: Setting, context: int) -> Record:
        return process.ask(
            model={
                "path": setting.path,
                "threads": torch.get_num_threads(),
                "context": context,
                "ubatch": setting.ubatch,
                "flash": setting.flash,
            }
        )

    def read(
        self,
        ids: Sequence[int],
        mode: str,
        budget: int | None,
        question: Sequence[int],
        tokens: int,
    ) -> Record:
        """Return the cost of reading `ids`, with all entries or a window of `budget` entries."""
        if self.best is None:
            self.tune(ids)
        assert self.best is not None
        window = len(ids) if budget is None else budget
        context = window + len(question) + tokens + SPARE
        if self._process is None or context != self._context:
            self._end()
            self._process, self._context = Process(LLAMACPP, self._python), context
            self.loaded = self._load(self._process, self.best, context)
        found = self._process.ask(
            read={
                "ids": list(ids), "question": list(question), "tokens": tokens, "mode": mode,
                "budget": budget,
            }
        )  # fmt: skip
        best = {k: v for k, v in asdict(self.best).items() if k != "path"}
        return {**found, **self.loaded, "setting": best, "tried": self.tried}

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
