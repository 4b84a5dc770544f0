"""Compare bounded methods with full attention in windows, and full attention beyond its length.

    python docs/research/lab/full_attention.py NOVEL... --heldout --texts 8 --limit 8k --keep 640
    python docs/research/lab/full_attention.py NOVEL... --heldout --texts 8 --limit 8k --beyond

Without --beyond, the plain model reads each window of `--keep` tokens alone (strided full
attention), also with the sparse mask of BigBird, and kvstream reads the text under the budget with
`streaming` and with `cascade` in the paper's form (Cascading KV cache, table 1). The script prints
perplexities, and changes against the first row with a 95% interval over paired texts.

With --beyond, the plain model reads the whole text at once, and the script prints the perplexity
of each range of positions beside that of `streaming` (IMDC, appendix).
"""

import argparse
import gzip
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from kvstream.evaluation.confidence import difference_interval
from kvstream.evaluation.harness import IdFeed, open_reader
from kvstream.evaluation.perplexity import bins
from kvstream.evaluation.splits import is_heldout
from kvstream.model.folders import folder
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings, count_of

SINKS = 64
BLOCK = 16
"""Tokens of a block of BigBird's mask."""
NEAR, DRAWN = 3, 3
"""Blocks that a block of BigBird attends to: the nearest and some at random, beside the sinks."""

Losses = Callable[[list[int]], torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="texts, gzipped or not")
    parser.add_argument("--heldout", action="store_true", help="texts pocket was not trained on")
    parser.add_argument("--texts", type=int, default=8, help="how many of them, evenly spaced")
    parser.add_argument("-m", "--model", default="pocket")
    parser.add_argument("--limit", default="8k", help="tokens of each text")
    parser.add_argument("--keep", type=int, default=640, help="entries, and tokens of a window")
    parser.add_argument("--beyond", action="store_true")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    settings = ModelSettings(args.model, device="cpu", dtype="float32", threads=1)
    session = Session.open(settings)
    plain: Any = AutoModelForCausalLM.from_pretrained(folder(settings), dtype=torch.float32)
    files = [f for f in args.files if not args.heldout or is_heldout(f.name.partition(".")[0])]
    files = files[:: max(1, len(files) // args.texts)][: args.texts]
    count = count_of(args.limit)
    texts = [session.tokenizer.encode(read(f)[20_000:][: 8 * count])[:count] for f in files]
    bounded = {
        "streaming": RunSettings(method="streaming", set={"sinks": str(SINKS)}),
        "cascade": RunSettings(
            method="cascade",
            set={"run": "1", "contest": "attention", "cascades": "4"},
        ),
    }
    rows: dict[str, Losses] = {
        name: lambda ids, run=run: streamed(session, ids, run, args.keep)  # type: ignore[misc]
        for name, run in bounded.items()
    }
    if args.beyond:
        print(f"trained for {session.model.trained_length} tokens")
        compare_positions(
            {"full": lambda ids: whole(plain, ids), "streaming": rows["streaming"]}, texts
        )
        return
    rows["strided full attention"] = lambda ids: windows(plain, ids, args.keep, None)
    rows["strided BigBird"] = lambda ids: windows(plain, ids, args.keep, bigbird(args.keep))
    compare(rows, texts)


def read(file: Path) -> str:
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8", errors="replace") as text:
        return text.read()


def streamed(session: Session, ids: list[int], run: RunSettings, keep: int) -> torch.Tensor:
    """Return the losses [n - 1] in nats of a text that is read under a budget."""
    fixed = RunSettings(
        Budget(tokens=keep + 384), run.method, keep=keep, chunk_size=256,
        schedule="fixed", chunk="fixed", set=run.set,
    )  # fmt: skip
    reader, _ = open_reader(session, [], fixed, len(ids))
    reader.report_loss = True
    losses = torch.cat([report.loss for report in reader.read(IdFeed(ids))])  # type: ignore[misc]
    return losses[1:].double()


def whole(model: Any, ids: list[int], mask: torch.Tensor | None = None) -> torch.Tensor:
    """Return the losses [n - 1] of a text that the plain model reads at once."""
    given = torch.tensor([ids])
    logits = model(given, attention_mask=mask, use_cache=False).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, given[0, 1:], reduction="none").double()


def windows(model: Any, ids: list[int], size: int, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the losses [n - 1] if each window of `size` tokens is read alone.

    The first token of a window is predicted from the last of the window before it.
    """
    found = []
    for at in range(0, len(ids) - 1, size):
        part = ids[at : at + size + 1]
        n = len(part)
        cut = None if mask is None else mask[:, :, :n, :n]
        found.append(whole(model, part, cut))
    return torch.cat(found)


def bigbird(size: int) -> torch.Tensor:
    """Return an additive causal mask [1, 1, n, n]: sinks, near blocks and blocks at random."""
    blocks = -(-(size + 1) // BLOCK)
    drawn = torch.Generator().manual_seed(0)
    seen = torch.zeros(blocks, blocks, dtype=torch.bool)
    for row in range(blocks):
        seen[row, : SINKS // BLOCK] = True
        seen[row, max(0, row - NEAR + 1) : row + 1] = True
        seen[row, torch.randperm(row + 1, generator=drawn)[:DRAWN]] = True
    full = seen.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: size + 1, : size + 1]
    allowed = full & torch.ones(size + 1, size + 1, dtype=torch.bool).tril()
    return torch.where(allowed, 0.0, -math.inf)[None, None]


def compare(rows: dict[str, Losses], texts: list[list[int]]) -> None:
    first: list[float] = []
    for name, losses in rows.items():
        means = [float(losses(ids).mean()) for ids in texts]
        first = first or means
        line = f"{name:24} perplexity {math.exp(sum(means) / len(means)):.2f}"
        if means is not first:
            changes = [a - b for a, b in zip(means, first, strict=True)]
            middle, low, high = (math.expm1(x) for x in difference_interval(changes))
            line += f" ({middle:+.2%}, {low:+.2%} to {high:+.2%})"
        print(line, flush=True)


def compare_positions(rows: dict[str, Losses], texts: list[list[int]]) -> None:
    parts = bins(min(map(len, texts)) - 1)
    print("positions".ljust(24), *(f"to {end}".rjust(9) for _, end in parts))
    for name, losses in rows.items():
        found = [losses(ids) for ids in texts]
        means = [torch.stack([f[a:b].mean() for f in found]).mean() for a, b in parts]
        print(name.ljust(24), *(f"{math.exp(m):9.2f}" for m in means), flush=True)


if __name__ == "__main__":
    main()
