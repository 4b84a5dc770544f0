"""Check what this machine can run: versions, devices, RAM, attention, and whether models load.

Each check yields Findings, which the command line prints. A finding that is not ok has a remedy.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

from kvstream.api.methods import broken_methods
from kvstream.api.models import reader_is_ready
from kvstream.errors import KvstreamError
from kvstream.reporters.format import size
from kvstream.run.request import Request
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.version import __version__

if TYPE_CHECKING:
    from kvstream.session.session import Session

PACKAGES = ("torch", "transformers", "accelerate", "tiktoken", "safetensors", "numpy")
SPARE_BYTES = 1024**3
"""Less free RAM than this is a problem: torch alone needs a large part of it."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    value: str
    ok: bool = True
    """False if something that kvstream needs does not work here."""
    remedy: str = ""


def diagnose() -> Iterator[Finding]:
    """Yield the findings of all checks, cheap ones first. A check that fails is a finding, too."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _versions, _memory, _devices, _attention, _extras, _plugins, _pocket, _reader,
    )  # fmt: skip
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            name = check.__name__.strip("_")
            yield Finding(name, f"{type(error).__name__}: {error}", False, "Please report this.")


def _versions() -> Iterator[Finding]:
    yield Finding("kvstream", __version__)
    yield Finding("python", f"{platform.python_version()} on {platform.platform(terse=True)}")
    for package in PACKAGES:
        try:
            yield Finding(package, metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(package, "not installed", False, f"pip install {package}")


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    yield Finding(
        "memory",
        f"{size(memory.available)} free of {size(memory.total)}",
        memory.available >= SPARE_BYTES,
        "Close other programs, or choose a smaller model and --dtype bfloat16.",
    )


def _devices() -> Iterator[Finding]:
    import torch

    from kvstream.model import int8
    from kvstream.model.precision import SHORT, speed_of

    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("cpu", f"{os.cpu_count()} threads, torch uses {torch.get_num_threads()}")
    amx = " with AMX" if torch.cpu._is_amx_tile_supported() else ""
    yield Finding("cpu instructions", f"{capability}{amx}")
    for kind in SHORT:
        speed = speed_of(kind)
        why = f"{speed:.1f} times as fast as float32" if speed else "PyTorch only emulates it here"
        type_ = kind if speed > 1 else "float32"
        yield Finding("precision", f"{type_} on the CPU for models stored in {kind} ({why})")
    speeds = int8.measured()
    value = f"not used: {speeds['problem']}"
    if not speeds["problem"]:
        value = (
            f"works (--quantize int8): {speeds['many']:.1f} times as fast as float32 for many "
            f"tokens and {speeds['one']:.1f} for one ({speeds['engine']})"
        )
    yield Finding("int8", value)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            name = torch.cuda.get_device_name(index)
            yield Finding(f"cuda:{index}", f"{name}, {size(free)} free of {size(total)}")
    else:
        why = "" if torch.version.cuda else " (torch is built without it)"
        yield Finding("cuda", f"none{why}")
    if torch.backends.mps.is_available():
        yield Finding("mps", "available")


def _attention() -> Iterator[Finding]:
    yield Finding("attention", "split, with torch's flash kernel on the CPU")
    here = util.find_spec("flash_attn") is not None
    try:
        version = metadata.version("flash-attn") if here else ""
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    yield Finding("flash-attn", version or "not installed (only of use with CUDA)")


def _extras() -> Iterator[Finding]:
    for name, module, what in (
        ("zstd", "zstandard", ".zst files"),
        ("documents", "pypdfium2", "PDF, EPUB, DOCX, HTML and notebooks"),
        ("serve", "fastapi", "the server for other programs"),
        ("ray", "ray", "--workers and --ray, for many documents"),
        ("report", "jinja2", "--report, a page of a run"),
        ("quantize", "bitsandbytes", "weights in 4 or 8 bits with CUDA"),
    ):
        here = util.find_spec(module) is not None
        yield Finding(f"extra {name}", f"{'installed' if here else 'not installed'} ({what})")


def _plugins() -> Iterator[Finding]:
    for reason in broken_methods():
        yield Finding("plugin", reason, False)


def _pocket() -> Iterator[Finding]:
    remedy = f"Reinstall kvstream for {sys.executable}: its model file is missing or damaged."
    yield _loads("pocket", remedy)


def _reader() -> Iterator[Finding]:
    if reader_is_ready():
        yield _loads("reader", "Fetch it again: kvstream models get reader.")


def _loads(name: str, remedy: str) -> Finding:
    from kvstream.session.session import Session

    try:
        session = Session.open(ModelSettings(model=name, quiet=True))
    except KvstreamError as error:
        return Finding(name, f"does not load: {error}", False, remedy)
    cosines = cosines_of_keys(session)
    mean, most = sum(cosines) / len(cosines), max(cosines)
    return Finding(
        name, f"loads; keys of a head: mean cosine {mean:.2f}, up to {most:.2f} by layer"
    )


def cosines_of_keys(session: Session) -> list[float]:
    """Return, by layer, the mean cosine of two unrotated keys of a head, over a short text.

    Near 1, methods that compare keys see little; ``--set keydiff.centered=true`` subtracts what
    the keys share.
    """
    from torch.nn.functional import normalize

    from kvstream.engine.reader import Chunk

    ids = session.tokenizer.encode(Path(__file__).read_text("utf-8"))[:256]
    run = RunSettings(Budget(tokens=1024), "streaming")
    reader = session.settle(Request(("?",), run)).reader(session.model, run, len(ids))
    reader.step(Chunk(ids, 0), last=True)
    cosines = []
    for store in reader.compressible:
        part = slice(reader.evictor.first_candidate, store.used)
        unit = normalize(store.unrotated_keys(part, reader.cache.base).float(), dim=-1)
        n = unit.shape[1]
        every = unit.sum(1).square().sum(-1)  # of all pairs, also of each key with itself
        cosines.append(float(((every - n) / (n * (n - 1))).mean()))
    return cosines
