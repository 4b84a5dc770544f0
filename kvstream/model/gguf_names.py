"""Map the tensors of a GGUF file to those of the model, by the tables of transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers import modeling_gguf_pytorch_utils as legacy
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.integrations.gguf import get_gguf_conversion_mapping, is_gguf_arch_supported

from kvstream.errors import ModelError
from kvstream.model import int8
from kvstream.store.gguf_file import AGAIN, GGUF, Place

OTHERS = re.compile(r"(v|a|mm|s)\..*|rope_(freqs|factors_short|factors_long)\.weight")
"""Names of tensors that are not part of the language model: image and audio tensors, and rotary
frequencies and their factors, which the configuration contains."""
Load = Callable[[Place], Tensor]


@dataclass(frozen=True)
class Target:
    name: str
    shape: tuple[int, ...]
    sources: tuple[Place, ...]


@dataclass(frozen=True)
class Plan:
    """All tensors that the model needs, and the function that makes each of them."""

    targets: tuple[Target, ...]
    _model: Any
    """The transformers model, without weights."""
    _make: Callable[[Target, Load], Tensor]

    def tensor(self, target: Target, load: Load) -> Tensor:
        """Make the tensor in the layout of transformers. Raises ModelError for a wrong shape."""
        try:
            return self._make(target, load)
        except ValueError as error:
            place = target.sources[0]
            raise ModelError(
                f"{place.path} is damaged: {place.name} has the shape {place.shape}, and the "
                f"header says something else ({error}); {AGAIN}."
            ) from error

    def quantized(self, name: str) -> frozenset[str]:
        """Return the tensors that ``--quantize int8`` stores in 8 bits. Raises ModelError."""
        int8.refuse_other_layers(self._model, name)
        modules = self._model.named_modules()
        return frozenset(f"{n}.weight" for n, m in modules if int8.takes(m, tables=True))


def plan(file: GGUF, config: Any, path: Path) -> Plan:
    """Match the file with the model. Raises ModelError if one has tensors that the other lacks."""
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # the model classes raise many kinds of exceptions
        raise ModelError(
            f"The header of {path} describes no model that transformers can build "
            f"({type(error).__name__}: {str(error).splitlines()[0][:200]}); choose the model in "
            "the hub's format."
        ) from error
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    table = _by_conversions if is_gguf_arch_supported(file.architecture) else _by_processor
    sources, make = table(file, config, model)
    tied = set(model._tied_weights_keys or {}) if config.tie_word_embeddings else set()
    names = {place.name for places in sources.values() for place in places}
    strange = [n for n in file.tensors if n not in names and not OTHERS.fullmatch(n)]
    missing = [n for n in shapes if n not in sources and n not in tied]
    unknown = [n for n in sources if n not in shapes]
    if strange or missing or unknown:
        what = (
            f"{len(strange)} tensors that transformers does not know, such as {strange[0]}"
            if strange
            else f"no tensor for {len(missing)} weights of the model, such as {missing[0]}"
            if missing
            else f"a tensor for {unknown[0]}, which the model lacks"
        )
        raise ModelError(
            f"{path} ({file.architecture}) has {what}: the converted model would give other "
            "answers. Choose the model in the hub's format, or update transformers."
        )
    targets = [Target(n, s, tuple(sources[n])) for n, s in shapes.items() if n in sources]
    for target in targets:  # an absurd size would ask for an absurd amount of disk space
        place = target.sources[0]
        if math.prod(target.shape) > sum(source.numbers for source in target.sources):
            raise ModelError(
                f"{path} is damaged: {place.name} has the shape {place.shape}, and the header "
                f"asks for {target.shape}; {AGAIN}."
            )
    return Plan(tuple(targets), model, make)


Match = tuple[dict[str, list[Place]], Callable[[Target, Load], Tensor]]


def _by_processor(file: GGUF, config: Any, model: Any) -> Match:
    kind = legacy.TENSOR_PROCESSORS.get(file.architecture, legacy.TensorProcessor)
    processor = kind(config=config.to_dict())
    names: dict[str, str] = legacy.get_gguf_hf_weights_map(model, processor)
    sources: dict[str, list[Place]] = {}
    for place in file.tensors.values():
        # The map has no suffix for tensors that hold all experts.
        name = names.get(place.name) or names.get(place.name.removesuffix(".weight"))
        if name is not None:
            sources.setdefault(name, []).append(place)

    def make(target: Target, load: Load) -> Tensor:
        tensors: dict[str, Tensor] = {}
        for place in target.sources:
            weights = load(place)
            # numpy has no bfloat16. The processor only moves numbers, so it can move their bits.
            view = torch.int16 if weights.dtype == torch.bfloat16 else weights.dtype
            result = processor.process(
                weights=weights.view(view).numpy(),
                name=place.name,
                tensor_key_mapping=names,
                parsed_parameters={"tensors": tensors},
            )
            if result.name is not None:
                tensors[target.name] = torch.from_numpy(result.weights)
            if view != weights.dtype:
                tensors[target.name] = tensors[target.name].view(weights.dtype)
        return tensors[target.name]

    return sources, make


def _by_conversions(file: GGUF, config: Any, model: Any) -> Match:
    mapping = get_gguf_conversion_mapping(file.architecture, config)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: c for c in converters for pattern in c.source_patterns}
    sources: dict[str, list[Place]] = {}
    patterns: dict[str, str | None] = {}
    for place in file.tensors.values():
        name, patterns[place.name] = rename_source_key(place.name, renamings, converters)
        sources.setdefault(name, []).append(place)

    def make(target: Target, load: Load) -> Tensor:
        tensors: dict[str, Any]
        tensors = {patterns[place.name] or place.name: [load(place)] for place in target.sources}
        converter: Any = by_pattern.get(patterns[target.sources[0].name] or "")
        for operation in converter.operations if converter else ():
            tensors = operation.convert(
                tensors,
                source_patterns=converter.source_patterns,
                target_patterns=converter.target_patterns,
                full_layer_name=target.name,
                model=model,
                config=config,
            )
        [tensor] = tensors.values()
        return tensor[0] if isinstance(tensor, list) else tensor

    return sources, make
