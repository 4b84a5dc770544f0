"""Training of ``reader``: a LoRA adapter for SmolLM2-135M-Instruct that answers from memory.

    python docs/research/lab/reader.py --model FOLDER --data ../shared/data --out build/reader

A run continues from the checkpoint in ``--out`` if there is one. It ends at its limit of wall time
or of tokens, whichever comes first. The learning rate falls to zero over the last part of the run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from kvstream.store.reader import ADAPTER
from kvstream.tokenization.loading import load_tokenizer
from kvstream_lab.synthetic.corpus import Corpus
from kvstream_lab.training.reader_rows import ReaderRows, Row, visible


@dataclass(frozen=True)
class ReaderRecipe:
    """All settings of a run, except model and data."""

    minutes: float = 115.0
    """Total wall time of all runs."""
    tokens: int = 10**9
    """Maximum number of tokens of all runs."""
    rank: int = 24
    """Rank of the adapter. On all linear layers of SmolLM2-135M, 24 makes 7.3M parameters."""
    rate: float = 5e-4
    """Peak learning rate of AdamW."""
    decay_share: float = 0.35
    """Share of the run, at its end, over which the learning rate falls to zero."""
    step_tokens: int = 1600
    """Tokens per update."""
    batch_tokens: int = 0
    """Tokens of a forward pass, with padding. If 0, each row is a pass of its own, which is best on
    a CPU. A GPU is faster with some ten thousand."""
    workers: int = 0
    """Processes that make rows. If 0, this process makes them. A GPU needs about eight."""
    lengths: str = "400:50,600:35,1000:12,1800:3"
    """Row lengths and their shares of the rows."""
    paragraphs: float = 0.0
    """Share of rows with whole passages and all human questions about them."""
    excerpts: float = 0.0
    """Share of rows with excerpts from several places, including similar keys."""
    start: str = ""
    """Folder of the packed adapter that a new run starts from. If empty, the adapter is new."""
    seed: int = 0
    checkpoint_minutes: float = 5.0
    device: str = "cpu"


LOG_SECONDS = 15
"""Seconds between two lines of the log."""


def load_adapted(folder: Path, recipe: ReaderRecipe) -> Any:
    """Load the base model in bfloat16 with a float32 adapter: a new one, or that of the recipe."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    # Each row has its own mask. With such a mask, eager attention is faster on a CPU (1.3 times).
    attention = "eager" if recipe.device == "cpu" else "sdpa"
    base = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation=attention
    )
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=2 * recipe.rank,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, config, autocast_adapter_dtype=True)
    if recipe.start:
        start_from(model, load_file(Path(recipe.start) / ADAPTER))
    return model.to(recipe.device)


def start_from(model: Any, packed: dict[str, Tensor]) -> None:
    """Copy the weights of a packed adapter into the adapter of ``model``.

    Raise ValueError if the packed adapter has weights that the model lacks.
    """
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for name, weight in weights.items():
        layer, _, side = name.removeprefix("base_model.model.").partition(".lora_")
        weight.data.copy_(packed.pop(f"{layer}.{side[0]}"))
    if packed:
        raise ValueError(f"the adapter has weights that the model lacks: {sorted(packed)[:3]}")


