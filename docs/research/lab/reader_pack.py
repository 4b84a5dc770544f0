"""Pack the adapter of a training run for shipping: float16 weights, and a card with digests.

    python docs/research/lab/reader_pack.py build/reader --out kvstream/store/reader

The run is the ``--out`` of `reader`. ``kvstream ask ... -m FOLDER`` uses the packed adapter of any
folder; ``-m reader`` uses the one in the package. ``--mean RUN`` packs the mean of two runs that
began with the same adapter. Give ``--onto FOLDER`` if the adapter of FOLDER was merged into the
run's model. Then the sum of both adapters is packed, at the run's rank.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvstream.errors import ModelError
from kvstream.model.folders import FORMAT
from kvstream.store.offered import OFFERS
from kvstream.store.reader import ADAPTER, CARD

LARGEST = 15 * 1024**2
"""Maximum size of the file in the repository, in bytes."""
_PREFIX = "base_model.model."
_SIDES = {"lora_A.weight": "A", "lora_B.weight": "B"}


def pack(
    run: Path, out: Path, base: str = "smollm2", onto: Path | None = None, mean: Path | None = None
) -> dict[str, Any]:
    """Write ``adapter.safetensors`` and ``card.json`` to `out`; return the card.

    `mean` is a second run. `onto` is the folder of the packed adapter that was merged into the
    model of the run. Raise ModelError if the run used another base, has no adapter, or started from
    an adapter without a card; if a weight is too large for float16; or if the file is too large.
    """
    offer = OFFERS[base]
    folder = run / "adapter"
    try:
        said = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        stored = load_file(folder / "adapter_model.safetensors")
    except OSError as error:
        raise ModelError(f"{run} holds no adapter yet ({error}); train one first.") from error
    trained_on = Path(said["base_model_name_or_path"]).name
    expected = f"{offer.sha256[:32]}-{FORMAT}"
    if onto is not None:
        merged = hashlib.sha256((onto / ADAPTER).read_bytes()).hexdigest()
        expected += f"-{merged[:16]}"
    if trained_on != expected:
        raise ModelError(
            f"The adapter of {run} was trained on {trained_on}, and not on {expected}; name its "
            "base with --base, and the adapter that was merged into it with --onto."
        )
    found = {}
    for name, weight in sorted(stored.items()):
        layer, _, side = name.removeprefix(_PREFIX).partition(".lora_")
        found[f"{layer}.{_SIDES['lora_' + side]}"] = weight
    if mean is not None:
        other = load_file(mean / "adapter" / "adapter_model.safetensors")
        pairs = zip(found, (other[name] for name in sorted(stored)), strict=True)
        found = {name: (found[name] + weight) / 2 for name, weight in pairs}
    if onto is not None:
        found = summed(load_file(onto / ADAPTER), found)
    weights = {}
    for name, weight in found.items():
        half = weight.to(torch.float16).contiguous()
        if not bool(torch.isfinite(half).all()):
            raise ModelError(f"{name} has numbers beyond float16; train with a smaller --rate.")
        weights[name] = half
    out.mkdir(parents=True, exist_ok=True)
    file = out / ADAPTER
    save_file(weights, file)
    file.chmod(0o644)
    size = file.stat().st_size
    if size > LARGEST:
        file.unlink()
        raise ModelError(f"The adapter takes {size:,} bytes, and {LARGEST:,} may; lower --rank.")
    card = {
        "base": {"name": base, "sha256": offer.sha256, "file": offer.file},
        "adapter": {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "bytes": size,
            "rank": said["r"],
            "alpha": said["lora_alpha"],
        },
        "training": {"runs": _runs(run)},
    }
    (out / CARD).write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    return card


def summed(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum of two adapters of the same scale, at the rank of `other`.

    For each layer this is the best approximation of that rank: the largest singular values.
    """
    out = {}
    for layer in sorted({name.rpartition(".")[0] for name in other}):
        a, b = f"{layer}.A", f"{layer}.B"
        rows = torch.cat((one[a], other[a])).float()
        columns = torch.cat((one[b], other[b]), 1).float()
        left, inner = torch.linalg.qr(columns)
        right, across = torch.linalg.qr(rows.T)
        u, sizes, v = torch.linalg.svd(inner @ across.T)
        rank = len(other[a])
        root = sizes[:rank].sqrt()
        out[a] = root[:, None] * (v[:rank] @ right.T)
        out[b] = (left @ u[:, :rank]) * root
    return out


def _runs(run: Path) -> list[Any]:
    """Return the runs of the adapter that this run started from, and this run's own card.

    For an unfinished run, return only the latest line of its log.
    """
    finished, log = run / "card.json", run / "log.jsonl"
    if not finished.is_file():
        lines = log.read_text("utf-8").splitlines() if log.is_file() else []
        return [{"unfinished": json.loads(lines[-1])}] if lines else []
    own = json.loads(finished.read_text("utf-8"))
    if not own["recipe"]["start"]:
        return [own]
    start = Path(own["recipe"]["start"]) / CARD
    try:
        before = json.loads(start.read_text("utf-8"))["training"]["runs"]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{start} does not say how {run} began ({error!r}).") from error
    return [*before, own]


def main(arguments: list[str] | None = None) -> int:
    """Pack and return the exit status."""
    parser = argparse.ArgumentParser(prog="python docs/research/lab/reader_pack.py")
    parser.add_argument("run", type=Path, help="the --out of the training")
    parser.add_argument("--out", type=Path, required=True, help="such as kvstream/store/reader")
    parser.add_argument("--mean", type=Path, help="a second run, to pack the mean of both")
    parser.add_argument("--onto", type=Path, help="the adapter merged into the run's model")
    parser.add_argument("--base", default="smollm2", choices=sorted(OFFERS))
    options = parser.parse_args(arguments)
    try:
        card = pack(options.run, options.out, options.base, options.onto, options.mean)
    except ModelError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(card["adapter"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
