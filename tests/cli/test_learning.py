"""``kvstream methods train|measure``, for every method that learns something."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import click
import pytest

from kvstream.evaluation.synthetic.splits import is_heldout
from kvstream.methods import registry


@pytest.mark.parametrize("action", ["train", "measure"])
def test_gate_is_the_old_name_of_what_edgeinfinite_learns(cli, action: str) -> None:
    assert "gate" not in cli("--help").stdout
    old = cli("gate", action, "--help")
    new = cli("methods", action, "edgeinfinite", "--help")
    assert (old.code, new.code) == (0, 0)
    assert [*old.stdout.splitlines()[1:]] == [*new.stdout.splitlines()[1:]]
    assert cli("gate", action).code == 2  # --data is missing


def test_a_method_of_another_package_brings_its_training(
    cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("elsewhere_training")

    @click.command()
    @click.option("--data")
    def train(data: str) -> None:
        click.echo(f"learning from {data}")

    module.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Learner(registry.named("streaming")):  # type: ignore[misc]
        learning = module.__name__

    known = {**registry.available(), "learner": Learner}
    monkeypatch.setattr(registry, "available", lambda: known)
    assert cli("methods", "train", "learner", "--data", "d").stdout == "learning from d\n"
    assert "learner" not in cli("methods", "measure", "--help").stdout
    assert "kvstream methods train learner" in cli("methods", "learner").stdout


@pytest.mark.parametrize("method", ["edgeinfinite", "foresight"])
@pytest.mark.parametrize(
    ("out", "code", "told"),
    [("file/out.safetensors", 1, "Cannot write"), (".", 2, "is a folder; name a file in it")],
)
def test_a_file_that_cannot_be_written_is_told_before_the_training(
    cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, out: str, code: int,
    told: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    ran = cli("methods", "train", method, "--data", "nowhere", "-o", out)
    assert ran.code == code, ran.stderr
    assert told in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="has no such files")
@pytest.mark.parametrize("method", ["edgeinfinite", "foresight"])
def test_no_file_takes_the_place_of_a_device(cli, method: str, tmp_path: Path) -> None:
    """Root may rename a file to /dev/null, and no program can write there any more."""
    os.mkfifo(tmp_path / "pipe")
    done = cli(
        "methods", "train", method, "--data", str(tmp_path), "-o", str(tmp_path / "pipe")
    )  # fmt: skip
    assert done.code == 2
    assert "a device or a pipe; name a file" in done.stderr


def test_a_folder_that_lacks_texts_is_told_before_the_model_is_loaded(cli, tmp_path: Path) -> None:
    """First the folder has books of only one side of the split, then of both but no questions."""
    books = tmp_path / "books"
    books.mkdir()
    names = sorted(map(str, range(40)), key=is_heldout, reverse=True)
    for some, told in (
        (names[:1], "no books/*.txt.gz whose name is not held out"),
        (names, "no qa/squad_dev"),
    ):
        for name in some:
            (books / f"{name}.txt.gz").write_bytes(b"")
        out = str(tmp_path / "x")
        ran = cli("methods", "train", "foresight", "--data", str(tmp_path), "-o", out)
        assert ran.code == 3, ran.stderr
        assert told in ran.stderr
        assert "name the folder that has books/ and qa/" in ran.stderr