def padded(rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return ids, positions and segments [B, T], and where [n] and targets [n] of all rows.

    ``where`` indexes the flattened ids. Padding gets its own segment: no token of the row sees it.
    It sees the document, but has no targets.
    """
    made, size = [row.tensors() for row in rows], max(map(len, rows))
    ids = torch.stack([F.pad(t[0], (0, size - len(t[0]))) for t in made])
    positions = torch.stack([F.pad(t[1], (0, size - len(t[1]))) for t in made])
    segments = torch.stack(
        [F.pad(t[2], (0, size - len(t[2])), value=int(t[2].max()) + 1) for t in made]
    )
    where = torch.cat([t[3] + number * size for number, t in enumerate(made)])
    return ids, positions, segments, where, torch.cat([t[4] for t in made])


def passes(rows: Sequence[Row], tokens: int) -> Iterator[list[Row]]:
    """Split the rows of an update into forward passes of at most ``tokens`` tokens with padding.

    Rows of similar length go together. A longer row is a pass of its own, and with 0 tokens each
    row is.
    """
    ordered = sorted(rows, key=len, reverse=True)
    while ordered:
        count = max(1, tokens // len(ordered[0]))
        yield ordered[:count]
        ordered = ordered[count:]


def loss_of(model: Any, rows: Sequence[Row], device: str) -> Tensor:
    """Return the cross-entropy [n] of the answer tokens of the rows, in nats, in one pass."""
    ids, positions, segments, where, targets = (t.to(device) for t in padded(rows))
    seen = visible(segments)
    mask = torch.zeros(seen.shape, dtype=torch.bfloat16, device=device)
    mask.masked_fill_(~seen, torch.finfo(torch.bfloat16).min)
    causal = model.base_model.model
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        hidden = causal.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask[:, None],
            use_cache=False,
        ).last_hidden_state
        logits = causal.lm_head(hidden.flatten(0, 1)[where])
    return F.cross_entropy(logits.float(), targets, reduction="none")


class Steps(IterableDataset[list[Row]]):
    """The rows of each update, without end. Workers share out the whole passages of the corpus."""

    def __init__(self, folder: Path, data: Path, recipe: ReaderRecipe, seed: int) -> None:
        self.folder, self.data, self.recipe, self.seed = folder, data, recipe, seed

    def __iter__(self) -> Iterator[list[Row]]:
        recipe, worker = self.recipe, get_worker_info()
        part = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        seed = self.seed + 104_729 * part[0]
        rng, tokenizer = random.Random(seed), load_tokenizer(str(self.folder))
        made = ReaderRows(
            Corpus(self.data), seed, tokenizer, recipe.paragraphs, recipe.excerpts, part
        )
        kinds = [tuple(map(int, part.split(":"))) for part in recipe.lengths.split(",")]
        lengths, shares = zip(*kinds, strict=True)
        while True:
            rows: list[Row] = []
            while sum(map(len, rows)) < recipe.step_tokens:
                rows.append(made.reading(rng.choices(lengths, shares)[0]))
            yield rows


class Training:
    """The state of a run, saved in ``out/state.pt``."""

    def __init__(self, folder: Path, data: Path, out: Path, recipe: ReaderRecipe) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.out = recipe, out
        out.mkdir(parents=True, exist_ok=True)
        self.model = load_adapted(folder, recipe)
        self.weights = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.weights.values(), lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01
        )
        self.totals = {"tokens": 0, "answers": 0, "steps": 0, "minutes": 0.0}
        if (out / "state.pt").exists():
            self._take_up()
        seed = recipe.seed + 7919 * int(self.totals["steps"])
        self.steps = iter(
            DataLoader(
                Steps(folder, data, recipe, seed), batch_size=None, num_workers=recipe.workers
            )
        )

    def _take_up(self) -> None:
        state = torch.load(self.out / "state.pt", map_location="cpu", weights_only=True)
        for name, weight in self.weights.items():
            weight.data.copy_(state["weights"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.totals = state["totals"]

    def save(self) -> None:
        """Write the checkpoint and the adapter, each file under a temporary name first."""
        state = {
            "weights": {n: p.detach().cpu() for n, p in self.weights.items()},
            "optimizer": self.optimizer.state_dict(),
            "totals": self.totals,
        }
        torch.save(state, self.out / "state.part")
        (self.out / "state.part").replace(self.out / "state.pt")
        part, adapter = self.out / "adapter.part", self.out / "adapter"
        self.model.save_pretrained(part)
        adapter.mkdir(exist_ok=True)
        for file in part.iterdir():
            file.replace(adapter / file.name)
        part.rmdir()

    @property
    def progress(self) -> float:
        recipe, totals = self.recipe, self.totals
        return max(totals["minutes"] / recipe.minutes, totals["tokens"] / recipe.tokens)

    def rate(self) -> float:
        """Return the current learning rate: a short warmup, a plateau, a linear fall to zero."""
        recipe = self.recipe
        fall = min(1.0, max(0.0, 1 - self.progress) / recipe.decay_share)
        return recipe.rate * min(fall, (self.totals["steps"] + 1) / 40)

    def step(self) -> tuple[float, int]:
        """Make one update. Return the sum of the losses and the number of answer tokens."""
        rows = next(self.steps)
        answers = sum(len(answer) for row in rows for _, answer in row.asked)
        total = 0.0
        for some in passes(rows, self.recipe.batch_tokens):
            losses = loss_of(self.model, some, self.recipe.device)
            (losses.sum() / answers).backward()
            total += float(losses.detach().sum())
        torch.nn.utils.clip_grad_norm_(self.weights.values(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.totals["tokens"] += sum(map(len, rows))
        self.totals["answers"] += sum(len(row.asked) for row in rows)
        self.totals["steps"] += 1
        return total, answers

    def run(self) -> None:
        """Train to the end of the recipe."""
        before, begun = self.totals["minutes"], time.monotonic()
        saved = logged = begun
        loss, answers = 0.0, 0
        while self.progress < 1:
            more, count = self.step()
            loss, answers = loss + more, answers + count
            now = time.monotonic()
            self.totals["minutes"] = before + (now - begun) / 60
            if now - logged > LOG_SECONDS:
                line = {
                    **{k: round(v, 1) for k, v in self.totals.items()},
                    "rate": round(self.rate(), 6),
                    "loss": round(loss / answers, 4),
                }
                with (self.out / "log.jsonl").open("a", encoding="utf-8") as log:
                    log.write(json.dumps(line) + "\n")
                loss, answers, logged = 0.0, 0, now
            if now - saved > 60 * self.recipe.checkpoint_minutes:
                self.save()
                saved = now
        self.save()
        card = {"recipe": asdict(self.recipe), "totals": self.totals}
        (self.out / "card.json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Train and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    for field in fields(ReaderRecipe):
        option = "--" + field.name.replace("_", "-")
        parser.add_argument(option, type=type(field.default), default=field.default)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    recipe = ReaderRecipe(**{f.name: getattr(options, f.name) for f in fields(ReaderRecipe)})
    Training(options.model, options.data, options.out, recipe).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
