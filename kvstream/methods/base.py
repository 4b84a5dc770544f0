"""The contract between the engine and a method.

After every chunk the engine asks the method which entries of the KV cache stay. A method is one
small frozen dataclass: its fields are its settings, `evidence` says what it needs from the forward
pass, `tensors` what it remembers of every entry, `absorb` takes in new evidence, `select` decides.

Shapes. ``G`` layers that hold equally many entries are handled together, ``K`` key/value heads,
``n`` candidates. Candidates are the entries that may leave, oldest first; what is protected (the
prompt, the sinks, during decoding the question and the newest answer tokens) is not among them.

Everything that a method remembers lives in tensors that the engine allocates, gathers and saves
with the keys, so that a memory written to disk misses nothing. A method itself has no state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    least: float = 0,
    most: float = math.inf,
) -> Any:
    """A dataclass field that ``--set METHOD.NAME=VALUE`` can change; `help` is shown to users.

    A number that users give is refused where it is below `least` or above `most`.
    """
    metadata = {"help": help, "choices": choices, "least": least, "most": most}
    return field(default=default, metadata=metadata)


def limits(field: dataclasses.Field[Any]) -> tuple[float, float] | None:
    """The least and the most that a setting may be; None where it is no number."""
    if type(field.default) not in (int, float):  # true and false are ints of their own
        return None
    return field.metadata.get("least", 0), field.metadata.get("most", math.inf)


def in_words(limits: tuple[float, float]) -> str:
    """``0 or more``, ``from 0 to 1``."""
    least, most = limits
    return f"{least} or more" if most == math.inf else f"from {least} to {most}"


@dataclass(frozen=True)
class Evidence:
    """What the forward pass of a chunk has to measure; what is not asked for is not computed."""

    window_attention: int = 0
    """Attention that so many of the newest queries pay to every entry, summed over them. With a
    catalyst all of its tokens are the queries. Of several catalysts each is scaled to their mean
    length, and an entry has the highest. A decoding step measures its own query."""
    accumulated_attention: bool = False
    """Attention that all queries of the chunk pay to every entry, summed (h2o, cascade)."""
    decay: float = 1.0
    """Weight ``decay ** age`` of a query in `accumulated_attention`; 1 is the plain sum."""
    loss: bool = False
    """Cross-entropy of every token of the chunk, in nats."""
    reduce: str = "mean"
    """How the query heads of a group become one score for their KV head: ``mean`` or ``max``."""


@dataclass(frozen=True)
class EntryTensor:
    """Something remembered of every entry of every head; gathered and saved with the keys."""

    name: str
    dtype: torch.dtype = torch.float32
    """float32 or int32."""


@dataclass(frozen=True)
class HeadTensor:
    """Something remembered of every head as a whole (counters, a compressive memory).

    Its bytes count in the budget."""

    name: str
    shape: Callable[[int, int], tuple[int, ...]] = lambda key_dim, value_dim: ()
    """Shape for one head from the dimensions of its keys and values."""
    dtype: torch.dtype = torch.float32
    on_host: bool = False
    """It stays in the host's memory: for counters on which sizes depend, as reading them from a
    GPU would wait for all that was asked of it."""


@dataclass
class Step:
    """What a method sees of `G` layers after a chunk went through the model."""

    layers: tuple[int, ...]
    """Indices of the layers, in the model's numbering."""
    origin: Tensor
    """[G, K, n] int32: ordinal of the entry's token in the source; strictly increasing."""
    new: int
    """The last `new` candidates arrived with this chunk."""
    seen: int
    """Source tokens so far."""
    state: Mapping[str, Tensor]
    """[G, K, n] for every EntryTensor; `absorb` writes into them."""
    head_state: Mapping[str, Tensor]
    """[G, K, ...] for every HeadTensor; may be written at any time."""
    generator: torch.Generator
    """Random numbers of the run, seeded."""
    keys: Callable[[], Tensor]
    """Unrotated keys [G, K, n, D] of the candidates, gathered when called; only to be read."""
    window_attention: Tensor | None = None
    """[G, K, n] float32, if asked for by `Evidence.window_attention`."""
    accumulated_attention: Tensor | None = None
    """[G, K, n] float32, if asked for by `Evidence.accumulated_attention`."""
    loss: Tensor | None = None
    """[new] float32, if asked for by `Evidence.loss`."""
    votes: Tensor | None = None
    """[G, K, n], what `Method.votes` returned for these layers."""
    agreed: Tensor | None = None
    """[G, K, n]: for each entry the sum of the votes for its token, over all heads of all layers
    that hold it; there in `select` if `Method.votes` returned any."""
    learned: nn.Module | None = None
    """What `Method.learned` returned for the model."""
    as_read: Callable[[int, int], tuple[Tensor, Tensor]] | None = None
    """``(first, end)`` -> keys [G, K, end - first, D] of those candidates, float32, as they were
    rotated in the pass just done, and their values; there in `CompressiveMemory.fold`."""


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
    """What a method that was trained for a model may know of it."""

    name: str
    folder: str
    """Where its weights were loaded from: a folder, or a name on the hub."""
    layers: tuple[LayerFacts, ...]


