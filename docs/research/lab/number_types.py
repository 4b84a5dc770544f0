"""Measure perplexity and processor time of texts in several number types, with all entries kept.

    python docs/research/lab/number_types.py ../shared/data/books/*.gz --heldout --texts 8 \\
        -m smollm2 --tokens 512 --kinds float32,int8

Tokens of each text go through the model in chunks, then some are written one by one. For each type
the script prints its ratio to the first one: speed of reading and of writing, and perplexity with a
95% interval over paired texts (over tokens if there is one text).
"""

import argparse
import gzip
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kvstream.evaluation.confidence import difference_interval
from kvstream.evaluation.splits import is_heldout
from kvstream.model import int8
from kvstream.model.bounded import BoundedModel
from kvstream.model.folders import folder
from kvstream.model.loading import in_precision, load
from kvstream.model.precision import Precision
from kvstream.settings import INT8, ModelSettings, count_of
from kvstream.tokenization.loading import load_tokenizer

KINDS: dict[str, dict[str, Any] | None] = {
    "float32": {"dtype": "float32", "kv_dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16", "kv_dtype": "bfloat16"},
    "widened": None,
    "int8": {"quantize": INT8},
    "kv-bfloat16": {"dtype": "float32", "kv_dtype": "bfloat16"},
    "kv-float16": {"dtype": "float32", "kv_dtype": "float16"},
}
"""Settings of the model. None: weights in 16 bits, as if those in float32 did not fit."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="+", type=Path, help="texts, gzipped or not")
    parser.add_argument("--heldout", action="store_true", help="texts pocket was not trained on")
    parser.add_argument("--texts", type=int, default=8, help="how many of them, evenly spaced")
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--tokens", default="1k", help="of each text")
    parser.add_argument("--chunk", default="256")
    parser.add_argument("--write", type=int, default=8)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--skip", type=int, default=20_000, help="characters at the beginning")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = ModelSettings(args.model, device="cpu")
    where = folder(settings)
    count, chunk = count_of(args.tokens), count_of(args.chunk)
    tokenizer = load_tokenizer(where)
    files = [f for f in args.files if not args.heldout or is_heldout(f.name.partition(".")[0])]
    files = files[:: max(1, len(files) // args.texts)][: args.texts]
    texts = [
        [int(i) for i in tokenizer.encode(read(f)[args.skip :][: 8 * count])[: count + 1]]
        for f in files
    ]
    print(f"8-bit products: {int8.problem() or 'work'}; {len(texts)} texts", flush=True)
    first = None
    for kind in args.kinds.split(","):
        found = measured(loaded(settings, kind), texts, chunk, args.write)
        first = first or found
        losses, reading, writing, size = found
        pairs = zip(losses, first[0], strict=True)
        rises = [float((ours - theirs).mean()) for ours, theirs in pairs]
        if len(texts) == 1:
            rises = (losses[0] - first[0][0]).tolist()
        middle, low, high = (math.expm1(x) for x in difference_interval(rises))
        perplexity = math.exp(statistics.fmean(float(x.mean()) for x in losses))
        print(
            f"{kind:12} perplexity {perplexity:.2f} ({middle:+.2%}, {low:+.2%} to {high:+.2%}), "
            f"reading {sum(map(len, texts)) / reading:.0f} tokens/s ({first[1] / reading:.2f}), "
            f"writing {args.write / writing:.1f} ({first[2] / writing:.2f}), "
            f"weights {size / 1e6:.0f} MB",
            flush=True,
        )


def read(file: Path) -> str:
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8", errors="replace") as text:
        return text.read()


def loaded(settings: ModelSettings, kind: str) -> BoundedModel:
    """Return the model in a number type."""
    how = KINDS[kind]
    if how is not None:
        return load(replace(settings, **how))
    from transformers import AutoModelForCausalLM

    asked = replace(settings, dtype="float32")
    model: Any = AutoModelForCausalLM.from_pretrained(folder(asked), dtype=torch.float16)
    model.requires_grad_(False)
    return in_precision(model, asked, Precision(torch.float16, "", widen=True))


def measured(
    model: BoundedModel, texts: list[list[int]], chunk: int, more: int
) -> tuple[list[torch.Tensor], float, float, int]:
    """Return what a number type costs.

    That is the losses [n] in nats of each text, the processor seconds for reading all texts and for
    writing, and the bytes of weights.
    """
    longest = max(map(len, texts))
    losses, spent = [], 0.0
    for ids in texts:
        cache, found = model.new_cache(min(model.trained_length, longest + more + 1)), []
        for at in range(0, len(ids) - 1, chunk):
            part = ids[at : min(at + chunk, len(ids) - 1)]
            targets = torch.tensor(ids[at + 1 : at + 1 + len(part)])
            hidden, took = timed(partial(model.forward, part, cache))
            spent += took
            found.append(model.loss(hidden, targets).double())
        losses.append(torch.cat(found))
    some = texts[-1][:more]
    _, wrote = timed(lambda: [model.logits(model.forward([i], cache)) for i in some])
    weights = {p.data_ptr(): p.nbytes for p in model.model.parameters()}
    return losses, spent, wrote, sum(weights.values())


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what `run` returns, and the processor seconds that it takes."""
    started = time.process_time()
    return run(), time.process_time() - started


if __name__ == "__main__":
    main()
