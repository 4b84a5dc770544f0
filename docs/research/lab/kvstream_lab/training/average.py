"""The mean of the weights of several runs, as a new model.

Wortsman et al., "Model soups": if runs start from the same weights and do not move too far apart,
their mean is often better than each of them, and as fast.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from kvstream.model.weights import SINGLE
from kvstream_lab.training.shipping import add_tokenizer


def average(folders: Sequence[Path], out: Path) -> None:
    """Write the mean of the models in ``folders`` to ``out``, with the configuration of the first.

    Do not copy the model card and the gate: they belong to other weights. Raise ValueError if the
    models differ in the names or shapes of their weights.
    """
    models = [load_file(folder / SINGLE) for folder in folders]
    shapes = [{name: tensor.shape for name, tensor in model.items()} for model in models]
    if any(other != shapes[0] for other in shapes):
        raise ValueError("the models differ in the names or the shapes of their weights")
    mean = {
        name: torch.stack([model[name].float() for model in models]).mean(0).to(tensor.dtype)
        for name, tensor in models[0].items()
    }
    out.mkdir(parents=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(folders[0] / name, out / name)
    add_tokenizer(out)
    save_file(mean, out / SINGLE, metadata={"format": "pt"})
    (out / SINGLE).chmod(0o644)
