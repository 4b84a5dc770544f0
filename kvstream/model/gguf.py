"""Convert GGUF files to model folders: once into the cache, then loaded like any other model.

The GGUF tables of transformers know the names and layouts of each architecture, and the package
gguf unpacks the blocks. Tensors are converted one at a time, so the whole model is never in memory.
A file is refused if the tables do not know its tensors or settings.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from kvstream.errors import ModelError
from kvstream.model import int8
from kvstream.model.adapter import Adapter
from kvstream.model.gguf_config import model_config, refuse_architecture
from kvstream.model.gguf_names import Plan, Target, plan
from kvstream.model.weights import SINGLE, is_whole
from kvstream.reporters.format import shortened, visible
from kvstream.store import gguf_file
from kvstream.store.gguf_file import GGUF, Place
from kvstream.store.stores import CACHE_VARIABLE
from kvstream.tokenization import gguf as gguf_tokenizer
from kvstream.tokenization.templates import check_template

BLOCK = 1 << 18
"""Numbers to unpack at once: several times as fast as more than fit in the processor's cache."""
SPARE = 256 * 1024**2
"""Bytes of the disk to leave free."""
STALE_S = 24 * 3600
"""Age in seconds from which an unfinished conversion is left over from a killed program."""
_NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8",
}  # fmt: skip
F32, BF16, MXFP4 = 0, 30, 39
"""ggml's numbers for the types that `_dtype` distinguishes."""

Tell = Callable[[str], None]


def _teller(quiet: bool) -> Tell:
    """Return a function that reports progress on stderr, on a terminal in one line."""
    if quiet or sys.stderr is None:
        return lambda text: None
    live = sys.stderr.isatty()
    lines: list[str] = []

    def tell(text: str) -> None:
        if live:
            ended = text.endswith(".")  # a longer line could not be erased
            line = text if ended else shortened(text, shutil.get_terminal_size().columns - 1)
            end = "\n" * ended
            print(f"\r\033[K{visible(line)}", end=end, file=sys.stderr, flush=True)
        elif not lines or text.endswith("."):
            print(visible(text), file=sys.stderr, flush=True)
        lines.append(text)

    return tell


