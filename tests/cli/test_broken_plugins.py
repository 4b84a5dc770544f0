"""Packages whose methods are broken disable no command that does not use them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from warm import CLIENT

GOOD = """
from dataclasses import dataclass
import os, subprocess
from kvstream.methods.recency import Window
def noise(text):
    print(text)
    os.write(1, text.encode())
    subprocess.run(["echo", text])
noise("loaded")
@dataclass(frozen=True)
class Thing(Window):
    name = "thing"
    def select(self, step, keep):
        noise("selecting")
        {body}
        return super().select(step, keep)
"""
LISTED = "[kvstream.methods]\nthing = thing_plugin:Thing\n"
MODULES = {
    "raises": (LISTED, "raise ValueError('no')"),
    "exits": (LISTED, "import sys; sys.exit(0)"),
    "prints": (LISTED, "print('noise'); raise OSError"),
    "has no text": (LISTED, "class E(Exception):\n __str__ = lambda self: 1 / 0\nraise E"),
    "syntax": (LISTED, "def"),
    "absent": (LISTED, None),
    "not utf-8": ("[kvstream.methods]\nthing = \udcff:Thing\n", GOOD),
    "no equals sign": ("[kvstream.methods]\nthing\n", GOOD),
    "no module": ("[kvstream.methods]\nthing = :::\n", GOOD),
    "no section": ("thing = thing_plugin:Thing\n[kvstream.methods]\nthing\n", GOOD),
}


pytestmark = pytest.mark.usefixtures("warm")


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in the folder ``site``, which Python looks through for packages first."""
    return subprocess.run(
        [*CLIENT, "-mkvstream", *arguments], capture_output=True, text=True, cwd=site
    )


def install(site: Path, listed: str, module: str | None) -> None:
    info = site / "thing_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(listed, errors="surrogateescape")
    if module is not None:
        (site / "thing_plugin.py").write_text(module)
    (site / "book.txt").write_text("Ada hid the letter under a stone.\n" * 200)


@pytest.mark.parametrize("kind", MODULES)
def test_what_does_not_use_it_works(tmp_path: Path, kind: str) -> None:
    install(tmp_path, *MODULES[kind])
    shown = run(tmp_path, "methods")
    assert shown.returncode == 0, shown.stderr
    assert "snapkv" in shown.stdout
    assert "noise" not in shown.stdout
    assert shown.stderr.count("Warning: ") == 1
    assert "thing" in shown.stderr
    used = run(tmp_path, "ask", "book.txt", "Who?", "--method", "thing", "--dry-run")
    assert (used.returncode, used.stdout) == (2, ""), used.stderr
    assert "thing" in used.stderr
    for ran in (shown, used):
        assert "Traceback" not in ran.stderr
        assert "Unexpected" not in ran.stderr
    if kind == "no equals sign":
        ran = run(tmp_path, "ask", "book.txt", "Who?", "--method", "snapkv", "--dry-run", "-q")
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise SystemExit(0)", "fails in select (SystemExit: 0)"),
        ("raise GeneratorExit", "fails in select (GeneratorExit)"),
        ("raise BrokenPipeError(32, 'gone')", "fails in select (BrokenPipeError: [Errno 32] gone)"),
        ("import click; raise click.exceptions.Exit(0)", "fails in select (Exit: 0)"),
        ("return [[1]]", "returns [[1]] from select, not a Tensor"),
        (
            "return step.origin[..., :keep].float()",
            "returns numbers of the type torch.float32, not int64, from select",
        ),
        ("return step.origin[..., :1].long()", "returns the shape ["),
        ("return super().select(step, keep) - 99", "returns places that are not from 0 to "),
    ],
)
def test_an_error_of_a_method_names_its_package(tmp_path: Path, body: str, told: str) -> None:
    install(tmp_path, LISTED, GOOD.format(body=body))
    ran = run(tmp_path, "ask", "book.txt", "Who?", "--method", "thing", "--budget", "300", "-q")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.search(f"in the package thing-plugin {re.escape(told)}.*\\.$", ran.stderr)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("name", ["", "a,b", "a\x1b[31m", "x" * 41, "auto", "snapkv"])
def test_a_name_that_cannot_be_chosen(tmp_path: Path, name: str) -> None:
    install(tmp_path, LISTED, GOOD.format(body="pass").replace('"thing"', repr(name)))
    ran = run(tmp_path, "methods")
    assert ran.returncode == 0
    assert "The method 'thing' of " in ran.stderr
    assert "has the name" in ran.stderr
    assert "\x1b" not in ran.stdout + ran.stderr


def test_scores_that_are_no_numbers_and_prints_at_the_exit(tmp_path: Path) -> None:
    scored = (
        GOOD.format(body="pass").split("@dataclass")[0]
        + """
import atexit, torch
from kvstream.methods.scored import ScoredMethod
atexit.register(lambda: print("late"))
@dataclass(frozen=True)
class Thing(ScoredMethod):
    name = "thing"
    source = "here"
    def score(self, step):
        return step.origin.float() * float("nan")
    def newest(self, keep):
        return 4
"""
    )
    install(tmp_path, LISTED, scored)
    command = ["ask", "book.txt", "Who?", "--method", "thing", "--budget", "300", "-q"]
    ran = subprocess.run(
        [sys.executable, "-m", "kvstream", *command], capture_output=True, text=True, cwd=tmp_path
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "returns scores that are not numbers (NaN)" in ran.stderr
    assert "late" in ran.stderr


def test_damaged_metadata_and_a_constructor_that_fails(tmp_path: Path) -> None:
    fails = "    def __post_init__(self):\n        raise ValueError('mine')\n"
    install(tmp_path, LISTED, GOOD.format(body="pass") + fails)
    [info] = tmp_path.glob("*.dist-info")
    (info / "METADATA").write_bytes(b"\xff\xfe")
    assert run(tmp_path, "methods").returncode == 0
    ran = run(tmp_path, "ask", "book.txt", "Who?", "--method", "thing", "--budget", "300", "-q")
    assert ran.returncode == 1
    assert "fails in __init__ (ValueError: mine)" in ran.stderr


@pytest.mark.parametrize("body", ["pass", "raise LookupError('mine')"])
def test_what_it_prints_and_raises_is_its_own(tmp_path: Path, body: str) -> None:
    install(tmp_path, LISTED, GOOD.format(body=body))
    ran = run(
        tmp_path, "ask", "book.txt", "Who?", "--method", "thing", "--budget", "300", "-n", "3", "-q"
    )
    assert ran.stderr.count("loaded") == 3
    assert ran.stderr.count("selecting") >= 3
    assert "selecting" not in ran.stdout
    assert "loaded" not in ran.stdout
    assert ran.returncode == (0 if body == "pass" else 1), ran.stderr
    if body != "pass":
        assert "LookupError: mine" in ran.stderr
