"""A causal language model with a bounded KV cache; `probe` checks whether a model supports it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from kvstream.errors import BudgetError, KvstreamError
from kvstream.methods.base import EntryTensor, HeadTensor, LayerFacts, ModelFacts
from kvstream.model import hook, int8
from kvstream.model.attention import HALF, STEP, AttentionRequest
from kvstream.model.cache import BoundedCache
from kvstream.model.fingerprint import fingerprint
from kvstream.model.layer_store import LayerSpec
from kvstream.model.recurrent import StateSpec
from kvstream.settings import INT8

_KEY_BIAS = re.compile(r"\b(k_proj|qkv_proj|query_key_value|c_attn)\b.*\bbias$")
HEAD_BLOCK = 256


def holding(model: nn.Module, cache: Any) -> dict[str, Any]:
    """Return the argument for the cache: ``cache`` (transformers from 5.24 on), or its old name."""
    return {_cache_name(type(model).forward): cache}


@lru_cache
def _cache_name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


@dataclass
class BoundedModel:
    """A model with the facts about it that the engine needs."""

    model: Any
    """The transformers model, its attention set to ``kvstream``."""
    name: str
    layers: tuple[LayerSpec, ...]
    trained_length: int
    """Number of positions that the model was trained for; no budget may exceed it."""
    head_is_plain: bool
    """Whether the output layer alone gives the logits (up to a known cap or scale)."""
    backend: str = "auto"
    """The attention backend: one that `attention.attend` knows."""
    states: tuple[StateSpec, ...] = ()
    precision: str = ""
    """Number types of computation and KV cache, and the reason for them."""

    @property
    def device(self) -> torch.device:
        return runs_on(self.model.get_input_embeddings())

    @property
    def sight(self) -> int | None:
        """Most positions that any layer sees, if all layers slide; None: a layer sees all."""
        sights = [s.sight for s in self.layers]
        return None if None in sights else max(s for s in sights if s is not None)

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].dtype

    @property
    def attention_dtype(self) -> torch.dtype:
        return self.layers[0].attention_dtype

    @property
    def kv_dtype(self) -> torch.dtype:
        return self.layers[0].kv_dtype

    def storing(
        self, dtype: torch.dtype | None, attends_in: torch.dtype | None = None
    ) -> BoundedModel:
        """Return the model with these types of KV cache and attention; None: as it computes."""
        layers = (replace(s, stored_as=dtype, attends_in=attends_in) for s in self.layers)
        return replace(self, layers=tuple(layers))

    @property
    def round_width(self) -> int:
        """Passes run fastest with a multiple of this many tokens; 1: all lengths are alike."""
        tiles = self.device.type == "cpu" and self.attention_dtype in HALF
        return STEP if tiles else 1

    @property
    def facts(self) -> ModelFacts:
        """Facts about the model for a method that was trained for it."""
        config = self.model.config.get_text_config()
        layers = tuple(
            LayerFacts(
                s.index, config.num_attention_heads, s.heads, s.key_dim, s.value_dim, s.device
            )
            for s in self.layers
            if s.window is None
        )
        names = (name for name, _ in self.model.named_parameters(remove_duplicate=False))
        bias = any(_KEY_BIAS.search(name) for name in names)
        return ModelFacts(self.name, self.model.name_or_path, layers, bias)

    @property
    def parameters(self) -> int:
        """Parameters that a token passes: no embedding, and of experts only those in use."""
        config = self.model.config.get_text_config()
        width, heads = config.hidden_size, config.num_attention_heads
        inner = getattr(config, "intermediate_size", None)
        inner = inner if isinstance(inner, int) else 4 * width
        experts = getattr(config, "num_experts_per_tok", None) or 1
        attention = sum(width * (heads + s.heads) * (s.key_dim + s.value_dim) for s in self.layers)
        return int(attention + config.num_hidden_layers * experts * 3 * width * inner)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of the weights."""
        return fingerprint(self.model)

    @property
    def weights_dtype(self) -> str:
        """Number type of most weights, as torch names it; `fingerprint` hashes these weights."""
        if int8.is_quantized(self.model):
            return INT8
        return str(self.model.dtype).removeprefix("torch.")

    @cached_property
    def rounded(self) -> str:
        """Fingerprint of the weights rounded to bfloat16, regardless of the type in memory."""
        return fingerprint(self.model, torch.bfloat16)

    def new_cache(
        self,
        capacity: int,
        tensors: Sequence[EntryTensor] = (),
        head_tensors: Sequence[HeadTensor] = (),
    ) -> BoundedCache:
        """Return a cache of `capacity` entries per head. BudgetError if over `trained_length`."""
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
        """Run `ids` after the tokens in the cache; return hidden states [n, d] for `logits`.

        If the output layer is not plain, the logits [n, V] are returned. Raises KvstreamError if
        layers hold different numbers of rotated entries, if entries lost their order, or if the
        pass would exceed the budget.
        """
        if not cache.aligned:  # not an assertion, which python -O removes
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
        if self.device.type == "cpu":  # PyTorch's causal mask on a GPU cannot be metered
            cache.momentary.due(len(ids) * (cache.size + len(ids)))
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
        """Return logits [n, V], float32, for rows that `forward` returned."""
        if not self.head_is_plain:
            return hidden.float()
        head, config = self.model.get_output_embeddings(), self.model.config.get_text_config()
        logits = head(hidden.to(runs_on(head)))
        if getattr(config, "logit_scale", None):  # Cohere
            logits = logits * config.logit_scale
        if getattr(config, "logits_scaling", None):  # Granite
            logits = logits / config.logits_scaling
        cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
        return (torch.tanh(logits / cap) * cap if cap else logits).float()

    @torch.inference_mode()
    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy [n] in nats of `targets` [n] after the rows of `hidden`."""
        parts = [
            nn.functional.cross_entropy(self.logits(h), t, reduction="none")
            for h, t in zip(hidden.split(HEAD_BLOCK), targets.split(HEAD_BLOCK), strict=True)
        ]
        return torch.cat(parts)


def runs_on(module: nn.Module) -> torch.device:
    """Return the device on which a module computes, even if its weights are on disk."""
    device = next(module.parameters()).device
    if device.type == "meta":
        return torch.device(module._hf_hook.execution_device)  # type: ignore[union-attr,arg-type]
    return device
