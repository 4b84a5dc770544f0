"""Memory files and checkpoints: what they say of themselves, without a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.api.given import path_of
from kvstream.api.sources import SourceLike, open_sources

if TYPE_CHECKING:
    from kvstream.memory.saving import Kind


@dataclass(frozen=True)
class MemoryFile:
    """A memory file that was read and checked; `Model.recall` makes a memory of it."""

    kind: Kind
    """What the file holds."""

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.kind.path

    @property
    def digest(self) -> str:
        """SHA-256 of its content, in hex."""
        return self.kind.content.digest

    @property
    def questions(self) -> tuple[str, ...]:
        """Those that memory was chosen for; none: it was made without a question."""
        return self.kind.questions

    @property
    def model(self) -> Mapping[str, Any]:
        """``name``, ``revision``, ``fingerprint``, ``dtype`` and ``kv_dtype`` of the model."""
        return self.kind.model

    @property
    def answering(self) -> str | None:
        """The name of the model that answers from the passages beside this memory; None: that
        which made it."""
        found = self.kind.content.state.get("answering")
        return None if found is None else str(found["name"])

    @property
    def sources(self) -> Sequence[Mapping[str, Any]]:
        """``name``, ``bytes`` and ``sha256`` of each source."""
        found: Sequence[Mapping[str, Any]] = self.kind.content.state["trace"]["sources"]
        return found

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the readings that made it."""
        return tuple(self.kind.content.notes["warnings"])

    @property
    def tokens(self) -> int:
        """Tokens that were read."""
        return int(self.kind.content.state["trace"]["read"])

    @property
    def retained(self) -> int:
        """Distinct tokens of the sources that some head still holds."""
        return int(self.kind.content.tensors["trace.ordinals"].numel())

    @property
    def evicted(self) -> int:
        """Tokens of the sources that no head holds any more."""
        return self.tokens - self.retained

    @property
    def entries(self) -> int:
        """Entries of the fullest head, those of the prompt included."""
        return max(int(layer["used"]) for layer in self.kind.content.state["cache"]["layers"])

    @property
    def options(self) -> dict[str, Any]:
        """The options that it was read with, by the names of `Model.read`."""
        state = self.kind.content.state
        run = state["run"]
        return {
            "budget": state["sizes"]["budget"],
            "method": state["method"]["name"],
            "set": state["method"]["typed"],
            "keep": run["keep"],
            "start": run["start"],
            "schedule": run["growth"],
            "chunk": run["chunk"],
            "chunk_size": run["chunk_size"],
            "system": state["system"],
            "thin": run.get("thin", "auto"),
        }

    def loading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options to load a model for this memory: where they say ``auto``, the number types that
        it was made in, so that nothing is rounded. Weights in 16 bits that this CPU is slow with
        are left to ``auto``. ``like`` is then the name of this file."""
        from kvstream.model.placement import device_of
        from kvstream.model.precision import is_slow

        found = dict(options)
        made = self.model["dtype"]
        device = device_of(str(found.get("device") or "auto")).type
        quantized = found.get("quantize") is not None
        if found.get("dtype", "auto") == "auto" and not is_slow(made, device) and not quantized:
            found |= {"dtype": made, "like": self.path.name}
        if found.get("kv_dtype", "auto") == "auto":
            found["kv_dtype"] = str(self.kind.kv_dtype).removeprefix("torch.")
        return found

    @property
    def told(self) -> MemoryFile:
        """What it says of itself, without what it holds: it cannot be recalled."""
        content = self.kind.content
        empty = {name: tensor.new_empty(0) for name, tensor in content.tensors.items()}
        return MemoryFile(replace(self.kind, content=replace(content, tensors=empty)))

    def ends_with(self, source: SourceLike) -> bool:
        """Whether the newest of its sources have the content of these, which are read for that."""
        sources = open_sources(source)
        for _ in sources:
            pass
        read = [(record.bytes, record.sha256) for record in sources.records]
        kept = [(each["bytes"], each["sha256"]) for each in self.sources]
        return kept[-len(read) :] == read

    def to_json(self) -> dict[str, Any]:
        """The object ``memory`` of ``--json`` for the memory that was asked."""
        return self.kind.to_json()

    def record(self) -> dict[str, Any]:
        """The object of ``kvstream inspect --json``, with the keys of ``remember --json``.

        Raises SourceError where the passages for the answering model are damaged.
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
    """What a memory file or a checkpoint says of itself. Raises SourceError."""
    from kvstream.memory.saving import look

    return MemoryFile(look(Path(path_of("path", path))))


def check_writable(path: str | os.PathLike[str]) -> None:
    """Whether a memory can be written there. Raises KvstreamError."""
    from kvstream.memory.file import check_writable as check

    check(Path(path))


def checkpoint_tokens(path: str | os.PathLike[str]) -> int | None:
    """How many tokens a checkpoint is in; None where there is no file yet.

    Its header says so; the reading that goes on from it checks the whole file. Raises UsageError
    where the file is a memory and no checkpoint, SourceError where it is neither, KvstreamError
    where it cannot be written.
    """
    from kvstream.memory.checkpoint import tokens_of

    return tokens_of(Path(path))


def finished_reading(
    checkpoint: str | os.PathLike[str], target: str | os.PathLike[str]
) -> MemoryFile | None:
    """The memory of `target`, if the checkpoint of a reading into another memory is of its end.

    Then nothing is left to read. The headers say so, and the memory is checked whole. Raises
    SourceError.
    """
    from kvstream.memory.checkpoint import is_finished

    return inspect(target) if is_finished(Path(checkpoint), Path(target)) else None
