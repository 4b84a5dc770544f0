"""Memory files: tensors and JSON in one safetensors file, written atomically and never trusted.

Any reader of safetensors can open the file; it never contains pickle. Its metadata holds four
texts: ``state`` and ``notes`` (JSON), ``memory``, the SHA-256 of the state and its tensors, and
``file``, the SHA-256 of ``memory`` and everything else. Two memories are the same if ``memory`` is
the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from kvstream.errors import KvstreamError, SourceError
from kvstream.memory import header
from kvstream.methods.base import DTYPES, LARGEST
from kvstream.store import writing

ASIDE = "evidence."
"""Prefix of the names of tensors that hold measurements and are not part of the memory."""
FORMAT = 1
"""Version of the format. It increases when earlier versions of kvstream cannot read new files."""
LARGEST_HEADER = 100_000_000
"""Maximum bytes of a header; the limit of the safetensors format."""
REMEDY = (
    "It was cut short, altered, or not written by kvstream: copy it again, or read the sources "
    "again with `kvstream remember`."
)
WRONG = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RuntimeError,
    ArithmeticError,
)  # fmt: skip
"""Errors that a file can still cause if its fields are valid one by one, but not together."""


@dataclass(frozen=True)
class Content:
    """The content of a memory file."""

    state: dict[str, Any]
    """The memory, without its tensors."""
    notes: dict[str, Any]
    """How the memory was made: seconds, the version of the program."""
    tensors: dict[str, Tensor]
    digest: str
    """SHA-256 of the state and the tensors, in hex."""


def write(
    path: Path, state: Mapping[str, Any], notes: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> str:
    """Write a memory file, whole or not at all; return its digest. Raises KvstreamError."""
    state_text, notes_text = _json(state), _json(notes)
    digest = _digest(state_text, tensors, aside=False)
    seal = _digest(digest + notes_text, tensors, aside=True)
    metadata = {"state": state_text, "notes": notes_text, "memory": digest, "file": seal}
    table: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    # Wide number types first, so that each tensor is aligned to the size of its numbers.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        start, end = end, end + tensors[name].nbytes
        table[name] = {
            "dtype": DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(table).encode()
    head += b" " * (-len(head) % 8)

    def fill(file: BinaryIO) -> None:
        file.write(len(head).to_bytes(8, "little") + head)
        for name in order:
            file.write(_bytes(tensors[name]))

    try:
        writing.replace(path, fill)
    except OSError as error:
        raise KvstreamError(
            f"Cannot write {path}: {error.strerror or error}. The earlier file, if there "
            "was one, is unchanged; make room, or choose another place."
        ) from error
    return digest


def read(path: Path) -> Content:
    """Return the content of a file after checking digests, schema and numbers.

    Reads the whole file before it checks anything, so that another process that writes the file
    meanwhile cannot change what was checked. Raises SourceError.
    """
    with _opened(path) as stream:
        size, free = path.stat().st_size, psutil.virtual_memory().available
        if size > free:
            raise SourceError(
                f"{path} has {size:,} bytes, and only {free:,} bytes of RAM are free; end other "
                "programs, or read the sources again with a smaller --budget."
            )
        data = stream.read()
    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        metadata = header.metadata_of(data[8 : 8 + size])
    except (SafetensorError, ValueError, RuntimeError, OverflowError, KeyError, TypeError) as error:
        raise _no_memory(path) from error
    del data
    _check_memory(path, metadata)
    if any(tensor.dtype not in DTYPES for tensor in tensors.values()):
        raise unusable(path, "it holds numbers of a kind that no memory has")
    digest = _digest(metadata["state"], tensors, aside=False)
    seal = _digest(digest + metadata["notes"], tensors, aside=True)
    if (digest, seal) != (metadata["memory"], metadata["file"]):
        raise unusable(path, "its content does not match its digest")
    state, notes = _texts(path, metadata)
    if why := wild(tensors):
        raise unusable(path, f"{why}, which no model makes")
    return Content(state, notes, tensors, digest)


def wild(tensors: Mapping[str, Tensor]) -> str | None:
    """Return which tensor has numbers that no memory has, or NaN; None if there is none."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            low, high = (float(t) for t in tensor.aminmax())
            if not -LARGEST <= low <= high <= LARGEST:
                return f"{name} has numbers from {low:g} to {high:g}"
    return None


