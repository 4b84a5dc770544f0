"""The mean of the weights of several runs, which is a model of its own.

Wortsman et al., "Model soups": where runs began from the same weights and went not too far apart,
their mean is often better than each of them, and as fast.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def average(folders: Sequence[Path], out: Path) -> None:
    """Write the mean of the models in ``folders`` to ``out``; other files are the first one's.

    Raises ValueError where their weights differ in names or shapes.
    """
    models = [load_file(folder / WEIGHTS) for folder in folders]
    first = models[0]
    shapes = [{name: tensor.shape for name, tensor in model.items()} for model in models]
    if any(other != shapes[0] for other in shapes):
        raise ValueError("the models differ in the names or the shapes of their weights")
    mean = {
        name: torch.stack([model[name].float() for model in models]).mean(0).to(tensor.dtype)
        for name, tensor in first.items()
    }
    shutil.copytree(folders[0], out, ignore=shutil.ignore_patterns(WEIGHTS, "__pycache__"))
    save_file(mean, out / WEIGHTS, metadata={"format": "pt"})
    (out / WEIGHTS).chmod(0o644)
