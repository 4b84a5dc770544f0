"""Packages whose methods are broken disable no command that does not use them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstream.methods import registry
from kvstream.methods.names import tolerate_malformed_packages

GOOD = """
from dataclasses import dataclass
import os, subprocess
from kvstream.methods.base import EntryTensor, Evidence, HeadTensor, setting
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
COMPRESSED = """pass
        step.head_state["h"].fill_(1)
        return super().select(step, keep)
    def head_tensors(self):
        return (HeadTensor("h"),)
    def compressive_memory(self, model, *, asked):
        from torch import nn
        class Memory:
            trained = nn.Linear(1, 1)
            def fold(self, step, choice):
                {}
            def mix(self, layer, query, out, lse, head_state):
                {}
        return Memory()
    def unused(self, step, keep):"""
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
    "no value": ("[kvstream.methods]\nthing =\n", GOOD),
    "no section": ("thing = thing_plugin:Thing\n[kvstream.methods]\nthing\n", GOOD),
}


@pytest.fixture
def run(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Run the program here, with a folder that Python looks through for packages first."""

    def call(site: Path, *arguments: str) -> Any:
        sys.modules.pop("thing_plugin", None)
        registry.available.cache_clear()
        with monkeypatch.context() as patch:
            patch.chdir(site)
            patch.syspath_prepend(str(site))
            patch.setattr(sys, "stdout", sys.stdout)  # a command with plugins replaces it
            return cli(*arguments)

    malformed = tolerate_malformed_packages()
    before = list(malformed)
    yield call
    malformed[:] = before
    sys.modules.pop("thing_plugin", None)
    registry.available.cache_clear()


def install(site: Path, listed: str, module: str | None) -> None:
    info = site / "thing_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(listed, errors="surrogateescape")
    if module is not None:
        (site / "thing_plugin.py").write_text(module)
    (site / "book.txt").write_text("Ada hid the letter under a stone.\n" * 60)


@pytest.mark.parametrize("kind", MODULES)
def test_what_does_not_use_it_works(run: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    install(tmp_path, *MODULES[kind])
    shown = run(tmp_path, "methods")
    assert shown.code == 0, shown.stderr
    assert "snapkv" in shown.stdout
    assert "noise" not in shown.stdout
    assert shown.stderr.count("Warning: ") == 1
    assert "thing" in shown.stderr
    used = run(tmp_path, "ask", "book.txt", "Who?", "--method", "thing", "--dry-run")
    assert (used.code, used.stdout) == (2, ""), used.stderr
    assert "thing" in used.stderr
    for ran in (shown, used):
        assert "Traceback" not in ran.stderr
        assert "Unexpected" not in ran.stderr
    if kind == "no equals sign":
        ran = run(tmp_path, "ask", "book.txt", "Who?", "--method", "snapkv", "--dry-run", "-q")
        assert (ran.code, ran.stderr) == (0, ""), ran.stderr


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
        ("return super().select(step, keep).flip(-1)", "returns places that are out of order, or"),
        (
            "pass\n    def tensors(self):\n        return (EntryTensor('a'),)\n"
            "    def absorb(self, step):\n        step.state['a'].resize_(0); return",
            "returns step.state of another shape than [",
        ),
        (
            "pass\n    def tensors(self):\n        return (EntryTensor('a'),)\n"
            "    def absorb(self, step):\n        step.state['a'].fill_(float('-inf')); return",
            "returns step.state with numbers that no memory file can hold from absorb",
        ),
        ("return step.origin[..., :keep].byte()", "returns numbers of the type torch.uint8"),
        (COMPRESSED.format("return 1 / 0", "return out"), "fails in fold (ZeroDivisionError"),
        (COMPRESSED.format("pass", "return None"), "returns None from mix, not a Tensor"),
        (COMPRESSED.format("pass", "return out[:1]"), "not torch.float32 of the shape ["),
        (f"raise ValueError('a\\n' * {10**6})", "fails in select (ValueError: a a a"),
        *(
            (f"pass\n    def {function}(self, *values):\n        return {value}", told)
            for function, value, told in (
                ("target", "None", "returns None from target, not a int"),
                ("target", "10**9", "returns 1000000000, not a number from 0 to "),
                ("target", "values.x", "fails in target (AttributeError"),
                ("sized", "3", "returns 3 from sized, not a Method"),
                (
                    "sized",
                    "__import__('dataclasses').replace(self, sinks=values[0] / 64)",
                    "returns a method with the setting sinks=4.6875 from sized",
                ),
                ("catalyst", "'abc'", "returns 'abc', not a tuple of texts, from catalyst"),
                ("catalyst", "(1,)", "returns (1,), not a tuple of texts, from catalyst"),
                ("layer_sizes", "(1,)", "returns (1,), not "),
                ("tensors", "(1,)", "returns (1,), not a tuple of EntryTensor"),
                (
                    "tensors",
                    "(EntryTensor('a'),) * 2",
                    "not a tuple of EntryTensor of d",
                ),
                ("head_tensors", "(HeadTensor('a', (2,)),)", "not a tuple of HeadTensor of"),
                ("head_tensors", "(HeadTensor('a', lambda *k: (-1,)),)", "names, with shapes"),
                ("head_tensors", "(HeadTensor('a', lambda *k: 1 / 0),)", "names, with shapes"),
                ("head_tensors", "(EntryTensor('a'),)", "not a tuple of HeadTensor of different"),
                (
                    "head_tensors",
                    "(HeadTensor('a', dtype=bool),)",
                    "fails in head_tensors (ValueError: HeadTensor.dtype",
                ),
                ("learned", "3", "returns 3, not an nn.Module or None, from learned"),
                ("votes", "[]", "returns [], not a Tensor of the shape "),
                ("shorten", "(1,)", "returns (1,), not two numbers of tokens"),
                ("evidence", "Evidence(window_attention='8')", "returns the window_attention '8'"),
                ("evidence", "Evidence(decay=float('nan'))", "returns the decay nan from evidence"),
                ("evidence", "Evidence(decay=1.5)", "returns the decay 1.5 from evidence"),
            )
        ),
    ],
)
def test_an_error_of_a_method_names_its_package(
    run: Callable[..., Any], tmp_path: Path, body: str, told: str
) -> None:
    install(tmp_path, LISTED, GOOD.format(body=body))
    given = ("--method", "thing", "--budget", "300", "--dtype", "float32", "-q")
    ran = run(tmp_path, "ask", "book.txt", "Who?", *given)
    assert (ran.code, ran.stdout) == (1, ""), ran.stderr
    assert len(ran.stderr.splitlines()[-1]) < 500
    assert re.search(f"in the package thing-plugin .*{re.escape(told)}.*\\.$", ran.stderr)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("value", ["5", "{'x': float('nan')}", "{'x': object()}"])
def test_settings_that_no_file_can_hold_are_told_before_it_is_written(
    run: Callable[..., Any], tmp_path: Path, value: str
) -> None:
    own = f"\n    def settings(self):\n        return {value}\n"
    install(tmp_path, LISTED, GOOD.format(body="pass") + own)
    ran = run(
        tmp_path, "remember", "book.txt", "--method", "thing", "--budget", "300", "-o", "a.kvs"
    )
    assert ran.code == 1
    assert "from settings" in ran.stderr
    assert not (tmp_path / "a.kvs").exists()


@pytest.mark.parametrize("name", ["", "a,b", "a\x1b[31m", "x" * 41, "auto", "snapkv"])
def test_a_name_that_cannot_be_chosen(run: Callable[..., Any], tmp_path: Path, name: str) -> None:
    install(tmp_path, LISTED, GOOD.format(body="pass").replace('"thing"', repr(name)))
    ran = run(tmp_path, "methods")
    assert ran.code == 0
    assert "The method 'thing' of " in ran.stderr
    assert "has the name" in ran.stderr
    assert "\x1b" not in ran.stdout + ran.stderr


def test_scores_that_are_no_numbers_and_prints_at_the_exit(warm: list[str], tmp_path: Path) -> None:
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
        [*warm, "-mkvstream", *command], capture_output=True, text=True, cwd=tmp_path
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "returns scores that are not numbers (NaN) from score" in ran.stderr
    assert "late" in ran.stderr


def test_damaged_metadata_and_a_constructor_that_fails(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    fails = "    def __post_init__(self):\n        raise ValueError('mine')\n"
    install(tmp_path, LISTED, GOOD.format(body="pass") + fails)
    [info] = tmp_path.glob("*.dist-info")
    (info / "METADATA").write_bytes(b"\xff\xfe")
    assert run(tmp_path, "methods").code == 0
    ran = run(tmp_path, "ask", "book.txt", "Who?", "--method", "thing", "--budget", "300", "-q")
    assert ran.code == 1
    assert "fails in __init__ (ValueError: mine)" in ran.stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("(Window)", "(Method)", "def select", "def other"), "does not define select"),
        (("    def select", "    x: int = 'a'\n    def select"), "'x' whose default is not a int"),
        (("    def select", "    x: int = setting(-1, '')\n    def select"), "x must be 0 or more"),
        (
            ("    def select", "    x: int = setting(1, 2)\n    def select"),
            "whose help is not",
        ),
        (("    def select", "    paper = 5\n    def select"), "has paper that is not a Preset"),
        (
            ("    def select", "    evicts = property(abs)\n    def select"),
            "has evicts that",
        ),
        (("    def select", "    __new__ = abs\n    def select"), "defines __new__"),
        (
            ("    def select", "    target: int = setting(1, '')\n    def select"),
            "has a setting 'target' with the name of a function",
        ),
        (
            ("    def select", "    def __init_subclass__(cls):\n        1 / 0\n    def select"),
            "does not load (ZeroDivisionError",
        ),
    ],
)
def test_an_incomplete_class_is_left_out(
    run: Callable[..., Any], tmp_path: Path, change: list[str], told: str
) -> None:
    module = GOOD.format(body="pass").replace("import EntryTensor", "import EntryTensor, Method")
    for before, after in zip(change[::2], change[1::2], strict=True):
        module = module.replace(before, after)
    install(tmp_path, LISTED, module)
    assert told in run(tmp_path, "methods").stderr


def test_doctor_names_a_class_that_is_left_out(run: Callable[..., Any], tmp_path: Path) -> None:
    install(
        tmp_path,
        LISTED,
        GOOD.format(body="pass").replace("def select", "x: int = 'a'\n    def select"),
    )
    ran = run(tmp_path, "doctor")
    assert (ran.code, ran.stdout.count("!!  plugin")) == (1, 1)


def test_control_characters_of_a_description_are_visible(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    install(tmp_path, LISTED, GOOD.format(body="pass") + "    __doc__ = 'Rings \\a\\x1b[31m.'\n")
    for more in ((), ("thing",)):
        ran = run(tmp_path, "methods", *more)
        assert "Rings" in ran.stdout
        assert not re.search("[\x07\x1b]", ran.stdout)


@pytest.mark.parametrize("body", ["pass", "raise LookupError('mine')"])
def test_what_it_prints_and_raises_is_its_own(
    run: Callable[..., Any], tmp_path: Path, body: str
) -> None:
    install(tmp_path, LISTED, GOOD.format(body=body))
    ran = run(
        tmp_path, "ask", "book.txt", "Who?", "--method", "thing", "--budget", "300", "-n", "3", "-q"
    )
    assert ran.stderr.count("loaded") == 3
    assert ran.stderr.count("selecting") >= 3
    assert "selecting" not in ran.stdout
    assert "loaded" not in ran.stdout
    assert ran.code == (0 if body == "pass" else 1), ran.stderr
    if body != "pass":
        assert "LookupError: mine" in ran.stderr
