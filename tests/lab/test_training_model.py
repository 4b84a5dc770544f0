"""Training: initial weights, attention, optimizer and loop."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvstream_lab.training import attention
from kvstream_lab.training import train as loop
from kvstream_lab.training.initial import initial_model, pocket_config
from kvstream_lab.training.optim import MuonAdam, orthogonalize
from kvstream_lab.training.rows import ANSWER, PAD, TEXT


def test_untrained_weights_copy_repeated_tokens():
    model = initial_model(pocket_config()).eval()
    once = torch.randint(0, 8190, (1, 100), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([once, once], 1)
    with torch.no_grad():
        guess = model(ids).logits.argmax(-1)
    assert (guess[:, 100:-1] == ids[:, 101:]).float().mean() > 0.5


@pytest.mark.parametrize("length", [37, 256, 600])
def test_causal_attention_equals_the_plain_one(length):
    generator = torch.Generator().manual_seed(length)
    shapes = [(2, heads, length, 16) for heads in (4, 2, 2)]
    inputs = [torch.randn(s, generator=generator, requires_grad=True) for s in shapes]
    weight = torch.randn(2, length, 4, 16, generator=generator)
    mine, _ = attention.causal_attention(torch.nn.Identity(), *inputs, None)
    mine_gradients = torch.autograd.grad((mine * weight).sum(), inputs)
    plain = torch.nn.functional.scaled_dot_product_attention(
        *inputs, is_causal=True, enable_gqa=True
    ).transpose(1, 2)
    plain_gradients = torch.autograd.grad((plain * weight).sum(), inputs)
    torch.testing.assert_close(mine, plain, atol=1e-5, rtol=1e-4)
    for a, b in zip(mine_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("shape", [(3, 16, 48), (2, 48, 16)])
def test_orthogonalized_updates_have_singular_values_near_one(shape):
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.min() > 0.5
    assert values.max() < 1.4


def test_positions_prefer_answers_up_to_their_share():
    recipe = loop.Recipe(loss_share=0.2, answer_share=0.5)
    codes = np.full((4, 50), TEXT, dtype=np.uint8)
    codes[:, 0] = PAD
    codes[:, 10:15] = ANSWER
    positions = loop.choose_positions(codes, recipe, np.random.default_rng(0))
    assert len(positions) == 40
    targets = codes.reshape(-1)[positions + 1]
    assert (targets == ANSWER).sum() == 20
    assert PAD not in targets


@pytest.fixture
def shards(tmp_path):
    """Shards of a task that is learned quickly: one repeated token."""
    folder = tmp_path / "shards"
    folder.mkdir()
    ids = np.full((64, 64), 17, dtype=np.uint16)
    codes = np.full((64, 64), ANSWER, dtype=np.uint8)
    codes[:, 0] = PAD
    for number in range(8):  # each reader removes one
        np.savez(folder / f"00064-{number}.npz", ids=ids, codes=codes)
    return folder


def small(**changes):
    settings = {
        "tokens": 1024,
        "step_tokens": 256,
        "lengths": "64:1",
        "late_lengths": "64:1",
        "layers": 2,
        "width": 256,
        "heads": 4,
        "inner": 32,
        "answer_share": 1.0,
    }
    return loop.Recipe(**(settings | changes))


@pytest.fixture
def quick(monkeypatch):
    """Compute as it is written, in float32: compiling and bfloat16 take seconds on some CPUs."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.nn.Module, "bfloat16", lambda module: module)


def test_a_run_can_be_gone_on_with(shards, tmp_path, quick):
    out = tmp_path / "out"
    first = loop.train(small(), shards, out)
    assert first["tokens"] >= 1024
    again = loop.train(small(), shards, out, resume=out / "state.pt")
    assert again["tokens"] >= 2048
    assert again["runs"] == 2
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["answer_loss"] < lines[0]["answer_loss"]
    assert (out / "model" / "model.safetensors").is_file()


def test_a_run_that_was_stopped_keeps_its_clock_and_its_rate(shards, tmp_path, quick):
    out, recipe = tmp_path / "out", small(tokens=400_000)
    run = loop.Training(recipe, shards, out, None, None)
    run.tokens, run.optimizer.count = 200_000.0, 60
    run.save(0.5)
    again = loop.Training(recipe, shards, out, out / "state.pt", None)
    assert again.tokens == 200_000
    assert again.minutes >= run.earlier_minutes
    assert again.rate(0.5) == run.rate(0.5) == recipe.rate  # on the plateau


@pytest.mark.long
def test_a_compiled_step_learns_as_a_plain_one(shards, tmp_path, monkeypatch):
    loop.train(small(), shards, tmp_path / "compiled")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    loop.train(small(), shards, tmp_path / "plain")
    losses = [
        json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[-1])["answer_loss"]
        for name in ("compiled", "plain")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_an_exported_model_is_the_trained_one(tmp_path):
    config = pocket_config(2, 256, 4, 32)
    model = initial_model(config)
    loop.export(model, MuonAdam(model), tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert read.dtype == torch.bfloat16
    assert json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"] == 4096
    ids = torch.randint(0, 8000, (1, 12))
    with torch.no_grad():
        torch.testing.assert_close(
            read(ids).logits.float(), model.bfloat16()(ids).logits.float(), atol=0.1, rtol=0.05
        )
