"""Muon for the matrices, AdamW for the rest, both on float32 copies of the weights.

Muon (Jordan et al. 2024) orthogonalizes the momentum of each matrix with a few Newton-Schulz steps.
Its step is scaled by 0.2 sqrt(max(shape)) to match AdamW's size (Liu et al. 2025, "Muon is scalable
for LLM training"). The model may be bfloat16: the float32 copies keep what its rounding would lose.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from kvstream.model.precision import is_fast

DECAY = 0.02
"""Weight decay of the matrices."""
RATIO = 2.0
"""Rate of the AdamW part over that of the Muon part."""


def orthogonalize(update: Tensor) -> Tensor:
    """Return roughly the nearest semi-orthogonal matrices of a stack [n, rows, columns].

    Compute in bfloat16, which is precise enough, unless a CPU is slower with it than with float32.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.bfloat16() if update.is_cuda or is_fast("bfloat16") else update.float()
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if flip else x).to(update.dtype)


class MuonAdam:
    """The optimizer of a whole model. Its state can be saved and loaded.

    The two-dimensional weights of the model go to Muon, embeddings and norms to AdamW.
    """

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        self.shapes: dict[torch.Size, list[nn.Parameter]] = {}
        self.others: list[nn.Parameter] = []
        names = dict(model.named_parameters())
        for name, weight in names.items():
            if weight.dim() == 2 and "embed" not in name:
                self.shapes.setdefault(weight.shape, []).append(weight)
            else:
                self.others.append(weight)
        self.masters = {n: p.detach().float().clone() for n, p in names.items()}
        self._name = {id(p): n for n, p in names.items()}
        self.momentum = {n: torch.zeros_like(p) for n, p in self.masters.items()}
        self.second = {n: torch.zeros_like(self.masters[n]) for n in map(self._of, self.others)}

    def _of(self, weight: nn.Parameter) -> str:
        return self._name[id(weight)]

    def state_dict(self) -> dict[str, Any]:
        """Return masters, moments and the step count."""
        return {
            "masters": self.masters,
            "momentum": self.momentum,
            "second": self.second,
            "count": self.count,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state and write its masters into the model."""
        self.count = state["count"]
        for mine, theirs in (
            (self.masters, state["masters"]),
            (self.momentum, state["momentum"]),
            (self.second, state["second"]),
        ):
            for name in mine:
                mine[name].copy_(theirs[name])
        for weight in [*self.others, *(w for ws in self.shapes.values() for w in ws)]:
            weight.copy_(self.masters[self._of(weight)])

    @torch.no_grad()
    def step(self, rate: float) -> float:
        """Update at learning rate ``rate``, clear the gradients and return their norm."""
        self.count += 1
        every = [*self.others, *(w for ws in self.shapes.values() for w in ws)]
        gradients = {self._of(w): w.grad.float() for w in every if w.grad is not None}
        norm = float(torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt())
        scale = min(1.0, 1.0 / (norm + 1e-6))
        for shape, weights in self.shapes.items():
            names = [self._of(w) for w in weights]
            nesterov = []
            for name in names:
                self.momentum[name].lerp_(gradients[name], 0.05)
                nesterov.append(gradients[name].lerp(self.momentum[name], 0.95))
            turned = orthogonalize(torch.stack(nesterov))
            size = rate * 0.2 * max(shape) ** 0.5
            for name, update, weight in zip(names, turned, weights, strict=True):
                self.masters[name].mul_(1 - rate * DECAY).sub_(update, alpha=size)
                weight.copy_(self.masters[name])
        small = rate * RATIO
        for weight in self.others:
            name = self._of(weight)
            gradient = gradients[name] * scale
            first, second = self.momentum[name], self.second[name]
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.05)
            corrected = (second / (1 - 0.95**self.count)).sqrt_().add_(1e-8)
            self.masters[name].addcdiv_(first, corrected, value=-small / (1 - 0.9**self.count))
            weight.copy_(self.masters[name])
        for weight in every:
            weight.grad = None
        return norm
