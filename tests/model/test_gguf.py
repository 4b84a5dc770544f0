"""GGUF files are converted once, to model folders with equal answers. Errors are explained."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import shutil
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gguf
import gguf_files
import models
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvstream.cli.app import run
from kvstream.errors import ModelError
from kvstream.model import folders, int8, placement
from kvstream.model import gguf as converting
from kvstream.model.ahead import ahead
from kvstream.model.folders import converted, folder
from kvstream.model.loading import load
from kvstream.session.session import Session
from kvstream.settings import ModelSettings
from kvstream.store import gguf_file
from kvstream.store.stores import converted_folder
from kvstream.tokenization import templates

Q8_0 = gguf.GGMLQuantizationType.Q8_0
FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "qwen3-moe",
    "lfm2",
    "starcoder2",
)


def loaded(path: Path) -> Any:
    folder = converted(path, quiet=True)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def same(model: Any, path: Path, within: float = 1e-3) -> None:
    """Assert that the file gives the logits of the model that it was written from."""
    torch.testing.assert_close(
        gguf_files.logits(loaded(path)), gguf_files.logits(model), rtol=0, atol=within
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_converted_model_gives_the_same_logits(family: str, tmp_path: Path) -> None:
    model = gguf_files.tiny(family)
    same(model, gguf_files.write(tmp_path / "m.gguf", model))


LLAMA3 = {**models.LLAMA3, "factor": 8.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
SCALED = {
    "llama3": (LLAMA3, {}),
    "linear": (
        {"rope_type": "linear", "factor": 2.0},
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
    ),
    "yarn": (
        YARN,
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 512,
        },
    ),
    "a factor alone": ({"rope_type": "linear", "factor": 2.0}, {"llama.rope.scaling.factor": 2.0}),
    "its old name": ({"rope_type": "linear", "factor": 2.0}, {"llama.rope.scale_linear": 2.0}),
    "yarn with its ramp": (
        {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
        {
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 512,
            "llama.rope.scaling.yarn_beta_fast": 16.0,
            "llama.rope.scaling.yarn_beta_slow": 2.0,
            "llama.rope.scaling.yarn_ext_factor": 1.0,
            "llama.rope.scaling.attn_factor": 1.0,
        },
    ),
    "yarn without the length it began with": (
        {**YARN, "original_max_position_embeddings": 2048},
        {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0},
    ),
}


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_positions_are_kept(kind: str, tmp_path: Path) -> None:
    """transformers' table of GGUF keys omits them."""
    rope, keys = SCALED[kind]
    model = gguf_files.tiny("llama", head_dim=32, rope_parameters={**rope, "rope_theta": 5e5})
    more = {}
    if kind == "llama3":
        plain = 1 / 5e5 ** (np.arange(16) / 16)
        scaled = model.model.rotary_emb.inv_freq.numpy()
        assert (plain / scaled).max() > 7
        more = {"rope_freqs.weight": (plain / scaled).astype(np.float32)}
    same(model, gguf_files.write(tmp_path / "m.gguf", model, keys=keys, more=more))


@pytest.mark.parametrize("original", [16, 512])
@pytest.mark.parametrize("rotated", [1.0, 0.75])
def test_longrope_is_kept(original: int, rotated: float, tmp_path: Path) -> None:
    """Up to the original length and beyond it. Phi-4 mini rotates a part of each head."""
    pairs = int(16 * rotated)
    short, long = (np.linspace(1, most, pairs).astype(np.float32) for most in (2, 16))
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": rotated,
        "short_factor": short.tolist(), "long_factor": long.tolist(),
        "original_max_position_embeddings": original,
    }  # fmt: skip
    model = gguf_files.tiny(
        "phi3", hidden_size=128, rope_parameters=rope, original_max_position_embeddings=original
    )
    more = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    keys = {
        "phi3.rope.scaling.original_context_length": original,
        "phi3.rope.scaling.attn_factor": math.sqrt(1 + math.log(2048 / original, original)),
    }
    same(model, gguf_files.write(tmp_path / "m.gguf", model, keys=keys, more=more))


