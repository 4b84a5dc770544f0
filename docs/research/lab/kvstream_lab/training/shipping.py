"""The files beside the weights of a finished run: the tokenizer's files and a model card."""

from __future__ import annotations

import dataclasses
import json
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kvstream.store import pocket
from kvstream_lab.training.rows import Mixture
from kvstream_lab.training.train import Recipe

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "pocket.tiktoken")
CURVE_ROWS = 16
"""Number of log lines that the card shows, evenly spaced."""


def add_tokenizer(folder: Path) -> None:
    """Copy the tokenizer of the training rows to ``folder``, so that it can be loaded alone."""
    for name in TOKENIZER_FILES:
        shutil.copyfile(pocket.path() / name, folder / name)


def hardware(device: str) -> str:
    """Return the name of the GPU that trained, or of the processor with its number of threads."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(torch.device(device))
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        models = [s for s in cpuinfo.read_text().splitlines() if s.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    return f"{name}, {torch.get_num_threads()} thread(s)"


def card(
    recipe: Recipe,
    mixture: Mixture,
    totals: Mapping[str, float],
    start: str,
    hashes: Mapping[str, str],
    log: Sequence[Mapping[str, Any]],
    scores: Sequence[Mapping[str, Any]],
) -> str:
    """Return the model card of a run, in Markdown.

    Args:
        recipe: settings of the run.
        mixture: contents of its rows.
        totals: ``tokens``, ``minutes``, ``steps`` and ``runs``, as `train` returns them.
        start: what the run started from.
        hashes: SHA-256 of the data's files, by name.
        log: the lines of ``log.jsonl``.
        scores: rows of `evaluate`; if empty, the card says that no scores were taken.
    """
    lines = ["# pocket, a training run", "", "| | |", "|---|---|"]
    lines += [
        f"| Began from | {start} |",
        f"| Tokens | {int(totals['tokens']):,} in {int(totals['steps']):,} steps |",
        f"| Time | {totals['minutes']:.1f} minutes, {int(totals['runs'])} run(s) |",
        f"| Hardware | {hardware(recipe.device)}; torch {torch.__version__} |",
    ]
    lines += ["", "## Scores", ""]
    if scores:
        lines += [
            "| task | tokens | trials | exact % | F1 % | refused % |",
            "|---|---|---|---|---|---|",
        ]
        keys = ("task", "length", "trials", "exact", "f1", "refused")
        lines += ["| " + " | ".join(str(row[k]) for k in keys) + " |" for row in scores]
    else:
        lines.append("None were taken.")
    lines += ["", "## Curve", "", "| tokens | minutes | rate | answer loss | text loss |"]
    lines.append("|---|---|---|---|---|")
    picked = sorted({round(i * (len(log) - 1) / (CURVE_ROWS - 1)) for i in range(CURVE_ROWS)})
    for row in (log[i] for i in picked if log):
        shown = ("tokens", "run_minutes", "rate", "answer_loss", "text_loss")
        lines.append("| " + " | ".join(str(row[k]) for k in shown) + " |")
    settings = {**dataclasses.asdict(recipe), **dataclasses.asdict(mixture)}
    lines += ["", "## Recipe", "", "```json", json.dumps(settings, indent=2), "```"]
    lines += ["", "## Data", "", "| file | SHA-256 (first 16 digits) |", "|---|---|"]
    lines += [f"| `{name}` | `{digest}` |" for name, digest in hashes.items()]
    return "\n".join(lines) + "\n"
