"""A slow and obvious model with an evicted cache, to compare the fast one with.

The model runs with every token at position 0, where a rotary embedding turns nothing. So its
attention layers pass on raw queries and keys. The rest is written out here: raw keys and values of
each layer and head, positions, rotation, masks and softmax, in float64. It uses nothing of kvstream
but the origins of the entries, which say what a method decided to keep. Recurrent layers have no
state: in every pass they read again all that they have ever read.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from models import FAMILIES, bounded, plain
from torch import Tensor
from transformers import AttentionInterface

from kvstream.engine.reader import Chunk
from kvstream.model.attention import AttentionRequest
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache

OUTSIDE = -1
"""Label of a token outside of the source: prompt, question, answer."""
CATALYST = -2


@dataclass
class Head:
    """Entries of one head of one layer, oldest first."""

    labels: list[int]
    keys: Tensor
    """[n, D], raw."""
    values: Tensor

    def append(self, labels: list[int], keys: Tensor, values: Tensor) -> None:
        self.labels = self.labels + labels
        self.keys = torch.cat((self.keys, keys.double()))
        self.values = torch.cat((self.values, values.double()))

    def keep(self, indices: list[int]) -> None:
        self.labels = [self.labels[i] for i in indices]
        self.keys, self.values = self.keys[indices], self.values[indices]


class Recurrent:
    """A recurrent layer that reads everything again in every pass."""

    def __init__(self, slow: SlowModel, module: Any) -> None:
        self.slow, self.plain = slow, module.forward
        self.labels: list[int] = []
        self.inputs: Tensor | None = None
        module.forward = self.forward

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Take hidden_states [1, n, d] of the new tokens; return the layer's output for them: a
        tensor, or a tuple of them."""
        before = [] if self.inputs is None else [self.inputs]
        self.inputs = torch.cat([*before, hidden_states], dim=1)
        self.labels += self.slow.labels
        everything: Any = self.plain(self.inputs, *args, **kwargs)
        new = slice(-hidden_states.shape[1], None)
        if isinstance(everything, tuple):
            return tuple(part[:, new] for part in everything)
        return everything[:, new]

    def follow(self, held: list[int]) -> None:
        """Forget catalysts.

        Once attention holds nothing of a question and its answer, forget these, too.
        """
        gone = {CATALYST} if held.count(OUTSIDE) > self.slow.prompt else {CATALYST, OUTSIDE}
        stay = [i for i, x in enumerate(self.labels) if i < self.slow.prompt or x not in gone]
        self.labels = [self.labels[i] for i in stay]
        if self.inputs is not None:
            self.inputs = self.inputs[:, stay]


