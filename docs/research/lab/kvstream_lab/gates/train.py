"""Train the gate of ``edgeinfinite`` for a model. The model's weights do not change.

The engine itself reads the texts. The features of a learned gate are trained first: they learn the
attention to evicted entries, layer by layer (`gates.lessons`). Then the MLP and the gating vectors
of either form learn from the loss of the next token, with compressive memory as in use: each chunk
that meets such a memory is first run once more with gradients. Gradients do not pass from one chunk
to the next.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.errors import KvstreamError, ModelError, UsageError
from kvstream.methods.base import ModelFacts
from kvstream.methods.edgeinfinite import EdgeInfinite, Gated
from kvstream.methods.tools.gates import Gate, LearnedGate, new_gate
from kvstream.model.bounded import BoundedModel
from kvstream.model.cache import BoundedCache
from kvstream.run.prompt import build_prompt
from kvstream.settings import RunSettings
from kvstream.store.writing import replace
from kvstream.tokenization.tokenizer import Tokenizer
from kvstream_lab.gates.lessons import (
    FOLLOWING,
    Lesson,
    LessonFiles,
    divergence,
    noted,
    of_prose,
    with_compressive_memory,
    with_questions,
)
from kvstream_lab.gates.peek import chunk_loss
from kvstream_lab.gates.texts import excerpt, excerpts, texts_in

ROOM = 16
"""Entries reserved for a question and for an answer, although training has neither."""
WARM_UP = 0.05
VECTOR_RATE = 20.0
"""Learning rate of the gating vectors, relative to the MLP."""
PROSE = 0.1
"""Share of lessons without questions."""
FEATURE_RATE = 0.01
"""Peak learning rate of the features."""
BLOCK = 100
"""Steps between checkpoints while features are trained."""


@dataclass(frozen=True)
class GateRecipe:
    """Settings of the training of a gate."""

    form: str = "learned"
    """Like the method's setting `form`."""
    budget: int = 1024
    """Entries per head. The sizes of the method follow from it; in use they may differ."""
    tokens: int = 6144
    """Tokens of each text, taken from a random place."""
    features: int = EdgeInfinite.features
    """Number of features of the form ``learned``."""
    lessons: int = 400
    """Number of texts from which the features learn."""
    steps: int = 6000
    """Number of training steps of the features; each uses one of these texts."""
    texts: int | None = None
    """Maximum number of texts per epoch for MLP and vectors; None is all."""
    epochs: int = 2
    lr: float = 0.005
    hidden: int | None = None
    """Width of the MLP. None is the dimension of a head, or a quarter of it with features."""
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """Progress of the training."""

    what: str
    """``lesson`` that was read, ``step`` of the features, ``text`` for MLP and vectors."""
    done: int
    of: int
    loss: float
    """Mean loss since the last report. For steps: nats over all layers. For a text: nats per token
    in the chunks that met compressive memory; nan if there were none."""
    tokens: int
    seconds: float


