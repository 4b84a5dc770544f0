"""Extrapolate seconds to lengths that could not be measured. The rows always say so."""

from __future__ import annotations

from collections.abc import Sequence

from kvstream.evaluation.records import Record
from kvstream.evaluation.speed.systems import KINDS

LEAST = 2
"""Minimum number of measured lengths."""


def extrapolate(rows: Sequence[Record]) -> None:
    """Add ``prefill_s`` and ``fitted``: true to rows of plain caches without a measurement.

    Fit ``a n + b n²`` (both at least 0, relative errors with equal weight) to the measured lengths.
    The terms are the model's work for each token, and attention to all tokens before it.
    """
    for row in rows:
        if row["runs"] or row["system"] not in KINDS or not KINDS[row["system"]].grows:
            continue
        same = [
            (r["tokens"], r["prefill_s"])
            for r in rows
            if r["runs"] and (r["system"], r["budget"]) == (row["system"], row["budget"])
        ]
        if len(same) >= LEAST:
            linear, square = coefficients(same)
            row["prefill_s"] = round(linear * row["tokens"] + square * row["tokens"] ** 2, 4)
            row["tokens_per_s"] = round(row["tokens"] / row["prefill_s"], 1)
            row["fitted"] = True


def coefficients(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return (a, b) of ``a n + b n²``: least squares of relative errors, neither below 0."""
    # With u = n/t and v = n²/t the relative error is a u + b v - 1.
    us = [n / t for n, t in points]
    vs = [n * n / t for n, t in points]
    uu, vv = sum(u * u for u in us), sum(v * v for v in vs)
    uv = sum(u * v for u, v in zip(us, vs, strict=True))
    determinant = uu * vv - uv * uv
    if determinant > 1e-12 * uu * vv:
        a = (sum(us) * vv - sum(vs) * uv) / determinant
        b = (sum(vs) * uu - sum(us) * uv) / determinant
        if a >= 0 and b >= 0:
            return a, b
        if b >= 0:
            return 0.0, sum(vs) / vv
    return sum(us) / uu, 0.0
