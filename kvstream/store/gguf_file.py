"""The header of a GGUF file: the model's metadata, its tokenizer, and the place of each tensor.

This module reads no weights and imports nothing heavy. The format: a magic word, a version, counts,
key-value pairs, a table of tensors, and the tensors' data, each at a multiple of the alignment
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstream.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
MOST_TENSORS, MOST_KEYS = 1 << 20, 1 << 16
SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
"""Name of one part of a split file."""
AGAIN = "download or copy it again"

_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class Place:
    name: str
    shape: tuple[int, ...]
    """Shape in torch's order: the last dimension is contiguous."""
    kind: int
    """ggml's type number, which tells how the tensor is stored."""
    path: Path
    start: int
    """Offset in the file, in bytes."""
    bytes: int

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GGUF:
    """A model in a GGUF file, or in the parts of a split one."""

    paths: tuple[Path, ...]
    keys: dict[str, Any]
    """Key-value pairs of the first file. Without `texts` in `read`, an array of strings is its
    length."""
    tensors: dict[str, Place]

    @property
    def architecture(self) -> str:
        return str(self.keys["general.architecture"])

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    @property
    def parameters(self) -> int:
        return sum(place.numbers for place in self.tensors.values())

    def of_model(self, key: str, default: Any = None) -> Any:
        return self.keys.get(f"{self.architecture}.{key}", default)


def all_float32(places: Iterable[Place]) -> bool:
    """Return whether the file stores all matrices among these tensors as float32."""
    return all(place.kind == 0 for place in places if len(place.shape) > 1)


def is_gguf(path: Path) -> bool:
    """Return whether a file is GGUF, by its suffix or its first bytes."""
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read(path: Path, texts: bool = False) -> GGUF:
    """Read the header of all parts; `texts`: arrays of strings too. Raise ModelError."""
    paths = parts(path)
    keys: dict[str, Any] = {}
    tensors: dict[str, Place] = {}
    for number, part in enumerate(paths):
        part_keys, places = _read(part, texts and number == 0)
        keys = keys or part_keys
        for place in places:
            if place.name in tensors:
                raise ModelError(f"{part} holds the tensor {place.name} twice; {AGAIN}.")
            tensors[place.name] = place
    if "general.architecture" not in keys:
        raise ModelError(f"{path} does not say which architecture it holds; {AGAIN}.")
    if not tensors:
        raise ModelError(
            f"{path} holds no weights, only a vocabulary; choose the file of the whole model."
        )
    return GGUF(paths, keys, tensors)


def parts(path: Path) -> tuple[Path, ...]:
    """Return all files of a model, in order. Raise ModelError if a part is missing."""
    match = SPLIT.fullmatch(path.name)
    if match is None:
        return (path,)
    count = int(match[3])
    every = tuple(
        path.with_name(f"{match[1]}-{number:05}-of-{count:05}{path.suffix}")
        for number in range(1, count + 1)
    )
    missing = [part.name for part in every if not part.is_file()]
    if missing:
        raise ModelError(
            f"{path.name} is one of {count} parts, and {', '.join(missing[:3])} "
            f"{'is' if len(missing) == 1 else 'are'} not in {path.parent}; put all parts there."
        )
    return every


def _read(path: Path, texts: bool) -> tuple[dict[str, Any], list[Place]]:
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise _cut_short(path)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).read(texts)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error


def _cut_short(path: Path, whole: int | None = None) -> ModelError:
    size = path.stat().st_size
    should = f" and should have {whole:,}" if whole else ", and its header continues after them"
    return ModelError(f"{path} is cut short: it has {size:,} bytes{should}; {AGAIN}.")


class _Reader:
    """A reader of a header, from the beginning of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def read(self, texts: bool) -> tuple[dict[str, Any], list[Place]]:
        try:
            tensors, count = self._start()
            keys = {}
            for _ in range(count):
                name = self._text()
                keys[name] = self._value(self._number("I"), texts)
            table = [self._tensor() for _ in range(tensors)]
        except struct.error:
            raise _cut_short(self._path) from None
        except UnicodeDecodeError as error:
            raise self._damaged("a text of its header is not UTF-8") from error
        return keys, self._places(table, keys.get("general.alignment", ALIGNMENT))

    def _start(self) -> tuple[int, int]:
        """Check magic word and version; return the numbers of tensors and keys."""
        path = self._path
        if self._data[:4] != MAGIC:
            raise ModelError(f"{path} is not a GGUF file: it does not begin with {MAGIC.decode()}.")
        self._at = 4
        version = self._number("I")
        if version & 0xFFFF == 0:
            raise ModelError(
                f"{path} is written for big-endian machines; convert it with "
                f"`gguf-convert-endian {path.name} little`, or download the little-endian file."
            )
        if version not in VERSIONS:
            raise ModelError(
                f"{path} is of GGUF version {version}, and versions 2 and 3 can be read; download "
                "a newer file of this model, or update kvstream."
            )
        tensors, keys = self._number("Q"), self._number("Q")
        if tensors > MOST_TENSORS or keys > MOST_KEYS:
            raise self._damaged(f"its header announces {tensors:,} tensors and {keys:,} keys")
        return tensors, keys

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is damaged: {what}; {AGAIN}.")

    def _number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return value

    def _bytes(self, length: int) -> bytes:
        if length > len(self._data) - self._at:
            raise struct.error
        self._at += length
        return self._data[self._at - length : self._at]

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8")

    def _value(self, kind: int, texts: bool, depth: int = 0) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY or depth > 2:
            raise self._damaged(f"its header has a value of kind {kind}")
        inner, count = self._number("I"), self._number("Q")
        if count > len(self._data):
            raise struct.error
        if inner in _NUMBERS:
            form = f"<{count}{_NUMBERS[inner]}"
            return list(struct.unpack(form, self._bytes(struct.calcsize(form))))
        if inner == _STRING and not texts:
            for _ in range(count):
                self._bytes(self._number("Q"))
            return count
        return [self._value(inner, texts, depth + 1) for _ in range(count)]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return name, shape, kind and offset, counted from the start of the tensor data."""
        name, dimensions = self._text(), self._number("I")
        if dimensions > 8:
            raise self._damaged(f"{name!r} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return name, shape[::-1], self._number("I"), self._number("Q")

    def _places(
        self, table: Sequence[tuple[str, tuple[int, ...], int, int]], step: Any
    ) -> list[Place]:
        if not isinstance(step, int) or step < 1 or step & (step - 1):
            raise self._damaged(f"it has an alignment of {step!r}")
        start = -(-self._at // step) * step
        places = [
            Place(name, shape, kind, self._path, start + at, self._size(name, shape, kind))
            for name, shape, kind, at in table
        ]
        end = max((place.start + place.bytes for place in places), default=0)
        if end > len(self._data):
            raise _cut_short(self._path, end)
        return places

    def _size(self, name: str, shape: tuple[int, ...], kind: int) -> int:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise ModelError(
                f"{self._path} stores {name} as ggml type {kind}, which the installed package gguf "
                "does not know; update it (pip install -U gguf) or choose another quantization of "
                "this model."
            ) from None
        if shape and shape[-1] % block:
            raise self._damaged(
                f"rows of {name} have {shape[-1]} numbers, no whole blocks of {block}"
            )
        return math.prod(shape) // block * size
