"""The training loop: read shards, write checkpoints and a loadable model folder.

Progress is measured in minutes or tokens, whichever reaches its limit first. So the same recipe
works for an hour of one CPU core and for ten minutes of a GPU.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, _dynamo
from transformers import LlamaForCausalLM

from kvstream_lab.training import attention
from kvstream_lab.training.initial import initial_model, pocket_config
from kvstream_lab.training.optim import MuonAdam
from kvstream_lab.training.rows import ANSWER, TEXT
from kvstream_lab.training.shards import read_shards


@dataclass(frozen=True)
class Recipe:
    """All settings of a run, except its data."""

    minutes: float = 100.0
    """Wall time of this run. At its end the learning rate is zero."""
    tokens: int = 10**12
    """Maximum number of tokens of this run."""
    rate: float = 2e-3
    """Peak learning rate of the matrices."""
    decay_share: float = 0.4
    """Share of the run, at its end, over which the learning rate falls to zero."""
    step_tokens: int = 8192
    """Tokens per update; at least one row."""
    loss_share: float = 0.28
    """Share of the positions that get a loss."""
    answer_share: float = 0.6
    """Maximum share of the loss positions that are answers."""
    text_weight: float = 0.6
    """Weight of the other positions; answers have weight 1."""
    z_loss: float = 1e-4
    """Weight of the squared log-normalizer."""
    lengths: str = "256:45,512:30,1024:20,2048:5"
    """Row lengths and their shares of the batches, before the learning rate falls."""
    late_lengths: str = "256:25,512:25,1024:25,2048:15,4096:10"
    """The same for the part of the run in which the learning rate falls."""
    layers: int = 6
    width: int = 256
    heads: int = 4
    inner: int = 768
    seed: int = 0
    checkpoint_minutes: float = 10.0
    device: str = "cpu"


def parse_lengths(text: str) -> dict[int, float]:
    """Parse ``"256:75,512:25"`` into shares that sum to one."""
    pairs = [part.split(":") for part in text.split(",")]
    total = sum(float(share) for _, share in pairs)
    return {int(length): float(share) / total for length, share in pairs}


def choose_positions(codes: np.ndarray, recipe: Recipe, rng: np.random.Generator) -> np.ndarray:
    """Choose flat positions [n] whose next token gets a loss, from codes [rows, length].

    Take answers first, up to their share, then a random choice of text.
    """
    targets = codes[:, 1:]
    rows, columns = np.nonzero(targets == ANSWER)
    answers = rows * codes.shape[1] + columns
    rows, columns = np.nonzero(targets == TEXT)
    text = rows * codes.shape[1] + columns
    total = int(codes.size * recipe.loss_share)
    most = int(total * recipe.answer_share)
    if len(answers) > most:
        answers = rng.choice(answers, most, replace=False)
    rest = total - len(answers)
    chosen = rng.choice(text, rest, replace=len(text) < rest)  # a constant size: one compiled graph
    return np.sort(np.concatenate([answers, chosen]))


def batches(
    folder: Path, lengths: dict[int, float], recipe: Recipe, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield ids [rows, length], positions [n], targets [n] and weights [n] without end."""
    rng = np.random.default_rng(seed)
    chooser = random.Random(seed)
    readers = {length: read_shards(folder, length, seed) for length in lengths}
    while True:
        length = chooser.choices(list(lengths), list(lengths.values()))[0]
        rows = [next(readers[length]) for _ in range(max(1, recipe.step_tokens // length))]
        ids = np.stack([r[0] for r in rows]).astype(np.int64)
        codes = np.stack([r[1] for r in rows])
        positions = choose_positions(codes, recipe, rng)
        targets = ids.reshape(-1)[positions + 1]
        weights = np.where(codes.reshape(-1)[positions + 1] == ANSWER, 1.0, recipe.text_weight)
        yield (
            torch.from_numpy(ids),
            torch.from_numpy(positions),
            torch.from_numpy(targets),
            torch.from_numpy(weights).float(),
        )


def loss_of(
    model: LlamaForCausalLM, ids: Tensor, positions: Tensor, targets: Tensor, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy [n] at the chosen positions, and the mean z-loss."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
    logits = F.linear(hidden[positions], model.model.embed_tokens.weight).float()
    normalizer = logits.logsumexp(-1)
    each = normalizer - logits.gather(1, targets[:, None]).squeeze(1)
    return each, z_loss * normalizer.square().mean()


def export(model: LlamaForCausalLM, optimizer: MuonAdam, folder: Path) -> None:
    """Write config and bfloat16 weights in the hub's format."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(dict(optimizer.masters), strict=False)
    copy.tie_weights()
    copy.bfloat16().save_pretrained(folder)
    generation = {
        "bos_token_id": model.config.bos_token_id,
        "eos_token_id": model.config.eos_token_id,
        "pad_token_id": model.config.pad_token_id,
        "do_sample": False,
    }
    text = json.dumps(generation, indent=2) + "\n"
    (folder / "generation_config.json").write_text(text, encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)


def train(
    recipe: Recipe,
    shards: Path,
    out: Path,
    resume: Path | None = None,
    start: Path | None = None,
) -> dict[str, float]:
    """Run ``recipe``; write ``state.pt``, ``log.jsonl`` and the exported ``model/`` to ``out``.

    With ``resume`` (a ``state.pt``), weights, moments and totals continue from there. If that run
    was stopped before its end and had the same recipe, its time and its learning rate continue too.
    Otherwise a new run begins, with its own warmup and decay. With ``start`` (an exported model), a
    new run begins from its weights and counts only its own tokens.
    """
    return Training(recipe, shards, out, resume, start).run()


class Training:
    """The state of a run, saved in ``state.pt``; `train` explains the arguments."""

    def __init__(
        self, recipe: Recipe, shards: Path, out: Path, resume: Path | None, start: Path | None
    ) -> None:
        torch.manual_seed(recipe.seed)
        out.mkdir(parents=True, exist_ok=True)
        self.recipe, self.out = recipe, out
        self.device = torch.device(recipe.device)
        config = pocket_config(recipe.layers, recipe.width, recipe.heads, recipe.inner)
        self.model = initial_model(config, recipe.seed)
        if start is not None and resume is None:  # a resumed run replaces the weights
            self.model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
        if self.device.type == "cpu":
            self.model.set_attn_implementation(attention.register())
        self.optimizer = MuonAdam(self.model)
        self.model.bfloat16()
        if self.device.type == "cuda":
            self.model.to(self.device)  # type: ignore[arg-type]
        self.totals = {"tokens": 0.0, "minutes": 0.0, "steps": 0.0, "runs": 1.0}
        self.tokens = self.earlier_minutes = 0.0
        """Tokens of this run, with those before it was resumed, and its minutes before that."""
        if resume is not None:
            self._take_up(resume)
        if self.device.type == "cuda":
            for store in (self.optimizer.masters, self.optimizer.momentum, self.optimizer.second):
                for name in store:
                    store[name] = store[name].to(self.device)
        self._loss_of = torch.compile(loss_of, dynamic=False)  # one graph per row length
        _dynamo.config.recompile_limit = 64
        seed = recipe.seed + int(self.totals["steps"]) * 7919
        self._early = batches(shards, parse_lengths(recipe.lengths), recipe, seed)
        self._late = batches(shards, parse_lengths(recipe.late_lengths), recipe, seed + 1)
        self._begun, self._read_before = time.monotonic(), self.tokens
        self._last_saved = self._last_logged = self._begun
        self._sums = dict.fromkeys(("answer", "answers", "text", "texts"), 0.0)

    def _take_up(self, resume: Path) -> None:
        state = torch.load(resume, map_location="cpu", weights_only=True)
        self.optimizer.load_state_dict(state["optimiser"])
        self.totals = state["totals"]
        if state["progress"] < 1.0 and state["recipe"] == asdict(self.recipe):
            self.tokens, self.earlier_minutes = state["run_tokens"], state["run_minutes"]
        else:
            self.totals["runs"] += 1

    @property
    def minutes(self) -> float:
        """Wall time of this run."""
        return self.earlier_minutes + (time.monotonic() - self._begun) / 60

    def rate(self, progress: float) -> float:
        """Return the learning rate: a rise over steps and tokens, a plateau, a linear fall to 0."""
        recipe = self.recipe
        fall = min(1.0, max(0.0, 1 - progress) / max(recipe.decay_share, 1e-9))
        rise = min(1.0, (self.optimizer.count + 1) / 50, 0.1 + self.tokens / 200_000)
        return recipe.rate * fall * rise

    def run(self) -> dict[str, float]:
        """Train to the end of the recipe; return the totals."""
        recipe, progress = self.recipe, 0.0
        while progress < 1.0:
            progress = max(self.minutes / recipe.minutes, self.tokens / recipe.tokens)
            rate = self.rate(progress)
            gradient = self._step(rate, decaying=progress > 1 - recipe.decay_share)
            now = time.monotonic()
            if now - self._last_logged > 30 or progress >= 1.0:
                self._log(now, progress, rate, gradient)
            if now - self._last_saved > recipe.checkpoint_minutes * 60:
                self.save(progress)
        self.save(1.0)
        return self.totals

    def _step(self, rate: float, *, decaying: bool) -> float:
        """Make one update; return the norm of the gradient."""
        ids, positions, targets, weights = (
            t.to(self.device, non_blocking=True)
            for t in next(self._late if decaying else self._early)
        )
        each, z_loss = self._loss_of(self.model, ids, positions, targets, self.recipe.z_loss)
        ((each * weights).sum() / weights.sum() + z_loss).backward()
        norm = self.optimizer.step(rate)
        self.tokens += ids.numel()
        self.totals["tokens"] += ids.numel()
        self.totals["steps"] += 1
        is_answer, losses, sums = weights == 1.0, each.detach(), self._sums
        sums["answer"] += float(losses[is_answer].sum())
        sums["answers"] += float(is_answer.sum())
        sums["text"] += float(losses[~is_answer].sum())
        sums["texts"] += float((~is_answer).sum())
        return norm

    def _log(self, now: float, progress: float, rate: float, gradient: float) -> None:
        sums, read = self._sums, self.tokens - self._read_before
        line = {
            "tokens": int(self.totals["tokens"]),
            "run_minutes": round(self.minutes, 2),
            "progress": round(progress, 4),
            "rate": round(rate, 6),
            "answer_loss": round(sums["answer"] / max(1.0, sums["answers"]), 4),
            "text_loss": round(sums["text"] / max(1.0, sums["texts"]), 4),
            "gradient": round(gradient, 3),
            "tokens_per_second": round(read / (now - self._begun)),
        }
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        self._sums = dict.fromkeys(sums, 0.0)
        self._last_logged = now

    def save(self, progress: float) -> None:
        """Write the checkpoint, under a temporary name first, and export the model."""
        now = time.monotonic()
        self.totals["minutes"] += (now - self._last_saved) / 60
        self._last_saved = now
        state = {
            "optimiser": self.optimizer.state_dict(),
            "totals": self.totals,
            "progress": progress,
            "recipe": asdict(self.recipe),
            "run_tokens": self.tokens,
            "run_minutes": self.minutes,
        }
        torch.save(state, self.out / "state.part")
        (self.out / "state.part").replace(self.out / "state.pt")
        export(self.model, self.optimizer, self.out / "model")
