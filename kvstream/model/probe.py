"""Check whether and how the KV cache of a causal language model can be bounded.

The probe runs a few tokens at two positions and compares what each layer stored. Kept entries get
new positions, and the probe refuses models that this breaks, with the reason: learned or absolute
positions, ALiBi, latent attention, layers that store something other than keys and values or a
state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils

from kvstream.errors import UnsupportedModelError
from kvstream.model import hook, int8
from kvstream.model.bounded import BoundedModel, holding, runs_on
from kvstream.model.layer_store import LayerSpec
from kvstream.model.recurrent import spec_of
from kvstream.model.rotary import Rotary, RotaryRecorder

PROBE_TOKENS, PROBE_SHIFT = 6, 31
BOTH = {"hybrid", "hybrid_sliding"}
ATTENDS = {"full_attention", "sliding_attention", *BOTH}
CARRIES = {"linear_attention", "conv", *BOTH}
Entries = tuple[Tensor, Tensor]
"""Keys and values of a layer, [1, K, n, D] and [1, K, n, E]."""


def bound(model: Any, name: str) -> BoundedModel:
    """Probe a loaded transformers model. Raises UnsupportedModelError with the reason."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} ({_kind(model)}) has an encoder, which reads its input as a whole; kvstream "
            "needs a decoder-only language model."
        )
    model.eval()
    implementation = model.config._attn_implementation
    own = _own_logits(model, name)
    try:
        model.set_attn_implementation(hook.NAME)
        if model.config._attn_implementation != hook.NAME:
            raise UnsupportedModelError(
                f"{name} ({_kind(model)}) does not let its attention be replaced: it is fixed in "
                "the model's code, as with ALiBi and most older models."
            )
        bounded = _probe(model, name)
        _check_states(bounded)
        return _with_head(bounded, own)
    except UnsupportedModelError:
        model.set_attn_implementation(implementation)
        raise


def trained_length(config: Any) -> int:
    """Return the positions that a model was trained for, before any scaling changes it."""
    length = int(getattr(config, "max_position_embeddings", 0) or 2**31)
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [r for r in rope.values() if isinstance(r, dict)] or [rope]
    for parameters in nested:
        # Past the original length, the frequencies or (in some models) the query scale change.
        changes = parameters.get("rope_type") in ("dynamic", "longrope")
        if changes or parameters.get("llama_4_scaling_beta"):
            original = parameters.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            length = min(length, int(original or length))
    return length


def _kind(model: Any) -> str:
    return type(model).__name__


def _probe_ids(model: Any) -> Tensor:
    table = model.get_input_embeddings()
    ids = torch.arange(PROBE_TOKENS, device=runs_on(table)) * 7 + 11
    return ids[None] % table.weight.shape[0]


@torch.inference_mode()
def _own_logits(model: Any, name: str) -> Tensor:
    """Return logits [n, V] of the probe's tokens with the model's own attention and no cache."""
    try:
        logits: Tensor = model(input_ids=_probe_ids(model), use_cache=False).logits[0]
    except Exception as error:
        raise UnsupportedModelError(
            f"{name} ({_kind(model)}) does not run on text alone ({type(error).__name__}: "
            f"{error}); kvstream needs a decoder-only language model."
        ) from error
    own = logits.to(model.dtype)  # the precision they were computed in
    _refuse_infinite(own, model, name)
    return own


def _refuse_infinite(tensor: Tensor, model: Any, name: str) -> None:
    if not bool(tensor.isfinite().all()):
        kind = str(tensor.dtype).removeprefix("torch.")
        wider = "" if tensor.dtype == torch.float32 else "use --dtype float32, or "
        raise UnsupportedModelError(
            f"{name} ({_kind(model)}) gives numbers that are not finite in {kind}; {wider}fetch "
            "its weights and config.json again."
        )


@torch.inference_mode()
def _with_head(bounded: BoundedModel, own: Tensor) -> BoundedModel:
    """Return the model with `head_is_plain` set, if its logits [n, V] are its `own` ones.

    Raises UnsupportedModelError if passes through the bounded cache give others.
    """
    model, ids = bounded.model, _probe_ids(bounded.model)[0].tolist()
    head = model.get_output_embeddings()
    for plain in (True, False) if head is not None and model.base_model is not model else (False,):
        trial = replace(bounded, head_is_plain=plain)
        cache = trial.new_cache(PROBE_TOKENS)
        # Recurrent layers compute a single token after others in another way than several tokens.
        parts = ids[:1], ids[1:2], ids[2:]
        try:
            hidden = torch.cat([trial.forward(part, cache) for part in parts])
        except Exception:  # of a base model that does not run alone, in code of others
            if not plain:
                raise
            continue
        if plain and hidden.shape[-1] != head.in_features:
            continue
        if _distance(own, trial.logits(hidden)) <= _tolerance(own, model):  # not if one is NaN
            return trial
    raise UnsupportedModelError(
        f"{bounded.name} ({_kind(model)}) gives different answers through the replaced "
        "attention and cache than through its own, so kvstream cannot run it faithfully."
    )


