"""Trains the gate of ``edgeinfinite`` for a model: the model stays as it is, the gate learns.

The engine itself reads the texts, so that memory is what it will be in use. Each chunk that meets
a memory is first run once more with gradients: its queries attend to what the cache holds, read
the compressive memory through the gate, and the loss is that of the next token. Gradients do not
pass from one chunk to the next.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface

from kvstream.engine import Piece, Reader
from kvstream.errors import ModelError, SourceError, UsageError
from kvstream.methods.base import Mixer, ModelFacts
from kvstream.methods.edgeinfinite import EdgeInfinite, Gate, mixer
from kvstream.model import hook
from kvstream.model.attention import Shape, reference
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache
from kvstream.settings import RunSettings
from kvstream.sizes import Sizes
from kvstream.sources import open_sources
from kvstream.tokens import Tokenizer
from kvstream.training.splits import is_heldout

NAME = "kvstream_gate"
ROOM = 16
"""Entries reserved for a question and for an answer, which training has none of."""
POSITIONS = 1024
"""Most tokens of a chunk whose loss is taken; more only costs memory."""
WARM_UP = 0.05
VECTOR_RATE = 20.0
"""The gating vectors learn so many times faster than the MLP."""
BYTES_A_TOKEN = 6
"""Plenty for nearly any text."""


@dataclass(frozen=True)
class GateRecipe:
    """How a gate is trained."""

    budget: int = 1024
    """Entries a head; the sizes of the method follow it, and in use they may be others."""
    tokens: int = 6144
    """Tokens of each text: a run of them, from a random place."""
    texts: int | None = None
    """Most texts in an epoch; None is all."""
    epochs: int = 2
    lr: float = 0.005
    hidden: int | None = None
    """Width of the MLP; None is the dimension of a head."""
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """Where the training is, after a text."""

    text: int
    texts: int
    tokens: int
    loss: float
    """Mean of this text's chunks that met a memory, in nats a token; nan where none did."""
    seconds: float


def texts_in(folder: Path) -> tuple[list[str], list[str]]:
    """Files to learn from, and those held out (a tenth, by name). Raises SourceError."""
    names = sorted(open_sources([str(folder)]).names)
    learned = [n for n in names if not is_heldout(_stem(n))]
    held = [n for n in names if is_heldout(_stem(n))]
    if not learned:  # of a few files all may have such names
        learned, held = held, []
    if not learned:
        raise SourceError(f"{folder} has no text to learn from; name a folder with text files.")
    return learned, held


def _stem(name: str) -> str:
    return Path(name).name.split(".")[0]


def excerpt(name: str, tokenizer: Tokenizer, count: int, draw: random.Random) -> list[int]:
    """`count` tokens from a random place of a file; fewer where it has no more."""
    place, room = draw.random(), count * BYTES_A_TOKEN
    size = open_sources([name]).size_hint() or 0
    text, length = _stretch(name, int(place * max(0, size - room)), room)
    if length < size:  # a packed file's size is a guess, and the place may have been behind its end
        text, _ = _stretch(name, int(place * max(0, length - room)), room)
    return tokenizer.encode(text)[:count]


def excerpts(
    names: Sequence[str], tokenizer: Tokenizer, tokens: int, count: int, seed: int
) -> list[list[int]]:
    """Excerpts of `count` of these texts, or of all if they are fewer."""
    draw = random.Random(seed)
    chosen = draw.sample(names, min(count, len(names)))
    return [excerpt(name, tokenizer, tokens, draw) for name in chosen]


def _stretch(name: str, start: int, count: int) -> tuple[str, int]:
    """At most `count` characters of a file from `start`, and how many were read in all."""
    text, length = "", 0
    for block in open_sources([name]):
        text += block.text[max(0, start - length) :]
        length += len(block.text)
        if len(text) >= count:
            break
    return text[:count], length


def new_gates(facts: ModelFacts, hidden: int | None, seed: int) -> dict[int, Gate]:
    """Untrained gates for every layer whose memory is compressed."""
    torch.manual_seed(seed)
    return {
        layer.index: Gate(layer.query_heads, layer.value_dim, hidden or layer.value_dim).to(
            layer.device
        )
        for layer in facts.layers
    }


def with_gates(method: EdgeInfinite, gates: Mapping[int, Gate]) -> EdgeInfinite:
    """The method with gates that are in memory, not in a file."""

    class InTraining(EdgeInfinite):
        def mixer(self, model: ModelFacts) -> Mixer | None:
            return mixer(gates) if self.memory else None

    return InTraining(**method.settings())


