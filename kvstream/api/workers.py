"""What a worker takes."""

from __future__ import annotations

from collections.abc import Iterable

from kvstream.run.request import Request
from kvstream.settings import Budget, ModelSettings

LIBRARIES = 700 * 1024**2
"""Bytes that a process takes beside weights and cache: torch, transformers, activations."""


def worker_memory(settings: ModelSettings, requests: Iterable[Request]) -> int:
    """Bytes that a worker takes: weights in the widest type that loading may choose, KV cache,
    libraries. Of a model whose files are not here the libraries alone."""
    from kvstream.api.models import BUDGET, facts_of

    found = facts_of(settings.name, settings.revision)
    budgets = [request.run.budget or Budget(tokens=BUDGET) for request in requests]
    weights, entry = found or (0, 0)
    return LIBRARIES + weights + max(b.bytes or (b.tokens or 0) * entry for b in budgets)
