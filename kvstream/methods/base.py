"""The contract between the engine and a method.

After every chunk the engine asks the method which entries of the KV cache stay. A method is one
small frozen dataclass. Its fields are its settings; `evidence` says what it needs from the forward
pass, and `tensors` what it stores for every entry; `absorb` takes in new evidence, `select`
decides.

Shapes: ``G`` layers that hold equally many entries are handled together, ``K`` key/value heads,
``n`` candidates. Candidates are the entries that may be evicted, oldest first, without the
protected ones (the prompt, the sinks; during decoding also the question and the newest answer
tokens).

All state of a method is in tensors that the engine allocates, gathers and saves with the keys, so a
memory file is complete. A method object has no state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

LARGEST = 2.0**40
"""Maximum absolute value in a memory: squares of such values, and their sums, are finite in
float32."""
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8",
}  # fmt: skip
"""Types of numbers in a memory, with their names in its file."""


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    least: float = 0,
    most: float = math.inf,
) -> Any:
    """Return a dataclass field that ``--set METHOD.NAME=VALUE`` can change.

    Users see `help`. A number below `least` or above `most` is refused.
    """
    metadata = {"help": help, "choices": choices, "least": least, "most": most}
    return field(default=default, metadata=metadata)


def limits(field: dataclasses.Field[Any]) -> tuple[float, float] | None:
    """Return the minimum and maximum of a setting; None if it is not a number."""
    if type(field.default) not in (int, float):  # `type`, because bool is a subclass of int
        return None
    return field.metadata.get("least", 0), field.metadata.get("most", math.inf)


def in_words(limits: tuple[float, float]) -> str:
    """Describe limits in words: ``0 or more``, ``from 0 to 1``."""
    least, most = limits
    return f"{least} or more" if most == math.inf else f"from {least} to {most}"


@dataclass(frozen=True)
class Evidence:
    """What the forward pass of a chunk has to measure. Nothing else is computed."""

    window_attention: int = 0
    """Number of newest queries whose attention to every entry is summed. With a catalyst, its
    tokens are the queries instead. With several catalysts, each sum is scaled to their mean length,
    and an entry gets the maximum. A decoding step measures its own query."""
    accumulated_attention: bool = False
    """Whether to sum the attention of all queries of the chunk to every entry (h2o, cascade)."""
    decay: float = 1.0
    """Weight ``decay ** age`` of a query in `accumulated_attention`; 1 is the plain sum."""
    loss: bool = False
    """Whether to compute the cross-entropy of every token of the chunk, in nats."""
    reduce: str = "mean"
    """How to combine the query heads of a group to a score of their KV head: ``mean``, ``max``."""

    def __post_init__(self) -> None:
        if self.reduce not in ("mean", "max"):
            raise ValueError(f"Evidence.reduce must be mean or max, not {self.reduce!r}")


@dataclass(frozen=True)
class EntryTensor:
    """A number stored for every entry of every head; gathered and saved with the keys."""

    name: str
    dtype: torch.dtype = torch.float32
    """float32 or int32."""

    def __post_init__(self) -> None:
        if self.dtype not in (torch.float32, torch.int32):
            raise ValueError(f"EntryTensor.dtype must be float32 or int32, not {self.dtype}")


@dataclass(frozen=True)
class HeadTensor:
    """A tensor stored for every head as a whole (counters, a compressive memory).

    Its bytes count in the budget."""

    name: str
    shape: Callable[[int, int], tuple[int, ...]] = lambda key_dim, value_dim: ()
    """Shape for one head from the dimensions of its keys and values."""
    dtype: torch.dtype = torch.float32
    on_host: bool = False
    """Whether it stays on the CPU. Use it for counters that determine sizes: reading them from a
    GPU would wait for all of its queued work."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"HeadTensor.dtype must be a type that files have, not {self.dtype}")


@dataclass
class Step:
    """What a method sees of `G` layers after the model has read a chunk."""

    layers: tuple[int, ...]
    """Indices of the layers, in the model's numbering."""
    origin: Tensor
    """[G, K, n] int32: ordinal of the entry's token in the source; strictly increasing."""
    new: int
    """Number of candidates from this chunk; they are the last ones."""
    seen: int
    """Number of source tokens read so far."""
    state: Mapping[str, Tensor]
    """[G, K, n] for every EntryTensor; `absorb` writes into them."""
    head_state: Mapping[str, Tensor]
    """[G, K, ...] for every HeadTensor; may be written at any time."""
    generator: torch.Generator
    """Random numbers of the run, seeded."""
    keys: Callable[[], Tensor]
    """Unrotated keys [G, K, n, D] of the candidates, gathered when called; read-only."""
    values: Callable[[], Tensor]
    """Values [G, K, n, E] of the candidates, gathered when called; read-only."""
    window_attention: Tensor | None = None
    """[G, K, n] float32, if `Evidence.window_attention` requests it."""
    accumulated_attention: Tensor | None = None
    """[G, K, n] float32, if `Evidence.accumulated_attention` requests it."""
    loss: Tensor | None = None
    """[new] float32, if `Evidence.loss` requests it."""
    votes: Tensor | None = None
    """[G, K, n], what `Method.votes` returned for these layers."""
    agreed: Tensor | None = None
    """[G, K, n]: for each entry, the sum of the votes for its token over all heads of all layers
    that hold it. Set in `select` if `Method.votes` returned votes."""
    learned: nn.Module | None = None
    """What `Method.learned` returned for the model."""
    as_read: Callable[[int, int], tuple[Tensor, Tensor]] | None = None
    """``(first, end)`` -> keys [G, K, end - first, D] of these candidates in float32, as they were
    rotated in the last pass, and their values. Set in `CompressiveMemory.fold`."""