def convert(path: Path, folder: Path, quiet: bool, eight: bool, adapter: Adapter | None) -> None:
    """Make the model folder for a GGUF file, as `folders.converted`. Raises ModelError."""
    tell = _teller(quiet)
    file = gguf_file.read(path, texts=True)
    refuse_architecture(file, path)
    tokenizer, tokenizer_config = gguf_tokenizer.build(file.keys, str(path))
    check_template(tokenizer_config.get("chat_template"), tokenizer_config, str(path))
    config = model_config(file, path)
    names = plan(file, config, path)
    small = names.quantized(path.name) if eight else frozenset()
    if adapter:
        adapter.refuse_others({target.name for target in names.targets})
    began = time.perf_counter()

    def progress(share: float) -> None:
        seconds = (time.perf_counter() - began) * (1 / share - 1) if share >= 0.05 else 0
        rest = f", about {seconds:.0f} s left" if seconds >= 1 else ""
        tell(f"Converting, which is done once: {int(100 * share)}%{rest}: {path.name}")

    with new_folder(folder) as part:
        for half in (None, torch.bfloat16):
            try:
                _write_weights(file, names, part, half, small, adapter, progress)
                break
            except OverflowError:  # numbers beyond float16: write all of them in bfloat16
                (part / SINGLE).unlink()  # the second attempt needs the disk space
        # Also where weights have 8 bits: it is the default of the KV cache.
        places = (place for target in names.targets for place in target.sources)
        config.dtype = torch.float32 if gguf_file.all_float32(places) else torch.bfloat16
        config.save_pretrained(part)
        (part / "tokenizer.json").write_text(tokenizer, "utf-8")
        text = json.dumps(tokenizer_config, ensure_ascii=False, indent=2)
        (part / "tokenizer_config.json").write_text(text, "utf-8")
        origin = {"files": [str(p) for p in file.paths], "bytes": file.bytes}
        (part / "origin.json").write_text(json.dumps(origin), "utf-8")
    size = sum(f.stat().st_size for f in folder.iterdir())
    tell(
        f"Converted {path.name} in {time.perf_counter() - began:.0f} s; {size / 1e6:,.0f} MB in "
        f"{folder.parent} (kvstream models clean empties it)."
    )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Make a temporary folder; rename it, or remove it after an error. Raises ModelError."""
    root = folder.parent
    part = root / f"part-{secrets.token_hex(6)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob("part-*"):
            with suppress(FileNotFoundError):  # another process has just renamed it
                if time.time() - old.stat().st_mtime > STALE_S:
                    shutil.rmtree(old, ignore_errors=True)
        part.mkdir()
        yield part
        if not is_whole(part):
            raise ModelError(
                f"The cache {root} was emptied while a model was put there; run the command again."
            )
        try:
            part.rename(folder)
        except OSError:
            if not is_whole(folder):  # otherwise another process was faster
                shutil.rmtree(folder, ignore_errors=True)
                part.rename(folder)
    except OSError as error:
        why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise ModelError(
            f"The cache {root} cannot be written: {why}. Make room or give it another place: "
            f"{CACHE_VARIABLE}=FOLDER."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _write_weights(
    file: GGUF,
    names: Plan,
    folder: Path,
    half: torch.dtype | None,
    small: AbstractSet[str],
    adapter: Adapter | None,
    progress: Callable[[float], None],
) -> None:
    """Write the tensors, `small` ones in 8 bits. Raises OverflowError over float16, ModelError."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    dtypes, end = {}, 0
    for target in names.targets:
        dtype = dtypes[target.name] = torch.float32 if small else _dtype(target, half)
        parts = {target.name: (dtype, list(target.shape))}
        if target.name in small:
            parts = {
                target.name: (torch.int8, list(target.shape)),
                target.name.removesuffix("weight") + int8.SCALE: (torch.float32, [target.shape[0]]),
            }
        for name, (kind, shape) in parts.items():
            size = math.prod(shape) * kind.itemsize
            offsets = [end, end + size]
            header[name] = {"dtype": _NAMES[kind], "shape": shape, "data_offsets": offsets}
            end += size
    _refuse_without_room(folder, end)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    done, whole = 0, sum(place.bytes for target in names.targets for place in target.sources)
    with (folder / SINGLE).open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for target in names.targets:
            progress(done / max(whole, 1))
            dtype = dtypes[target.name]
            tensor = names.tensor(target, partial(_unpacked, dtype=dtype))
            if tuple(tensor.shape) != target.shape:
                raise ModelError(
                    f"{target.sources[0].name} of {file.paths[0]} has the shape "
                    f"{tuple(tensor.shape)}, and its header asks for {target.shape}; "
                    f"{gguf_file.AGAIN}, or choose the model in the hub's format."
                )
            if adapter:
                tensor = adapter.added(target.name, tensor)
            if target.name in small:
                scales = []
                for rows in tensor.split(max(1, BLOCK // target.shape[1])):
                    weights, scale = int8.quantized(rows.float())
                    _write(out, weights)
                    scales.append(scale)
                tensor = torch.cat(scales)
            _write(out, tensor.to(dtype))
            done += sum(place.bytes for place in target.sources)
        out.flush()
        os.fsync(out.fileno())


def _refuse_without_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size + SPARE > free:
        raise ModelError(
            f"The converted model takes {size / 1e9:.1f} GB and {free / 1e9:.1f} GB are free in "
            f"{folder.parent}; make room (kvstream models clean) or give the cache another place: "
            f"{CACHE_VARIABLE}=FOLDER."
        )


def _dtype(target: Target, half: torch.dtype | None) -> torch.dtype:
    """Return the number type that stores a tensor.

    float32 stays float32. bfloat16 and MXFP4 become bfloat16, and all others float16, which has a
    longer fraction. `half` replaces either 16-bit type.
    """
    kinds = {place.kind for place in target.sources}
    if kinds == {F32}:
        return torch.float32
    return half or (torch.bfloat16 if kinds & {BF16, MXFP4} else torch.float16)


def _unpacked(place: Place, dtype: torch.dtype) -> Tensor:
    """Read and unpack the numbers of a tensor, block by block.

    Raises OverflowError for numbers beyond float16, ModelError if the file is too short or gguf
    cannot unpack it.
    """
    from gguf import GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(place.kind)
    width = place.shape[-1] if place.shape else 1
    rows = place.numbers // max(width, 1)
    row_bytes = place.bytes // max(rows, 1)
    # Vectors (scales of norms, biases) stay in float32, because the tables add to them.
    out = torch.empty(rows, width, dtype=torch.float32 if len(place.shape) < 2 else dtype)
    step = max(1, BLOCK // max(width, 1))
    with _opened(place.path) as file:
        file.seek(place.start)
        for first in range(0, rows, step):
            count = min(step, rows - first)
            data = np.fromfile(file, dtype=np.uint8, count=count * row_bytes)
            if data.size != count * row_bytes:
                raise ModelError(f"{place.path} ends within {place.name}; {gguf_file.AGAIN}.")
            try:
                values = torch.from_numpy(dequantize(data.reshape(count, row_bytes), kind))
            except NotImplementedError as error:
                raise ModelError(
                    f"{place.path} stores {place.name} as {kind.name}, which the package gguf "
                    "cannot unpack; choose another quantization of this model."
                ) from error
            out[first : first + count] = values
    if out.dtype == torch.float16 and bool(out.isinf().any()):
        raise OverflowError
    return out.view(place.shape)


def _opened(path: Path) -> BinaryIO:
    """Open a file. Raises ModelError, because `new_folder` blames an OSError on the cache."""
    try:
        return path.open("rb")
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error


def _write(out: BinaryIO, tensor: Tensor) -> None:
    out.write(tensor.contiguous().view(torch.uint8).reshape(-1).numpy().data)