def read_notes(path: Path) -> dict[str, Any]:
    """Return the notes of a memory file, from its header.

    Checks no digest. This is enough to refuse a file of another kind early. To use its tensors,
    call `read`. Raises SourceError.
    """
    try:
        with _opened(path) as stream:
            metadata = header.metadata_of(head_of(stream))
    except ValueError as error:
        raise _no_memory(path) from error
    _check_memory(path, metadata)
    return _texts(path, metadata)[1]


def head_of(stream: BinaryIO) -> bytes:
    """Read the header of a safetensors file. Raise ValueError if it is none."""
    size = int.from_bytes(stream.read(8), "little")
    if not 0 < size <= LARGEST_HEADER:
        raise ValueError("it is not a safetensors file")
    return stream.read(size)


def _check_memory(path: Path, metadata: Mapping[str, str]) -> None:
    """Raise SourceError if a safetensors file is from another program."""
    if not {"state", "notes", "memory", "file"} <= set(metadata):
        raise SourceError(f"{path} is a safetensors file, but not a memory of kvstream. {REMEDY}")


def _texts(path: Path, metadata: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return state and notes, checked against their schema. Raise SourceError if they are wrong."""
    try:
        number = header.decoded(metadata["state"], header.Versions, "state is").format
        version = header.decoded(metadata["notes"], header.Versions, "notes is").version
        if number not in (None, FORMAT) or version.startswith("0.1."):
            raise SourceError(
                f"{path} was written by kvstream {version} in format {number}; this version "
                f"reads format {FORMAT} of kvstream 0.2 and newer. Use the version that wrote it, "
                "or read the sources again with `kvstream remember`."
            )
        header.decoded(metadata["state"], header.State, "state is")
        header.decoded(metadata["notes"], header.Notes, "notes is")
    except ValueError as error:
        raise unusable(path, error) from error
    return json.loads(metadata["state"]), json.loads(metadata["notes"])


def _no_memory(path: Path) -> SourceError:
    return SourceError(f"{path} is not a memory file, or only a part of one. {REMEDY}")


def unusable(path: Path, why: str | Exception) -> SourceError:
    """Return the error for a file that is damaged, or that another program made."""
    reason = f"{why} is missing" if isinstance(why, KeyError) else why
    return SourceError(f"{path} cannot be used: {reason}. {REMEDY}")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read. What the system does not allow inside becomes a SourceError."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise SourceError(f"{path} is not a file; name a memory file.")
    try:
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise SourceError(f"There is no memory file {path}; check the path.") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror or error}.") from error


def _json(value: Mapping[str, Any]) -> str:
    """Return JSON with `?` for what is not text, such as an invalid byte in the name of a file."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if "\\ud" in text:  # a lone surrogate, or half of an emoji
        clean = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        text = json.dumps(json.loads(clean), sort_keys=True, separators=(",", ":"))
    return text


def _digest(text: str, tensors: Mapping[str, Tensor], *, aside: bool) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        if name.startswith(ASIDE) == aside:
            tensor = tensors[name]
            digest.update(f"\n{name} {DTYPES[tensor.dtype]} {list(tensor.shape)}\n".encode())
            digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    tensor = tensor.detach().cpu().contiguous().flatten()
    # A single number of an expanded tensor has the stride 0 and counts as contiguous.
    return tensor.as_strided(tensor.shape, (1,)).view(torch.uint8).numpy().tobytes()
