"""A short hash of a model's weights. A saved memory uses it to identify its model."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

WHOLE = 1 << 20
"""Tensors of up to this many bytes are hashed completely."""
PLACES, PLACE = 256, 4096
"""Number and size in bytes of the samples from a larger tensor. The samples are evenly spaced and
include both ends."""


def fingerprint(model: Any, dtype: torch.dtype | None = None) -> str:
    """Return the first 16 hex digits of a SHA-256 over the weights as they are in memory.

    The hash includes names, shapes and number types. Large tensors are sampled, so that a model of
    many gigabytes takes seconds. A change to a few of their weights may therefore go unnoticed.

    Args:
        dtype: hash floating-point weights as if they were loaded in this type.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(model.named_parameters(), key=lambda pair: pair[0]):
        kind = dtype if dtype is not None and weight.is_floating_point() else weight.dtype
        digest.update(f"{name} {kind} {tuple(weight.shape)}\n".encode())
        for tensor in _plain(weight.detach()):
            if tensor.device.type != "meta":  # of weights on disk, only name and shape are hashed
                digest.update(_bytes(tensor, dtype))
    return digest.hexdigest()[:16]


def _plain(weight: Tensor) -> list[Tensor]:
    """Return the plain tensors of a weight. A quantized weight may consist of several."""
    if not is_traceable_wrapper_subclass(weight):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [tensor for name in names for tensor in _plain(getattr(weight, name))]


def _bytes(weight: Tensor, dtype: torch.dtype | None) -> bytes:
    """Return the bytes to hash; `dtype` converts the numbers and determines the samples."""
    flat = weight.flatten()
    cast = dtype if dtype is not None and weight.is_floating_point() else weight.dtype
    each = cast.itemsize
    if flat.numel() * each > WHOLE:
        length, last = PLACE // each, flat.numel() - PLACE // each
        starts = [last * i // (PLACES - 1) for i in range(PLACES)]
        places = torch.tensor(starts, device=flat.device)[:, None]
        flat = flat[places + torch.arange(length, device=flat.device)].flatten()
    return flat.to(cast).contiguous().cpu().view(torch.uint8).numpy().tobytes()
