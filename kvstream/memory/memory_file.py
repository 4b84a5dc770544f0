"""A memory file that was read and checked, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvstream.memory.header import STORED, Position
from kvstream.reporters.format import counted
from kvstream.settings import INT8

if TYPE_CHECKING:
    import torch

    from kvstream.memory.contents import Beside
    from kvstream.memory.file import Content

_ORDINALS = "trace.ordinals"
"""The tensor with the distinct tokens of the sources that some head still holds."""


@dataclass(frozen=True)
class MemoryFile:
    """A memory file that was read and checked. `Model.recall` makes a memory of it."""

    path: Path
    """Path of the file."""
    content: Content
    whole: bool = True
    """Whether its entries are here too; otherwise `Model.recall` reads the file again."""

    @property
    def digest(self) -> str:
        """SHA-256 of its content, in hex."""
        return self.content.digest

    @property
    def questions(self) -> tuple[str, ...]:
        """The questions that memory was chosen for; empty if it was made without a question."""
        return tuple(self.content.state["questions"])

    @property
    def model(self) -> Mapping[str, Any]:
        """``name``, ``revision``, ``fingerprint``, ``dtype`` and ``kv_dtype`` of the model."""
        return self.content.state["model"]

    @property
    def kv_dtype(self) -> torch.dtype:
        """Number type of its keys and values."""
        import torch

        return getattr(torch, self.model["kv_dtype"])

    @property
    def position(self) -> Position | None:
        """Position of the reading, if this is a checkpoint."""
        return position_of(self.content.notes)

    @property
    def begun(self) -> bool:
        """Whether this is the checkpoint of a reading that had not ended."""
        return self.position is not None and not self.position.complete

    @property
    def beside(self) -> Beside | None:
        """What is kept for the answering model, if another model read. Raises SourceError."""
        from kvstream.memory.file import WRONG, unusable
        from kvstream.memory.packing import beside_of

        try:
            return beside_of(self.content.state, self.content.tensors)
        except WRONG as error:
            raise unusable(self.path, error) from error

    def to_json(self) -> dict[str, Any]:
        """Return the object ``memory`` of ``--json`` for the memory that answers."""
        state = self.content.state
        return {
            "file": str(self.path),
            "kind": "questions" if self.questions else "question-free",
            "questions": list(self.questions),
            "sha256": self.content.digest,
            "sources": state["trace"]["sources"],
            "read_s": self.content.notes.get("read_s"),
        }

    @property
    def answering(self) -> str | None:
        """Name of another model that answers from the passages beside it, if any."""
        model = self.content.state.get("answering")
        return None if model is None else str(model["name"])

    @property
    def sources(self) -> Sequence[Mapping[str, Any]]:
        """``name``, ``bytes`` and ``sha256`` of each source."""
        return self.content.state["trace"]["sources"]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the readings that made it."""
        return tuple(self.content.notes["warnings"])

    @property
    def tokens(self) -> int:
        """Number of tokens that were read."""
        return int(self.content.state["trace"]["read"])

    @property
    def retained(self) -> int:
        """Number of distinct source tokens that at least one head holds."""
        return int(self.content.tensors[_ORDINALS].numel())

    @property
    def evicted(self) -> int:
        """Number of source tokens that no head holds."""
        return self.tokens - self.retained

    @property
    def entries(self) -> int:
        """Entries of the fullest head, including those of the prompt."""
        return max(int(layer["used"]) for layer in self.content.state["cache"]["layers"])

    @property
    def options(self) -> dict[str, Any]:
        """The options of the reading, with the names of `Model.read`."""
        state = self.content.state
        run = state["run"]
        return {
            "budget": state["sizes"]["budget"],
            "method": state["method"]["name"],
            "set": state["method"]["typed"],
            "system": state["system"],
            **{row.name: run[name] for name, row in STORED.items() if not row.per_answer},
        }

    def loading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options to load a model for this memory.

        ``auto`` number types become those of this memory, so that nothing is rounded. ``like`` then
        names this file. ``dtype`` stays ``auto`` for a 16-bit type that is slow on this CPU, and
        for quantized weights."""
        from kvstream.model.placement import device_of
        from kvstream.model.precision import is_slow

        result = dict(options)
        dtype = self.model["dtype"]
        device = device_of(str(result.get("device") or "auto")).type
        quantized = result.get("quantize") is not None
        if result.get("dtype", "auto") == "auto" and not is_slow(dtype, device) and not quantized:
            result |= {"quantize": dtype} if dtype == INT8 else {"dtype": dtype}
            result["like"] = self.path.name
        if result.get("kv_dtype", "auto") == "auto":
            result["kv_dtype"] = self.model["kv_dtype"]
        return result

    @property
    def without_entries(self) -> MemoryFile:
        """A copy without the entries, which takes no space."""
        content = self.content
        empty = {
            name: tensor if name == _ORDINALS else tensor.new_empty(0)
            for name, tensor in content.tensors.items()
        }
        return replace(self, content=replace(content, tensors=empty), whole=False)

    def record(self) -> dict[str, Any]:
        """Return the object of ``kvstream inspect --json``. Raises SourceError."""
        state, notes = self.content.state, self.content.notes
        peak, position, beside = notes["peak"], self.position, self.beside
        return {
            "command": "inspect",
            "model": self.model["name"],
            "dtype": self.model["dtype"],
            "kv_dtype": self.model["kv_dtype"],
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
        purpose = "without a question"
        if self.questions:
            questions = counted(len(self.questions), "question")
            purpose = f"for {questions}: {' / '.join(self.questions)}"
        return (
            f"Memory of {counted(self.tokens, 'token')} of {counted(len(self.sources), 'source')}, "
            f"made {purpose}{'; the reading had not ended' if self.begun else ''}"
        )


def position_of(notes: Mapping[str, Any]) -> Position | None:
    """Return the position in the notes of a checkpoint; None for another memory file."""
    position = notes.get("position")
    return None if position is None else Position(**position)
