"""Files with the weights of a method that were trained for a model: a small module per layer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from torch import Tensor, nn

from kvstream.errors import UsageError
from kvstream.methods.base import LayerFacts, ModelFacts

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class LearnedFile:
    """The file of a method for a model, and the words for it in errors."""

    model: ModelFacts
    method: str
    what: str
    """Its content, as in ``a gate``."""
    name: str
    """Default name, in the folder of the model's weights."""
    file: str
    """Path to use instead, if not empty."""
    remedy: str
    """How the user gets such a file."""
    several: bool = False
    """Whether `what` is a plural."""

    @property
    def path(self) -> Path:
        """Path of the file, which may not exist."""
        if self.file:
            return Path(os.path.expanduser(self.file))
        return Path(self.model.folder or ".") / self.name

    def layers(
        self, prefix: str, new: Callable[[LayerFacts, Mapping[str, Tensor]], Module]
    ) -> dict[int, Module]:
        """Return the modules of the model by layer. Raise UsageError if missing or of other shapes.

        `prefix` begins the names of a layer's tensors, with ``{}`` for its number. `new` returns an
        untrained module with the sizes of the stored tensors.
        """
        tensors = self.tensors
        modules = {}
        for layer in self.model.layers:
            start = prefix.format(layer.index)
            own = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
            module = new(layer, own)
            try:
                module.load_state_dict(own)
            except RuntimeError as error:  # names or shapes differ
                raise UsageError(
                    f"{self.path} was trained for another model: its layer {layer.index} does not "
                    f"fit {self.model.name}; {self.remedy}"
                ) from error
            modules[layer.index] = module.requires_grad_(False).to(layer.device)
        return modules

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the file by name. Raises UsageError if it is missing or damaged."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not os.path.isfile(self.path):  # unlike `Path.is_file` also of a name that is too long
            was, there = ("were", "there are none") if self.several else ("was", "there is none")
            where = (
                f"{self.path} is not a file"
                if self.file
                else f"{there} in the folder of the weights of {self.model.name}"
            )
            raise UsageError(
                f"{self.method} needs {self.what} that {was} trained for the model, and {where}; "
                f"{self.remedy}"
            )
        try:
            tensors: dict[str, Tensor] = load_file(self.path)
        except (OSError, SafetensorError) as error:
            raise UsageError(
                f"{self.path} cannot be read as {self.what} ({error}); {self.remedy}"
            ) from error
        return tensors
