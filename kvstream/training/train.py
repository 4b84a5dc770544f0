"""The training loop: shards in, checkpoints and a loadable folder out.

Progress is measured in minutes or tokens, whichever runs out first, so the same recipe fits an
hour of one CPU core and ten minutes of a GPU.
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

from kvstream.training import attention
from kvstream.training.grow import make_copying, parse_heads
from kvstream.training.initial import initial_model, pocket_config
from kvstream.training.optim import MuonAdam
from kvstream.training.rows import ANSWER, PAD, TEXT
from kvstream.training.shards import read_shards


@dataclass(frozen=True)
class Recipe:
    """Everything that a run depends on, besides its data."""

    minutes: float = 100.0
    """Wall time of this run; the rate has decayed to zero at its end."""
    tokens: int = 10**12
    """Tokens of this run, if they are reached first."""
    rate: float = 2e-3
    """Peak learning rate of the matrices."""
    decay_share: float = 0.4
    """Last part of the run, over which the rate falls to zero."""
    step_tokens: int = 8192
    """Tokens an update; one row at least."""
    loss_share: float = 0.28
    """Part of the positions that get a loss."""
    answer_share: float = 0.6
    """Most of the loss positions that may be answers."""
    text_weight: float = 0.6
    """Weight of the other positions against an answer's 1."""
    z_loss: float = 1e-4
    """Weight of the squared log-normalizer."""
    lengths: str = "256:45,512:30,1024:20,2048:5"
    """Row lengths with their share of the tokens, at the start of a run."""
    late_lengths: str = "256:25,512:25,1024:25,2048:15,4096:10"
    """The same for the part of the run in which the rate decays."""
    layers: int = 6
    width: int = 256
    heads: int = 4
    inner: int = 768
    copying_heads: str = ""
    """KV heads that can copy from the first step, as layer:head, such as "2:0,3:0,4:0,5:1"."""
    seed: int = 0
    checkpoint_minutes: float = 10.0
    device: str = "cpu"


def parse_lengths(text: str) -> dict[int, float]:
    """``"256:75,512:25"`` to shares that sum to one."""
    pairs = [part.split(":") for part in text.split(",")]
    total = sum(float(share) for _, share in pairs)
    return {int(length): float(share) / total for length, share in pairs}


