"""Measure whether one model reads eight short documents faster in one batch.

    python docs/research/lab/batches.py [float32|bfloat16] [PIECE ...]

Plain transformers on one thread, with transformers' own cache. pocket reads eight documents of
2,048 random tokens in pieces (as a bounded reading does): one document after the other, and all
eight in one batch. The script prints tokens per second of processor time, which other programs
hardly change, and their ratio, for three rounds.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from kvstream.store import pocket

DOCUMENTS, TOKENS = 8, 2048


def read(model: Any, ids: torch.Tensor, piece: int) -> None:
    """Read documents [B, N] piece by piece; compute only the last logits."""
    cache = DynamicCache(config=model.config)
    for start in range(0, ids.shape[1], piece):
        model(ids[:, start : start + piece], past_key_values=cache, logits_to_keep=1)


def speed(model: Any, ids: torch.Tensor, piece: int, batch: int) -> float:
    """Return tokens per second of processor time."""
    began = time.process_time()
    for start in range(0, DOCUMENTS, batch):
        read(model, ids[start : start + batch], piece)
    return ids.numel() / (time.process_time() - began)


def main() -> None:
    """Measure every piece size in three rounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dtype", nargs="?", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("pieces", nargs="*", type=int, default=[128, 512, 2048])
    options = parser.parse_args()
    dtype, pieces = getattr(torch, options.dtype), options.pieces
    torch.set_num_threads(1)
    folder = pocket.path()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    ids = torch.randint(10, 5000, (DOCUMENTS, TOKENS), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for piece in pieces:
            read(model, ids[:1], piece)
            ratios = []
            for _ in range(3):
                one, all_ = (speed(model, ids, piece, batch) for batch in (1, DOCUMENTS))
                ratios.append(all_ / one)
                print(f"{dtype} pieces of {piece}: {one:,.0f} and {all_:,.0f} tokens/s", flush=True)
            print(f"{dtype} pieces of {piece}: " + " ".join(f"{r:.2f}" for r in ratios) + " times")


if __name__ == "__main__":
    main()
