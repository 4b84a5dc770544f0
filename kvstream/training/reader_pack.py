"""The adapter of a training run as it is shipped: float16 weights, and a card with digests.

    python -m kvstream.training.reader_pack build/reader --out kvstream/store/reader

The run is the ``--out`` of `kvstream.training.reader`. ``kvstream ask ... -m FOLDER`` uses the
packed adapter from any folder; ``-m reader`` that of the package.
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

from kvstream.errors import ModelError
from kvstream.store.offered import OFFERS
from kvstream.store.reader import ADAPTER, CARD

LARGEST = 15 * 1024**2
"""Bytes that the file may have in the repository."""
_PREFIX = "base_model.model."
_SIDES = {"lora_A.weight": "A", "lora_B.weight": "B"}


def pack(run: Path, out: Path, base: str = "smollm2") -> dict[str, Any]:
    """Write ``adapter.safetensors`` and ``card.json`` to `out`; returns the card.

    Raises ModelError where the run was on another base, has no adapter, or the file is too large.
    """
    offer = OFFERS[base]
    folder = run / "adapter"
    try:
        said = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        stored = load_file(folder / "adapter_model.safetensors")
    except OSError as error:
        raise ModelError(f"{run} holds no adapter yet ({error}); train one first.") from error
    trained_on = Path(said["base_model_name_or_path"]).name
    if not trained_on.startswith(offer.sha256[:32]):
        raise ModelError(
            f"The adapter of {run} was trained on {trained_on}, and {base} converts to "
            f"{offer.sha256[:32]}-...; name its base with --base."
        )
    weights = {}
    for name, weight in sorted(stored.items()):
        layer, _, side = name.removeprefix(_PREFIX).partition(".lora_")
        half = weight.to(torch.float16).contiguous()
        if not bool(torch.isfinite(half).all()):
            raise ModelError(f"{name} has numbers beyond float16; train with a smaller --rate.")
        weights[f"{layer}.{_SIDES['lora_' + side]}"] = half
    out.mkdir(parents=True, exist_ok=True)
    file = out / ADAPTER
    save_file(weights, file)
    file.chmod(0o644)
    size = file.stat().st_size
    if size > LARGEST:
        file.unlink()
        raise ModelError(f"The adapter takes {size:,} bytes, and {LARGEST:,} may; lower --rank.")
    card = {
        "base": {"name": base, "sha256": offer.sha256, "file": Path(offer.member).name},
        "adapter": {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "bytes": size,
            "rank": said["r"],
            "alpha": said["lora_alpha"],
        },
        "training": _training(run),
    }
    (out / CARD).write_text(json.dumps(card, indent=2) + "\n", "utf-8")
    return card


def _training(run: Path) -> Any:
    """The run's own card; of a run that goes on, its latest line of the log."""
    finished, log = run / "card.json", run / "log.jsonl"
    if finished.is_file():
        return json.loads(finished.read_text("utf-8"))
    lines = log.read_text("utf-8").splitlines() if log.is_file() else []
    return {"unfinished": json.loads(lines[-1])} if lines else {}


def main(arguments: list[str] | None = None) -> int:
    """Pack; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvstream.training.reader_pack")
    parser.add_argument("run", type=Path, help="the --out of the training")
    parser.add_argument("--out", type=Path, required=True, help="such as kvstream/store/reader")
    parser.add_argument("--base", default="smollm2", choices=sorted(OFFERS))
    options = parser.parse_args(arguments)
    try:
        card = pack(options.run, options.out, options.base)
    except ModelError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(card["adapter"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
