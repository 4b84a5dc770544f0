"""Which local models fit in memory, without loading them; short names for models."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import models
import pytest
import torch
from rich.cells import cell_len

from kvstream.api import models as catalog
from kvstream.api.models import BUDGET, Room
from kvstream.cli import config
from kvstream.cli.commands.models import _lines, _paragraphs, _row
from kvstream.errors import ModelError, UsageError
from kvstream.model import precision
from kvstream.run.request import Request
from kvstream.session.session import Session
from kvstream.settings import ModelSettings, RunSettings
from kvstream.store.offered import OFFERS

PLENTY = Room("cpu", 2**40)


@pytest.mark.parametrize(
    "family", ["llama", "qwen2", "gemma3", "gpt-neox", "mistral", "qwen3.5", "gemma3n"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sizes_are_those_of_the_loaded_model(
    family: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = models.fresh(models.FAMILIES[family].config()).to(dtype)
    model.save_pretrained(tmp_path)
    entry = catalog._entry("m", catalog.FOLDER, tmp_path, PLENTY)
    assert entry.problem is None
    assert entry.kind == model.config.model_type
    own = list(model.parameters())  # tied parameters count once, as in the file
    assert entry.parameters == sum(p.numel() for p in own)
    assert entry.weight_bytes == sum(p.nbytes for p in own)
    assert entry.kv_tokens == 2048
    layers = models.bounded(family).layers
    each = sum(s.heads * ((s.key_dim + s.value_dim) * dtype.itemsize + 4) for s in layers)
    assert entry.kv_bytes == 2048 * each
    assert entry.needs_bytes == round(entry.weight_bytes * 1.1) + entry.kv_bytes
    assert entry.fits
    tight = catalog._entry("m", catalog.FOLDER, tmp_path, Room("cpu", entry.needs_bytes - 1))
    assert tight.fits is False


def capacity(session: Session) -> int:
    """Return the capacity in bytes of the KV cache of a run with the default budget."""
    plan = session.settle(Request(("Who?",)))
    return plan.reader(session.model, RunSettings(), None).cache.capacity_bytes


@pytest.mark.whole_pocket
@pytest.mark.parametrize("fast", [True, False])
def test_the_kv_cache_is_that_of_a_run(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It also holds on a CPU where pocket runs in float32, twice as large as in its files."""
    monkeypatch.setattr(precision, "is_fast", lambda name: fast)
    session = Session.open(ModelSettings())
    entry = next(catalog.entries(PLENTY, {}))
    assert session.model.layers[0].dtype == (torch.bfloat16 if fast else torch.float32)
    assert entry.kv_bytes == capacity(session)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize("fast", [True, False])
