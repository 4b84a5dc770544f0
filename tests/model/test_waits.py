"""How often a chunk makes the host wait for a GPU: independent of the number of layers.

Reading a value of a GPU tensor waits until all queued work is done, and so does a plain copy from
the host. These tests need no GPU: the model's tensors count as GPU tensors. Tensors made without a
device, and results computed only from such tensors, count as host tensors.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from models import FAMILIES, fresh, tokens
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.methods import registry
from kvstream.methods.tools import scoring
from kvstream.model.bounded import BoundedModel
from kvstream.model.probe import bound
from kvstream.settings import RunSettings

METHODS = registry.available()
VARIANTS: tuple[tuple[str, dict[str, str]], ...] = (
    *((name, {}) for name, method in METHODS.items() if method.evicts),
    ("bumblebee", {"algorithm": "fast"}),
    ("bumblebee", {"pool": "7"}),
    ("cascade", {"heads": "shared"}),
    ("cascade", {"contest": "attention"}),
    ("cascade", {"contest": "none"}),
    ("edgeinfinite", {"form": "paper"}),
    ("h2o", {"pool": "7"}),
    ("infinipot", {"alpha": "0.5"}),
    ("keydiff", {"pool": "7"}),
    ("sirllm", {"pool": "7"}),
    ("tova", {"heads": "independent", "pool": "7"}),
)
"""All variants except bumblebee's ``lazy`` and ``streaming``. Their documentation says that they
read values to find the end of their loops."""
CHUNK, CHUNKS, BUDGET, HEAD = 64, 3, 256, 3

READS = {
    "item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__",
    "is_nonzero", "equal", "allclose", "nonzero", "argwhere", "masked_select", "unique",
    "unique_consecutive", "bincount", "histc",
}  # fmt: skip
"""Functions that read values, or whose result has a size that depends on values."""


class Waits(TorchFunctionMode):
    """Counts by name the calls that would wait for a GPU. Marks tensors known to be on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        on_host = all(_on_host(t) for t in given)
        if given:
            self._count(name, args, kwargs, on_host)
        elif name == "tensor" and kwargs.get("device") is not None:
            self.found["tensor"] += 1
        out = func(*args, **kwargs)
        moved = any(isinstance(x, torch.device) for x in tree_leaves((args, kwargs)))
        if name == "to" and moved:
            return out.detach()  # `out` can be the marked tensor itself
        if on_host and not moved:
            for t in tree_leaves(out):
                if isinstance(t, Tensor):
                    t.on_host = True  # type: ignore[attr-defined]
        return out

    def _count(self, name: str, args: Any, kwargs: Any, on_host: bool) -> None:
        if name == "to" and _on_host(args[0]):
            moves = any(isinstance(x, Tensor | torch.device) for x in (*args[1:], *kwargs.values()))
            self.found[name] += moves and not kwargs.get("non_blocking")
        elif name == "where" and len(args) + len(kwargs) == 1:
            self.found[name] += not on_host
        elif name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            number = name == "__setitem__" and not isinstance(args[2], Tensor)
            for part in index:
                masked = isinstance(part, Tensor) and part.dtype == torch.bool and not number
                copied = isinstance(part, list) or (isinstance(part, Tensor) and _on_host(part))
                self.found[name] += (masked or copied) and not _on_host(args[0])
            if name == "__setitem__" and isinstance(args[2], Tensor):
                self.found[name] += _on_host(args[2]) and not _on_host(args[0])
        elif name == "copy_":
            self.found[name] += _on_host(args[1]) and not _on_host(args[0])
        else:
            self.found[name] += name in READS and not on_host


def _on_host(tensor: Tensor) -> bool:
    return getattr(tensor, "on_host", False)


@cache
def model(layers: int) -> BoundedModel:
    return bound(fresh(FAMILIES["llama"].config(num_hidden_layers=layers)), "llama")


def before_the_last(
    model: BoundedModel, name: str, settings: dict[str, str], growth: str
) -> tuple[Reader, Chunk]:
    """Return a reader that read several chunks, each with evictions, and its next chunk."""
    method = registry.make(name, settings)
    run = RunSettings(schedule=growth, chunk="fixed", chunk_size=CHUNK, keep=120, seed=7)
    wants = method.catalyst(("a question",))
    catalysts = [tokens(4, seed=9 + i) for i in range(len(wants))]
    sizes = BudgetSplit(BUDGET, HEAD, 4 * len(wants), 5, 8)
    read = Reader(model, method, run, sizes, tokens(HEAD, seed=1), catalysts)
    ids = tokens(CHUNK * CHUNKS, seed=3)
    *before, last = (Chunk(ids[i : i + CHUNK], i) for i in range(0, len(ids), CHUNK))
    for piece in before:
        read.step(piece, last=False)
    return read, last


def waits(name: str, settings: dict[str, str], growth: str, layers: int) -> Counter[str]:
    """Count the calls of one chunk that would wait for a GPU."""
    read, piece = before_the_last(model(layers), name, settings, growth)
    for store, tensor in itertools.product(read.cache.stores, read.method.head_tensors()):
        if tensor.on_host:
            store.head_state[tensor.name].on_host = True  # type: ignore[attr-defined]
    with Waits() as counted:
        report = read.step(piece, last=False)
    assert sum(report.memory) < layers * (report.in_flight - HEAD), "nothing has left"
    return +counted.found


@pytest.mark.parametrize("growth", [pytest.param("fixed", marks=pytest.mark.long), "adaptive"])
@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_waits_do_not_grow_with_the_layers(
    name: str, settings: dict[str, str], growth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "on_host", lambda tensor: False)
    few, many = (waits(name, settings, growth, layers) for layers in (2, 4))
    assert few == many
    # To the GPU go the chunk's ids and the targets of its loss. Back come the retention ratios.
    assert set(few) <= {"tensor", "tolist"}
    assert few["tolist"] == 1


def test_what_is_counted() -> None:
    """Tensors made for a device count as on the GPU, those made without one as on the host."""
    device = torch.device("cpu")
    with Waits() as counted:
        there, here = torch.zeros(3, device=device), torch.zeros(3)
        assert not bool(there.any())
        assert there[there > 0].tolist() == here[here > 0].tolist() == []
        there[there > 0] = 1.0  # no size depends on the mask
        there[[0, 1]] = 2.0
        here.to(device)
        here.to(device, non_blocking=True)
        here.to(torch.float64)
        torch.tensor([1], device=device)
        assert torch.tensor([1]).item() == int(here[0]) + 1
    assert +counted.found == Counter(
        {"__bool__": 1, "__getitem__": 1, "tolist": 1, "__setitem__": 1, "to": 1, "tensor": 1}
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("growth", ["fixed", "adaptive"])
@pytest.mark.parametrize(
    ("name", "settings"),
    VARIANTS,
)
def test_waits_of_a_gpu(name: str, settings: dict[str, str], growth: str) -> None:
    counts = []
    for layers in (2, 6):
        config = FAMILIES["llama"].config(num_hidden_layers=layers)
        on_gpu = bound(fresh(config).to("cuda"), "llama")
        read, piece = before_the_last(on_gpu, name, settings, growth)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                read.step(piece, last=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchronizing" in str(w.message) for w in caught))
    assert counts[0] == counts[1]
