"""How the next token is chosen from the logits, with transformers' own processors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kvstream.settings import RunSettings

COLDEST = 1e-6
"""Below this temperature logits divided by it leave float32; what is left is the greedy choice."""


def chooser(run: RunSettings) -> Callable[[Tensor], int]:
    """A function from logits [V], float32, to a token: greedy at temperature 0, else sampled."""
    if run.temperature < COLDEST:
        return lambda logits: int(logits.argmax())
    from transformers.generation.logits_process import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    warpers = LogitsProcessorList([TemperatureLogitsWarper(run.temperature)])
    if run.top_k:
        warpers.append(TopKLogitsWarper(run.top_k))
    if run.top_p < 1:
        warpers.append(TopPLogitsWarper(run.top_p))
    generator = torch.Generator().manual_seed(run.seed)
    nothing = torch.LongTensor(1, 0)  # the warpers look at scores alone

    def sample(logits: Tensor) -> int:
        scores = torch.Tensor(warpers(nothing, logits[None].cpu())[0])
        return int(torch.multinomial(scores.softmax(-1), 1, generator=generator))

    return sample
