"""What number types cost: perplexity and processor time of one text, all kept, in several of them.

    python docs/research/scripts/number_types.py FILE -m smollm2 --tokens 1k --layers 30

Tokens go through the model in chunks, then some are written one by one. Each type has its ratio to
float32: speed of reading and of writing, and perplexity with a 95% interval over tokens in pairs.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch

from kvstream.model import int8
from kvstream.model.loading import folder, in_precision
from kvstream.model.precision import Precision
from kvstream.settings import ModelSettings, parse_count
from kvstream.tokenization.loading import load_tokenizer

KINDS = {
    "float32": Precision(torch.float32, ""),
    "bfloat16": Precision(torch.bfloat16, ""),
    "widened": Precision(torch.float16, "", widen=True),
    "int8": Precision(torch.float16, "", widen=True, int8=True),
    "kv-bfloat16": Precision(torch.float32, "", kv=torch.bfloat16),
    "kv-float16": Precision(torch.float32, "", kv=torch.float16),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text", type=Path)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", default="1k")
    parser.add_argument("--chunk", default="256")
    parser.add_argument("--write", type=int, default=8)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--skip", type=int, default=20_000, help="characters at the beginning")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = ModelSettings(args.model, device="cpu")
    where = folder(settings)
    count, chunk = parse_count(args.tokens), parse_count(args.chunk)
    text = args.text.read_text("utf-8", "replace")[args.skip :][: 8 * count]
    ids = [int(i) for i in load_tokenizer(where).encode(text)[: count + 1]]
    print(f"8-bit products: {int8.problem() or 'work'}", flush=True)
    first = None
    for kind in args.kinds.split(","):
        found = measured(where, settings, KINDS[kind], ids, chunk, args.write)
        first = first or found
        losses, read, wrote, size = found
        rises = losses - first[0]
        mean, error = float(rises.mean()), float(rises.std()) / math.sqrt(len(rises))
        low, middle, high = (math.expm1(mean + x * error) for x in (-1.96, 0, 1.96))
        print(
            f"{kind:12} perplexity {math.exp(losses.mean()):.2f} ({middle:+.2%}, {low:+.2%} to "
            f"{high:+.2%}), reading {len(ids) / read:.0f} tokens/s ({first[1] / read:.2f}), "
            f"writing {args.write / wrote:.1f} ({first[2] / wrote:.2f}), "
            f"weights {size / 1e6:.0f} MB",
            flush=True,
        )


def measured(
    where: str, settings: ModelSettings, precision: Precision, ids: list[int], chunk: int, more: int
) -> tuple[torch.Tensor, float, float, int]:
    """Losses [n] in nats, seconds of the processor for reading and writing, bytes of weights."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(where, dtype=precision.load).requires_grad_(False)
    model = in_precision(loaded, settings, precision)
    cache = model.new_cache(min(model.trained_length, len(ids) + more + 1))
    losses, spent = [], 0.0
    for at in range(0, len(ids) - 1, chunk):
        part = ids[at : min(at + chunk, len(ids) - 1)]
        targets = torch.tensor(ids[at + 1 : at + 1 + len(part)])
        hidden: list[torch.Tensor] = []
        spent += seconds(lambda p=part, h=hidden: h.append(model.forward(p, cache)))
        losses.append(model.loss(hidden[0], targets).double())
    wrote = seconds(lambda: [model.logits(model.forward([i], cache)) for i in ids[:more]])
    weights = {p.data_ptr(): p.nbytes for p in model.model.parameters()}
    return torch.cat(losses), spent, wrote, sum(weights.values())


def seconds(run: Callable[[], object]) -> float:
    """Of the processor."""
    started = time.process_time()
    run()
    return time.process_time() - started


if __name__ == "__main__":
    main()
