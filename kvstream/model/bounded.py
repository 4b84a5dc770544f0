"""A causal language model whose KV cache is bounded, and the probe that decides whether it can be.

The probe runs a few tokens at two places and compares what each layer stored. It refuses, with the
reason, what would not survive that kept entries get new positions: learned or absolute positions,
ALiBi, latent attention, layers that keep something else than keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import get_layer_types_and_kwargs

from kvstream.cache import BoundedCache, LayerSpec
from kvstream.errors import BudgetError, UnboundedError
from kvstream.methods.base import EntryTensor, HeadTensor
from kvstream.model import hook
from kvstream.model.attention import Wanted
from kvstream.model.rotary import RotaryRecorder

PROBE_TOKENS, PROBE_SHIFT = 6, 31
GLOBAL, SLIDING = {"full_attention"}, {"sliding_attention"}
HEAD_BLOCK = 256


@dataclass
class BoundedModel:
    """A model with the facts that the engine needs of it."""

    model: Any
    """The transformers model, its attention set to ``kvstream``."""
    name: str
    layers: tuple[LayerSpec, ...]
    trained_length: int
    """Positions the model was trained for; no budget may pass it."""
    head_is_plain: bool
    """The output layer alone gives the logits (up to a known cap or scale)."""

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    def new_cache(
        self,
        capacity: int,
        tensors: Sequence[EntryTensor] = (),
        head_tensors: Sequence[HeadTensor] = (),
    ) -> BoundedCache:
        """A cache of `capacity` entries a head. Raises BudgetError past the trained length."""
        if capacity > self.trained_length:
            raise BudgetError(
                f"A budget of {capacity} tokens is past the {self.trained_length} positions that "
                f"{self.name} was trained for; use --budget {self.trained_length} or less."
            )
        return BoundedCache(self.layers, capacity, tensors, head_tensors)

    @torch.inference_mode()
    def forward(
        self, ids: Sequence[int], cache: BoundedCache, wanted: Wanted | None = None
    ) -> Tensor:
        """Run `ids` behind what is in the cache; returns hidden states [n, d] for `logits`.

        Where the output layer is not plain, the logits [n, V] themselves are returned.
        """
        cache.wanted = wanted or Wanted()
        start = cache.next_position
        positions = torch.arange(start, start + len(ids), device=self.device)[None]
        inputs = torch.tensor([list(ids)], dtype=torch.long, device=self.device)
        run = self.model.base_model if self.head_is_plain else self.model
        with hook.running(cache):
            out = run(
                input_ids=inputs, position_ids=positions, past_key_values=cache, use_cache=True
            )
        cache.note_peak()
        return (out.last_hidden_state if self.head_is_plain else out.logits)[0]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, V], float32, of what `forward` returned for some rows."""
        return _head(self.model, hidden).float() if self.head_is_plain else hidden.float()

    @torch.inference_mode()
    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy [n] in nats of `targets` [n], each predicted by its row of `hidden`."""
        parts = [
            nn.functional.cross_entropy(self.logits(h), t, reduction="none")
            for h, t in zip(hidden.split(HEAD_BLOCK), targets.split(HEAD_BLOCK), strict=True)
        ]
        return torch.cat(parts) if parts else torch.zeros(0, device=hidden.device)


def bound(model: Any, name: str) -> BoundedModel:
    """Probe a loaded transformers model. Raises UnboundedError with what stands in the way."""
    model.eval()
    config = model.config.get_text_config()
    model.set_attn_implementation(hook.NAME)
    if model.config._attn_implementation != hook.NAME:
        raise UnboundedError(f"{name} does not let its attention be replaced ({_kind(model)}).")
    length = trained_length(config)
    layers = _probe(model, name)
    bounded = BoundedModel(model, name, layers, length, head_is_plain=True)
    bounded.head_is_plain = _head_is_plain(bounded)
    return bounded


def trained_length(config: Any) -> int:
    """Positions the model was trained for, before a scaling that changes with the length."""
    length = int(getattr(config, "max_position_embeddings", 0) or 2**31)
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [r for r in rope.values() if isinstance(r, dict)] or [rope]
    for parameters in nested:
        if parameters.get("rope_type") in ("dynamic", "longrope"):
            original = parameters.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            length = min(length, int(original or length))
    return length


def _kind(model: Any) -> str:
    return type(model).__name__


def _probe(model: Any, name: str) -> tuple[LayerSpec, ...]:
    windows = _windows(model, name)
    device = model.get_input_embeddings().weight.device
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(PROBE_TOKENS, device=device) * 7 + 11)[None] % vocabulary
    recorder = RotaryRecorder(model)
    try:
        here, out_here, met = _record(model, name, ids, 0, len(windows))
        there, out_there, _ = _record(model, name, ids, PROBE_SHIFT, len(windows))
        specs = []
        for layer, window in enumerate(windows):
            if layer not in met or layer not in here:
                raise UnboundedError(
                    f"Layer {layer} of {name} ({_kind(model)}) does not attend through the "
                    "replaceable attention; its memory cannot be bounded."
                )
            rotary = recorder.rotary(met[layer], layer)
            specs.append(_layer(name, layer, window, rotary, here[layer], there[layer]))
    finally:
        recorder.close()
    if not _close(out_here, out_there, 2e-2 if out_here.dtype != torch.float32 else 1e-3):
        raise UnboundedError(
            f"{name} ({_kind(model)}) gives other answers when its input is moved: it has learned "
            "or absolute positions, so kept entries cannot get new ones. Use a rotary model."
        )
    return tuple(specs)


def _windows(model: Any, name: str) -> list[int | None]:
    """The sliding window of each layer, None for global ones; refuses other kinds of memory."""
    kinds, settings = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    for index, kind in enumerate(kinds):
        if kind not in GLOBAL | SLIDING:
            raise UnboundedError(
                f"Layer {index} of {name} is of the kind {kind!r}, which kvstream cannot bound "
                "yet; it knows full and sliding-window attention."
            )
    return [s.get("sliding_window") for s in settings]


class _Recorder:
    """Stands in for the cache during the probe: keeps what each layer hands over."""

    def __init__(self, count: int) -> None:
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}
        self.layers = [self] * count
        self.is_sliding = [False] * count
        self.is_compileable = False

    def update(
        self, k: Tensor, v: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.stored[layer_idx] = (k.clone(), v.clone())
        return k, v

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_max_length(self, layer_idx: int = 0) -> int:
        return -1


def _record(
    model: Any, name: str, ids: Tensor, start: int, count: int
) -> tuple[dict[int, tuple[Tensor, Tensor]], Tensor, dict[int, nn.Module]]:
    cache = _Recorder(count)
    positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
    try:
        with torch.inference_mode(), hook.running(None) as met:
            out = model(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True
            )
    except UnboundedError:
        raise
    except Exception as error:
        raise UnboundedError(
            f"{name} ({_kind(model)}) does not run with a replaced cache and attention "
            f"({type(error).__name__}: {error}); it keeps its past in a way that cannot be bounded."
        ) from error
    return cache.stored, out.logits[0], met


def _layer(
    name: str,
    layer: int,
    window: int | None,
    rotary: Any,
    here: tuple[Tensor, Tensor],
    there: tuple[Tensor, Tensor],
) -> LayerSpec:
    (keys, values), (moved_keys, moved_values) = here, there
    tolerance = 3e-2 if keys.dtype != torch.float32 else 1e-3
    if not _close(values, moved_values, tolerance):
        raise UnboundedError(
            f"Layer {layer} of {name} stores values that change with the position; "
            "latent attention and the like cannot be bounded by dropping entries."
        )
    if _close(keys, moved_keys, tolerance):
        rotary = None  # a layer without positions must not be rotated when it is compressed
    elif rotary is None or not _close(
        rotary.unrotate(keys[0], 0), rotary.unrotate(moved_keys[0], PROBE_SHIFT), tolerance
    ):
        raise UnboundedError(
            f"The positions in the keys of layer {layer} of {name} cannot be taken off; "
            "kvstream needs rotary position embeddings."
        )
    return LayerSpec(
        layer,
        keys.shape[1],
        keys.shape[-1],
        values.shape[-1],
        keys.dtype,
        keys.device,
        rotary,
        window,
    )


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Equal up to `tolerance` of the larger one's root mean square."""
    a, b = a.float(), b.float()
    size = torch.maximum(a.pow(2).mean(), b.pow(2).mean()).sqrt()
    return bool((a - b).pow(2).mean().sqrt() <= tolerance * size + 1e-12)


def _head(model: Any, hidden: Tensor) -> Tensor:
    """The output layer with the caps and scales that are known of some families."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    logits = head(hidden.to(head.weight.device))
    if getattr(config, "logit_scale", None):  # Cohere
        logits = logits * config.logit_scale
    if getattr(config, "logits_scaling", None):  # Granite
        logits = logits / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
    return torch.tanh(logits / cap) * cap if cap else logits


@torch.inference_mode()
def _head_is_plain(bounded: BoundedModel) -> bool:
    """Whether `_head` gives the model's own logits, tried on the probe's tokens."""
    model = bounded.model
    if model.get_output_embeddings() is None or model.base_model is model:
        return False
    ids = [(i * 7 + 11) % model.get_input_embeddings().weight.shape[0] for i in range(PROBE_TOKENS)]
    hidden = bounded.forward(ids, bounded.new_cache(PROBE_TOKENS))
    bounded.head_is_plain = False
    whole = bounded.forward(ids, bounded.new_cache(PROBE_TOKENS))
    if hidden.shape[-1] != model.get_output_embeddings().weight.shape[-1]:
        return False
    return bool(torch.allclose(_head(model, hidden).float(), whole.float(), atol=1e-3, rtol=1e-3))
