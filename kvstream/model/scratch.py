"""Measure the scratch memory of attention and selection: temporary tensors beside keys and values.

PyTorch passes every operation inside a `Meter` to Python, which takes a few microseconds each. So a
pass is metered only if it may need more than the passes before: see `Scratch.due`.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

GROWN = 1.1
"""A pass is metered again if it is larger than the largest metered pass by this factor."""
ALWAYS = 3
"""Number of first passes that are metered regardless of size. They include the first eviction and
the first reading of memory."""


class Meter(TorchDispatchMode):
    """Counts the bytes of the tensors that are made inside, until their storage is freed.

    It does not see memory that one operation allocates and frees internally.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.most = 0
        """Maximum of `now` so far."""
        self._alive: dict[int, weakref.ref[UntypedStorage]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: nothing is compiled inside, and the wrapper that True adds takes a third
        of the time."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        for tensor in (result,) if isinstance(result, Tensor) else _tensors(result):
            storage = tensor.untyped_storage()
            at = storage._cdata
            if at in self._alive or _is_in(at, args) or (kwargs and _is_in(at, kwargs.values())):
                continue
            size = storage.nbytes()
            self.now += size
            self.most = max(self.most, self.now)
            # Not `weakref.finalize`, which takes as long as the operation itself.
            self._alive[at] = weakref.ref(storage, partial(self._gone, at, size))
        return result

    def _gone(self, at: int, size: int, _: weakref.ref[UntypedStorage]) -> None:
        del self._alive[at]
        self.now -= size


def _is_in(storage: int, values: Iterable[Any]) -> bool:
    """Return whether a storage is of a tensor among ``values``, including those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            if value.untyped_storage()._cdata == storage:
                return True
        elif isinstance(value, tuple | list) and _is_in(storage, value):
            return True
    return False


def _tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors among an operation's results, including those in lists."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


class Scratch:
    """The maximum of scratch memory in the metered passes, in bytes."""

    def __init__(self) -> None:
        self.most = 0
        self.on = False
        self._passes = 0
        self._largest = 0.0
        self._shapes: set[Hashable] = set()

    def due(self, size: int) -> None:
        """Meter the next pass if it may need more than the passes before.

        Args:
            size: number of queries of the pass times the entries that they attend to.
        """
        self.on = self._passes < ALWAYS or size > GROWN * self._largest
        if self.on:
            self._passes += 1
            self._largest = max(self._largest, size)
            self._shapes.clear()

    @contextmanager
    def metered(self, *shape: Hashable, on: bool | None = None) -> Iterator[list[Tensor]]:
        """Count the tensors that are made inside, except the results put into the yielded list.

        Args:
            shape: the values that alone determine the scratch memory of the work. Layers of the
                same shape are metered once in a pass. Without values every layer is metered.
            on: whether to meter. None: as `due` decided.
        """
        results: list[Tensor] = []
        if not (self.on if on is None else on) or shape in self._shapes:
            yield results
            return
        if shape:
            self._shapes.add(shape)
        with Meter() as meter:
            yield results
        self.most = max(self.most, meter.most - sum(t.nbytes for t in results))
