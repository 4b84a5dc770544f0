"""The scripts that train a method refuse what cannot work before they load a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstream.evaluation.splits import is_heldout

TRAIN = (("edgeinfinite", "train"), ("foresight",))


@pytest.mark.parametrize("method", TRAIN)
@pytest.mark.parametrize(
    ("out", "code", "told"),
    [("file/out.safetensors", 1, "Cannot write"), (".", 2, "is a folder; name a file in it")],
)
def test_a_file_that_cannot_be_written_is_told_before_the_training(
    lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: tuple[str, ...], out: str,
    code: int, told: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    ran = lab(*method, "--data", "nowhere", "-o", out)
    assert ran.code == code, ran.stderr
    assert told in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="has no such files")
@pytest.mark.parametrize("method", TRAIN)
def test_no_file_takes_the_place_of_a_device(lab, method: tuple[str, ...], tmp_path: Path) -> None:
    """Root may rename a file to /dev/null, and no program can write there any more."""
    os.mkfifo(tmp_path / "pipe")
    done = lab(*method, "--data", str(tmp_path), "-o", str(tmp_path / "pipe"))
    assert done.code == 2
    assert "a device or a pipe; name a file" in done.stderr


def test_a_folder_that_lacks_texts_is_told_before_the_model_is_loaded(lab, tmp_path: Path) -> None:
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
        ran = lab("foresight", "--data", str(tmp_path), "-o", str(tmp_path / "x"))
        assert ran.code == 3, ran.stderr
        assert told in ran.stderr
        assert "name the folder that has books/ and qa/" in ran.stderr