class SlowModel:
    """The same weights as `models.plain`, over lists of entries that a test may shorten."""

    current: SlowModel

    def __init__(self, name: str, prompt: int) -> None:
        self.family = FAMILIES[name]
        self.model = copy.deepcopy(plain(name))
        self.model.set_attn_implementation("slow")
        config = self.model.config.get_text_config()
        self.prompt = prompt
        self.question = 0
        self.kinds = list(
            getattr(config, "layer_types", None)
            or [
                "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
            ]
            * config.num_hidden_layers
        )
        self.window = getattr(config, "sliding_window", None)
        self.all_slide = all(kind == "sliding_attention" for kind in self.kinds)
        self.layers: list[list[Head]] = [[] for _ in self.kinds]
        self.read: list[Recurrent] = [
            Recurrent(self, module)
            for module in self.model.modules()
            if hasattr(module, "layer_idx")
            and any(child.startswith("conv") for child, _ in module.named_children())
        ]
        self.labels: list[int] = []
        self.start = 0
        self.known_speeds: dict[int, Tensor] = {}
        """Speeds by layer, for one pass."""

    def run(self, ids: Sequence[int], labels: Sequence[int]) -> Tensor:
        """Return the logits [n, V] of new tokens after everything that is held."""
        self.labels = list(labels)
        self.known_speeds.clear()  # some models set them by the length of the text
        self.start = max((len(head.labels) for layer in self.layers for head in layer), default=0)
        SlowModel.current = self
        with torch.inference_mode():
            return self.model(
                input_ids=torch.tensor([list(ids)]),
                position_ids=torch.zeros(1, len(ids), dtype=torch.long),
                use_cache=False,
            ).logits[0]

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, extra: dict[str, Any]
    ) -> Tensor:
        """Take raw q [H, T, D], k [K, T, D], v [K, T, E] of the new tokens; return [T, H, E]."""
        heads = k.shape[0]
        if not self.layers[layer]:
            empty = k.new_empty(0, k.shape[-1]).double(), v.new_empty(0, v.shape[-1]).double()
            self.layers[layer] = [Head([], *empty) for _ in range(heads)]
        out = torch.zeros(q.shape[1], q.shape[0], v.shape[-1], dtype=torch.float64)
        for head, held in enumerate(self.layers[layer]):
            held.append(self.labels, k[head], v[head])
            # The newest entry has the newest position, in every layer.
            last = self.start + len(self.labels) - 1
            places = torch.arange(last - len(held.labels) + 1, last + 1)
            keys = self.turn(layer, held.keys, places)
            queries = torch.arange(self.start, last + 1)
            hidden = places[None] > queries[:, None]
            if self.kinds[layer] == "sliding_attention":
                hidden |= places[None] <= queries[:, None] - self.window
            for h in range(head * q.shape[0] // heads, (head + 1) * q.shape[0] // heads):
                turned = self.turn(layer, q[h].double(), queries)
                scores = turned @ keys.T * scale
                if extra.get("softcap") is not None:
                    scores = torch.tanh(scores / extra["softcap"]) * extra["softcap"]
                weights = scores.masked_fill(hidden, -torch.inf).exp()
                total = weights.sum(1, keepdim=True)
                if extra.get("s_aux") is not None:
                    total = total + extra["s_aux"][h].double().exp()
                out[:, h] = weights / total @ held.values
        return out.to(q.dtype)

    def turn(self, layer: int, x: Tensor, places: Tensor) -> Tensor:
        """Rotate the rows of x [n, D] to their positions."""
        if layer in self.family.unrotated:
            return x
        speeds = self.speeds(layer)
        width = 2 * len(speeds)
        angles = places.double()[:, None] * speeds
        cos, sin = angles.cos(), angles.sin()
        x = x.clone()
        first, second = (
            (slice(0, width, 2), slice(1, width, 2))
            if self.family.pairs == "neighbors"
            else (slice(0, width // 2), slice(width // 2, width))
        )
        if self.family.backwards:
            sin = -sin
        a, b = x[:, first].clone(), x[:, second].clone()
        x[:, first], x[:, second] = a * cos - b * sin, b * cos + a * sin
        return x

    def speeds(self, layer: int) -> Tensor:
        """Return the radians per position by which each pair of dimensions turns."""
        if layer in self.known_speeds:
            return self.known_speeds[layer]
        names = (f"{self.kinds[layer]}_inv_freq", "inv_freq")
        for module in self.model.modules():
            for name in names:
                if isinstance(getattr(module, name, None), Tensor):
                    self.known_speeds[layer] = getattr(module, name).double()
                    return self.known_speeds[layer]
        raise AssertionError("no rotary embedding found")

    def follow(self, origins: Mapping[int, Tensor]) -> None:
        """Drop entries whose labels are not among `origins`: [K, n] by layer."""
        for recurrent in self.read:
            recurrent.follow(next(iter(origins.values()))[0].tolist())
        for layer, kept in origins.items():
            slides = self.kinds[layer] == "sliding_attention" and not self.all_slide
            for head, labels in zip(self.layers[layer], kept.tolist(), strict=True):
                present = [i for i, label in enumerate(head.labels) if label != CATALYST]
                head.keep(present)
                (self.newest if slides else self.chosen)(head, labels)
                assert head.labels == labels
        fullest = max(len(head.labels) for layer in self.layers for head in layer)
        for layer, kind in enumerate(self.kinds):
            if kind == "sliding_attention" and not self.all_slide:
                # Only the budget makes an entry leave a sliding layer early.
                for head in self.layers[layer]:
                    assert len(head.labels) >= min(self.window - 1, fullest)

    def newest(self, head: Head, labels: list[int]) -> None:
        end = len(head.labels)
        while end and labels and head.labels[end - 1] == OUTSIDE != labels[-1]:
            end -= 1  # an answer that was removed again
        head.keep(list(range(end - len(labels), end)))

    def chosen(self, head: Head, labels: list[int]) -> None:
        source = [label for label in labels if label != OUTSIDE]
        after = len(labels) - self.prompt - len(source)  # question and answer
        assert labels == [OUTSIDE] * self.prompt + source + [OUTSIDE] * after
        assert source == sorted(set(source)), "entries are out of order, or twice there"
        outside = [i for i, label in enumerate(head.labels) if label == OUTSIDE]
        place = {label: i for i, label in enumerate(head.labels)}
        first, rest = outside[: self.prompt], outside[self.prompt :]
        if after < len(rest) and after:  # the oldest tokens of the answer made room for the newest
            assert after > self.question
            rest = rest[: self.question] + rest[len(rest) - (after - self.question) :]
        head.keep([*first, *(place[label] for label in source), *rest[:after]])


def _slow_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, dropout: float = 0.0,
    scaling: float | None = None, **extra: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    slow = SlowModel.current
    return slow.attend(module.layer_idx, query[0], key[0], value[0], scale, extra)[None], None


AttentionInterface.register("slow", _slow_attention)


class CheckedModel(BoundedModel):
    """A bounded model that compares every forward pass with that of the slow one."""

    def __init__(self, name: str, prompt: int, tolerance: float = 1e-4) -> None:
        super().__init__(**vars(bounded(name)))
        self.slow = SlowModel(name, prompt)
        self.tolerance = tolerance
        self.piece: Chunk | None = None
        """Part of the source that the next forward pass reads, as the test announces it."""
        self.catalyst: list[int] = []
        self.compared = 0

    def forward(
        self, ids: Sequence[int], cache: BoundedCache, wanted: AttentionRequest | None = None
    ) -> Tensor:
        labels = [OUTSIDE] * len(ids)
        if self.piece is not None:
            first, count = self.piece.first, len(self.piece.ids)
            prompt = 0 if self.compared else self.slow.prompt
            rest = len(ids) - prompt - count
            labels = [*[OUTSIDE] * prompt, *range(first, first + count), *[CATALYST] * rest]
        if list(ids) == self.catalyst:  # a catalyst in a pass of its own
            labels = [CATALYST] * len(ids)
        if self.compared:
            self.slow.follow(
                {
                    layer: s.origin[:, : s.used]
                    for s in cache.stores
                    for layer in (s.spec.index, *s.spec.shared_by)
                }
            )
        want = self.slow.run(ids, labels)
        hidden = super().forward(ids, cache, wanted)
        got = self.logits(hidden)
        wrong = (got - want).abs().max() / want.std()
        assert wrong < self.tolerance, f"forward pass {self.compared} is off by {wrong:.2e}"
        self.compared += 1
        self.piece = None
        return hidden