@dataclass(frozen=True)
class LayerFacts:
    """Shapes of a layer whose memory is compressed."""

    index: int
    query_heads: int
    heads: int
    """K, key/value heads."""
    key_dim: int
    value_dim: int
    device: torch.device


@dataclass(frozen=True)
class ModelFacts:
    """What a method that is trained for a model may know of the model."""

    name: str
    folder: str
    """The source of its weights: a folder, or a name on the hub."""
    layers: tuple[LayerFacts, ...]
    key_bias: bool = False
    """Whether it adds a bias to keys, which then all point towards it."""


class CompressiveMemory(Protocol):
    """How evicted entries are folded into a memory, and how attention reads it.

    Created once for a run; trained weights are loaded then.
    """

    @property
    def trained(self) -> nn.Module:
        """The trained weights. Only the weights that folded entries can read them."""

    def fold(self, step: Step, choice: Tensor) -> None:
        """Fold the entries that are being evicted into `step.head_state`, for one layer at a time.

        `choice` is what `select` returned for the layer: all other candidates are evicted.
        """

    def mix(
        self, layer: int, query: Tensor, out: Tensor, lse: Tensor, head_state: Mapping[str, Tensor]
    ) -> Tensor:
        """Return attention mixed with what the layer's heads hold of evicted entries.

        query [H, T, D], out [H, T, E] the attention to present entries, lse [H, T] the log-sum-exp
        of its scores; `head_state` has the layer's HeadTensors by name, [K, ...]. Called only after
        something was folded.
        """


@dataclass(frozen=True)
class Preset:
    """What ``--preset paper`` sets: a method and the schedule around it as in the paper."""

    source: str
    """The paper, and the place of these values in it."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the method, as typed after ``--set METHOD.``"""
    run: Mapping[str, str] = field(default_factory=dict)
    """Options of the schedule, as typed: ``schedule``, ``chunk``, ``start``."""


IMDC = Preset(
    "IMDC, section 4.1", run={"schedule": "linear", "chunk": "decremental", "start": "paper"}
)
"""Preset of the methods with which IMDC evicts."""


@dataclass(frozen=True)
class Method:
    """Base of all methods. The docstring's first line is what ``kvstream methods`` lists."""

    name: ClassVar[str]
    source: ClassVar[str] = ""
    """Paper and section."""
    evicts: ClassVar[bool] = True
    """Whether the method evicts entries; False for ``full`` and ``truncate``."""
    paper: ClassVar[Preset | None] = None
    """What ``--preset paper`` sets; None: there is no such preset."""

    sinks: int = setting(4, "first tokens of the source that always stay")

    @property
    def needs_keys(self) -> bool:
        """Whether the method calls `Step.keys` or `Step.values`. Layers are then handled one at a
        time, which saves scratch memory."""
        return False

    def evidence(self) -> Evidence:
        """Return what each forward pass has to measure."""
        return Evidence()

    def tensors(self) -> tuple[EntryTensor, ...]:
        """Return what to store for every entry."""
        return ()

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        """Return what to store for every head."""
        return ()

    def learned(self, model: ModelFacts) -> nn.Module | None:
        """Return the weights trained for a model, on the devices of its layers; None: none needed.

        Called before the first token is read; `Step.learned` has the result. Raises UsageError if
        there are no weights for the model.
        """
        return None

    def sized(self, budget: int) -> Method:
        """Return this method with the sizes that depend on the budget (entries per head)."""
        return self

    def fitted(self, model: ModelFacts) -> Method:
        """Return this method with the settings that depend on the model."""
        return self

    def catalyst(self, questions: Sequence[str]) -> tuple[str, ...]:
        """Return the texts to append to each chunk to measure their attention.

        They are removed after the pass. A score is the maximum over the texts. A text equal to one
        of `questions` gets the form in which the model reads this question at the end.
        """
        return ()

    def layer_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Return memory sizes per layer, given those of the schedule; at most `max(sizes)` each."""
        return tuple(sizes)

    def target(self, size: int, present: int) -> int:
        """Return how many of the `present` entries a layer keeps if the schedule allows `size`.

        Never more than either. The default keeps as many as possible.
        """
        return min(size, present)

    def shorten(self, head: int, free: int) -> tuple[int, int] | None:
        """Return how many tokens to read at the beginning and the end; None: read all.

        head: tokens of the prompt; free: tokens of the source that fit.
        """
        return None

    def absorb(self, step: Step) -> None:
        """Take new evidence into the tensors of `step.state`; called after every chunk, if the
        method declares a tensor.

        If `Evidence.accumulated_attention` is requested and an answer may fill the budget, it is
        also called for the question and for every token of the answer. When the answer ends,
        entries that are still held get their earlier state back.

        The state of the last `step.new` entries still has values of other entries: overwrite it.
        Evidence is None if it was not measured, after the last chunk of a text without eviction.
        """

    def votes(self, step: Step) -> Tensor | None:
        """Return scores [G, K, n] float32 that are summed over all layers before any layer selects.

        Layers of different sizes or devices select separately; `Step.agreed` has the sums for each
        of them. None: every layer decides alone.
        """
        return None

    def select(self, step: Step, keep: int) -> Tensor:
        """Return the candidates that stay: [G, K, keep] int64, rows sorted and unique, keep < n."""
        raise NotImplementedError

    def compressive_memory(self, model: ModelFacts, *, asked: bool) -> CompressiveMemory | None:
        """Return what folds evicted entries; None: they are dropped.

        Called before the first token is read; `asked` says whether there are catalysts. Raises
        UsageError if there are no weights for the model.
        """
        return None

    def settings(self) -> dict[str, Any]:
        """Return the values of the settings by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
