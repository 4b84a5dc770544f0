"""Matrices of tests that are too large for every run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every_second(cases: Iterable[Any]) -> list[Any]:
    """Return the cases for ``parametrize``. Only every second one runs without ``-m long``."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        if number % 2
        else case
        for number, case in enumerate(cases)
    ]