def _check_states(bounded: BoundedModel) -> None:
    """Check that several tokens continue from a state, which some code of transformers (Jamba)
    forgets.

    Logits hardly show this in low precision. But if the state is NaN, they must be NaN too. The
    next state need not be: that of ZAYA is a projection of the last token alone.
    """
    name = "recurrent.0"
    # Check only the first layer: all are of one class, and the later ones get NaN as input.
    first = next((spec.index for spec in bounded.states if name in spec.shapes), None)
    if first is None:
        return
    ids, cache = _probe_ids(bounded.model)[0].tolist(), bounded.new_cache(PROBE_TOKENS)
    layer = next(r for r in cache.recurrent if r.carries.index == first)
    bounded.forward(ids[:2], cache)
    layer.resume({name: torch.full_like(layer.states()[name], torch.nan)})
    if not bool(bounded.forward(ids[2:], cache).isnan().any()):
        raise UnsupportedModelError(
            f"The recurrent layers of {bounded.name} ({_kind(bounded.model)}) forget their state "
            "when several tokens follow, in this version of transformers, so kvstream cannot read "
            "a text in chunks."
        )


def _probe(model: Any, name: str) -> BoundedModel:
    kinds, settings = _kinds(model, name)
    sights = {i: settings[i].get("sliding_window") for i, k in enumerate(kinds) if k in ATTENDS}
    carrying = {i: settings[i] for i, k in enumerate(kinds) if k in CARRIES}
    length = trained_length(model.config.get_text_config())
    recorder = RotaryRecorder(model, length)
    try:
        first, out_here, calls = _record(model, name, 0, carrying, len(kinds))
        second, out_there, _ = _record(model, name, PROBE_SHIFT, carrying, len(kinds))
    finally:
        recorder.close()
    here, there = first.stored, second.stored
    _refuse_infinite(out_here, model, name)  # PyTorch's kernels can make numbers of NaN
    if not _distance(out_here, out_there) <= _tolerance(out_here, model):
        raise UnsupportedModelError(
            f"{name} ({_kind(model)}) gives different answers at other positions: it has "
            "learned or absolute positions, or changes queries or keys after their rotation, "
            "so kept entries cannot get new ones. Use a model with rotary positions."
        )
    shared = {layer: _owner(calls[layer][1], here) for layer in calls.keys() - here.keys()}
    if None in shared.values() or not shared.keys() <= set(range(len(kinds))):
        raise UnsupportedModelError(
            f"An attention of {name} ({_kind(model)}) attends to something other than keys "
            "that a layer keeps, or serves several layers; kvstream cannot bound that yet."
        )
    specs = []
    for layer, sight in sights.items():
        if layer not in calls or layer not in here:
            raise UnsupportedModelError(
                f"Layer {layer} of {name} ({_kind(model)}) does not attend through the "
                "replaceable attention; its memory cannot be bounded."
            )
        # If every layer slides, there would be no memory, so then all layers are compressed.
        window = None if None not in sights.values() else sight
        rotary = recorder.rotary(calls[layer][0], layer)
        rotary = _positions(model, name, layer, rotary, here[layer], there[layer])
        keys, values = here[layer]
        sharing = tuple(sorted(other for other, owner in shared.items() if owner == layer))
        specs.append(
            LayerSpec(
                layer, keys.shape[1], keys.shape[-1], values.shape[-1], keys.dtype, keys.device,
                rotary, window, sight, sharing,
            )
        )  # fmt: skip
    states = tuple(spec_of(i, carrying[i], layer) for i, layer in first.carried.items())
    return BoundedModel(model, name, tuple(specs), length, head_is_plain=False, states=states)


