"""Lists of numbers in few characters: 7 bits a byte, the last byte first marked, as base64."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np


def packed(numbers: Sequence[int] | Any) -> str:
    """Numbers of 0 or more as LEB128: 7 bits a byte, low ones first, 128 where more follow."""
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
    """Numbers that never fall, as the first one and the differences."""
    return packed(np.diff(np.asarray(numbers, dtype=np.int64), prepend=0))
