"""GGUF files as model folders: converted once into the cache, and then loaded like any other.

The weights go through transformers' tables for GGUF, which know each architecture's names and
layouts, and through the package gguf, which unpacks the blocks; one tensor at a time, so that the
whole model is never in memory. What an architecture's tables leave out is refused.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from kvstream.errors import ModelError
from kvstream.model.gguf_config import model_config, refuse_architecture
from kvstream.model.gguf_names import Plan, Target, plan
from kvstream.model.weights import SINGLE
from kvstream.store import gguf_file
from kvstream.store.gguf_file import GGUF, Place
from kvstream.store.stores import CACHE_VARIABLE, converted_folder, refuse_undecodable
from kvstream.tokenization import gguf as gguf_tokenizer
from kvstream.tokenization.templates import check_template

FORMAT = 1
"""Counts up when files must be converted anew."""
BLOCK = 1 << 24
"""Numbers that are unpacked at once."""
READ = 1 << 24
"""Bytes that are read at once for the digest."""
SPARE = 256 * 1024**2
"""Bytes of the disk that are left free."""
STALE_S = 24 * 3600
"""An unfinished conversion of this age is of a program that was killed."""
_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
F32, F16, BF16, MXFP4 = 0, 1, 30, 39
"""ggml's numbers of the types that are not stored as 16-bit floats of the usual kind."""

Tell = Callable[[str], None]


def converted(path: Path, quiet: bool = False) -> Path:
    """The model folder for a GGUF file, made now if it is not in the cache.

    Raises ModelError with what is wrong with the file, the disk or the cache.
    """
    refuse_undecodable(converted_folder(), f"give the cache another place: {CACHE_VARIABLE}=FOLDER")
    digest = digest_of(path)
    folder = converted_folder() / f"{digest[:32]}-{FORMAT}"
    if not is_whole(folder):
        _convert(path, folder, _teller(quiet))
    known = _known(path)
    with suppress(OSError):  # without it, the next start computes the digest again
        if not known.exists():
            known.parent.mkdir(parents=True, exist_ok=True)
            write_whole(known, digest.encode("ascii"))
    return folder


def is_whole(folder: Path) -> bool:
    """Whether a model is in a folder of the cache: not where a part of it was removed."""
    return all((folder / name).is_file() for name in ("config.json", SINGLE))


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of all parts of a model one behind the other, in hex.

    Of a file that was converted, and lies as it did then, it is known. Raises ModelError.
    """
    with suppress(OSError, UnicodeDecodeError):
        digest = _known(path).read_text("ascii").strip()
        if len(digest) == 64:
            return digest
    try:
        return _digest(gguf_file.parts(path))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error


def _known(path: Path) -> Path:
    """Where the digest of a converted file stands."""
    return converted_folder() / "digests" / _identity(gguf_file.parts(path))


def _identity(paths: Sequence[Path]) -> str:
    """Short for the files as they lie there: they are not read."""
    facts = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in paths]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _digest(paths: Sequence[Path]) -> str:
    """SHA-256 of the files, one behind the other."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(READ):
                total.update(block)
    return total.hexdigest()


def write_whole(path: Path, data: bytes) -> None:
    """Under another name first, so that nobody reads a part of it."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(data)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _teller(quiet: bool) -> Tell:
    """Says how far a conversion is: on a terminal in one line, else only where it begins."""
    if quiet or sys.stderr is None:
        return lambda text: None
    live = sys.stderr.isatty()
    said: list[str] = []

    def tell(text: str) -> None:
        if live:
            end = "\n" if text.endswith(".") else ""
            print(f"\r\033[K{text}", end=end, file=sys.stderr, flush=True)
        elif not said or text.endswith("."):
            print(text, file=sys.stderr, flush=True)
        said.append(text)

    return tell


def _convert(path: Path, folder: Path, tell: Tell) -> None:
    file = gguf_file.read(path, texts=True)
    refuse_architecture(file, path)
    tokenizer, tokenizer_config = gguf_tokenizer.build(file.keys, str(path))
    check_template(tokenizer_config.get("chat_template"), tokenizer_config, str(path))
    config = model_config(file, path)
    names = plan(file, config, path)
    began = time.perf_counter()
    with new_folder(folder) as part:
        for half in (None, torch.bfloat16):
            try:
                _write_weights(file, names, part, half, _progress(path, tell))
                break
            except OverflowError:  # numbers beyond float16: all of them with its larger range
                (part / SINGLE).unlink()  # its room is needed
        config.dtype = torch.float32 if names.all_full else torch.bfloat16
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


def _progress(path: Path, tell: Tell) -> Callable[[float], None]:
    last = [-1]

    def progress(part: float) -> None:
        percent = int(100 * part)
        if percent > last[0]:
            last[0] = percent
            tell(f"Converting {path.name}, which is done once: {percent}%")

    return progress


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder under another name, renamed when all is in it; removed where something fails."""
    root = folder.parent
    part = root / f"part-{secrets.token_hex(6)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob("part-*"):
            with suppress(FileNotFoundError):  # another process has just given it its name
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
            if not is_whole(folder):  # else another process was faster
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
    progress: Callable[[float], None],
) -> None:
    """``model.safetensors``, tensor by tensor. Raises OverflowError for numbers beyond float16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    dtypes, end = {}, 0
    for target in names.targets:
        dtype = dtypes[target.name] = _dtype(target, half)
        size = target.numbers * dtype.itemsize
        header[target.name] = {
            "dtype": _NAMES[dtype],
            "shape": list(target.shape),
            "data_offsets": [end, end + size],
        }
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
            tensor = names.made(target, partial(_unpacked, dtype=dtype))
            if tuple(tensor.shape) != target.shape:
                raise ModelError(
                    f"{target.sources[0].name} of {file.paths[0]} has the shape "
                    f"{tuple(tensor.shape)}, and its header asks for {target.shape}; "
                    f"{gguf_file.AGAIN}, or choose the model in the hub's format."
                )
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
    """In which numbers a tensor is stored; what was quantized in 16 bits with a long fraction."""
    kinds = {place.kind for place in target.sources}
    if kinds == {F32}:
        return torch.float32
    return half or (torch.bfloat16 if kinds & {BF16, MXFP4} else torch.float16)


def _unpacked(place: Place, dtype: torch.dtype) -> Tensor:
    """The numbers of a tensor, read and unpacked block by block."""
    from gguf import GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(place.kind)
    width = place.shape[-1] if place.shape else 1
    rows = place.numbers // max(width, 1)
    row_bytes = place.bytes // max(rows, 1)
    # One row is left in full precision: scales of norms and biases, to which tables add.
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
                values = torch.from_numpy(
                    _numbers(data.reshape(count, row_bytes), kind, dequantize)
                )
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
    """Raises ModelError, as an OSError here would be taken for one of the cache."""
    try:
        return path.open("rb")
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error


def _numbers(data: np.ndarray, kind: Any, dequantize: Callable[..., np.ndarray]) -> np.ndarray:
    """float32 [rows, width] of rows of bytes."""
    plain = {F32: np.float32, F16: np.float16}.get(int(kind))
    if plain is not None:
        return data.view(plain).astype(np.float32)
    return dequantize(data, kind)


def _write(out: BinaryIO, tensor: Tensor) -> None:
    out.write(tensor.contiguous().view(torch.uint8).reshape(-1).numpy().data)