def _kinds(model: Any, name: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the kind and the settings of each layer. Raises UnsupportedModelError."""
    config = model.config.get_text_config(decoder=True)
    kinds, settings = cache_utils.get_layer_types_and_kwargs(config)
    for index, kind in enumerate(kinds):
        if kind not in ATTENDS | CARRIES | {"dummy"}:
            raise UnsupportedModelError(
                f"Layer {index} of {name} is of the kind {kind!r}, which kvstream cannot bound "
                "yet; it knows full and sliding-window attention and recurrent layers."
            )
    if not ATTENDS & set(kinds):
        raise UnsupportedModelError(
            f"{name} ({_kind(model)}) has only recurrent layers: it keeps no keys and values, so "
            "there is nothing to bound and nothing to choose."
        )
    return kinds, settings


class _Recorder(cache_utils.Cache):
    """Replaces the cache during the probe and records what each layer stores."""

    def __init__(self, carrying: Mapping[int, Mapping[str, Any]], count: int, start: int) -> None:
        self.start = start
        self.stored: dict[int, Entries] = {}
        self.carried = {i: cache_utils.LinearAttentionLayer(**s) for i, s in carrying.items()}
        layers: list[Any] = [self.carried.get(i, cache_utils.DummyLayer()) for i in range(count)]
        super().__init__(layers=layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.stored[layer_idx] = (key_states.clone(), value_states.clone())
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        # Some models, such as BART, ignore the positions that they are given and count from here.
        return self.start

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1


def _record(
    model: Any, name: str, start: int, carrying: Mapping[int, Mapping[str, Any]], count: int
) -> tuple[_Recorder, Tensor, dict[int, hook.Call]]:
    cache, ids = _Recorder(carrying, count, start), _probe_ids(model)
    positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None]
    try:
        with torch.inference_mode(), hook.running(None) as calls:
            out = model(
                input_ids=ids, position_ids=positions, use_cache=True, **holding(model, cache)
            )
    except Exception as error:
        raise UnsupportedModelError(
            f"{name} ({_kind(model)}) does not run with a replaced cache and attention "
            f"({type(error).__name__}: {error}); it keeps its past in a way that cannot be bounded."
        ) from error
    return cache, out.logits[0].to(model.dtype), calls


def _owner(keys: Tensor, stored: Mapping[int, Entries]) -> int | None:
    for layer, (own, _) in stored.items():
        if own.shape == keys.shape and torch.equal(own, keys.to(own.device)):
            return layer
    return None


def _positions(
    model: Any, name: str, layer: int, rotary: Rotary | None, here: Entries, there: Entries
) -> Rotary | None:
    """Return the rotation in a layer's keys, or None. Raises UnsupportedModelError."""
    (keys, values), (moved, moved_values) = here, there
    drift = _distance(values, moved_values)  # deeper layers drift a little in low precision
    if not drift <= _tolerance(values, model):
        raise UnsupportedModelError(
            f"Layer {layer} of {name} stores values that change with the position; "
            "latent attention and similar designs cannot be bounded by evicting entries."
        )
    # Try no rotation, rotation over the width of the tables, and over twice that (half tables).
    ways: list[tuple[Rotary | None, Tensor, Tensor]] = [(None, keys, moved)]
    if rotary is not None:
        for width in (rotary.width, min(2 * rotary.width, keys.shape[-1])):
            turned = replace(rotary, width=width)
            try:
                taken_off = turned.unrotate(keys[0], 0), turned.unrotate(moved[0], PROBE_SHIFT)
            except (RuntimeError, TypeError):  # other tables or another signature (GPT-J)
                continue
            ways.append((turned, taken_off[0][None], taken_off[1][None]))
    # Weigh all dimensions equally: in some models a few are a hundred times larger and hardly
    # rotate, which would hide the rotation of all others.
    way, first, second = min(ways, key=lambda w: _distance(_even(w[1]), _even(w[2])))
    most = _tolerance(keys, model)
    if not _distance(first, second) <= min(most, 3 * drift + most / 5):
        raise UnsupportedModelError(
            f"The positions in the keys of layer {layer} of {name} cannot be removed; "
            "kvstream needs rotary position embeddings in the form that most models have."
        )
    return way


def _even(keys: Tensor) -> Tensor:
    """Return keys [1, K, n, D] with every dimension scaled to the same size."""
    keys = keys.float()
    return keys / (keys.pow(2).mean(2, keepdim=True).sqrt() + 1e-12)


def _tolerance(x: Tensor, model: Any) -> float:
    """Return the relative difference that rounding may cause; a wrong position causes about 1."""
    if int8.is_quantized(model):
        return 0.3
    return 1e-3 if x.dtype in (torch.float32, torch.float64) else 0.1


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the relative difference of the median token (dim -2): some may go to other experts."""
    tokens = a.shape[-2]
    a = a.float().transpose(-2, 0).reshape(tokens, -1)
    b = b.float().transpose(-2, 0).reshape(tokens, -1).to(a.device)
    size = torch.maximum(a.pow(2).mean(1), b.pow(2).mean(1)).sqrt()
    return float(((a - b).pow(2).mean(1).sqrt() / (size + 1e-12)).median())
