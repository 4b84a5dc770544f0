"""An adapter is merged into its base, and into nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_files
import pytest
import torch
from adapters import ALPHA, RANK, Tiny, tiny_reader
from safetensors.torch import load_file

from kvstream.errors import ModelError
from kvstream.model import int8
from kvstream.model.adapter import Adapter
from kvstream.model.folders import converted, folder, merged
from kvstream.model.loading import load
from kvstream.settings import ModelSettings
from kvstream.store import offered, reader


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    return tiny_reader(tmp_path, monkeypatch)


def settings(name: str = "reader", **more: Any) -> ModelSettings:
    return ModelSettings(model=name, quiet=True, **more)


def test_merged_weights_are_the_sum(tiny: Tiny) -> None:
    base = load_file(converted(tiny.base, quiet=True) / "model.safetensors")
    own = load_file(tiny.adapter / reader.ADAPTER)
    found = load_file(merged(Adapter.of(tiny.adapter)) / "model.safetensors")
    assert found.keys() == base.keys()
    changed = 0
    for name, weight in found.items():
        layer = name.removesuffix(".weight")
        assert weight.dtype == base[name].dtype
        if f"{layer}.A" in own:
            changed += 1
            slow = base[name].float().clone()
            for r in range(RANK):
                down, up = own[f"{layer}.A"][r].float(), own[f"{layer}.B"][:, r].float()
                slow += ALPHA / RANK * torch.outer(up, down)
            torch.testing.assert_close(weight.float(), slow, rtol=2e-3, atol=1e-4)
        else:
            assert torch.equal(weight, base[name])
    assert changed == 2 * 7


def test_the_reader_and_its_base_are_two_models(tiny: Tiny) -> None:
    with_it, base = load(settings(dtype="float32")), load(settings("smollm2", dtype="float32"))
    again = load(settings(str(tiny.adapter), dtype="float32"))
    assert with_it.fingerprint != base.fingerprint
    assert again.fingerprint == with_it.fingerprint
    assert with_it.name == "reader"
    half = load(settings(dtype="bfloat16")).model.state_dict()
    for name, weight in with_it.model.state_dict().items():
        assert torch.equal(half[name], weight.to(torch.bfloat16)), name


def test_it_is_merged_once(tiny: Tiny) -> None:
    first = Path(folder(settings()))
    weights = first / "model.safetensors"
    before = weights.stat().st_mtime_ns
    (tiny.adapter / "support.json").write_text("{}")
    assert Path(folder(settings())) == first
    assert weights.stat().st_mtime_ns == before
    support = first / "support.json"
    assert support.read_text() == "{}"
    with support.open() as reading:  # another process reads during an update
        (tiny.adapter / "support.json").write_text('{"bias": 1}')
        folder(settings())
        assert reading.read() == "{}"
    (tiny.adapter / "support.json").write_bytes(b"\xff")  # its reader reports the error
    folder(settings())
    assert support.read_bytes() == b"\xff"
    (tiny.adapter / "support.json").write_text('{"bias": 1}')
    folder(settings())
    before = support.stat().st_mtime_ns
    folder(settings())
    assert (support.read_text(), support.stat().st_mtime_ns) == ('{"bias": 1}', before)


def test_as_peft_merges(tiny: Tiny, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the extra training")
    from transformers import AutoModelForCausalLM

    import reader_pack

    base = converted(tiny.base, quiet=True)
    run, packed = tmp_path / "run", tmp_path / "packed"
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, lora)
    torch.manual_seed(0)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    adapted.save_pretrained(run / "adapter")
    cards = [{"recipe": {"start": start}, "totals": {}} for start in ("", str(packed))]
    (run / "card.json").write_text(json.dumps(cards[0]))
    card = reader_pack.pack(run, packed)
    assert card["training"]["runs"] == cards[:1]
    assert card["base"]["sha256"] == offered.OFFERS["smollm2"].sha256
    ours = load_file(merged(Adapter.of(packed)) / "model.safetensors")
    theirs = adapted.merge_and_unload().state_dict()
    for name, weight in ours.items():
        torch.testing.assert_close(weight.float(), theirs[name], rtol=2e-3, atol=2e-3)
    other = AutoModelForCausalLM.from_pretrained(merged(Adapter.of(packed)), dtype=torch.float32)
    again = peft.get_peft_model(other, lora)
    again.save_pretrained(tmp_path / "second" / "adapter")
    with pytest.raises(ModelError, match="--onto"):
        reader_pack.pack(tmp_path / "second", tmp_path / "sum")
    (tmp_path / "second" / "card.json").write_text(json.dumps(cards[1]))
    second = reader_pack.pack(tmp_path / "second", tmp_path / "sum", onto=packed)
    assert second["training"]["runs"] == cards
    both = load_file(merged(Adapter.of(tmp_path / "sum")) / "model.safetensors")
    for name, weight in ours.items():  # the second adapter is untrained
        torch.testing.assert_close(weight, both[name], rtol=2e-3, atol=2e-3)


def test_a_sum_of_adapters_is_the_best_of_its_rank() -> None:
    from reader_pack import summed

    torch.manual_seed(0)
    one, other = ({"x.A": torch.randn(3, 9), "x.B": torch.randn(7, 3)} for _ in range(2))
    exact = one["x.B"] @ one["x.A"] + other["x.B"] @ other["x.A"]
    found = summed(one, other)
    u, sizes, v = torch.linalg.svd(exact, full_matrices=False)
    best = u[:, :3] * sizes[:3] @ v[:3]
    torch.testing.assert_close(found["x.B"] @ found["x.A"], best, rtol=1e-4, atol=1e-4)


def card(tiny: Tiny, part: str, **changes: Any) -> None:
    said = json.loads(tiny.card.read_text())
    said[part] |= changes
    tiny.card.write_text(json.dumps(said))


def cut(tiny: Tiny) -> None:
    file = tiny.adapter / reader.ADAPTER
    file.write_bytes(file.read_bytes()[:-100])


def altered(tiny: Tiny) -> None:
    file = tiny.adapter / reader.ADAPTER
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(bytes(content))


def other_base(tiny: Tiny) -> None:
    card(tiny, "base", sha256="0" * 64)


def replaced_base(tiny: Tiny) -> None:
    gguf_files.write(tiny.base, gguf_files.tiny("llama", hidden_size=64))


def other_shape(tiny: Tiny) -> None:
    card(tiny, "adapter", rank=RANK + 1)


def unknown_base(tiny: Tiny) -> None:
    card(tiny, "base", name="bigger")


def no_card(tiny: Tiny) -> None:
    tiny.card.unlink()


def broken_card(tiny: Tiny) -> None:
    tiny.card.write_text('{"base": 1}')


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut, r"is cut short: it has .* bytes and should have"),
        (altered, r"has the SHA-256 .* and card\.json names"),
        (other_base, r"is for the smollm2 with the SHA-256 0{64}.*models get smollm2"),
        (replaced_base, r"is for the smollm2 with the SHA-256"),
        (other_shape, r"does not fit smollm2: .*q_proj has|does not fit smollm2: .* weights"),
        (unknown_base, r"names the base 'bigger'"),
        (no_card, r"has no card\.json"),
        (broken_card, r"is not the card of an adapter"),
    ],
)
def test_what_does_not_belong_together(tiny: Tiny, harm: Callable[[Tiny], None], said: str) -> None:
    harm(tiny)
    with pytest.raises(ModelError, match=said) as told:
        merged(Adapter.of(tiny.adapter))
    assert told.value.exit_code == 4
    made = [p.name for p in (tiny.base.parents[2] / "converted").iterdir()]
    assert not [name for name in made if name.startswith("part-")]


def test_layers_that_the_base_lacks(tiny: Tiny) -> None:
    adapter = Adapter.of(tiny.adapter)
    assert adapter.rank == RANK
    gguf_files.write(tiny.base, gguf_files.tiny("llama", num_hidden_layers=1))
    from kvstream.model.folders import digest_of

    card(tiny, "base", sha256=digest_of(tiny.base))
    with pytest.raises(ModelError, match=r"the base has no model\.layers\.1\."):
        merged(Adapter.of(tiny.adapter))


def test_a_reader_that_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any]
) -> None:
    tiny = tiny_reader(tmp_path, monkeypatch, here=False)
    text = tmp_path / "text.txt"
    text.write_text("A line of text.\n")
    done = cli("ask", str(text), "Q?", "-m", "reader")
    assert done.code == 4
    assert "`kvstream models get reader` fetches it (93 MB, Apache-2.0)" in done.stderr
    (tmp_path / "base.gguf").rename(tiny.base)
    (tiny.adapter / reader.ADAPTER).unlink()
    done = cli("ask", str(text), "Q?", "-m", "reader")
    assert done.code == 4
    assert "no adapter for reader" in done.stderr


def test_the_shipped_adapter_is_small_and_sound() -> None:
    if not reader.is_shipped():
        pytest.skip("this copy has no adapter yet")
    adapter = Adapter.of(reader.path())
    assert adapter.bytes <= 15 * 1024**2
    assert adapter.base_sha256 == offered.OFFERS[adapter.base].sha256


def test_it_is_stored_in_8_bits_if_they_are_harmless(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "LEAST", 8)
    size = tiny.base.stat().st_size
    eight = replace(offered.OFFERS["smollm2"], eight_bits=True, bytes=size)
    monkeypatch.setitem(offered.OFFERS, "smollm2", eight)
    exact, small = load(settings(dtype="float32")), load(settings())
    assert Path(folder(settings())).name.endswith("-int8")
    assert small.weights_dtype == "int8"
    ids = list(range(3, 40))
    found, right = (m.logits(m.forward(ids, m.new_cache(64))) for m in (small, exact))
    assert float((found - right).norm() / right.norm()) < 0.1
