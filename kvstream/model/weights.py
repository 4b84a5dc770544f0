"""Sizes and number types of a model's weights, read from file headers without loading."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADROOM = 1.1
"""Factor for the memory of loading, which needs a little more than the weights."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_LONGEST_HEADER = 100 * 1024**2


@dataclass(frozen=True)
class Weights:
    parameters: int
    bytes: int
    """Bytes in the files."""
    floats: Counter[str]
    """Count of numbers of each floating-point type, as torch names it. Loading may convert these,
    but no others."""
    declared: str | None = None
    """Number type according to ``config.json``."""

    @property
    def _float_bytes(self) -> int:
        return sum(count * _BYTES[kind] for kind, count in self.floats.items())

    @property
    def number_name(self) -> str | None:
        """Default number type in memory; None if quantized: most bytes are not of floats."""
        if 2 * self._float_bytes < self.bytes or not self.floats:
            return None
        return self.declared or self.floats.most_common(1)[0][0]

    @property
    def number_bytes(self) -> int:
        """Default bytes of a floating-point number in memory."""
        most = self.floats.most_common(1) or [("float16", 0)]
        return _BYTES[self.declared or most[0][0]]

    def loaded(self, number_bytes: float | None = None) -> int:
        """Return the bytes in memory, with `number_bytes` (None: declared) for each float."""
        each = number_bytes or _BYTES.get(self.declared or "")
        if each is None:
            return self.bytes
        return self.bytes - self._float_bytes + round(self.floats.total() * each)


def is_whole(folder: Path) -> bool:
    """Return whether a folder of the cache holds a model. False if a part of it was removed."""
    return all((folder / name).is_file() for name in ("config.json", SINGLE))


def weights_in(folder: Path) -> Weights:
    """Return the weights of a folder. Raises FileNotFoundError, ValueError for damage."""
    tensors = [
        (tensor["dtype"], math.prod(tensor["shape"]), tensor["data_offsets"])
        for file in files(folder)
        for name, tensor in header(file)[1].items()
        if name != "__metadata__"
    ]
    return _counted(tensors, folder / "config.json")


def weights_on_hub(name: str, revision: str | None, config: Path | None = None) -> Weights:
    """Return the weights of a model on the hub, with its local ``config.json`` if given."""
    import huggingface_hub as hub

    metadata = hub.HfApi().get_safetensors_metadata(name, revision=revision)
    tensors = [
        (tensor.dtype, tensor.parameter_count, tensor.data_offsets)
        for file in metadata.files_metadata.values()
        for tensor in file.tensors.values()
    ]
    return _counted(tensors, config)


def _counted(tensors: Iterable[tuple[str, int, tuple[int, int]]], config: Path | None) -> Weights:
    parameters, size = 0, 0
    floats: Counter[str] = Counter()
    for kind, count, (first, end) in tensors:
        parameters, size = parameters + count, size + end - first
        if kind in _FLOATS:
            floats[_FLOATS[kind]] += count
    declared = None
    if config is not None and config.is_file():
        settings = json.loads(config.read_text("utf-8"))
        declared = settings.get("dtype") or settings.get("torch_dtype")
    return Weights(parameters, size, floats, declared if declared in _BYTES else None)


def files(folder: Path) -> list[Path]:
    """Return the files that transformers would load. Raises ValueError for a broken index."""
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file() or not index.is_file():
        return [single]
    content = json.loads(index.read_text("utf-8"))
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict):
        raise ValueError(f"{INDEX} has no weight_map")
    if not isinstance(content.get("metadata"), dict):  # transformers writes into it
        raise ValueError(f"{INDEX} has no metadata")
    return [folder / name for name in sorted(set(names.values()))]


def damage(folder: Path) -> str | None:
    """Return what is wrong with the files, or None. Raises FileNotFoundError for a missing file."""
    try:
        for file in files(folder):
            length, tensors = header(file)
            ends = [t["data_offsets"][1] for name, t in tensors.items() if name != "__metadata__"]
            whole, size = 8 + length + max(ends, default=0), file.stat().st_size
            if size != whole:
                return f"{file.name} has {size:,} bytes and should have {whole:,}"
    except ValueError as error:
        return str(error)
    except (TypeError, AttributeError, LookupError):
        return "the header of its weights, or their index, is damaged"
    return None


def header(file: Path) -> tuple[int, dict[str, Any]]:
    """Return the bytes of a header, and name -> dtype, shape, data_offsets. Raises ValueError."""
    with file.open("rb") as stream:
        start = stream.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= _LONGEST_HEADER:
            raise ValueError(f"{file.name} is not a safetensors file")
        try:
            table: dict[str, Any] = json.loads(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the header of {file.name} is damaged") from error
        return length, table
