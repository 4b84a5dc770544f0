"""The attention function that transformers calls, registered under the name ``kvstream``.

It finds the cache of the current forward pass in this module. No mask function is registered for
the name, so transformers builds no mask. A batch has one sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface

from kvstream.errors import KvstreamError
from kvstream.model import cuda_attention
from kvstream.model.attention import Shape, attend, evidence, reference
from kvstream.model.cache import BoundedCache

NAME = "kvstream"


Call = tuple[nn.Module, Tensor]
"""The attention of a layer, and the keys that it received, [1, K, T, D]."""
_running: ContextVar[tuple[BoundedCache | None, dict[int, Call]]] = ContextVar("running")
"""The cache of the pass in this thread; other threads have their own."""


@contextmanager
def running(cache: BoundedCache | None) -> Iterator[dict[int, Call]]:
    """Use `cache` inside; None is for the probe, which gets the call of each layer's attention."""
    calls: dict[int, Call] = {}
    before = _running.set((cache, calls))
    try:
        yield calls
    finally:
        _running.reset(before)


def shape_of(
    query: Tensor,
    sight: int | None,
    scaling: float | None,
    sliding_window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Shape:
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Some models pass no window, because they only build it into the mask.
    return Shape(scale, sliding_window or sight, softcap, sinks)


def bounded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend from query [1, H, T, D] to the cache with key and value; return [1, T, H, E]."""
    try:
        cache, calls = _running.get()
    except LookupError:
        raise KvstreamError("A model set up by kvstream was called outside of kvstream.") from None
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    sight = None if cache is None else cache.store(layer).spec.sight
    shape = shape_of(query, sight, scaling, sliding_window, softcap, s_aux)
    if cache is None:
        calls[layer] = module, key
        out = reference(query[0], key[0], value[0], shape)[0]
        return out.transpose(0, 1).contiguous()[None], None
    store = cache.store(layer)
    keys, values = cache.attended(store)
    owner = layer == store.spec.index
    if not owner:  # the owner may be on another device
        keys, values = keys.to(query.device), values.to(query.device)
    memory = cache.compressive_memory if store.head_state and owner else None
    request = cache.request
    asked = bool(request.segments or request.accumulated_attention) and store.spec.window is None
    # The evidence can do without a log-sum-exp, and is faster with one if its kernel is fast.
    known = memory is not None or (asked and cuda_attention.supports(query[0], keys, values))
    sizes = query.shape, keys.shape, keys.dtype, shape.window, shape.softcap, shape.sinks is None
    with cache.momentary.metered("attend", *sizes, known) as results:
        asking = query[0].to(keys.dtype)
        out, lse = attend(asking, keys, values, shape, cache.backend, log_sum_exp=known)
        out = out.to(query.dtype)
        results.append(out)
    if asked:
        with cache.momentary.metered("evidence", *sizes):
            scores = evidence(asking, keys, lse, shape, request)
        store.measured(*scores, by_owner=owner)
    if memory is not None:
        assert lse is not None
        with cache.momentary.metered("mix", *sizes) as results:
            out = memory.mix(layer, query[0], out, lse, store.head_state)
            results.append(out)
    # Contiguous, because some models take a view of it.
    return out.transpose(0, 1).contiguous()[None], None


AttentionInterface.register(NAME, bounded_attention)
