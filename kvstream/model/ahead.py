"""Begin to load a model with 8-bit weights while transformers, which it needs, is imported."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from kvstream.model import int8, placement
from kvstream.model.folders import folder
from kvstream.model.precision import choose
from kvstream.settings import ModelSettings

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's options, from malloc.h."""


@contextmanager
def ahead(settings: ModelSettings) -> Iterator[None]:
    """Pack the 8-bit weights of a model in the background; inside, `loading.load` takes them.

    The import takes as long on one core as packing on the other. Raises as `loading.load`.
    """
    where = folder(settings)
    if not where.endswith(int8.SUFFIX):
        yield
        return
    if settings.threads:
        torch.set_num_threads(int(settings.threads))
    device = placement.device_of(settings.device)
    precision = choose(settings, device, where)
    placement.refuse_too_large(where, settings, device, precision.load)
    with returning_memory(), int8.packing(Path(where)):
        yield


@contextmanager
def returning_memory() -> Iterator[None]:
    """Return blocks over 1 MB to the system at once when they are freed, as glibc does at first.

    After some such blocks it keeps all up to 32 MB. Then temporary tensors leave holes between the
    packed weights: 0.6 GB of the 2.8 GB of a model of 1.5B in 8 bits.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, 1 << 25)
        mallopt(_TRIM_THRESHOLD, 1 << 26)