@pytest.mark.parametrize("family", ["llama", "phi3", "starcoder2", "stablelm"])
def test_the_base_of_rotary_positions_is_kept(family: str, tmp_path: Path) -> None:
    """Heads are so wide that more than one pair rotates even with a partial rotation."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    if family in ("llama", "starcoder2"):
        del rope["partial_rotary_factor"]
    model = gguf_files.tiny(family, hidden_size=128, rope_parameters=rope)
    same(model, gguf_files.write(tmp_path / "m.gguf", model))


@pytest.mark.parametrize("caps", [(20.0, 30.0), (50.0, 10.0), (None, None)])
def test_caps_of_gemma_2_are_kept(caps: tuple[float | None, float | None], tmp_path: Path) -> None:
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    model = gguf_files.tiny("gemma2", **dict(zip(names, caps, strict=True)))
    keys = {f"gemma2.{name}": cap or 0.0 for name, cap in zip(names, caps, strict=True)}
    same(model, gguf_files.write(tmp_path / "m.gguf", model, keys=keys))


def test_frequencies_of_their_own_are_refused(tmp_path: Path) -> None:
    more = {"rope_freqs.weight": np.linspace(1, 9, 4).astype(np.float32)}
    path = gguf_files.write(tmp_path / "m.gguf", more=more)
    with pytest.raises(ModelError, match="rotary frequencies in its own way"):
        converted(path)


def test_quantized_weights_are_those_that_the_file_stores(tmp_path: Path) -> None:
    model = gguf_files.tiny("llama")
    path = gguf_files.write(tmp_path / "m.gguf", model, kind=Q8_0)
    stored = gguf_file.read(path).tensors["blk.0.ffn_gate.weight"]
    assert stored.kind == Q8_0
    ours = loaded(path).model.layers[0].mlp.gate_proj.weight
    theirs = gguf.dequantize(
        gguf.quantize(model.model.layers[0].mlp.gate_proj.weight.detach().numpy(), Q8_0), Q8_0
    )
    # float16 rounds each number by at most 2^-11 of it.
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=2**-11, atol=1e-7)


def test_numbers_beyond_float16_are_kept(tmp_path: Path) -> None:
    model = gguf_files.tiny("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, :] = 1e6
    found = loaded(gguf_files.write(tmp_path / "m.gguf", model, kind=Q8_0))
    weight = found.model.layers[1].mlp.up_proj.weight
    assert weight[3].min() > 9e5
    assert bool(weight.isfinite().all())


def test_parts_are_joined_and_a_missing_one_is_told(tmp_path: Path) -> None:
    model = gguf_files.tiny("qwen2")
    first = gguf_files.write(tmp_path / "m.gguf", model, parts=3)
    assert first.name == "m-00001-of-00003.gguf"
    assert not model.config.tie_word_embeddings  # `output.weight` is not in the first part
    same(model, first)
    assert converted(tmp_path / "m-00003-of-00003.gguf") == converted(first)
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelError, match=r"one of 3 parts, and m-00002-of-00003.gguf is not in"):
        converted(first)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_int8_converts_to_8_bits(
    family: str, tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_files.tiny(
        family, hidden_size=64, intermediate_size=192, head_dim=32, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    leave_out = ("output.weight",) if tied else ()
    path = gguf_files.write(tmp_path / "m.gguf", model, leave_out=leave_out)
    settings = ModelSettings(model=str(path), quantize="int8", quiet=True)
    exact = load(exact_of(path))
    first, again = load(settings), load(settings)
    where = Path(folder(settings))
    assert where.name.endswith("-int8")
    sizes = [
        (f / "model.safetensors").stat().st_size for f in (where, Path(folder(exact_of(path))))
    ]
    assert sizes[0] < 0.4 * sizes[1]
    ids = list(range(3, 60))
    logits = [m.logits(m.forward(ids, m.new_cache(64))) for m in (exact, first, again)]
    assert torch.equal(logits[1], logits[2])
    assert float((logits[1] - logits[0]).norm() / logits[0].norm()) < 0.1
    assert first.fingerprint == again.fingerprint != exact.fingerprint
    assert first.weights_dtype == "int8"
    packs, pack = [], int8.product_of
    monkeypatch.setattr(int8, "product_of", lambda *a: (packs.append(a[0]), pack(*a))[1])
    monkeypatch.setattr(placement, "free_memory", free := Mock(return_value=10**12))
    with ahead(settings):
        while len(packs) < 2 * 4 + 1:  # four products in each layer, and the output layer
            time.sleep(0.01)
        free.return_value = 0  # what is packed is no reason to refuse the model
        early = load(settings)
    assert torch.equal(early.logits(early.forward(ids, early.new_cache(64))), logits[1])
    assert early.fingerprint == first.fingerprint
    assert len(packs) == 2 * 4 + 1
    rows = [len(product[0][0]) for product in packs]
    assert rows.index(max(rows)) < 2  # the largest is not copied when all others are in memory
    with pytest.raises(ModelError, match="of memory are free"), ahead(settings):
        raise AssertionError
    free.return_value = 10**12
    (where / "model.safetensors").write_bytes(b"0" * 100)
    with pytest.raises(ModelError, match=r"is damaged .*`kvstream models clean` removes it"):
        load(settings)
    with (
        pytest.raises(ModelError, match=r"is damaged .*`kvstream models clean` removes it"),
        ahead(settings),
    ):
        load(settings)


def exact_of(path: Path) -> ModelSettings:
    return ModelSettings(model=str(path), dtype="float32", quiet=True)


def test_a_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.write(tmp_path / "m.gguf")
    folder = converted(path)

    def never(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(converting, "convert", never)
    moved = path.rename(tmp_path / "other.gguf")
    assert converted(moved) == folder  # found by its digest
    monkeypatch.setattr(folders.hashlib, "file_digest", never)
    assert converted(moved) == folder  # found by its path: nothing is read
    os.utime(moved, (1, 1))
    with pytest.raises(AssertionError):
        converted(moved)


def test_a_changed_file_is_converted_anew(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", models.fresh(gguf_files.tiny("llama").config, 1))
    first = converted(path)
    gguf_files.write(path, models.fresh(gguf_files.tiny("llama").config, 2))
    assert converted(path) != first


def test_what_was_there_before_stays_where_a_program_was_killed(tmp_path: Path) -> None:
    root = converted_folder()
    (root / "part-old").mkdir(parents=True)
    (root / "part-new").mkdir()
    os.utime(root / "part-old", (1, 1))
    folder = converted(gguf_files.write(tmp_path / "m.gguf"))
    assert sorted(p.name for p in root.iterdir()) == sorted([folder.name, "digests", "part-new"])


def test_what_others_leave_while_it_converts_does_not_matter(tmp_path: Path) -> None:
    """A listed folder can be gone, and a stored digest can be invalid."""
    path, root = gguf_files.write(tmp_path / "m.gguf"), converted_folder()
    root.mkdir(parents=True)
    (root / "part-gone").symlink_to(root / "nowhere")
    folder = converted(path)
    (known,) = (root / "digests").iterdir()
    known.write_bytes(b"\xff" * 64)
    assert converted(path) == folder


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(converting, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        converted(gguf_files.write(tmp_path / "m.gguf"))
    assert list(converted_folder().iterdir()) == []


def test_a_cache_that_is_emptied_meanwhile_gets_no_half_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`save_pretrained` would create the folder again, without the weights."""
    path, write = gguf_files.write(tmp_path / "m.gguf"), converting._write_weights

    def emptied(*given: Any) -> None:
        write(*given)
        shutil.rmtree(converted_folder())

    monkeypatch.setattr(converting, "_write_weights", emptied)
    with pytest.raises(ModelError, match="was emptied while a model was put there"):
        converted(path)
    assert list(converted_folder().iterdir()) == []
    monkeypatch.setattr(converting, "_write_weights", write)
    assert (converted(path) / "model.safetensors").is_file()


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_a_folder_of_which_a_part_was_removed_is_made_anew(lost: str, tmp_path: Path) -> None:
    model = gguf_files.tiny("llama")
    path = gguf_files.write(tmp_path / "m.gguf", model)
    (converted(path) / lost).unlink()
    same(model, path)


