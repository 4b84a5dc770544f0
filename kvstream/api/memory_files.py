"""Inspect memory files and checkpoints without a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.api.given import path_of
from kvstream.api.source_objects import SourceLike, open_sources
from kvstream.errors import SourceError

if TYPE_CHECKING:
    from kvstream.memory.saving import Kind

_ORDINALS = "trace.ordinals"
"""The tensor with the distinct tokens of the sources that some head still holds."""


@dataclass(frozen=True)
class MemoryFile:
    """A memory file that was read and checked. `Model.recall` makes a memory of it."""

    kind: Kind
    """The contents of the file."""
    whole: bool = True
    """Whether its entries are here too; otherwise `Model.recall` reads the file again."""

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.kind.path

    @property
    def digest(self) -> str:
        """SHA-256 of its content, in hex."""
        return self.kind.content.digest

    @property
    def questions(self) -> tuple[str, ...]:
        """The questions that memory was chosen for; empty if it was made without a question."""
        return self.kind.questions

    @property
    def model(self) -> Mapping[str, Any]:
        """``name``, ``revision``, ``fingerprint``, ``dtype`` and ``kv_dtype`` of the model."""
        return self.kind.model

    @property
    def answering(self) -> str | None:
        """Name of the model that answers from the passages beside this memory; None: the model
        that made it."""
        found = self.kind.content.state.get("answering")
        return None if found is None else str(found["name"])

    @property
    def sources(self) -> Sequence[Mapping[str, Any]]:
        """``name``, ``bytes`` and ``sha256`` of each source."""
        found: Sequence[Mapping[str, Any]] = self.kind.content.state["trace"]["sources"]
        return found

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the readings that made it."""
        return tuple(self.kind.content.notes["warnings"])

    @property
    def tokens(self) -> int:
        """Number of tokens that were read."""
        return int(self.kind.content.state["trace"]["read"])

    @property
    def retained(self) -> int:
        """Number of distinct source tokens that at least one head holds."""
        return int(self.kind.content.tensors[_ORDINALS].numel())

    @property
    def evicted(self) -> int:
        """Number of source tokens that no head holds."""
        return self.tokens - self.retained

    @property
    def entries(self) -> int:
        """Entries of the fullest head, including those of the prompt."""
        return max(int(layer["used"]) for layer in self.kind.content.state["cache"]["layers"])

    @property
    def options(self) -> dict[str, Any]:
        """The options of the reading, with the names of `Model.read`."""
        from kvstream.memory.header import STORED

        state = self.kind.content.state
        run = state["run"]
        return {
            "budget": state["sizes"]["budget"],
            "method": state["method"]["name"],
            "set": state["method"]["typed"],
            "system": state["system"],
            **{
                row.name: run.get(name, row.default)
                for name, row in STORED.items()
                if not row.per_answer
            },
        }

    def loading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options to load a model for this memory.

        ``auto`` number types become those of this memory, so that nothing is rounded. ``like`` then
        names this file. ``dtype`` stays ``auto`` for a 16-bit type that is slow on this CPU, and
        for quantized weights."""
        from kvstream.model.placement import device_of
        from kvstream.model.precision import is_slow
        from kvstream.settings import INT8

        found = dict(options)
        made = self.model["dtype"]
        device = device_of(str(found.get("device") or "auto")).type
        quantized = found.get("quantize") is not None
        if found.get("dtype", "auto") == "auto" and not is_slow(made, device) and not quantized:
            found |= {"quantize": made} if made == INT8 else {"dtype": made}
            found["like"] = self.path.name
        if found.get("kv_dtype", "auto") == "auto":
            found["kv_dtype"] = str(self.kind.kv_dtype).removeprefix("torch.")
        return found

    @property
    def told(self) -> MemoryFile:
        """A copy without the entries, which takes no space."""
        content = self.kind.content
        empty = {
            name: tensor if name == _ORDINALS else tensor.new_empty(0)
            for name, tensor in content.tensors.items()
        }
        return MemoryFile(replace(self.kind, content=replace(content, tensors=empty)), whole=False)

    def ends_with(self, source: SourceLike) -> bool:
        """Read `source`, and return whether the newest sources of the file have its content."""
        sources = open_sources(source)
        for _ in sources:
            pass
        read = [(record.bytes, record.sha256) for record in sources.records]
        kept = [(each["bytes"], each["sha256"]) for each in self.sources]
        return kept[-len(read) :] == read

    def to_json(self) -> dict[str, Any]:
        """Return the object ``memory`` that ``--json`` prints for a memory that was asked."""
        return self.kind.to_json()

    def record(self) -> dict[str, Any]:
        """Return the object of ``kvstream inspect --json``, with the keys of ``remember --json``.

        Raises SourceError if the passages for the answering model are damaged.
        """
        state, notes = self.kind.content.state, self.kind.content.notes
        peak, position, beside = notes["peak"], self.kind.position, self.kind.beside
        return {
            "command": "inspect",
            "model": self.model["name"],
            "dtype": self.model["dtype"],
            "kv_dtype": str(self.kind.kv_dtype).removeprefix("torch."),
            "method": state["method"]["name"],
            "settings": dict(state["method"]["settings"]),
            "memory": {**self.to_json(), "bytes": self.path.stat().st_size},
            "budget": {"tokens": state["sizes"]["budget"]},
            "peak": {"kv_tokens": peak["tokens"], "kv_bytes": peak["bytes"]},
            "tokens": {
                "read": self.tokens,
                "retained": self.retained,
                "evicted": self.evicted,
                "entries": self.entries,
                "prompt": state["sizes"]["prompt"],
            },
            "schedule": {
                "memory": state["run"]["growth"],
                "chunk": state["run"]["chunk"],
                "steps": state["reader"]["steps"],
            },
            "answering": None if beside is None else {**beside.to_json(), "by": beside.by},
            "checkpoint": None if position is None else {
                "tokens": position.tokens, "complete": position.complete,
            },
            "version": notes["version"],
            "written": notes["written"],
            "warnings": list(self.warnings),
        }  # fmt: skip

    def __str__(self) -> str:
        return self.kind.told()


def inspect(path: str | os.PathLike[str]) -> MemoryFile:
    """Read and check a memory file or a checkpoint. Raises SourceError."""
    from kvstream.memory.saving import look

    return MemoryFile(look(Path(path_of("path", path))))


def opened(path: str | os.PathLike[str] | MemoryFile) -> MemoryFile:
    """Return a file with its entries: as given, or read and checked.

    Raises SourceError, also if the file changed after `path`, a file without entries, was read.
    """
    if not isinstance(path, MemoryFile):
        return inspect(path)
    if path.whole:
        return path
    found = inspect(path.path)
    if found.digest != path.digest:
        raise SourceError(f"{path.path} changed since it was recalled; give its path.")
    return found


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise KvstreamError if a memory cannot be written to `path`."""
    from kvstream.memory.file import check_writable as check

    check(Path(path))


def checkpoint_tokens(path: str | os.PathLike[str]) -> int | None:
    """Return how many tokens a checkpoint has read; None if there is no file yet.

    Only the header is read; the reading that resumes from it checks the whole file. Raises
    UsageError if the file is a memory and no checkpoint, SourceError if it is neither, and
    KvstreamError if it cannot be written.
    """
    from kvstream.memory.checkpoint import tokens_of

    return tokens_of(Path(path))


def finished_reading(
    checkpoint: str | os.PathLike[str], target: str | os.PathLike[str]
) -> MemoryFile | None:
    """Return the memory of `target` if `checkpoint` has finished reading into another memory.

    Then nothing is left to read. The headers decide this; the memory of `target` is then checked
    completely. Raises SourceError.
    """
    from kvstream.memory.checkpoint import is_finished

    return inspect(target) if is_finished(Path(checkpoint), Path(target)) else None