def open_reader(
    model: BoundedModel,
    tokenizer: Tokenizer,
    method: EdgeInfinite,
    budget: int,
    tokens: int,
    run: RunSettings | None = None,
) -> Reader:
    """A reader of a text of so many tokens, with nothing in front but what begins every text."""
    head = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    sizes = Sizes(budget, len(head), 0, ROOM, ROOM)
    return Reader(model, method, run or RunSettings(), sizes, head, (), tokens)


class Trainer:
    """Trains gates text by text; can stop after any of them and go on from its checkpoint."""

    def __init__(
        self, model: BoundedModel, tokenizer: Tokenizer, recipe: GateRecipe, data: Path, out: Path
    ) -> None:
        self.model, self.tokenizer, self.recipe, self.out = model, tokenizer, recipe, out
        self.learned, self.held = texts_in(data)
        if recipe.tokens <= recipe.budget:
            raise UsageError(
                f"Texts of {recipe.tokens:,} tokens fit the budget of {recipe.budget:,}, and "
                "nothing goes into memory; raise --tokens or lower --budget."
            )
        if not model.facts.layers:
            raise ModelError(f"{model.name} has no layer with a global memory; nothing to train.")
        self.gates = new_gates(model.facts, recipe.hidden, recipe.seed)
        self.parameters = [p for gate in self.gates.values() for p in gate.parameters()]
        # The sigmoid of the gating vectors starts nearly closed, where its slope is small.
        vectors = [gate.g for gate in self.gates.values()]
        others = [p for gate in self.gates.values() for p in gate.parameters() if p is not gate.g]
        groups = [
            {"params": others, "times": 1.0},
            {"params": vectors, "times": VECTOR_RATE},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.lr, weight_decay=0.0)
        self.done = 0
        draw = random.Random(recipe.seed)
        self.order: list[str] = []
        for _ in range(recipe.epochs):
            self.order += draw.sample(self.learned, len(self.learned))[: recipe.texts]

    @property
    def share(self) -> float:
        """The gates' share of all weights."""
        mine = sum(p.numel() for p in self.parameters)
        return mine / (mine + sum(p.numel() for p in self.model.model.parameters()))

    def heldout(self, count: int) -> list[list[int]]:
        """Excerpts of so many texts that were held out."""
        recipe = self.recipe
        return excerpts(self.held, self.tokenizer, recipe.tokens, count, recipe.seed)

    @property
    def checkpoint(self) -> Path:
        return self.out.with_name(self.out.name + ".checkpoint")

    def train(self) -> Iterator[Progress]:
        """The remaining texts, one after another; a checkpoint after each."""
        while self.done < len(self.order):
            started = time.perf_counter()
            draw = random.Random(f"{self.recipe.seed}:{self.done}")
            name = self.order[self.done]
            ids = excerpt(name, self.tokenizer, self.recipe.tokens, draw)
            loss = self._text(ids)
            self.done += 1
            self._save_checkpoint()
            spent = time.perf_counter() - started
            yield Progress(self.done, len(self.order), len(ids), loss, spent)

    def resume(self) -> bool:
        """Go on from a checkpoint, if there is one. Raises UsageError if it is of another run."""
        if not self.checkpoint.is_file():
            return False
        stored = torch.load(self.checkpoint, weights_only=True)
        if stored["recipe"] != self._identity():
            raise UsageError(
                f"{self.checkpoint} is of a training with other settings; remove it, or train with "
                "the same model and settings as before."
            )
        for layer, gate in self.gates.items():
            gate.load_state_dict(stored["gates"][layer])
        self.optimizer.load_state_dict(stored["optimizer"])
        self.done = int(stored["done"])
        return True

    def save(self) -> None:
        """Write the gates; the checkpoint goes."""
        save_gates(self.gates, self.out, {"model": self.model.name, **self._recipe()})
        self.checkpoint.unlink(missing_ok=True)

    def _recipe(self) -> dict[str, str]:
        return {k: json.dumps(v) for k, v in dataclasses.asdict(self.recipe).items()}

    def _identity(self) -> dict[str, str]:
        return {"model": self.model.name, "order": json.dumps(self.order), **self._recipe()}

    def _save_checkpoint(self) -> None:
        state = {
            "recipe": self._identity(),
            "gates": {layer: gate.state_dict() for layer, gate in self.gates.items()},
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        partial = self.checkpoint.with_name(self.checkpoint.name + ".partial")
        torch.save(state, partial)
        os.replace(partial, self.checkpoint)

    def _text(self, ids: Sequence[int]) -> float:
        method = with_gates(EdgeInfinite(), self.gates)
        reader = open_reader(self.model, self.tokenizer, method, self.recipe.budget, len(ids))
        reader.begin()
        losses = []
        at = 0
        while at < len(ids):
            part = ids[at : at + reader.schedule.chunk()]
            if reader.cache.mix is not None and len(part) > 1:
                losses.append(self._chunk(reader.cache, part, (at + len(part)) / len(ids)))
            at += len(part)
            reader.step(Piece(part, at - len(part)), last=at == len(ids))
        return sum(losses) / len(losses) if losses else math.nan

    def _chunk(self, cache: BoundedCache, ids: Sequence[int], within: float) -> float:
        self._set_rate((self.done + within) / len(self.order))
        loss = chunk_loss(self.model, cache, ids, self.gates)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _set_rate(self, progress: float) -> None:
        rise = min(1.0, progress / WARM_UP)
        fall = 0.5 + 0.5 * math.cos(math.pi * min(1.0, progress))
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr * group["times"] * rise * fall


def save_gates(gates: Mapping[int, Gate], path: Path, about: dict[str, str]) -> None:
    """A safetensors file that the method loads; written whole or not at all."""
    from safetensors.torch import save_file

    tensors = {
        f"layers.{layer}.{name}": value.detach().cpu().contiguous()
        for layer, gate in gates.items()
        for name, value in gate.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata=about)
    os.replace(partial, path)


# One chunk with gradients -----------------------------------------------------------------------


class _Peek:
    """Stands in for the cache: what it holds is read, and nothing is added."""

    is_compileable = False

    def __init__(self, cache: BoundedCache, gates: Mapping[int, Gate]) -> None:
        self.cache, self.gates = cache, gates
        self.layers = [self] * len(cache.layers)
        self.is_sliding = [False] * len(cache.layers)

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.cache.next_position

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.cache.next_position + query_length, 0

    def get_max_length(self, layer_idx: int = 0) -> int:
        return self.cache.capacity


_peeking: list[_Peek] = []


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """As `hook.bounded_attention`, with gradients, and the new keys not in the cache."""
    peek = _peeking[-1]
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    store = peek.cache.layers[layer]
    scratch = peek.cache.scratch(store.spec) if store.raw and store.spec.rotary else None
    keys = torch.cat((store.rotated(peek.cache.base, scratch), key[0]), dim=1)
    values = torch.cat((store.values[:, : store.used], value[0]), dim=1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = sliding_window or store.spec.sight
    if softcap is None and s_aux is None and (window is None or window >= keys.shape[1]):
        new, total = query.shape[2], keys.shape[1]
        mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
        out = functional.scaled_dot_product_attention(
            query, keys[None], values[None], attn_mask=mask, scale=scale,
            enable_gqa=query.shape[1] != keys.shape[0],
        )[0]  # fmt: skip
    else:
        out = reference(query[0], keys, values, Shape(scale, window, softcap, s_aux))[0]
    if store.heads:
        heads = store.heads
        out = peek.gates[layer](query[0], out, heads["memory"], heads["norm"])
    return out.transpose(0, 1)[None], None


AttentionInterface.register(NAME, _attention)


@contextmanager
def _peek(model: BoundedModel, peek: _Peek) -> Iterator[None]:
    model.model.set_attn_implementation(NAME)
    _peeking.append(peek)
    try:
        yield
    finally:
        _peeking.pop()
        model.model.set_attn_implementation(hook.NAME)


def chunk_loss(
    model: BoundedModel, cache: BoundedCache, ids: Sequence[int], gates: Mapping[int, Gate]
) -> Tensor:
    """Mean loss of the tokens after the first, each predicted behind what the cache holds."""
    start = cache.next_position
    inputs = torch.tensor([list(ids)], device=model.device)
    positions = torch.arange(start, start + len(ids), device=model.device)[None]
    rows = torch.arange(len(ids) - 1, device=model.device)
    if len(rows) > POSITIONS:
        rows = rows[torch.randperm(len(rows), device=model.device)[:POSITIONS].sort().values]
    peek = _Peek(cache, gates)
    with _peek(model, peek), torch.enable_grad():
        out = model.model(
            input_ids=inputs, position_ids=positions, past_key_values=peek, use_cache=True,
            logits_to_keep=rows,
        )  # fmt: skip
        return functional.cross_entropy(out.logits[0].float(), inputs[0, rows + 1])
