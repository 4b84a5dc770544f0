"""`kvstream inspect` reports the same of a memory file as the run that wrote it."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys

import pytest

FEW = ("--budget", "320", "-n", "6", "--threads", "1")
QUESTION = "What is the passkey for the old mill?"
TEXT = "It rained all day. " * 90 + "The passkey for the old mill is 48213. "


@pytest.fixture
def written(cli, tmp_path_factory):
    """A folder with two memory files, and the output of `remember --json` for each."""
    folder = tmp_path_factory.mktemp("inspected")
    (folder / "mill.txt").write_text(TEXT)
    said = {}
    for name, more in (("known", ("-Q", QUESTION)), ("later", ("-m", "pocket"))):
        ran = cli(
            "remember", str(folder / "mill.txt"), "-o", str(folder / f"{name}.kvs"), "--json", "-q",
            *FEW, *more,
        )  # fmt: skip
        assert ran.code == 0, ran.stderr
        said[name] = json.loads(ran.stdout)
    return folder, said


@pytest.mark.parametrize("name", ["known", "later"])
def test_it_repeats_what_the_reading_said(cli, written, name) -> None:
    folder, said = written
    ran = cli("inspect", str(folder / f"{name}.kvs"), "--json")
    assert ran.code == 0, ran.stderr
    told = json.loads(ran.stdout)
    made = said[name]
    assert told["tokens"]["evicted"] > 0
    for key in ("read", "retained", "evicted"):
        assert told["tokens"][key] == made["tokens"][key]
    assert told["tokens"]["entries"] <= told["budget"]["tokens"] == made["budget"]["tokens"] == 320
    assert told["tokens"]["prompt"] == 1
    assert told["peak"] == {key: made["peak"][key] for key in ("kv_tokens", "kv_bytes")}
    assert {**told["memory"], "read_s": None} == {**made["memory"], "read_s": None}
    for key in ("model", "method", "schedule", "warnings"):
        assert told[key] == made[key]


def test_people_see_the_same_numbers(cli, written) -> None:
    folder, said = written
    ran = cli("inspect", str(folder))
    assert ran.code == 0, ran.stderr
    pages = ran.stdout.split("\n\n")
    assert [page.split("\n")[0] for page in pages] == [
        str(folder / f"{name}.kvs") for name in ("known", "later")
    ]
    for name, page in zip(("known", "later"), pages, strict=True):
        tokens, sha256 = said[name]["tokens"], said[name]["memory"]["sha256"]
        kept = f"kept {tokens['retained']:,}"
        assert " entries (1 of the prompt) of 320 " in page
        assert f"read {tokens['read']:,} · {kept} · evicted {tokens['evicted']:,}" in page
        assert sha256 in page
        assert f"{folder / 'mill.txt'} ({len(TEXT):,} bytes)" in page
    assert QUESTION in pages[0]
    assert "made without a question" in pages[1]


def test_a_single_step_is_counted_in_the_singular(cli, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("It rained.")
    path = str(tmp_path / "a.kvs")
    assert cli("remember", str(tmp_path / "a.txt"), "-o", path, "-q", *FEW).code == 0
    assert ", 1 step in " in cli("inspect", path).stdout


def test_a_part_of_a_source_is_no_whole(cli, tmp_path) -> None:
    (tmp_path / "a.txt").write_text("Ada hid it.\nBerta saw it.\n")
    target = str(tmp_path / "a.kvs")
    ran = cli("remember", str(tmp_path / "a.txt"), "-o", target, "-q", *FEW, "--only", "line 1")
    assert ran.code == 0, ran.stderr
    assert f"{tmp_path / 'a.txt'} (12 of 26 bytes)" in cli("inspect", target).stdout
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.7\nbroken")  # the memory does not say why
    assert cli("remember", str(tmp_path), "-o", f"{target}2", "-q", *FEW).code == 0
    assert cli("inspect", f"{target}2").code == 0


def test_passages_for_another_model_are_counted(cli, written, session, tmp_path) -> None:
    from kvstream.memory import saving
    from kvstream.memory.contents import Beside
    from kvstream.settings import RunSettings
    from kvstream.tokenization.passages import Passage

    folder, _ = written
    memory = session.recall(saving.look(folder / "known.kvs"), RunSettings())
    shown = [(Passage(0, 0, 18, 1, 1, "It rained all day."),)]
    memory.beside = Beside("another", "0" * 12, 320, "words", 20480, 40, 7, shown)
    saving.save(memory, tmp_path / "two.kvs")
    ran = cli("inspect", str(tmp_path / "two.kvs"))
    assert "1 for another (budget 320): 18 of 20,480 bytes · 7 bytes dropped" in ran.stdout


def test_a_checkpoint_says_how_far_it_is(cli, session, written, tmp_path) -> None:
    from kvstream.memory import saving
    from kvstream.settings import RunSettings

    folder, _ = written
    memory = session.recall(saving.look(folder / "later.kvs"), RunSettings())
    at = {"tokens": 99, "sha256": "0" * 64, "complete": False, "base": None}
    saving.save(memory, tmp_path / "half.kvs", position=at)
    ran = cli("inspect", str(tmp_path / "half.kvs"))
    assert "99 tokens; the reading has not ended" in ran.stdout


def test_what_is_damaged_is_said_and_the_others_are_shown(cli, written, tmp_path) -> None:
    folder, _ = written
    whole = (folder / "known.kvs").read_bytes()
    (tmp_path / "a.kvs").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "b.kvs").write_bytes(whole)
    ran = cli("inspect", str(tmp_path))
    assert ran.code == 3
    assert "a.kvs is not a memory file, or only a part of one" in ran.stderr
    assert ran.stdout.startswith(f"{tmp_path / 'b.kvs'}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [((), 2, "No memory file"), (("nowhere.kvs",), 3, "There is no memory file nowhere.kvs")],
)
def test_nothing_to_show_is_an_error(cli, arguments, code, says) -> None:
    ran = cli("inspect", *arguments)
    assert ran.code == code
    assert says in ran.stderr


def test_an_empty_folder_is_an_error_and_hides_no_other_file(cli, written, tmp_path) -> None:
    folder, _ = written
    ran = cli("inspect", str(tmp_path), str(folder / "known.kvs"))
    assert ran.code == 3
    assert "has no memory files" in ran.stderr
    assert ran.stdout.startswith(str(folder / "known.kvs"))


def test_a_text_shows_its_outline(cli, tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("".join(f"CHAPTER {n}\n\n{'The wind rose. ' * 99}\n\n" for n in ("I", "II")))
    record = json.loads(cli("inspect", str(path), "--json").stdout)
    assert [part["title"] for part in record["parts"]] == ["CHAPTER I", "CHAPTER II"]
    assert sum(part["tokens"] for part in record["parts"]) == record["tokens"]
    assert "CHAPTER II " in cli("inspect", str(path)).stdout.splitlines()[-1]


def test_the_outline_of_a_text_needs_no_torch(tmp_path) -> None:
    (path := tmp_path / "book.txt").write_text("CHAPTER I\n\nThe wind rose.\n")
    code = (
        "import sys\nfrom kvstream.cli.app import run\n"
        f"sys.exit(run(['inspect', {str(path)!r}]) or 'torch' in sys.modules)"
    )
    assert not subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode


def test_what_a_text_lost_is_said(cli, tmp_path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(random.Random(3).randbytes(3000).hex().encode())[:-900])
    ran = cli("inspect", str(path))
    assert ran.code == 0
    assert "ends in the middle of its gzip data" in ran.stderr
    [warning] = json.loads(cli("inspect", str(path), "--json").stdout)["warnings"]
    assert warning in ran.stderr


def test_a_name_that_is_too_long_is_no_file(cli) -> None:
    ran = cli("inspect", "a" * 300)
    assert (ran.code, "File name too long" in ran.stderr) == (3, True), ran.stderr