def choose_positions(codes: np.ndarray, recipe: Recipe, rng: np.random.Generator) -> np.ndarray:
    """Flat positions [n] whose next token gets a loss, from codes [rows, length].

    Answers first, up to their share; the rest is a random choice of text.
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
    chosen = rng.choice(text, rest, replace=len(text) < rest)  # one size: one compiled graph
    return np.sort(np.concatenate([answers, chosen]))


def batches(
    folder: Path, lengths: dict[int, float], recipe: Recipe, seed: int
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Ids [rows, length], positions [n], targets [n] and weights [n], endlessly."""
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
    """Cross entropy [n] at the chosen positions, and the mean z-loss."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
    logits = F.linear(hidden[positions], model.model.embed_tokens.weight).float()
    normalizer = logits.logsumexp(-1)
    each = normalizer - logits.gather(1, targets[:, None]).squeeze(1)
    return each, z_loss * normalizer.square().mean()


def export(model: LlamaForCausalLM, optimizer: MuonAdam, folder: Path) -> None:
    """Write config and bfloat16 weights as the hub expects them."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(dict(optimizer.masters), strict=False)
    copy.tie_weights()
    copy.bfloat16().save_pretrained(folder)
    # Older readers of Llama configurations look for the base beside the new field.
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config |= {"rope_theta": 5e5, "max_position_embeddings": model.config.max_position_embeddings}
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
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
    """Run ``recipe``; ``out`` gets ``state.pt``, ``log.jsonl`` and the exported ``model/``.

    With ``resume`` (a ``state.pt``) the weights, moments and totals go on from there.  When that
    run was stopped before its end, so do its clock and its rate; after a finished run a new one
    begins, with a rate that rises and decays again.  With ``start`` (an exported model) a new run
    begins from its weights, and counts its own tokens alone.
    """
    torch.manual_seed(recipe.seed)
    out.mkdir(parents=True, exist_ok=True)
    device = torch.device(recipe.device)
    config = pocket_config(recipe.layers, recipe.width, recipe.heads, recipe.inner)
    model = initial_model(config, recipe.seed)
    if recipe.copying_heads and resume is None:
        make_copying(dict(model.named_parameters()), parse_heads(recipe.copying_heads), [0.25] * 99)
    if start is not None and resume is None:
        model = LlamaForCausalLM.from_pretrained(start, dtype=torch.float32)
    if device.type == "cpu":
        model.set_attn_implementation(attention.register())
    optimizer = MuonAdam(model)
    model.bfloat16()
    if device.type == "cuda":
        model.to(device)  # type: ignore[arg-type]
    totals = {"tokens": 0.0, "minutes": 0.0, "steps": 0.0, "runs": 1.0}
    before_tokens = before_minutes = 0.0  # of this run, when it is taken up again
    if resume is not None:
        state = torch.load(resume, map_location="cpu", weights_only=True)
        optimizer.load_state_dict(state["optimiser"])
        totals = state["totals"]
        if state["progress"] < 1.0 and state["recipe"] == asdict(recipe):
            before_tokens, before_minutes = state["run_tokens"], state["run_minutes"]
        else:
            totals["runs"] += 1
    if device.type == "cuda":
        for store in (optimizer.masters, optimizer.momentum, optimizer.second):
            for name in store:
                store[name] = store[name].to(device)
    step_loss = torch.compile(loss_of, dynamic=False)  # one graph a row length
    _dynamo.config.recompile_limit = 64

    seed = recipe.seed + int(totals["steps"]) * 7919
    early = batches(shards, parse_lengths(recipe.lengths), recipe, seed)
    late = batches(shards, parse_lengths(recipe.late_lengths), recipe, seed + 1)
    begun, tokens = time.monotonic(), 0.0
    last_saved = last_logged = begun
    sums: dict[str, float] = {"answer": 0.0, "answers": 0.0, "text": 0.0, "texts": 0.0}
    progress = 0.0

    def save(done: float) -> None:
        state = {
            "optimiser": optimizer.state_dict(),
            "totals": totals,
            "progress": done,
            "recipe": asdict(recipe),
            "run_tokens": before_tokens + tokens,
            "run_minutes": before_minutes + (time.monotonic() - begun) / 60,
        }
        torch.save(state, out / "state.part")
        (out / "state.part").replace(out / "state.pt")
        export(model, optimizer, out / "model")

    while progress < 1.0:
        minutes = before_minutes + (time.monotonic() - begun) / 60
        progress = max(minutes / recipe.minutes, (before_tokens + tokens) / recipe.tokens)
        decaying = progress > 1 - recipe.decay_share
        rate = recipe.rate * min(1.0, max(0.0, 1 - progress) / max(recipe.decay_share, 1e-9))
        rate *= min(1.0, (optimizer.count + 1) / 50, 0.1 + tokens / 200_000)
        ids, positions, targets, weights = (
            t.to(device, non_blocking=True) for t in next(late if decaying else early)
        )
        each, z_loss = step_loss(model, ids, positions, targets, recipe.z_loss)
        ((each * weights).sum() / weights.sum() + z_loss).backward()
        norm = optimizer.step(rate)
        tokens += ids.numel()
        totals["tokens"] += ids.numel()
        totals["steps"] += 1
        is_answer = weights == 1.0
        sums["answer"] += float(each.detach()[is_answer].sum())
        sums["answers"] += float(is_answer.sum())
        sums["text"] += float(each.detach()[~is_answer].sum())
        sums["texts"] += float((~is_answer).sum())
        now = time.monotonic()
        if now - last_logged > 30 or progress >= 1.0:
            line = {
                "tokens": int(totals["tokens"]),
                "run_minutes": round(before_minutes + (now - begun) / 60, 2),
                "progress": round(progress, 4),
                "rate": round(rate, 6),
                "answer_loss": round(sums["answer"] / max(1.0, sums["answers"]), 4),
                "text_loss": round(sums["text"] / max(1.0, sums["texts"]), 4),
                "gradient": round(norm, 3),
                "tokens_per_second": round(tokens / (now - begun)),
            }
            with (out / "log.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            sums = dict.fromkeys(sums, 0.0)
            last_logged = now
        if now - last_saved > recipe.checkpoint_minutes * 60:
            totals["minutes"] += (now - last_saved) / 60
            last_saved = now
            save(progress)
    totals["minutes"] += (time.monotonic() - last_saved) / 60
    save(1.0)
    return totals


__all__ = ["PAD", "Recipe", "batches", "choose_positions", "export", "loss_of", "train"]
