"""A memory without a model: it does what the engine does around a method, with made-up evidence."""

from __future__ import annotations

import torch
from torch import Tensor

from kvstream.methods.base import Method, Step
from kvstream.methods.tools.scoring import together


class Memory:
    """Entries of `layers` x `heads`, driven chunk by chunk through `absorb` and `select`.

    Nothing is protected: every token is a candidate.
    """

    def __init__(self, method: Method, layers: int = 2, heads: int = 3, width: int = 8) -> None:
        self.method, self.shape, self.width = method, (layers, heads), width
        self.origin = torch.zeros(layers, heads, 0, dtype=torch.int32)
        self.keys = torch.zeros(layers, heads, 0, width)
        self.values = torch.zeros(layers, heads, 0, width)
        self.state = {
            t.name: torch.zeros(layers, heads, 0, dtype=t.dtype) for t in method.tensors()
        }
        self.head_state = {
            t.name: torch.zeros(layers, heads, *t.shape(width, width), dtype=t.dtype)
            for t in method.head_tensors()
        }
        self.generator = torch.Generator().manual_seed(0)
        self.seen = 0

    @property
    def size(self) -> int:
        return self.origin.shape[-1]

    def read(self, count: int, **evidence: Tensor | None) -> Step:
        """Append `count` tokens; the evidence (as in `Step`) covers all candidates."""
        ordinals = torch.arange(self.seen, self.seen + count, dtype=torch.int32)
        self.seen += count
        self.origin = torch.cat((self.origin, ordinals.expand(*self.shape, count)), -1)
        draw = torch.randn(*self.shape, count, self.width, generator=self.generator)
        self.keys = torch.cat((self.keys, draw), -2)
        self.values = torch.cat((self.values, draw.flip(-1)), -2)
        for name, old in self.state.items():
            # New places hold what another entry left there.
            stale = torch.full((*self.shape, count), 9999, dtype=old.dtype)
            self.state[name] = torch.cat((old, stale), -1)
        step = self.step(count, **evidence)
        self.method.absorb(step)
        return step

    def step(self, new: int, **evidence: Tensor | None) -> Step:
        return Step(
            layers=tuple(range(self.shape[0])),
            origin=self.origin,
            new=new,
            seen=self.seen,
            state=self.state,
            head_state=self.head_state,
            generator=self.generator,
            keys=lambda: self.keys,
            values=lambda: self.values,
            **evidence,  # type: ignore[arg-type]
        )

    def cut(self, step: Step, keep: int) -> Tensor:
        """Keep what the method selects; return its indices [G, K, keep]."""
        if keep >= self.size:
            return torch.arange(self.size).expand(*self.shape, -1)
        step.votes = self.method.votes(step)
        if step.votes is not None:
            (step.agreed,) = together([step.votes], [step.origin])
        chosen = self.method.select(step, keep)
        assert chosen.dtype == torch.int64
        assert chosen.shape == (*self.shape, keep)
        assert (chosen.diff(dim=-1) > 0).all()
        assert chosen.min() >= 0
        assert chosen.max() < self.size
        self.origin = self.origin.gather(-1, chosen)
        every = chosen[..., None].expand(*chosen.shape, self.width)
        self.keys, self.values = self.keys.gather(-2, every), self.values.gather(-2, every)
        self.state = {name: t.gather(-1, chosen) for name, t in self.state.items()}
        return chosen
