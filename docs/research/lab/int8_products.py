"""Measure products of a linear layer on one thread: float32, bfloat16 and several 8-bit ways.

    python docs/research/lab/int8_products.py --tokens 512,1
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python docs/research/lab/int8_products.py

The script prints the processor time of the fastest call, and its speed relative to float32. FBGEMM
(`x86`, `fbgemm`) ignores the two environment variables.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from kvstream.model.int8 import Int8Linear

SHAPES = ((576, 576), (576, 1536), (1536, 576), (896, 4864), (2048, 8192))
"""(width, outputs) of SmolLM2-135M, and of models with half a billion and a billion parameters."""
SECONDS = 0.4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", default="512,1")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # quantize_dynamic warns of its removal
    with torch.inference_mode():
        for tokens in map(int, args.tokens.split(",")):
            for width, outputs in SHAPES:
                times = {name: fastest(run) for name, run in ways(tokens, width, outputs).items()}
                told = (
                    f"{n} {t * 1e3:.3f} ms ({times['float32'] / t:.2f})" for n, t in times.items()
                )
                print(f"{tokens} x {width} x {outputs}: {', '.join(told)}", flush=True)


def ways(tokens: int, width: int, outputs: int) -> dict[str, Callable[[], object]]:
    linear = torch.nn.Linear(width, outputs, bias=False)
    x, layer = torch.randn(tokens, width), Int8Linear(linear)
    half, rows = linear.weight.bfloat16(), x.bfloat16()
    found: dict[str, Callable[[], object]] = {
        "float32": lambda: linear(x),
        "bfloat16": lambda: F.linear(rows, half),
        "_int_mm": lambda: layer(x[:]),  # layers quantize the same tensor only once
        "_weight_int8pack_mm": lambda: torch._weight_int8pack_mm(
            rows, layer.weight, layer.scale.bfloat16()
        ),
    }
    for engine in ("x86", "onednn", "fbgemm"):
        torch.backends.quantized.engine = engine
        dynamic = torch.ao.quantization.quantize_dynamic(
            torch.nn.Sequential(linear), {torch.nn.Linear}, dtype=torch.qint8
        )
        found[f"quantize_dynamic {engine}"] = partial(dynamic, x)
    return found


def fastest(run: Callable[[], object]) -> float:
    """Return the processor seconds of the fastest call."""
    run()
    best, began = float("inf"), time.process_time()
    while time.process_time() - began < SECONDS:
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
    return best


if __name__ == "__main__":
    main()