class CompressiveMemory(Protocol):
    """What is done with entries that leave, and how it is read; made once for a run.

    Where something trained takes part in it, that is loaded then.
    """

    @property
    def trained(self) -> nn.Module:
        """What was learned for the model: what was folded with it can be read by nothing else."""

    def fold(self, step: Step, chosen: Tensor) -> None:
        """Put what is about to leave into `step.head_state`; called for one layer at a time.

        `chosen` is what `select` returned for it: all other candidates leave.
        """

    def mix(
        self, layer: int, query: Tensor, out: Tensor, lse: Tensor, head_state: Mapping[str, Tensor]
    ) -> Tensor:
        """Attention to what is there, mixed with what the layer's heads hold of what has left.

        query [H, T, D], out [H, T, E], lse [H, T] the log-sum-exp of the attention's scores;
        `head_state` has the layer's HeadTensors by name, [K, ...]. Called once something was
        folded.
        """


@dataclass(frozen=True)
class Preset:
    """What ``--preset paper`` sets: a method and the schedule around it as in the paper."""

    source: str
    """The paper, and where in it these values stand."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the method, as typed behind ``--set METHOD.``"""
    run: Mapping[str, str] = field(default_factory=dict)
    """Options of the schedule, as typed: ``schedule``, ``chunk``, ``start``."""


IMDC = Preset(
    "IMDC, section 4.1", run={"schedule": "linear", "chunk": "decremental", "start": "paper"}
)
"""Of the methods that IMDC prunes with."""


@dataclass(frozen=True)
class Method:
    """Base of all methods. The docstring's first line is what ``kvstream methods`` lists."""

    name: ClassVar[str]
    source: ClassVar[str] = ""
    """Paper and section."""
    evicts: ClassVar[bool] = True
    """False: the method refuses to lose anything (``full``)."""
    paper: ClassVar[Preset | None] = None
    """What ``--preset paper`` sets; None: there is no such preset."""
    learning: ClassVar[str] = ""
    """Of a method in a package of its own: the module there that trains what it has to learn for a
    model. Its click commands `train` and `measure` become ``kvstream methods train NAME`` and
    ``measure NAME``. "": it brings none."""

    sinks: int = setting(4, "first tokens of the source that always stay")

    @property
    def needs_keys(self) -> bool:
        """Whether `select` calls `Step.keys`; layers are then handled one at a time, which saves
        scratch."""
        return False

    def evidence(self) -> Evidence:
        """What each forward pass has to measure."""
        return Evidence()

    def tensors(self) -> tuple[EntryTensor, ...]:
        """What is remembered of every entry."""
        return ()

    def head_tensors(self) -> tuple[HeadTensor, ...]:
        """What is remembered of every head."""
        return ()

    def learned(self, model: ModelFacts) -> nn.Module | None:
        """What was trained for the model, on the devices of its layers; None: nothing is needed.

        Called before the first token is read; `Step.learned` has it. Raises UsageError where the
        method does not know the model.
        """
        return None

    def sized(self, budget: int) -> Method:
        """This method with sizes that depend on the budget (entries a head) filled in."""
        return self

    def catalyst(self, questions: Sequence[str]) -> tuple[str, ...]:
        """Texts appended to each chunk to draw attention, then removed; scores by their maximum.

        A text equal to one of `questions` is put the way the model will be asked it at the end.
        """
        return ()

    def layer_sizes(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Memory sizes per layer, given what the schedule allows; never more than `max(sizes)`."""
        return tuple(sizes)

    def target(self, size: int, present: int) -> int:
        """Entries that a layer keeps of the `present` ones, where the schedule allows `size`.

        Never more than either, and both are as much as there can be: the default keeps that.
        """
        return min(size, present)

    def shorten(self, head: int, free: int) -> tuple[int, int] | None:
        """``(first, last)`` tokens of the source to be read at all; None: every token."""
        return None

    def absorb(self, step: Step) -> None:
        """Take new evidence into the tensors of `step.state`; called after every chunk.

        Where `Evidence.accumulated_attention` is asked for and an answer may fill the budget, it is
        called for the question and for every token of the answer too. Entries that are still held
        get their state back when the answer ends.

        The places of the last `step.new` entries still hold what others left there. Evidence is
        None where it was not measured: after the last chunk of a text that nothing has to leave.
        """

    def votes(self, step: Step) -> Tensor | None:
        """Scores [G, K, n] float32 that are summed over all layers before any layer selects.

        Layers of different sizes or devices select apart, and `Step.agreed` has the sums for each
        of them. None: every layer decides for itself.
        """
        return None

    def select(self, step: Step, keep: int) -> Tensor:
        """Candidates that stay: [G, K, keep] int64, each row sorted and unique, ``keep < n``."""
        raise NotImplementedError

    def compressive_memory(self, model: ModelFacts, *, asked: bool) -> CompressiveMemory | None:
        """What is done with entries that leave; None: they are gone.

        Called before the first token is read; `asked` says whether there are catalysts. Raises
        UsageError where the method does not know the model.
        """
        return None

    def settings(self) -> dict[str, Any]:
        """Settings by name, as they are."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
