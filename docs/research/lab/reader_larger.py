"""Training of ``reader-0.5b``: a LoRA adapter for Qwen2.5-Coder-0.5B-Instruct, on a CPU.

    python docs/research/lab/reader_larger.py --model FOLDER --data ../shared/data \
        --out build/larger --minutes 100 --threads 1

``--queries docs/research/lab/questions/queries --rank 8`` trains the adapter that writes queries.

The frozen weights multiply in 8 bits, forward and backward: 1.4 times as fast as in float32 (Zen 3
EPYC, one thread), and the gradient of a row has a cosine of 0.989 with that of float32. On a CPU
with matrix tiles, ``--halves`` computes in bfloat16, four times as fast. The folder is the base
model in float32. A run continues from the checkpoint in ``--out``, with its own learning rate,
which falls linearly, or begins with the packed adapter of ``--start``. ``reader-0.5b`` comes from
five runs (``card.json``): the mean of the last two, which began with the same adapter.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from kvstream.model import int8
from kvstream.store.reader import ADAPTER
from kvstream_lab.training.paragraph_rows import ParagraphRows
from kvstream_lab.training.query_rows import QueryRows
from kvstream_lab.training.reader_rows import Row, visible
from reader import start_from

RANK, FIRST = 16, 6
"""Rank of the adapter, and the first layer that has it: the gradient ends there."""
WARMUP, LEAST = 15, 0.02
"""Updates of a first run until the peak learning rate, and the least share of that rate."""
STEP_TOKENS = 900
"""Least tokens of an update."""
SAVED = 300
"""Seconds between two checkpoints."""
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class _Product(torch.autograd.Function):
    """The product with frozen weights. The gradient is one with their transpose, in 8 bits too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Frozen) -> Tensor:
        ctx.layer = layer
        return layer.ahead.product(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.back.product(grads[0].contiguous()), None


def has_halves() -> bool:
    """Return whether this CPU multiplies in bfloat16; AVX2 alone does not."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Halves:
    """A product in bfloat16, with weights [out, in] that are packed for matrix tiles."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), 736)
        self._more: Any = packed, None if bias is None else bias.bfloat16(), "none", [], ""

    def product(self, x: Tensor) -> Tensor:
        """Return the product with rows, in their type."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x.bfloat16(), *self._more)
        return out.to(x.dtype)


class Frozen(nn.Module):
    """A linear layer that is not trained, in 8 bits or in bfloat16 (`halves`)."""

    def __init__(self, linear: nn.Linear, columns: Sequence[int], *, halves: bool = False) -> None:
        """`columns`: the largest columns of its input, which stay in float32 beside 8 bits."""
        super().__init__()
        weight = linear.weight.detach().float()
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.ahead: Any
        self.back: Any
        if halves:
            self.ahead, self.back = Halves(weight, bias), Halves(weight.t())
            return
        engine = int8.measured()["engine"]
        self.ahead = int8.Int8Linear(*int8.quantized(weight), bias, engine, columns)
        self.back = int8.Int8Linear(*int8.quantized(weight.t().contiguous()), None, engine)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer: [..., in] -> [..., out]."""
        if x.requires_grad and torch.is_grad_enabled():
            out: Tensor = _Product.apply(x, self)
            return out
        return self.ahead.product(x)


def freeze(model: nn.Module, *, halves: bool = False) -> None:
    """Replace all linear layers by frozen ones, but the adapter and the output layer."""
    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "lora" not in name and "lm_head" not in name
    }
    columns: dict[str, list[int]] = {}

    def note(name: str, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        sizes = inputs[0].abs().flatten(0, -2).amax(0)
        columns[name] = sizes.topk(int8.COLUMNS).indices.tolist()

    hooks = [m.register_forward_pre_hook(partial(note, n)) for n, m in linears.items()]
    with torch.no_grad():
        model(input_ids=torch.tensor([[(11 + 7919 * i) % 151_000 for i in range(int8.SAMPLE)]]))
    for hook in hooks:
        hook.remove()
    for name, linear in linears.items():
        parent, _, key = name.rpartition(".")
        setattr(model.get_submodule(parent), key, Frozen(linear, columns[name], halves=halves))
    del linears
    gc.collect()


def load_adapted(
    folder: Path, start: Path | None = None, rank: int = RANK, *, halves: bool = False
) -> Any:
    """Load the base model with a new adapter, or with the packed one of a folder."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    kind = torch.bfloat16 if halves else torch.float32
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=kind)
    base.config.use_cache = False
    layers = list(range(FIRST, base.config.num_hidden_layers))
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, layers_to_transform=layers,
        target_modules=list(TARGETS), task_type="CAUSAL_LM",
    )  # fmt: skip
    model = get_peft_model(base, config)
    if start is not None:
        start_from(model, load_file(start / ADAPTER))
    freeze(model, halves=halves)
    if halves:
        halve(model)
    return model


def halve(model: nn.Module) -> None:
    """Compute in bfloat16, but for the weights of the adapter, which stay in float32."""
    from peft.tuners.lora import Linear

    for name, weight in model.named_parameters():
        if "lora" not in name:
            weight.data = weight.data.bfloat16()
    for module in model.modules():
        if isinstance(module, Linear):
            module.forward = partial(_adapted, module)  # type: ignore[method-assign]


def _adapted(layer: Any, x: Tensor) -> Tensor:
    """Return the product of a layer with its adapter, in the type of `x` [..., in]."""
    rows, scale = x.flatten(0, -2), layer.scaling["default"]
    down = layer.lora_A["default"].weight.to(x.dtype)
    up = (layer.lora_B["default"].weight * scale).to(x.dtype)
    out = torch.addmm(layer.base_layer(rows), F.linear(rows, down), up.t())
    return out.view(*x.shape[:-1], -1)


def loss_of(model: Any, row: Row) -> Tensor:
    """Return the cross-entropy [n] of the answer tokens of a row, in nats."""
    ids, positions, segments, where, targets = row.tensors()
    seen = visible(segments)
    causal = model.base_model.model
    mask = torch.zeros(seen.shape, dtype=causal.lm_head.weight.dtype)
    mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)
    hidden = causal.model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=mask[None, None],
        use_cache=False,
    ).last_hidden_state[0]
    logits = causal.lm_head(hidden[where]).float()
    return F.cross_entropy(logits, targets, reduction="none")


def train(model: Any, make: Callable[[int], Any], out: Path, recipe: dict[str, Any]) -> None:
    """Train for so many minutes from a learning rate of AdamW on; `make` makes the maker of rows
    for the number of updates before.
    """
    seconds, rate = 60 * recipe["minutes"], recipe["rate"]
    torch.manual_seed(0)
    out.mkdir(parents=True, exist_ok=True)
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(weights.values(), rate, betas=(0.9, 0.98), weight_decay=0.01)
    totals = {"steps": 0, "tokens": 0, "answers": 0}
    state = out / "state.pt"
    if state.exists():
        known = torch.load(state, weights_only=True)
        for name, weight in weights.items():
            weight.data.copy_(known["weights"][name])
        optimizer.load_state_dict(known["optimizer"])
        totals = known["totals"]
    rows = make(int(totals["steps"]))

    def save() -> None:
        trained = {n: p.detach() for n, p in weights.items()}
        part = out / "state.part"
        torch.save(
            {"weights": trained, "optimizer": optimizer.state_dict(), "totals": totals}, part
        )
        part.replace(state)
        model.save_pretrained(out / "adapter")
        card = {"recipe": recipe, "totals": totals}
        (out / "card.json").write_text(json.dumps(card, default=str), "utf-8")

    began = saved = now = time.monotonic()
    while now - began < seconds:
        batch: list[Row] = []
        while sum(map(len, batch)) < STEP_TOKENS:
            batch.append(rows.row())
        count, total = sum(len(a) for row in batch for _, a in row.asked), 0.0
        for row in batch:
            losses = loss_of(model, row)
            (losses.sum() / count).backward()
            total += float(losses.detach().sum())
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        left = max(1 - (now - began) / seconds, LEAST)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(left, (totals["steps"] + 1) / WARMUP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        now = time.monotonic()
        totals["steps"] += 1
        totals["tokens"] += sum(map(len, batch))
        totals["answers"] += sum(len(row.asked) for row in batch)
        print(json.dumps({**totals, "loss": round(total / count, 4)}), flush=True)
        if now - saved > SAVED:
            save()
            saved = now
    save()


def main(arguments: list[str] | None = None) -> int:
    """Train and return the exit status."""
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True, help="folder of the base in float32")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=100)
    parser.add_argument("--rate", type=float, default=4e-4, help="learning rate at the beginning")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--start", type=Path, help="folder of the packed adapter to begin with")
    parser.add_argument("--halves", action="store_true", help="compute in bfloat16")
    parser.add_argument("--seed", type=int, default=17, help="of the rows")
    parser.add_argument(
        "--queries", type=Path, help="folder of questions about tables, to train on"
    )
    parser.add_argument("--rank", type=int, default=RANK)
    options = parser.parse_args(arguments)
    if options.halves and not has_halves():
        parser.error("--halves: this CPU has no products in bfloat16")
    torch.set_num_threads(options.threads)
    model = load_adapted(options.model, options.start, options.rank, halves=options.halves)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    kind, folder = (
        (QueryRows, options.queries) if options.queries else (ParagraphRows, options.data)
    )

    def make(steps: int) -> Any:
        return kind(folder, tokenizer, options.seed + steps)

    train(model, make, options.out, {"script": "reader_larger.py", **vars(options)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
