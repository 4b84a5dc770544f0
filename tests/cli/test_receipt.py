"""The receipt of a run: digests that anyone can compute, and options that repeat it."""

from __future__ import annotations

import gzip
import hashlib
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstream.input.source import SourceRecord, identity
from kvstream.version import __version__

TEXT = "Ada wrote the letter. " * 40


def test_a_run_can_be_repeated(cli: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    digests = []
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(TEXT + name)
        digests.append(hashlib.sha256((folder / name).read_bytes()).hexdigest())
    (folder / "c.bin").write_bytes(b"\x00\x01\x02" * 99)
    monkeypatch.setenv("KVSTREAM_SEED", "7")
    page = tmp_path / "page.html"
    asked = ("ask", str(folder), "Who wrote it?", "--budget", "300", "-n", "4", "--json")
    ran = cli(*asked, "--report", str(page))
    assert ran.code == 0, ran.stderr
    said = json.loads(ran.stdout)
    receipt = said["receipt"]
    assert receipt["kvstream"] == __version__
    found = receipt["input"]
    assert found["bytes"] == sum(each.stat().st_size for each in folder.glob("*.txt"))
    assert [each["sha256"] for each in found["sources"]] == digests
    both = "".join(f"{digest}\n" for digest in digests)
    assert found["sha256"] == hashlib.sha256(both.encode()).hexdigest()
    assert any("1 × binary file (c.bin)." in warning for warning in said["warnings"])
    assert all(digest in page.read_text() for digest in digests)
    assert receipt["options"]["seed"] == receipt["settings"]["seed"] == 7
    assert receipt["settings"]["budget"] == "300 entries per head"
    for shown in (receipt["model_digest"], found["sha256"]):
        assert shown in page.read_text()
    again = json.loads(cli(*shlex.split(receipt["command_line"])[1:]).stdout)
    for key in ("answer", "tokens", "citations", "receipt"):
        assert again[key] == said[key]


@pytest.mark.parametrize("command", ["compare", "chat"])
def test_the_command_is_in_each_receipt(
    command: str, cli: Callable[..., Any], tmp_path: Path
) -> None:
    text, stats = tmp_path / "a.txt", tmp_path / "stats.jsonl"
    text.write_text(TEXT)
    own = (command, str(text), "--budget", "300", "-n", "4", "--json", "--stats", str(stats))
    asked = ("-Q", "Who wrote it?", "--method", "streaming,window") if command == "compare" else ()
    ran = cli(*own, *asked, stdin=b"Who wrote it?\n")
    told = [json.loads(line)["receipt"] for line in ran.stdout.splitlines()]
    events = [json.loads(line) for line in stats.read_text().splitlines()]
    assert [each["receipt"] for each in events if each["event"] == "answered"] == told
    assert [each["settings"]["method"] for each in told] == (
        ["streaming", "window"] if command == "compare" else ["foresight"]
    )
    for each in told:
        assert shlex.split(each["command_line"]) == ["kvstream", *own, *asked]
        assert each["options"]["budget"] == "300 entries per head"


def test_a_document_that_cannot_be_read_is_named(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.7\nbroken")
    ran = cli("ask", str(tmp_path), "Who wrote it?", "-n", "4", "--json", "-m", "pocket")
    receipt = json.loads(ran.stdout)["receipt"]
    whole, broken = receipt["input"]["sources"]
    assert "problem" not in whole
    assert "b.pdf" in broken["problem"]
    assert receipt["settings"]["budget"] == "4096 entries per head"


def test_a_packed_file_has_the_digest_of_sha256sum(cli: Callable[..., Any], tmp_path: Path) -> None:
    (path := tmp_path / "a.md.gz").write_bytes(gzip.compress(f"# One\n\n# Two\n\n{TEXT}".encode()))
    (tmp_path / "b.txt").write_text(TEXT)
    ran = cli("count", str(tmp_path), "Ada", "--only", "Two", "--json")
    packed, plain = json.loads(ran.stdout)["receipt"]["input"]["sources"]
    assert packed["file_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (packed["begin"], packed["end"]) == (7, 7 + 7 + len(TEXT))
    assert plain.keys() == {"name", "bytes", "sha256", "part"}


def test_one_source_has_its_own_digest(cli: Callable[..., Any], tmp_path: Path) -> None:
    text = (TEXT * 9).encode()
    ran = cli("ask", "Who wrote it?", "--budget", "300", "-n", "4", "--json", stdin=text)
    found = json.loads(ran.stdout)["receipt"]["input"]
    assert (found["count"], found["sha256"]) == (1, hashlib.sha256(text).hexdigest())
    assert f"read {len(text) / 1024:.1f} KiB (" in ran.stderr
    assert "left out" in ran.stderr


def test_parts_and_whole_sources_are_summed() -> None:
    whole, part = SourceRecord("a", 100, "x"), SourceRecord("b", 50, "y", part=7)
    assert identity([whole, part])["part_bytes"] == 107
    assert "part_bytes" not in identity([whole])


def test_a_count_of_each_has_the_options(cli: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    ran = cli("ask", str(tmp_path), "How often is Ada mentioned?", "--each", "--json")
    [answer] = json.loads(ran.stdout)["answers"]
    assert answer["receipt"]["options"]["each"] is True


def test_a_count_has_its_own_options(
    cli: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    (text := tmp_path / "a.txt").write_text(TEXT)
    monkeypatch.setenv("KVSTREAM_MAX_UNPACKED", "1GB")
    ran = cli("count", str(text), "ada", "--unit", "line", "--only", "line 1", "--json")
    own = {"unit": "line", "only": "line 1", "json": True, "max_unpacked": 1000**3}
    assert json.loads(ran.stdout)["receipt"]["options"] == own


def test_the_page_of_a_log_has_one(cli: Callable[..., Any], tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("a line without a time\n" + "2026-11-22 03:00:00 INFO up\n" * 9)
    said = json.loads(cli("summarize", str(log), "--as", "log", "--json").stdout)
    assert said["receipt"]["options"] == {"as": "log", "json": True}
    assert said["receipt"]["input"]["sha256"] == hashlib.sha256(log.read_bytes()).hexdigest()
    assert said["untimed_lines"] == 1


def test_a_receipt_has_the_options_of_a_watch_as_text(cli: Callable[..., Any]) -> None:
    lines = "".join(f"2024-05-01 10:00:0{i} INFO a: b\n" for i in range(5))
    ran = cli("summarize", "--every", "90s", "--json", stdin=lines.encode())
    options = json.loads(ran.stdout.splitlines()[-1])["receipt"]["options"]
    assert options["every"] == "90s"