def test_the_kv_cache_of_a_gguf_file_is_that_of_a_run(
    kind: str, fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size includes the origins of the entries, and uses 16 bits if the weights do."""
    monkeypatch.setattr(precision, "is_fast", lambda name: fast)
    path = gguf_files.write(tmp_path / "m.gguf", kind=gguf.GGMLQuantizationType[kind])
    entry = catalog._entry("m", catalog.FILE, path, PLENTY)
    session = Session.open(ModelSettings(model=str(path), quiet=True))
    assert entry.kv_bytes == capacity(session)


def test_shards_are_added_up_and_missed(tmp_path: Path) -> None:
    model = models.plain("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    (tmp_path / "consolidated.safetensors").write_bytes(b"the same again, for another program")
    entry = catalog._entry("m", catalog.FOLDER, tmp_path, PLENTY)
    assert entry.parameters == sum(p.numel() for p in model.parameters())
    shards[1].unlink()
    entry = catalog._entry("m", catalog.FOLDER, tmp_path, PLENTY)
    assert entry.problem == f"{shards[1].name} is missing"
    assert entry.fits is None


def test_wide_names_leave_the_table_straight() -> None:
    entries = [catalog.ModelEntry(name, "here") for name in ("模型", "model")]
    ends = {cell_len(line[: line.index("here")]) for line in list(_lines(entries, 999))[1:]}
    assert len(ends) == 1


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "cannot be understood"),
        ("config.json", "[1]", "cannot be understood"),
        ("config.json", "{}", "cannot be understood"),
        ("config.json", '{"model_type": ["x"]}', "cannot be understood"),
        ("config.json", '{"max_position_embeddings": [1]}', "cannot be understood"),
        ("config.json", '{"max_position_embeddings": "2048"}', "cannot be understood"),
        ("config.json", '{"max_position_embeddings": 1e400}', "cannot be understood"),
        ("config.json", "[" * 100_000, "cannot be understood"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("model.safetensors", "", "not a safetensors file"),
        ("model.safetensors", "x" * 100, "not a safetensors file"),
        ("model.safetensors.index.json", "{}", "cannot be understood"),
    ],
)
def test_broken_folders_are_told(name: str, content: str | None, says: str, tmp_path: Path) -> None:
    models.plain("llama").save_pretrained(tmp_path)
    if "index" in name:
        (tmp_path / "model.safetensors").unlink()
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    entry = catalog._entry("m", catalog.FOLDER, tmp_path, PLENTY)
    assert entry.problem is not None
    assert says in entry.problem
    assert entry.fits is None
    assert all(isinstance(cell, str) for cell in _row(entry))


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    monkeypatch.setenv("KVSTREAM_CONFIG", str(path))
    return path


def test_an_alias_stands_for_a_model_wherever_one_is_named(
    config_file: Path, cli: Any, fake_session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "book.txt"
    book.write_text("A line of text.\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config_file.write_text(f'model = "small"\n[models]\nsmall = "org/some"\nlarge = "{folder}"\n')
    alone = "--skim", "none"
    answers = [
        cli("ask", str(book), "Q?", "--json", *alone),
        cli("ask", str(book), "Q?", "--json", "-m", "large", *alone),
        cli("ask", str(book), "Q?", "--json", "-m", "org/other", *alone),
    ]
    monkeypatch.setenv("KVSTREAM_MODEL", "large")
    answers.append(cli("ask", str(book), "Q?", "--json", *alone))
    assert [a.code for a in answers] == [0] * 4, answers[0].stderr
    found = [json.loads(a.stdout)["model"] for a in answers]
    assert found == ["org/some", str(folder), "org/other", str(folder)]


def test_almost_a_name_is_not_looked_up_on_the_hub(config_file: Path, monkeypatch) -> None:
    config_file.write_text('[models]\nlarge = "org/large"\n')
    for name, close in (("pockett", "pocket"), ("larg", "large")):
        with pytest.raises(UsageError, match=f"no model '{name}'. Did you mean {close}\\?"):
            config.model_name(name)
    for name in ("org/pockett", "./pockett"):
        assert config.model_name(name) == name
    monkeypatch.chdir(config_file.parent)
    Path("pockett").mkdir()
    assert config.model_name("pockett") == "pockett"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama3.2", "no model of that name in the hub's cache"),
        *(
            (name, "not a name of the hub")
            for name in (
                "",
                "org/na me",
                "org/",
                "org/-x",
                "org/x.",
                "o--rg/x",
                "org/x..y",
                "org/x.git",
                "org/x\n",
                "org/\udcff",
                "org/x\0",
                "örg/x",
                "org\\x",
                "org/" + "x" * 97,
            )
        ),
        ("llama3.2:1b", "those have at most 96 letters"),
        ("http://localhost:11434/v1", "the address of a server"),
    ],
)
def test_names_of_other_tools_are_answered_at_once(name: str, says: str, kvstream: Any) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        config.model_name(name)
    assert "Give --model pocket, reader or another model" in str(caught.value)
    if name == "llama3.2":
        began = time.perf_counter()
        ran = kvstream("ask", __file__, "Who?", "-m", name)
        assert time.perf_counter() - began < 10
        assert ran.code == 4
        assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["m.bin", "./m.bin"])
def test_a_file_that_is_no_model_is_told(
    name: str, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.bin").write_bytes(b"weights")
    ran = cli("ask", __file__, "Who?", "-m", name)
    assert ran.code == 4
    assert "m.bin is not a model: give a folder, a GGUF file" in ran.stderr


def test_a_cached_name_without_an_owner_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--gpt2").mkdir()
    assert config.model_name("gpt2") == "gpt2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models = 3", r"\[models\] is a table"),
        ("[models]\nsmall = 3", "small in .models. must be a hub id or a path"),
        ('[models]\nsmall = ""', "must be a hub id or a path"),
        ('[models]\npocket = "org/some"', "pocket is the embedded model"),
    ],
)
def test_wrong_aliases_are_told(config_file: Path, text: str, says: str) -> None:
    config_file.write_text(text)
    with pytest.raises(UsageError, match=says):
        config.model_name("small")


def test_the_list_fits_the_terminal_and_keeps_names_whole() -> None:
    name = "ollama:some-publisher/some-model-with-a-long-name-that-is-not-cut:latest-of-all"
    small = catalog.ModelEntry("pocket", catalog.EMBEDDED, kind="llama", parameters=6_000_000)
    long = catalog.ModelEntry(
        name, catalog.CACHED, kind="qwen3_5_text", parameters=1_000_000_000, weight_bytes=2**31,
        trained=131_072, kv_bytes=2**27, fits=True, problem="its KV cache is of no known kind " * 4,
    )  # fmt: skip
    lines = "\n".join(_lines([small, long], 80)).split("\n")
    assert all(len(line) <= 80 for line in lines)
    assert name in lines
    assert "pocket  embedded llama" in lines
    wide = list(_lines([small, long], 400))
    assert len(wide) == 3
    assert wide[2].startswith(f"{name}  hub cache qwen3_5_text")


def test_what_can_be_fetched_is_told_in_paragraphs_beside_the_names() -> None:
    told = "\n".join(_paragraphs(OFFERS.values(), 80)).split("\n")
    assert max(map(len, told)) <= 80
    names = [line[:11].strip() for line in told if line[0] != " "]
    assert names == [
        "smollm2", "reader", "qwen-0.5b", "reader-0.5b", "qwen-1.5b", "reader-1.5b",
    ]  # fmt: skip
    words = [word for line in told for word in line.split()]
    assert {"English;", "memory,"} <= set(words)
    wide = list(_paragraphs(OFFERS.values(), 400))
    assert [line.count("\n") for line in wide] == [0] * len(OFFERS)
    assert wide[1].startswith("reader       smollm2 with kvstream's adapter")


def test_as_a_program(kvstream: Any, forked: Any, tmp_path: Path) -> None:
    """The hub cache has the layout of the hub's library, and an alias points into it."""
    snapshot = tmp_path / "hub/models--org--some/snapshots/0123abc"
    models.plain("llama").save_pretrained(snapshot)
    refs = tmp_path / "hub/models--org--some/refs"
    refs.mkdir()
    (refs / "main").write_text("0123abc")
    half = tmp_path / "hub/models--org--half/snapshots/4567def"
    half.mkdir(parents=True)
    shutil.copy(snapshot / "config.json", half)
    settings = tmp_path / "config.toml"
    settings.write_text(
        f'[models]\nfirst = "org/some"\nfar = "org/far"\nown = "{snapshot}"\ntoy = "pocket"\n'
    )
    env = {"HF_HUB_CACHE": str(tmp_path / "hub"), "KVSTREAM_CONFIG": str(settings)}
    done = kvstream("models", "--json", **env)
    assert done.code == 0, done.stderr
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert list(found) == ["pocket", "first", "far", "own", "toy", "org/half", "org/some"]
    assert found["pocket"]["fits"]
    assert found["pocket"]["kv_tokens"] == BUDGET
    assert found["far"]["problem"].startswith("not here yet")
    assert found["org/half"]["problem"] == "model.safetensors is missing"
    assert found["first"]["weight_bytes"] == found["org/some"]["weight_bytes"] > 0
    assert found["own"]["where"] == "folder"
    assert found["toy"]["parameters"] == found["pocket"]["parameters"]
    table = forked("models", **{**env, "HF_HUB_CACHE": str(tmp_path / "nothing")})
    assert table.code == 0, table.stderr
    assert "first = org/some" in table.stdout
    assert "free on" in table.stdout.splitlines()[-1]
