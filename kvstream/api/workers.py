"""The RAM that a worker needs."""

from __future__ import annotations

from collections.abc import Iterable

from kvstream.run.request import Request
from kvstream.settings import Budget, ModelSettings

LIBRARIES = 700 * 1024**2
"""Bytes of a process without weights and KV cache: torch, transformers, activations."""


def worker_memory(settings: ModelSettings, requests: Iterable[Request]) -> int:
    """Estimate the bytes of a worker: weights in the widest type that loading may choose, KV cache
    and libraries. If the model's files are not here, only libraries and a budget in bytes count."""
    from kvstream.api.models import BUDGET, facts_of

    found = facts_of(settings.model, settings.revision)
    budgets = [request.run.budget or Budget(tokens=BUDGET) for request in requests]
    weights, entry = found or (0, 0)
    return LIBRARIES + weights + max(b.bytes or (b.tokens or 0) * entry for b in budgets)
