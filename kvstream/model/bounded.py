"""A causal language model whose KV cache is bounded; `probe` finds out whether it can be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from kvstream.errors import BudgetError, KvstreamError
from kvstream.methods.base import EntryTensor, HeadTensor, LayerFacts, ModelFacts
from kvstream.model import hook
from kvstream.model.attention import HALF, STEP, AttentionRequest
from kvstream.model.cache import BoundedCache, LayerSpec
from kvstream.model.fingerprint import fingerprint
from kvstream.model.recurrent import StateSpec

HEAD_BLOCK = 256


def holding(model: nn.Module, cache: Any) -> dict[str, Any]:
    """The argument that hands `cache` to a model's forward pass.

    transformers calls it ``cache`` from 5.24 on; models with code of their own have the old name.
    """
    return {_cache_name(type(model).forward): cache}


@lru_cache
def _cache_name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


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
    backend: str = "auto"
    """How attention is computed: one of `attention.BACKENDS`."""
    states: tuple[StateSpec, ...] = ()
    """What layers carry from token to token, instead of keys and values or beside them."""
    precision: str = ""
    """Number types of computing and of the KV cache, and why they were chosen."""

    @property
    def device(self) -> torch.device:
        return runs_on(self.model.get_input_embeddings())

    @property
    def dtype(self) -> torch.dtype:
        """What attention computes in."""
        return self.layers[0].dtype

    @property
    def kv_dtype(self) -> torch.dtype:
        """What the KV cache stores."""
        return self.layers[0].kv_dtype

    def storing(self, dtype: torch.dtype | None) -> BoundedModel:
        """The same model with a KV cache of another number type; None: what it computes in."""
        return replace(self, layers=tuple(replace(s, stored_as=dtype) for s in self.layers))

    @property
    def round_width(self) -> int:
        """Passes of a multiple of this many tokens run best; 1: all alike."""
        tiles = self.device.type == "cpu" and self.dtype in HALF
        return STEP if tiles else 1

    @property
    def facts(self) -> ModelFacts:
        """What a method that was trained for this model may know of it."""
        config = self.model.config.get_text_config()
        layers = tuple(
            LayerFacts(
                s.index, config.num_attention_heads, s.heads, s.key_dim, s.value_dim, s.device
            )
            for s in self.layers
            if s.window is None
        )
        return ModelFacts(self.name, self.model.name_or_path, layers)

    @cached_property
    def fingerprint(self) -> str:
        """A short name for the weights."""
        return fingerprint(self.model)

    @property
    def weights_dtype(self) -> str:
        """The number type of most weights, as torch names it: what `fingerprint` is of."""
        return str(self.model.dtype).removeprefix("torch.")

    @cached_property
    def rounded(self) -> str:
        """The same name as of weights rounded to bfloat16, whatever they were loaded in."""
        return self.fingerprint_in(torch.bfloat16)

    def fingerprint_in(self, dtype: torch.dtype) -> str:
        """The name that the weights have where they are loaded in another number type."""
        return fingerprint(self.model, dtype)

    def new_cache(
        self,
        capacity: int,
        tensors: Sequence[EntryTensor] = (),
        head_tensors: Sequence[HeadTensor] = (),
    ) -> BoundedCache:
        """A cache of `capacity` entries a head. Raises BudgetError past the trained length."""
        if capacity > self.trained_length:
            raise BudgetError(
                f"A budget of {capacity:,} entries exceeds the {self.trained_length:,} positions "
                f"that {self.name} was trained for; use --budget {self.trained_length} or less."
            )
        return BoundedCache(self.layers, capacity, tensors, head_tensors, self.backend, self.states)

    @torch.inference_mode()
    def forward(
        self, ids: Sequence[int], cache: BoundedCache, request: AttentionRequest | None = None
    ) -> Tensor:
        """Run `ids` behind what is in the cache; returns hidden states [n, d] for `logits`.

        Where the output layer is not plain, the logits [n, V] themselves are returned. Raises
        KvstreamError where layers hold different numbers of rotated entries, where entries lost
        their order, and where the pass would exceed the budget.
        """
        if not cache.aligned:  # an error and no assertion: python -O removes those
            rotated = sorted({store.rotated for store in cache.stores})
            raise KvstreamError(
                f"Layers hold different numbers of rotated entries ({', '.join(map(str, rotated))})"
                ", and one vector of positions serves them all."
            )
        if cache.torn:
            raise KvstreamError(
                "This memory is lost: it was interrupted while its entries were moved. Open its "
                "file again."
            )
        cache.request = request or AttentionRequest()
        if self.device.type == "cpu":  # PyTorch's causal mask of a GPU cannot be metered
            cache.momentary.due(len(ids) * (cache.held + len(ids)))
        start = cache.next_position
        positions = torch.arange(start, start + len(ids), device=self.device)[None]
        inputs = torch.tensor([list(ids)], dtype=torch.long, device=self.device)
        run = self.model.base_model if self.head_is_plain else self.model
        with hook.running(cache):
            out = run(
                input_ids=inputs, position_ids=positions, use_cache=True, **holding(run, cache)
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


def runs_on(module: nn.Module) -> torch.device:
    """Where a module computes, be its weights on disk until then."""
    device: torch.device = module.weight.device  # type: ignore[assignment]
    if device.type == "meta":
        return torch.device(module._hf_hook.execution_device)  # type: ignore[union-attr,arg-type]
    return device


def _head(model: Any, hidden: Tensor) -> Tensor:
    """The output layer with the caps and scales that are known of some families."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    logits = head(hidden.to(runs_on(head)))
    if getattr(config, "logit_scale", None):  # Cohere
        logits = logits * config.logit_scale
    if getattr(config, "logits_scaling", None):  # Granite
        logits = logits / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
    return torch.tanh(logits / cap) * cap if cap else logits
