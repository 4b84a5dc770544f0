"""Present memory of this process, from the system: events only have sizes of the cache."""

from __future__ import annotations

import os
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_bytes() -> int | None:
    """Memory of the process, or None where the system does not tell cheaply."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def device_bytes() -> int | None:
    """Memory that torch has allocated on a CUDA device, or None where there is none in use.

    A reporter never imports torch: it only asks a torch that the run has loaded already.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))
