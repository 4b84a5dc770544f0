"""The texts of a memory file without its keys and values: enough to rank many files by words.

Only the header, the passages and the words are read; nothing is checked by a digest, so what is
found here decides where to look and nothing else. `saving.look` checks the files that are asked.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from kvstream.memory import file, header
from kvstream.memory.packing import LARGEST_TEXT
from kvstream.tokenization.loading import WordForms

_DAMAGE = (
    json.JSONDecodeError, UnicodeDecodeError, LookupError, TypeError, zlib.error,
    RecursionError,  # JSON that is nested too deep
)  # fmt: skip


@dataclass(frozen=True)
class Glance:
    """What a memory file says, as far as ranking needs it."""

    path: Path
    names: tuple[str, ...]
    """Of its sources."""
    text: str
    """The passages that memory holds something of, a line each."""
    words: WordForms | None
    """Which words the whole text has, forgotten passages included."""
    questions: tuple[str, ...] = ()
    """Those that it was made for."""


@dataclass(frozen=True)
class Models:
    """The models of a memory file, and what decides the size of its KV cache."""

    made: str
    """The name of the one that made it."""
    fingerprint: str
    """Of its weights."""
    answering: str | None
    """The name of the one that answers from the passages beside it; None: that which made it."""
    budget: int
    """In entries a head."""
    method: str
    typed: dict[str, str]
    """Settings of the method, as typed."""


def glance(path: Path) -> Glance:
    """Raises SourceError for what is no memory file."""
    with _opened(path) as opened:
        return _glance(path, opened)


def models_in(path: Path) -> Models:
    """From the header alone. Raises SourceError for what is no memory file."""
    with _opened(path) as opened:
        _, state = _header(opened)
        made, answering = state["model"], state.get("answering")
        name = None if answering is None else str(answering["name"])
        budget, method = state["sizes"]["budget"], state["method"]
        if not isinstance(budget, int):
            raise TypeError("the budget is no number")
        typed = {str(key): str(value) for key, value in dict(method["typed"]).items()}
        fingerprint = str(made["fingerprint"])
        return Models(str(made["name"]), fingerprint, name, budget, str(method["name"]), typed)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """A file whose errors are SourceErrors."""
    try:
        with path.open("rb") as opened:
            yield opened
    except OSError as error:
        raise file.unusable(path, error.strerror or str(error)) from error
    except _DAMAGE as error:
        raise file.unusable(path, "it is damaged") from error
    except ValueError as error:
        raise file.unusable(path, str(error)) from error


def _header(opened: BinaryIO) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table of tensors, and what the file says of itself; the tensors follow."""
    size = int.from_bytes(opened.read(8), "little")
    if not 0 < size <= file.LARGEST_HEADER:
        raise ValueError("it is not a safetensors file")
    head = opened.read(size)
    return json.loads(head), json.loads(header.metadata_of(head)["state"])


def _glance(path: Path, opened: BinaryIO) -> Glance:
    table, state = _header(opened)
    tensors = opened.tell()

    def part(name: str) -> bytes | None:
        if name not in table:
            return None
        begin, end = table[name]["data_offsets"]
        if not 0 <= begin <= end <= LARGEST_TEXT:
            raise ValueError(f"its {name} cannot lie there")
        opened.seek(tensors + begin)
        return opened.read(end - begin)

    text, packed, words = "", part("trace.passages"), part("trace.words")
    if packed is not None:
        rows: list[list[Any]] = json.loads(zlib.decompressobj().decompress(packed, LARGEST_TEXT))
        text = "\n".join(str(row[6]) for row in rows)
    names = tuple(str(source["name"]) for source in state["trace"]["sources"])
    known = None if words is None else WordForms.unpacked(words)
    return Glance(path, names, text, known, tuple(map(str, state["questions"])))
