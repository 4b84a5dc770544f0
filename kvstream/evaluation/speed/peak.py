"""The share of the machine's multiplication speed that a reading uses."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from kvstream.evaluation.speed.timing import wait
from kvstream.model.bounded import BoundedModel

SECONDS = 0.3
"""Minimum seconds of a measurement, after one product that does not count."""


def measured_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return floating-point operations per second in products of large square matrices."""
    n = 8192 if device.type == "cuda" else 1024
    a = torch.randn(n, n, device=device, dtype=torch.float32).to(dtype)
    a @ a
    wait(device)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        for _ in range(4):
            a @ a
        wait(device)
        count += 4
    return count * 2 * n**3 / (time.perf_counter() - started)


def reading_flops(model: BoundedModel, steps: Sequence[tuple[int, int]]) -> float:
    """Return the operations that the model itself needs for these (chunk, memory) steps.

    That is twice the weights of its layers for every token (of all experts, which is too much), and
    attention to all tokens that a token sees. The output layer and the method do not count.
    """
    heads = model.model.config.get_text_config().num_attention_heads
    layers = model.model.base_model
    tables = {id(m.weight) for m in layers.modules() if isinstance(m, torch.nn.Embedding)}
    weights = sum(p.numel() for p in layers.parameters() if p.dim() > 1 and id(p) not in tables)
    tokens = sum(chunk for chunk, _ in steps)
    seen = {sight: _seen(steps, sight) for sight in {spec.sight for spec in model.layers}}
    attended = sum(
        (spec.key_dim + spec.value_dim) * (1 + len(spec.shared_by)) * seen[spec.sight]
        for spec in model.layers
    )
    return 2.0 * weights * tokens + 2.0 * heads * attended


def _seen(steps: Sequence[tuple[int, int]], sight: int | None) -> float:
    """Return how many tokens all tokens of the steps see together, each at most `sight`."""
    held, seen = 0, 0.0
    for chunk, memory in steps:
        # So many tokens see all that is held and all of the chunk before them.
        wide = chunk if sight is None else min(chunk, max(0, sight - held))
        seen += wide * (held + (wide + 1) / 2) + (chunk - wide) * (sight or 0)
        held = min(memory, held + chunk)
    return seen
