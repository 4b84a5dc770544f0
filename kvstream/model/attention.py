"""Attention of new queries to memory and to the new tokens, and the evidence that methods request.

Every backend takes queries [H, T, D] (the newest T positions), keys [K, N, D] and values [K, N, E]
with N >= T. It returns the output [H, T, E] and the log-sum-exp of each query's scores [H, T] in
float32. H is a multiple of K. Keys and values are never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from kvstream.errors import UsageError
from kvstream.methods.tools.scoring import grouped, ungrouped
from kvstream.model import cuda_attention
from kvstream.model.cuda_attention import HALF

BLOCK = 256
"""Maximum number of queries whose scores are materialized at once."""
KEYS = 128
"""Maximum number of keys whose scores are materialized at once for a few queries."""
FEW = 64
"""With fewer queries than this, scores are materialized to sum the attention."""
STEP = 32
"""The numbers of queries and keys in the CPU's 16-bit kernel are multiples of this."""


@dataclass(frozen=True)
class Shape:
    scale: float
    window: int | None = None
    """Sliding window: a query sees itself and the `window - 1` positions before it."""
    softcap: float | None = None
    """Scores are ``softcap * tanh(scores / softcap)`` (Gemma 2)."""
    sinks: Tensor | None = None
    """[H] learned logits that only contribute to the log-sum-exp (gpt-oss)."""

    def plain(self, total: int) -> bool:
        """Return whether scores are a plain softmax over `total` keys, apart from `sinks`."""
        return self.softcap is None and (self.window is None or self.window >= total)


@dataclass(frozen=True)
class AttentionRequest:
    segments: tuple[int, ...] = ()
    """Lengths of groups of queries at the end, in order. The attention of a group is summed. Sums
    of several groups are scaled to the mean length, so that longer groups do not count more, and
    combined by their maximum."""
    accumulated_attention: bool = False
    """Whether to sum the attention that each key gets from `queries` queries."""
    queries: int = 0
    decay: float = 1.0
    reduce: str = "mean"
    """How the query heads of a group are combined for their KV head: ``mean`` or ``max``."""
    first: int = 0
    """Index of the first of those queries. Earlier ones belong to a prompt."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    shape: Shape,
    backend: str = "auto",
    *,
    log_sum_exp: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with the fastest backend for this device and shape: (out, log-sum-exp).

    The log-sum-exp may be None unless `log_sum_exp` requests it. `backend` is ``auto``, ``split``
    (at the end of memory; CPU), ``flash`` (the kernel of flash-attn; CUDA), ``sdpa`` (a kernel
    that PyTorch has; CUDA) or ``reference`` (materializes every score; any device). ``sdpa`` is
    `cuda_attention.merged` where that works, and elsewhere the kernel that PyTorch chooses, which
    returns no log-sum-exp. If a backend does not support the shape, the reference is used.
    """
    plain = shape.plain(k.shape[-2])
    same_width = q.shape[-1] == v.shape[-1]
    if backend == "auto":
        backend = resolve(backend, q.device, q.dtype)
    if backend == "split" and plain and same_width:
        out, lse = _split(q, k, v, shape.scale)
    elif backend == "flash" and same_width:
        out, lse = _flash_cuda(q, k, v, shape)
    elif backend == "sdpa" and plain and cuda_attention.supports(q, k, v):
        out, lse = cuda_attention.merged(q, k, v, shape.scale)
    elif backend == "sdpa" and plain and shape.sinks is None and not log_sum_exp:
        return _sdpa(q, k, v, shape.scale), None
    else:
        return reference(q, k, v, shape)  # it includes the sinks
    if shape.sinks is not None:
        with_sink = torch.logaddexp(lse, shape.sinks[:, None].float())
        out = (out * (lse - with_sink).exp()[..., None]).to(q.dtype)
        lse = with_sink
    return out, lse


