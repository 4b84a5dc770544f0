"""How much memory attention and selection take beside keys and values: measured, not estimated.

PyTorch hands every operation of a `Meter` to Python, which takes some microseconds each. So a pass
is metered only where it may need more than the passes before: see `Scratch.due`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GROWN = 1.1
"""A pass is metered again once it is larger by this factor."""
ALWAYS = 3
"""First passes that are metered whatever their size: they first evict, and first read memory."""


class Meter(TorchDispatchMode):
    """Counts bytes of the tensors that are made inside until nothing refers to them any more.

    What one operation takes and frees within itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.most = 0
        """The highest that `now` was."""
        self._tensors: Counter[int] = Counter()
        """How many tensors share each block of memory that was made inside."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        there = {t.untyped_storage()._cdata for t in given}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and not any(tensor is t for t in given):
                self._count(tensor, there)
        return made

    def _count(self, tensor: Tensor, there: set[int]) -> None:
        storage = tensor.untyped_storage()
        at, size = storage._cdata, storage.nbytes()
        if not size or (at in there and at not in self._tensors):  # a view of what was there before
            return
        if at not in self._tensors:
            self.now += size
            self.most = max(self.most, self.now)
        self._tensors[at] += 1
        weakref.finalize(tensor, self._gone, at, size).atexit = False

    def _gone(self, at: int, size: int) -> None:
        self._tensors[at] -= 1
        if not self._tensors[at]:
            del self._tensors[at]
            self.now -= size


class Scratch:
    """The most that was taken for a moment in passes that were metered, in bytes."""

    def __init__(self) -> None:
        self.most = 0
        self.on = False
        """Whether the pass that runs is metered."""
        self._passes = 0
        self._largest = 0.0

    def due(self, size: int) -> None:
        """Meter the pass that follows if it may need more than those before.

        Args:
            size: its queries times the entries that these attend to.
        """
        self.on = self._passes < ALWAYS or size > GROWN * self._largest
        if self.on:
            self._passes += 1
            self._largest = max(self._largest, size)

    @contextmanager
    def metered(self, on: bool | None = None) -> Iterator[list[Tensor]]:
        """Count what is made inside, but for the results that are put into the list.

        `on` says whether to, unless `due` does.
        """
        results: list[Tensor] = []
        if not (self.on if on is None else on):
            yield results
            return
        with Meter() as meter:
            yield results
        self.most = max(self.most, meter.most - sum(t.nbytes for t in results))
