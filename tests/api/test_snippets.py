"""The snippets of the README and of the guide run unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from snippets import snippets, write_files

pytestmark = pytest.mark.whole_pocket  # the others do not end an answer early
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("README.md", "book.kvs"),
        ("docs/guide/python.md", "book.kvs"),
        ("docs/guide/many-documents.md", "answers"),
    ],
)
def test_the_snippets_of_a_page_run_in_their_order(
    page: str, made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session, capsys
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kvstream.session.session.Session.open", lambda settings: session)
    found = snippets(ROOT / page)
    assert found
    names: dict[str, object] = {}
    for snippet in found:
        exec(compile(snippet, page, "exec"), names)
    assert (tmp_path / made).exists()


PROGRAM = """
import runpy, sys
print("the program:")
sys.argv[1:] = ["ask", "book.txt", "Who hid the letter?", "--budget", "512", "-n", "8"]
runpy.run_module("kvstream", run_name="__main__")
"""


def test_the_snippet_of_the_readme_and_the_program_run_from_a_wheel(tmp_path: Path) -> None:
    """Build in a copy, because a build writes into its folder. The wheel has no training code."""
    fast = {"--build-option": "--compression=stored"}
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r}, {fast})"
    source = tmp_path / "source"
    source.mkdir()
    for name in ("kvstream", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    subprocess.run(
        [sys.executable, "-c", build],
        cwd=source, stdout=subprocess.DEVNULL, check=True, timeout=240,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("kvstream-*.whl")
    target = tmp_path / "target"
    with zipfile.ZipFile(wheel) as file:
        assert not [n for n in file.namelist() if n.startswith("kvstream/training")]
        assert "kvstream/py.typed" in file.namelist()
        file.extractall(target)
    write_files(tmp_path)
    (snippet,) = snippets(ROOT / "README.md")
    code = f"{snippet}\nassert kvstream.__file__.startswith({str(target)!r}), kvstream.__file__"
    code += PROGRAM
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.partition("the program:")[2].strip()
    assert "Warning" not in ran.stderr
    assert ran.stderr.splitlines()[-1].startswith("read ")