def test_a_digest_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf")

    def full(partial: Path, target: Path) -> None:
        assert partial.is_file()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert (converted(path) / "model.safetensors").is_file()
    assert list((converted_folder() / "digests").iterdir()) == []


def test_progress_stays_in_one_line_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps cannot be erased."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    converting._teller(False)(f"Converting, which is done once: 23%: {'x' * 60}.gguf")
    assert terminal.getvalue().startswith("\r\033[KConverting, which is done once: 23%")
    assert len(terminal.getvalue().removeprefix("\r\033[K")) < 40


def test_it_answers_and_says_what_it_does(tmp_path: Path, cli: Any) -> None:
    path = gguf_files.write(tmp_path / "m.gguf")
    text = tmp_path / "text.txt"
    text.write_text("The keeper of the lighthouse left at ten.\n" * 60)
    arguments = ("ask", str(text), "Who left?", "-m", str(path), "--budget", "256")
    first = cli(*arguments, "--max-tokens", "4")
    assert first.code == 0, first.stderr
    assert "Converting, which is done once: 0%: m.gguf" in first.stderr
    assert "kvstream models clean" in first.stderr
    again = cli(*arguments, "--max-tokens", "4")
    assert again.stdout == first.stdout
    assert "Converting" not in again.stderr
    clean = cli("models", "clean")
    assert clean.code == 0
    assert clean.stdout.startswith("Removed ")
    assert not converted_folder().exists()
    quiet = cli(*arguments, "--max-tokens", "4", "-q")
    assert quiet.stdout == first.stdout
    assert "Converting" not in quiet.stderr


