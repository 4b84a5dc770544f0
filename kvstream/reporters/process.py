"""Current memory of this process, from the system: events only have sizes of the KV cache."""

from __future__ import annotations

import os
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_bytes() -> int | None:
    """Return the RAM of the process, or None if the system has no cheap way to tell."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def device_bytes() -> int | None:
    """Return the bytes that torch has on CUDA devices, without importing it; None without CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))
