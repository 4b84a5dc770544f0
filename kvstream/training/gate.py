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
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from kvstream.engine import Piece, Reader
from kvstream.errors import ModelError, SourceError, UsageError
from kvstream.methods.base import Mixer, ModelFacts
from kvstream.methods.edgeinfinite import EdgeInfinite, Gate, mixer
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache
from kvstream.settings import RunSettings
from kvstream.sizes import Sizes
from kvstream.sources import open_sources
from kvstream.tokens import Tokenizer
from kvstream.training.gate_loss import chunk_loss
from kvstream.training.splits import is_heldout

ROOM = 16
"""Entries reserved for a question and for an answer, which training has none of."""
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