def test_the_kv_cache_is_bounded_as_of_a_folder(tmp_path: Path) -> None:
    settings = ModelSettings(model=str(gguf_files.write(tmp_path / "m.gguf")), quiet=True)
    session = Session.open(settings)
    assert session.tokenizer.has_template
    assert session.tokenizer.bos_id is None  # the file says that texts begin without it
    assert load(settings).trained_length == 2048


# Bad files.


def cut(path: Path, length: int) -> None:
    os.truncate(path, length)


def edit(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


RAISES = "{{ raise_exception('no turn of the user') }}"
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}"
BAD: dict[str, tuple[dict[str, Any], Any, str]] = {
    "cut short in the weights": ({}, lambda p: cut(p, p.stat().st_size - 999), "is cut short"),
    "cut short in the header": ({}, lambda p: cut(p, 3000), "is cut short"),
    "cut short in its first bytes": ({}, lambda p: cut(p, 11), "is cut short"),
    "empty": ({}, lambda p: cut(p, 0), "is cut short"),
    "of another byte order": (
        {"endian": gguf.GGUFEndian.BIG}, None, "gguf-convert-endian m.gguf little",
    ),
    "no GGUF at all": ({}, lambda p: edit(p, 0, b"PK\3\4"), "is not a GGUF file"),
    "of another version": ({}, lambda p: edit(p, 4, b"\x09\0\0\0"), "GGUF version 9"),
    "with absurd counts": ({}, lambda p: edit(p, 8, b"\xff" * 8), "announces .* tensors"),
    "without a tokenizer": ({"tokenizer": {}}, None, "has no tokenizer"),
    "with another kind of tokenizer": (
        {"tokenizer": {**gguf_files.byte_level(), "model": "bert"}}, None, "of the kind 'bert'",
    ),
    "with a rule that is not known": (
        {"tokenizer": {**gguf_files.byte_level(), "pre": "some-new"}}, None,
        "by the rule 'some-new', which kvstream does not know",
    ),
    "without merges": (
        {"tokenizer": {**gguf_files.byte_level(), "merges": 3}}, None, "has no merges",
    ),
    "with a template that raises": ({"template": RAISES}, None, "no turn of the user"),
    "with a template that is none": ({"template": "{% for %}"}, None, "template of .* cannot be"),
    "with a template that loops": ({"template": LOOPS}, None, "ran for more than 0.5 s"),
    "with a tensor too many": (
        {"more": {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}}, None, "blk.0.attn_sinks",
    ),
    "with a tensor too few": (
        {"leave_out": ["blk.1.attn_k.weight"]}, None, "no tensor for 1 weights",
    ),
    "with a scale that is not read": (
        {"keys": {"llama.attention.scale": 0.3}}, None, "sets attention.scale",
    ),
    "with scaled attention": (
        {"keys": {"llama.rope.scaling.attn_factor": 1.2}}, None, "with attn_factor 1.2",
    ),
    "with more layers than tensors": (
        {"keys": {"llama.block_count": 2**31}}, None, "announces 2,147,483,648 layers",
    ),
    "with an absurd width": (
        {"keys": {"llama.feed_forward_length": 2**31 - 1}}, None,
        "blk.0.ffn_gate.weight has the shape .* and the header asks for",
    ),
    "with heads that do not divide the keys": (
        {"keys": {"llama.attention.head_count_kv": 3}}, None, "blk.0.attn_k.weight has the shape",
    ),
    "with a rule that is no text": (
        {"tokenizer": {**gguf_files.byte_level(), "pre": ["smollm"]}}, None, "of the wrong kind",
    ),
    "with one kind for all tokens": (
        {"tokenizer": {**gguf_files.byte_level(), "token_type": 1}}, None, "of the wrong kind",
    ),
    "with merges that are numbers": (
        {"tokenizer": {**gguf_files.byte_level(), "merges": [1, 2]}}, None, "of the wrong kind",
    ),
    "with a template that is a number": ({"template": 5}, None, "of the wrong kind"),
    "with an odd scaling": ({"keys": {"llama.rope.scaling.type": "su"}}, None, "by 'su'"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_files_are_told_and_leave_nothing(
    what: str, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(templates, "MOST_S", 0.5)
    how, harm, says = BAD[what]
    path = gguf_files.write(tmp_path / "m.gguf", **how)
    if harm is not None:
        harm(path)
    text = tmp_path / "text.txt"
    text.write_text("A line of text.\n")
    done = cli("ask", str(text), "Q?", "-m", str(path))
    assert done.code == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    with pytest.raises(ModelError, match=says):
        converted(path)
    root = converted_folder()
    assert not root.exists() or not any(root.iterdir())


def test_an_architecture_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.write(tmp_path / "m.gguf")
    data = path.read_bytes().replace(b"llama", b"zlama")
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"\(zlama\) is of an architecture that transformers"):
        converted(path)


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf")
    occupied = tmp_path / "a file"
    occupied.write_text("")
    monkeypatch.setenv("KVSTREAM_CACHE", str(occupied))
    text = tmp_path / "text.txt"
    text.write_text("A line of text.\n")
    done = cli("ask", str(text), "Q?", "-m", str(path))
    assert done.code == 4
    assert "cannot be written: Not a directory" in done.stderr
    assert "KVSTREAM_CACHE=FOLDER" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="others have no such names")
def test_names_that_are_not_utf_8(
    tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may have such a name. The libraries cannot open files in a folder with one."""
    odd = os.fsdecode(b"m\xff")
    path = gguf_files.write(tmp_path / "m.gguf").rename(tmp_path / f"{odd}.gguf")
    shutil.copytree(converted(path), tmp_path / odd)
    with pytest.raises(ModelError, match=r"is not UTF-8.* rename the folder, or make a link"):
        load(ModelSettings(str(tmp_path / odd)))
    monkeypatch.setenv("KVSTREAM_CACHE", str(tmp_path / odd / "cache"))
    with pytest.raises(ModelError, match=r"is not UTF-8.*KVSTREAM_CACHE=FOLDER"):
        converted(path)
    assert not (tmp_path / odd / "cache").exists()
    text = tmp_path / "text.txt"
    text.write_text("A line of text.\n")
    assert cli("ask", str(text), "Q?", "-m", str(path)).code == 4


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_files.write(tmp_path / "m.gguf")
    monkeypatch.setattr(converting.shutil, "disk_usage", lambda _: Namespace(free=10**6))
    with pytest.raises(ModelError, match=r"takes .* GB and 0.0 GB are free .* KVSTREAM_CACHE"):
        converted(path)
    assert list(converted_folder().iterdir()) == []


def test_numbers_beyond_float16_take_no_more_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_files.tiny("llama")
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, :] = 1e6
    path = gguf_files.write(tmp_path / "m.gguf", model, kind=Q8_0)
    size = (converted(path) / "model.safetensors").stat().st_size
    shutil.rmtree(converted_folder())

    def usage(folder: Path) -> Namespace:
        held = sum(file.stat().st_size for file in folder.iterdir())
        return Namespace(free=converting.SPARE + size - held)

    monkeypatch.setattr(converting.shutil, "disk_usage", usage)
    assert (converted(path) / "model.safetensors").is_file()


def test_a_file_that_goes_away_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error does not blame the cache."""
    path = gguf_files.write(tmp_path / "m.gguf")

    def planned(*given: Any) -> Any:
        path.unlink()
        return plan(*given)

    plan = converting.plan
    monkeypatch.setattr(converting, "plan", planned)
    with pytest.raises(ModelError, match=r"m\.gguf cannot be read: No such file or directory"):
        converted(path)
    assert list(converted_folder().iterdir()) == []


def test_a_file_that_is_no_model(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Some notes.\n")
    assert run(["ask", str(path), "Q?", "-m", str(path)]) == 4
    assert "is not a model: give a folder, a GGUF file or a hub id" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_pipe_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is no name of the hub, and reading it would wait for a writer."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("m.gguf")
    for name in ("m.gguf", "./m.gguf", os.devnull):
        with pytest.raises(ModelError, match="is not a model: give a folder, a GGUF file"):
            folder(ModelSettings(model=name))


def test_headers_are_read_without_the_vocabulary(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", tokenizer={**gguf_files.byte_level()})
    brief, full = gguf_file.read(path), gguf_file.read(path, texts=True)
    assert brief.keys["tokenizer.ggml.tokens"] == 400
    assert full.keys["tokenizer.ggml.tokens"] == gguf_files.byte_level()["tokens"]
    assert brief.tensors == full.tensors
    assert brief.of_model("context_length") == 2048
    assert brief.parameters == sum(t.numel() for t in gguf_files.tiny("llama").parameters())


def test_the_converted_folder_is_an_ordinary_one(tmp_path: Path) -> None:
    folder = converted(gguf_files.write(tmp_path / "m.gguf"))
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
