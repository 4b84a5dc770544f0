"""Compact encoding of lists of numbers: LEB128 in base64."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np


def packed(numbers: Sequence[int] | Any) -> str:
    """Encode numbers >= 0 as LEB128 in base64: 7 bits per byte, low bits first, 128 marks more."""
    values = np.asarray(numbers, dtype=np.uint64)
    if not len(values):
        return ""
    columns = [values & 127]
    rest = values >> np.uint64(7)
    while rest.any():
        columns.append(rest & 127)
        rest = rest >> np.uint64(7)
    table = np.stack(columns, axis=1).astype(np.uint8)
    places = np.arange(table.shape[1])
    length = np.where(table > 0, places, 0).max(axis=1)
    table[places < length[:, None]] |= 128
    return b64encode(table[places <= length[:, None]].tobytes()).decode()


def packed_sorted(numbers: Sequence[int] | Any) -> str:
    """Encode numbers that never decrease as the first number and the differences."""
    return packed(np.diff(np.asarray(numbers, dtype=np.int64), prepend=0))