def resolve(backend: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return the backend to use on this device. Raises UsageError if `backend` is not available."""
    flash = device.type == "cuda" and dtype in HALF and find_spec("flash_attn") is not None
    if backend == "auto":
        if device.type == "cpu":
            return "split"
        return "flash" if flash else "sdpa" if device.type == "cuda" else "reference"
    if backend == "split" and device.type != "cpu":
        raise UsageError("--attn split is for the CPU; use --attn auto.")
    if backend == "sdpa" and device.type != "cuda":
        raise UsageError("--attn sdpa is for a CUDA device; use --attn auto.")
    if backend == "flash" and not flash:
        raise UsageError(
            "--attn flash needs a CUDA device, 16-bit weights and the package flash-attn "
            "(pip install 'kvstream[flash]'); use --attn auto."
        )
    return backend


def reference(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Compute attention of any shape on any device, with materialized scores, in query blocks."""
    out = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    block = _block(q, k, v.shape[-1])
    for first in range(0, q.shape[1], block):
        rows = slice(first, min(first + block, q.shape[1]))
        scores = _scores(q, k, shape, rows)
        lse[:, rows] = _log_sum_exp(scores, shape)
        weights = scores.sub_(lse[:, rows, None]).exp_()
        out[:, rows] = ungrouped(grouped(weights, k.shape[0]).to(v.dtype) @ v, q.shape[0])
    return out, lse


def _block(q: Tensor, k: Tensor, value_dim: int) -> int:
    """Return the queries to process at once: on a CPU, scores take up to half of the KV bytes."""
    if q.device.type != "cpu":
        return BLOCK
    entry = k.shape[0] * (k.shape[-1] + value_dim) * k.element_size()
    return max(1, min(BLOCK, entry // (8 * q.shape[0])))


def evidence(
    q: Tensor, k: Tensor, lse: Tensor | None, shape: Shape, request: AttentionRequest
) -> tuple[Tensor | None, Tensor | None]:
    """Measure what each key gets: (window, accumulated attention), [K, N] float32 or None."""
    window = accumulated = None
    known = lse if shape.plain(k.shape[-2]) else None
    if request.segments:
        end, parts = q.shape[1], []
        for length in reversed(request.segments):
            parts.append(_attention_to(q, k, known, shape, end - length, end))
            end -= length
        summed = parts[0]
        if len(parts) > 1:
            mean = sum(request.segments) / len(parts)
            lengths = reversed(request.segments)
            summed = torch.stack([p * (mean / n) for p, n in zip(parts, lengths, strict=True)])
            summed = summed.amax(0)
        window = _reduce(summed, k.shape[0], request.reduce)
    if request.accumulated_attention:
        first, end = request.first, request.first + request.queries
        summed = _attention_to(q, k, known, shape, first, end, request.decay)
        accumulated = _reduce(summed, k.shape[0], request.reduce)
    return window, accumulated


def _attention_to(
    q: Tensor,
    k: Tensor,
    lse: Tensor | None,
    shape: Shape,
    first: int,
    last: int,
    decay: float = 1.0,
) -> Tensor:
    """Sum the attention of the queries from `first` to before `last` per key: [H, N] float32.

    A query's weight is ``decay`` to the power of the number of queries between it and `last`. If
    `lse` is given, the scores must be those of a plain softmax.
    """
    # Computed on a CUDA device, because a copy from the host would wait for it. Other devices may
    # not have float64.
    device = q.device if q.device.type == "cuda" else torch.device("cpu")
    ages = torch.arange(last - first - 1, -1, -1, dtype=torch.float64, device=device)
    weights = (decay**ages).float().to(q.device)
    many = last - first >= FEW
    # Few queries in float32 take the slow path below, which needs the least scratch memory.
    on_cpu = q.device.type == "cpu" and (many or q.dtype in HALF)
    if lse is not None and (on_cpu or cuda_attention.sums_columns(q, k)):
        plus = weights.clamp_min(1e-30).log() - lse[:, first:last]
        if on_cpu:
            return (_sums if many else _few_sums)(q, k, plus, shape.scale, first)
        from kvstream.model.triton_kernels import column_sums  # needs Triton

        return column_sums(q, k, plus, shape.scale, first)
    summed = torch.zeros(q.shape[0], k.shape[1], device=q.device)
    rows = _block(q, k, k.shape[-1])
    for start in range(first, last, rows):
        block = slice(start, min(start + rows, last))
        scores = _scores(q, k, shape, block)
        known = _log_sum_exp(scores, shape) if lse is None else lse[:, block]
        shares = scores.sub_(known[..., None]).exp_()
        summed += weights[block.start - first : block.stop - first] @ shares
    return summed


def _sums(q: Tensor, k: Tensor, plus: Tensor, scale: float, first: int) -> Tensor:
    """Return ``sum_i exp(scale q_i k_j + plus_i)`` over the queries from `first` that see key j.

    The result is [H, N]. Its logarithm is the log-sum-exp of an attention with keys and queries
    swapped and `plus` [H, n] added to the scores. The flash kernel returns this log-sum-exp, so
    scores are never materialized. The kernel also returns an output that is not needed. To keep
    that output small, queries and keys are processed in blocks.
    """
    groups, count = k.shape[0], plus.shape[1]
    seen = k.shape[1] - q.shape[1] + first  # number of keys that all of these queries see
    queries = q[:, first : first + count].unflatten(0, (groups, -1)).transpose(0, 1)  # [G, K, n, D]
    plus = plus.unflatten(0, (groups, -1)).transpose(0, 1)
    sums = torch.zeros(*queries.shape[:2], k.shape[1], device=q.device)
    rows = _rows(q, k)
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        some, more = queries[:, :, start:stop], plus[:, :, start:stop]
        # The queries from `first + j` on see key `seen + j`: a causal mask in reverse order. All
        # queries of the block see the keys before it.
        own = slice(seen + start, seen + stop)
        logs = _log_sums(_reversed(k[:, own]), _reversed(some), more.flip(2), scale, causal=True)
        sums[..., own] += logs[..., : stop - start].flip(2).exp_()
        some = _padded(some)
        for at in range(0, own.start, rows):
            before = slice(at, min(at + rows, own.start))
            logs = _log_sums(_padded(k[:, before]), some, more, scale)
            sums[..., before] += logs[..., : before.stop - at].exp_()
    return sums.transpose(0, 1).flatten(0, 1)


def _few_sums(q: Tensor, k: Tensor, plus: Tensor, scale: float, first: int) -> Tensor:
    """Return the same as `_sums` with materialized scores, which is faster for few queries."""
    groups, count = k.shape[0], plus.shape[1]
    end = k.shape[1] - q.shape[1] + first + count
    queries = q[:, first : first + count].unflatten(0, (groups, -1))  # [K, G, n, D]
    queries = queries.flatten(1, 2).transpose(1, 2)
    own = torch.arange(count, device=q.device)
    sums = torch.zeros(k.shape[0], k.shape[1], q.shape[0] // k.shape[0], device=q.device)
    for start in range(0, end, KEYS):
        stop = min(start + KEYS, end)
        # Keys come first: they are strided, and as the second factor they would be copied. Their
        # number is rounded up, because growing memory would otherwise compile a product with every
        # step (`_flash_cpu`).
        keys = F.pad(k[:, start:stop], (0, 0, 0, start + KEYS - stop))
        scores = _scaled(keys, queries, scale)[:, : stop - start]
        scores = scores.unflatten(-1, (-1, count)).add_(plus.unflatten(0, (groups, 1, -1)))
        if stop > end - count:
            key = torch.arange(start, stop, device=q.device) - (end - count)
            hidden = key[:, None] > own
            scores.masked_fill_(hidden[:, None], -torch.inf)  # [K, keys, G, n]
        sums[:, start:stop] = scores.exp_().sum(-1)
    return sums.transpose(1, 2).flatten(0, 1)


def _log_sums(k: Tensor, q: Tensor, plus: Tensor, scale: float, *, causal: bool = False) -> Tensor:
    """Return the logarithm [G, K, N] of ``sum_i exp(scale q_i k_j + plus_i)``.

    The shapes are q [G, K, n, D] and k [K, N, D]. `plus` [G, K, m] belongs to the first m queries.
    The others are padding and do not contribute.
    """
    plus = F.pad(plus, (0, q.shape[2] - plus.shape[2]), value=-1e30)
    rows = k.expand(q.shape[0], *k.shape)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        rows, q, q, 0.0, causal, attn_mask=plus[:, :, None], scale=scale
    )[1]


def _padded(x: Tensor) -> Tensor:
    """Pad [..., n, D] with rows of zeros at the end, up to a multiple of STEP (`_flash_cpu`)."""
    more = -x.shape[-2] % STEP
    return F.pad(x, (0, 0, 0, more)) if more else x


def _reversed(x: Tensor) -> Tensor:
    """Reverse the rows of [..., n, D]; the first row is repeated up to a multiple of STEP."""
    n = x.shape[-2]
    order = torch.arange(n - 1, -1 - (-n % STEP), -1, device=x.device).clamp_min_(0)
    return x.index_select(-2, order)


def _split(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend from blocks of queries to memory and to the new tokens apart: neither needs a mask."""
    old, new, rows = k.shape[1] - q.shape[1], q.shape[1], _rows(q, k, 2 if q.dtype in HALF else 1)
    if new == 1 and q.dtype not in HALF:
        # Heads of a group become queries of one head, so their keys are read once.
        out, lse = _flash_cpu(q.reshape(k.shape[0], -1, q.shape[-1]), k, v, scale, causal=False)
        return out.reshape(q.shape[0], 1, -1), lse.reshape(q.shape[0], 1)
    if new <= rows:
        return _merged(q, k, v, scale)
    out = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    for first in range(0, new, rows):
        part = slice(first, min(first + rows, new))
        end = old + part.stop
        out[:, part], lse[:, part] = _merged(q[:, part], k[:, :end], v[:, :end], scale)
    return out, lse


def _rows(q: Tensor, k: Tensor, share: int = 1) -> int:
    """Return the number of queries to process at once, so that their copies stay small."""
    groups = q.shape[0] // k.shape[0]
    rows = k.shape[1] // max(2, share * groups)
    return max(FEW, rows - rows % STEP)


def _merged(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend to memory (no mask) and to the new tokens (causal), and merge both by log-sum-exp."""
    old = k.shape[1] - q.shape[1]
    if q.dtype in HALF:
        # The last few entries of memory are processed with the new tokens. The rest of memory is
        # then a multiple of STEP, which needs no copy.
        old -= old % STEP
    out, lse = _flash_cpu(q, k[:, old:], v[:, old:], scale, causal=True)
    if old == 0:  # an empty key tensor would kill the process inside the kernel
        return out, lse
    past, past_lse = _flash_cpu(q, k[:, :old], v[:, :old], scale, causal=False)
    return cuda_attention.merge(out, lse, past, past_lse, STEP)


def _flash_cpu(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Call PyTorch's flash kernel for CPUs, which also returns the log-sum-exp.

    With `causal` the last query sees the last key. In float32 the numbers of queries and keys must
    then be equal. Grouped queries become a batch over the group, and keys expand with stride 0, so
    nothing is copied.
    """
    heads, groups = k.shape[0], q.shape[0] // k.shape[0]
    rows, mask, causal = slice(q.shape[1]), None, causal and q.shape[1] > 1
    if q.dtype in HALF:
        # On processors with matrix tiles every new shape compiles a product that is never freed
        # (a quarter MiB a call). Shapes change with every chunk, so sizes are rounded up.
        q, k, v, rows, mask = _rounded_up(q, k, v, causal=causal)
    queries = q.unflatten(0, (heads, groups)).transpose(0, 1)  # [G, K, T, D]
    shared_k, shared_v = k.expand(groups, *k.shape), v.expand(groups, *v.shape)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries, shared_k, shared_v, 0.0, causal, attn_mask=mask, scale=scale
    )
    return (
        out[:, :, rows].transpose(0, 1).flatten(0, 1),
        lse[:, :, rows].transpose(0, 1).flatten(0, 1),
    )


def _rounded_up(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor, slice, Tensor | None]:
    """Pad queries, keys and values with zeros to multiples of STEP.

    Also returns the rows of the real queries and a mask of the added keys: -inf [1, 1, T, N], or
    None if no keys were added or the kernel's causal mask hides them. That mask lets the first
    query see only the first key. With `causal`, queries are therefore also added in front, one for
    each key before the first query.
    """
    (new, total), more_k = (q.shape[1], k.shape[1]), -k.shape[1] % STEP
    before = total - new if causal else 0
    rows = slice(before, before + new)
    if new > 1:
        q = F.pad(q, (0, 0, before, -rows.stop % STEP))
    if not more_k:
        return q, k, v, rows, None
    k, v = F.pad(k, (0, 0, 0, more_k)), F.pad(v, (0, 0, 0, more_k))
    if causal:
        return q, k, v, rows, None
    hidden = q.new_zeros(k.shape[1])
    hidden[total:] = -torch.inf
    return q, k, v, rows, hidden.expand(1, 1, q.shape[1], -1)


def _flash_cuda(q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Call FlashAttention's kernel: causal mask aligned to the last key, native grouped queries."""
    from flash_attn import flash_attn_func

    out, lse, _ = flash_attn_func(
        *(t.transpose(0, 1)[None] for t in (q, k, v)),
        softmax_scale=shape.scale,
        causal=True,
        window_size=(-1, -1) if shape.window is None else (shape.window - 1, 0),
        softcap=shape.softcap or 0.0,
        return_attn_probs=True,
    )
    return out[0].transpose(0, 1), lse[0]


def _sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Call the kernel that PyTorch chooses on a GPU; the causal mask is aligned to the last key."""
    from torch.nn.attention.bias import causal_lower_right

    new, total = q.shape[1], k.shape[1]
    mask = None if new == 1 else causal_lower_right(new, total)
    return torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask, scale=scale, enable_gqa=q.shape[0] != k.shape[0]
    )[0]


def _scores(q: Tensor, k: Tensor, shape: Shape, rows: slice) -> Tensor:
    """Return masked scores [H, rows, N] in float32; the last query sees the last key."""
    block = grouped(q[:, rows], k.shape[0])
    scores = ungrouped(_scaled(block, k.transpose(-1, -2), shape.scale), q.shape[0])
    if shape.softcap is not None:
        scores = scores.div_(shape.softcap).tanh_().mul_(shape.softcap)
    total, new = k.shape[1], q.shape[1]
    query = torch.arange(rows.start, rows.stop, device=q.device)[:, None] + (total - new)
    key = torch.arange(total, device=q.device)
    hidden = key > query
    if shape.window is not None:
        hidden |= key <= query - shape.window
    return scores.masked_fill_(hidden, -torch.inf)


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return ``scale a b`` in float32; a float16 product would overflow before it is scaled."""
    if a.dtype == torch.float16:
        a, b = a.float(), b.float()
    return (a @ b).float().mul_(scale)


def _log_sum_exp(scores: Tensor, shape: Shape) -> Tensor:
    lse = scores.logsumexp(-1)
    return lse if shape.sinks is None else torch.logaddexp(lse, shape.sinks[:, None].float())


def _reduce(summed: Tensor, heads: int, how: str) -> Tensor:
    """Combine the query heads of each group: [H, N] -> [K, N]."""
    group = summed.unflatten(0, (heads, -1))
    return group.amax(1) if how == "max" else group.mean(1)
