"""Measure what one token costs in linear layers whose weights come from RAM, by number type.

See docs/research/performance.md.

    python docs/research/lab/int8_decoding.py

Each way runs through so many layers of a shape that no cache holds their weights. The script prints
the microseconds of processor time for a layer, from the fastest of five rounds.
"""

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvstream.model.int8 import Int8Linear, quantized

SHAPES = ((576, 576), (576, 192), (576, 1536), (1536, 576), (576, 49152))
"""(width, outputs) of SmolLM2-135M; the last one is its output layer."""
NUMBERS = 60_000_000
"""Number of weights in all layers of a shape together."""


def main() -> None:
    torch.set_num_threads(1)
    with torch.inference_mode():
        for width, outputs in SHAPES:
            layers = [
                nn.Linear(width, outputs, bias=False)
                for _ in range(max(1, NUMBERS // (width * outputs)))
            ]
            ways: dict[str, list] = {
                "float32": list(layers),
                "8-bit product": [Int8Linear(layer) for layer in layers],
                "weights widened": [Int8Linear(layer, packs=True) for layer in layers],
            }
            ways["no columns apart"] = [plain(layer) for layer in ways["8-bit product"]]
            halves = [layer.weight.bfloat16() for layer in layers]
            ways["bfloat16"] = [partial(in_bfloat16, F.linear, half) for half in halves]
            ways["bfloat16, product with a vector"] = [
                partial(in_bfloat16, lambda row, half: torch.mv(half, row[0]), half)
                for half in halves
            ]
            x = torch.randn(1, width)
            told = (f"{name} {cost(runs, x):.0f}" for name, runs in ways.items())
            print(f"{width} x {outputs}: {', '.join(told)}", flush=True)


def in_bfloat16(product: Callable[[Tensor, Tensor], Tensor], weight: Tensor, x: Tensor) -> Tensor:
    return product(x.bfloat16(), weight)


def plain(layer: Int8Linear) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the 8-bit product of all columns, none of them apart."""

    def run(x: Tensor) -> Tensor:
        rows, scale = quantized(x)
        return torch._int_mm(rows, layer.weight.t()).float().mul_(scale).mul_(layer.scale)

    return run


def cost(layers: list, x: Tensor) -> float:
    """Return the processor microseconds for one layer."""
    found = []
    for _ in range(5):
        started = time.process_time()
        for layer in layers:
            layer(x.clone())  # 8-bit layers would quantize the same tensor once
        found.append(time.process_time() - started)
    return 1e6 * min(found) / len(layers)


if __name__ == "__main__":
    main()
