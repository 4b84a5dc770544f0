"""How much memory attention and selection take beside keys and values: measured, not estimated.

PyTorch hands every operation of a `Meter` to Python, which takes some microseconds each. So a pass
is metered only where it may need more than the passes before: see `Scratch.due`.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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
        self._alive: dict[int, weakref.ref[Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled inside, and the wrapper that says so takes a third of the time."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in _tensors(made):
            storage = tensor.untyped_storage()
            at, size = storage._cdata, storage.nbytes()
            known = at in self._tensors
            if not size or not (known or self._is_new(at, args, kwargs)):
                continue
            if known and any(tensor is t for t in _given(args, kwargs)):
                continue  # written in place: counted when it was made
            self._count(tensor, at, size)
        return made

    def _is_new(self, at: int, args: tuple[Any, ...], kwargs: Any) -> bool:
        """Whether a block of memory is none of what the operation was given, nor a view of it."""
        return all(t.untyped_storage()._cdata != at for t in _given(args, kwargs))

    def _count(self, tensor: Tensor, at: int, size: int) -> None:
        if at not in self._tensors:
            self.now += size
            self.most = max(self.most, self.now)
        self._tensors[at] += 1
        reference: weakref.ref[Tensor]

        def gone(_: weakref.ref[Tensor]) -> None:
            del self._alive[id(reference)]
            self._tensors[at] -= 1
            if not self._tensors[at]:
                del self._tensors[at]
                self.now -= size

        # Not `weakref.finalize`, which takes as long as the operation itself.
        reference = weakref.ref(tensor, gone)
        self._alive[id(reference)] = reference


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among an operation's arguments or results, in lists as well."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, tuple | list):
                yield from _tensors(value)


def _given(args: tuple[Any, ...], kwargs: Any) -> Iterator[Tensor]:
    yield from _tensors(args)
    if kwargs:
        yield from _tensors(tuple(kwargs.values()))


class Scratch:
    """The most that was taken for a moment in passes that were metered, in bytes."""

    def __init__(self) -> None:
        self.most = 0
        self.on = False
        """Whether the pass that runs is metered."""
        self._passes = 0
        self._largest = 0.0
        self._met: set[Hashable] = set()

    def due(self, size: int) -> None:
        """Meter the pass that follows if it may need more than those before.

        Args:
            size: its queries times the entries that these attend to.
        """
        self.on = self._passes < ALWAYS or size > GROWN * self._largest
        if self.on:
            self._passes += 1
            self._largest = max(self._largest, size)
            self._met.clear()

    @contextmanager
    def metered(self, *shape: Hashable, on: bool | None = None) -> Iterator[list[Tensor]]:
        """Count what is made inside, but for the results that are put into the list.

        Args:
            shape: what the work takes depends on these alone. So layers of one shape are metered
                once in a pass. None given: always.
            on: whether to meter, unless `due` says it.
        """
        results: list[Tensor] = []
        if not (self.on if on is None else on) or shape in self._met:
            yield results
            return
        if shape:
            self._met.add(shape)
        with Meter() as meter:
            yield results
        self.most = max(self.most, meter.most - sum(t.nbytes for t in results))
