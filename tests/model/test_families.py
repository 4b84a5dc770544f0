"""Twelve families in the hub's file layout, loaded as usual and compared with transformers.

test_engine_evicted.py tests the attention of each family after evictions. tests/support/models.py
lists all families that are known to work. ``pytest -m long`` runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import FAMILIES, bounded, plain, tokens
from transformers import AutoModelForCausalLM

from kvstream.model.loading import load
from kvstream.settings import ModelSettings

COMMON = [
    "llama", "mistral", "mixtral", "qwen2", "qwen3-moe", "gemma3", "phi3", "cohere2", "gpt-oss",
    "olmo2", "smollm3", "granite",
]  # fmt: skip
REST = sorted(set(FAMILIES) - set(COMMON))


def check(name: str, folder: Path) -> None:
    plain(name).save_pretrained(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = load(ModelSettings(model=str(folder), device="cpu", dtype="float32"))
    ids = tokens(90)
    with torch.inference_mode():
        want = theirs(input_ids=torch.tensor([ids])).logits[0]
    cache = ours.new_cache(90)
    parts = ids[:50], ids[50:51], ids[51:]
    got = torch.cat([ours.logits(ours.forward(part, cache)) for part in parts])
    assert (got - want).abs().max() < 1e-4 * want.std()


@pytest.mark.parametrize("name", COMMON)
def test_a_family_from_its_files(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", REST)
def test_every_family_from_its_files(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.parametrize("name", COMMON)
def test_the_output_layer_is_known(name: str) -> None:
    """For an unknown layer, the model computes logits of whole chunks: vocabulary times chunk."""
    assert bounded(name).head_is_plain


def test_an_unknown_output_layer_is_left_to_the_model() -> None:
    assert not bounded("hyperclovax").head_is_plain