def new_gates(facts: ModelFacts, recipe: GateRecipe) -> dict[int, Gate]:
    """Return untrained gates for every layer with compressive memory."""
    torch.manual_seed(recipe.seed)
    beside = 4 if recipe.form == "learned" else 1
    return {
        layer.index: new_gate(
            recipe.form, layer, recipe.features, recipe.hidden or max(1, layer.value_dim // beside)
        ).to(layer.device)
        for layer in facts.layers
    }


def with_gates(method: EdgeInfinite, gates: Mapping[int, Gate]) -> EdgeInfinite:
    """Return the method with gates from RAM instead of from a file."""

    return with_compressive_memory(method, lambda sized, asked: Gated(sized, gates, asked))


def open_reader(
    model: BoundedModel,
    tokenizer: Tokenizer,
    method: EdgeInfinite,
    budget: int,
    tokens: int,
    run: RunSettings | None = None,
) -> Reader:
    """Return a reader for a text of `tokens` tokens. Its prompt is at most the BOS token."""
    head = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    sizes = BudgetSplit(budget, len(head), 0, ROOM, ROOM)
    return Reader(model, method, run or RunSettings(), sizes, head, (), tokens)


class Trainer:
    """A trainer of gates. It can stop after a block of steps or a text, and resume from there."""

    def __init__(
        self, model: BoundedModel, tokenizer: Tokenizer, recipe: GateRecipe, data: Path, out: Path
    ) -> None:
        self.model, self.tokenizer, self.recipe, self.out = model, tokenizer, recipe, out
        self.learned, self.held = texts_in(data)
        if recipe.tokens <= self._shortest:
            raise UsageError(
                f"Texts of {recipe.tokens:,} tokens leave nothing to go into memory under a "
                f"budget of {recipe.budget:,}; use --tokens {self._shortest + 1} or more, or "
                "lower --budget."
            )
        if not model.facts.layers:
            raise ModelError(f"{model.name} has no layer with a global memory; nothing to train.")
        self.method = EdgeInfinite(form=recipe.form, features=recipe.features)
        self.gates = new_gates(model.facts, recipe)
        self.parameters = [p for gate in self.gates.values() for p in gate.parameters()]
        named = [pair for gate in self.gates.values() for pair in gate.named_parameters()]
        vectors = [p for name, p in named if name in ("g", "offset")]
        mlps = [p for name, p in named if name in ("w1", "b1", "w2", "b2")]
        features = [p for name, p in named if name.endswith(("query", "key"))]
        # The sigmoid of the gating vectors starts near 0, where its slope is small.
        groups = [
            {"params": mlps, "times": 1.0},
            {"params": vectors, "times": VECTOR_RATE},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.lr, weight_decay=0.0)
        self.of_features = torch.optim.Adam(features, lr=FEATURE_RATE) if features else None
        self.read, self.stepped, self.done = 0, 0, 0
        self.resuming = False
        draw = random.Random(recipe.seed)
        self.order: list[str] = []
        for _ in range(recipe.epochs):
            self.order += draw.sample(self.learned, len(self.learned))[: recipe.texts]

    @property
    def share(self) -> float:
        """The gates' share of all weights."""
        mine = sum(p.numel() for p in self.parameters)
        return mine / (mine + sum(p.numel() for p in self.model.model.parameters()))

    @property
    def _shortest(self) -> int:
        """Length that a text must exceed, in tokens.

        The end of a lesson without questions runs separately.
        """
        budget = self.recipe.budget
        return max(budget * 3 // 2, budget + FOLLOWING) if self.recipe.form == "learned" else budget

    def heldout(self, count: int) -> list[list[int]]:
        """Return excerpts of `count` held-out texts."""
        recipe = self.recipe
        return excerpts(self.held, self.tokenizer, recipe.tokens, count, recipe.seed)

    def train(self) -> Iterator[Progress]:
        """Run the rest of the training. Save a checkpoint after each block of steps or text."""
        if self.of_features is not None and self.stepped < self.recipe.steps:
            lessons: list[int] = []
            yield from self._read_lessons(lessons)
            yield from self._learn(lessons, self.of_features)
        met = self.done > 0
        while self.done < len(self.order):
            started = time.perf_counter()
            draw = random.Random(f"{self.recipe.seed}:{self.done}")
            name = self.order[self.done]
            ids = excerpt(name, self.tokenizer, self.recipe.tokens, draw)
            loss = self._text(ids)
            self.done += 1
            met = met or not math.isnan(loss)
            self._save_checkpoint()
            spent = time.perf_counter() - started
            yield Progress("text", self.done, len(self.order), loss, len(ids), spent)
        if not met:
            raise self._nothing_left()

    def _nothing_left(self) -> UsageError:
        return UsageError(
            f"No text was longer than a budget of {self.recipe.budget:,} holds; lower --budget."
        )

    # Features

    @property
    def lesson_files(self) -> LessonFiles:
        recipe = self.recipe
        of = [*self._weights, self.learned, recipe.budget, recipe.tokens, recipe.seed]
        return LessonFiles(self.out.with_name(self.out.name + ".lessons"), json.dumps(of))

    def _read_lessons(self, lessons: list[int]) -> Iterator[Progress]:
        """Add to `lessons` the numbers of those from which features can learn.

        They are the same in every run and do not depend on the training.
        """
        recipe, files = self.recipe, self.lesson_files
        if not self.resuming:
            files.remove()
        for number in range(recipe.lessons):
            started, tokens = time.perf_counter(), 0
            met = files.read(number)
            if met is None:
                lesson, draw = self._lesson(number)
                tokens = len(lesson.ids)
                head = build_prompt(self.tokenizer).head
                met = noted(self.model, head, self.method, recipe.budget, lesson, draw) or {}
                files.write(number, met)
            self.read = number + 1
            if met:
                lessons.append(number)
            spent = time.perf_counter() - started
            yield Progress("lesson", number + 1, recipe.lessons, math.nan, tokens, spent)
        if not lessons:
            raise self._nothing_left()

    def _lesson(self, number: int) -> tuple[Lesson, random.Random]:
        """Return a lesson, and the random generator that goes on after it."""
        recipe = self.recipe
        draw = random.Random(f"{recipe.seed}:lesson:{number}")
        size = draw.randrange(self._shortest, recipe.tokens)
        ids = excerpt(draw.choice(self.learned), self.tokenizer, size, draw)
        made = None
        if draw.random() >= PROSE:
            made = with_questions(ids, self.tokenizer, recipe.budget // 4, draw)
        return made or of_prose(ids), draw

    def _learn(
        self, lessons: Sequence[int], optimizer: torch.optim.Optimizer
    ) -> Iterator[Progress]:
        steps, gates = self.recipe.steps, cast(dict[int, LearnedGate], self.gates)
        files = self.lesson_files
        while self.stepped < steps:
            started, total = time.perf_counter(), 0.0
            draw = random.Random(f"{self.recipe.seed}:step:{self.stepped}")
            block = min(BLOCK, steps - self.stepped)
            for _ in range(block):
                rate = FEATURE_RATE * rising_then_falling(self.stepped / steps)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                met = files.read(draw.choice(lessons))
                assert met
                loss = divergence(gates, met)
                self._step(optimizer, loss)
                total += float(loss.detach())
                self.stepped += 1
            self._save_checkpoint()
            spent = time.perf_counter() - started
            yield Progress("step", self.stepped, steps, total / block, 0, spent)

    def _step(self, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        if not torch.isfinite(loss):
            raise KvstreamError(f"The loss is {float(loss.detach())}; train with a lower --lr.")
        loss.backward()
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        for weight in self.parameters:  # weights of the other optimizer got gradients too
            weight.grad = None

    # MLP and vectors

    def _text(self, ids: Sequence[int]) -> float:
        method = with_gates(self.method, self.gates)
        reader = open_reader(self.model, self.tokenizer, method, self.recipe.budget, len(ids))
        reader.begin()
        losses = []
        at = 0
        while at < len(ids):
            part = ids[at : at + reader.schedule.chunk()]
            if reader.cache.compressive_memory is not None and len(part) > 1:
                losses.append(self._chunk(reader.cache, part, (at + len(part)) / len(ids)))
            at += len(part)
            reader.step(Chunk(part, at - len(part)), last=at == len(ids))
        return sum(losses) / len(losses) if losses else math.nan

    def _chunk(self, cache: BoundedCache, ids: Sequence[int], within: float) -> float:
        rate = self.recipe.lr * rising_then_falling((self.done + within) / len(self.order))
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["times"]
        loss = chunk_loss(self.model, cache, ids, self.gates)
        self._step(self.optimizer, loss)
        return float(loss.detach())

    # Checkpoints

    @property
    def checkpoint(self) -> Path:
        return self.out.with_name(self.out.name + ".checkpoint")

    def resume(self) -> bool:
        """Continue from a checkpoint, or from the lessons that were read before the first one.

        Return False if there is neither. Raise UsageError if the checkpoint is of another run.
        """
        self.resuming = True
        if not self.checkpoint.is_file():
            numbers = takewhile(self.lesson_files.__contains__, range(self.recipe.lessons))
            self.read = sum(1 for _ in numbers)
            return self.read > 0
        stored = torch.load(self.checkpoint, weights_only=True)
        if stored["recipe"] != self._identity():
            raise UsageError(
                f"{self.checkpoint} belongs to a training with other settings or weights; remove "
                "it, or train with the same model and settings as before."
            )
        for layer, gate in self.gates.items():
            gate.load_state_dict(stored["gates"][layer])
        for optimizer, state in zip(self._optimizers(), stored["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.stepped, self.done = int(stored["stepped"]), int(stored["done"])
        return True

    def save(self) -> None:
        """Write the gates, and remove the checkpoint and the lessons."""
        save_gates(self.gates, self.out, {"model": self.model.name, **self._recipe()})
        self.checkpoint.unlink(missing_ok=True)
        self.lesson_files.remove()

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.optimizer, *([self.of_features] if self.of_features is not None else [])]

    def _recipe(self) -> dict[str, str]:
        return {k: json.dumps(v) for k, v in dataclasses.asdict(self.recipe).items()}

    def _identity(self) -> dict[str, str]:
        name, fingerprint, dtype = self._weights
        return {
            "model": name,
            "fingerprint": fingerprint,
            "dtype": dtype,
            "order": json.dumps(self.order),
            **self._recipe(),
        }

    @property
    def _weights(self) -> tuple[str, str, str]:
        """The weights that a gate is trained for.

        Other weights, or the same ones in another dtype, give other keys and queries.
        """
        model = self.model
        return model.name, model.fingerprint, model.weights_dtype

    def _save_checkpoint(self) -> None:
        state: dict[str, Any] = {
            "recipe": self._identity(),
            "gates": {layer: gate.state_dict() for layer, gate in self.gates.items()},
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers()],
            "stepped": self.stepped,
            "done": self.done,
        }
        self.out.parent.mkdir(parents=True, exist_ok=True)
        replace(self.checkpoint, lambda file: torch.save(state, file))


def rising_then_falling(progress: float) -> float:
    """Return the share of the peak learning rate at this share of the training."""
    rise = min(1.0, progress / WARM_UP)
    return rise * (0.5 + 0.5 * math.cos(math.pi * min(1.0, progress)))


def save_gates(gates: Mapping[int, Gate], path: Path, about: dict[str, str]) -> None:
    """Write a safetensors file that the method loads. It is replaced as a whole."""
    from safetensors.torch import save

    tensors = {
        f"layers.{layer}.{name}": value.detach().cpu().contiguous()
        for layer, gate in gates.items()
        for name, value in gate.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, lambda file: file.write(save(tensors, metadata=about)))
