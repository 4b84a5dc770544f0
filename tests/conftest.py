"""Fixtures that several test files share, and an environment that no user's settings reach."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from kvstream.session.session import Session

# torch.compile imports it, and fails if another test has imported Python's own distutils by then.
with suppress(ImportError):
    import setuptools  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("KVSTREAM_TEST_DATA", ROOT.parent / "shared" / "data"))
"""Texts that are not part of the project; what needs them skips where they are not."""

# A build must not fail by the luck of the draw; `pytest -m long` is where chance looks further.
settings.register_profile(
    "kvstream", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("kvstream")


@pytest.fixture(autouse=True, scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each test gets its config folder and its caches.

    What fixtures of modules run sees no model of the user either: `reader` would answer.
    """
    homes = tmp_path_factory.mktemp("homes")
    os.environ["KVSTREAM_CACHE"] = str(homes / "none")
    return homes


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, _homes: Path) -> None:
    """The config file, KVSTREAM_* and models of whoever runs the tests decide nothing."""
    for name in [n for n in os.environ if n.startswith("KVSTREAM_")]:
        monkeypatch.delenv(name)
    # Not mktemp: it numbers its folders, and for that lists all of them again.
    home = tempfile.mkdtemp(dir=_homes)
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    for name in ("KVSTREAM_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.setenv(name, os.path.join(home, name.lower()))


@pytest.fixture(autouse=True)
def _untrained_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that only exist in memory have gates for ``edgeinfinite``: nobody could train them."""
    from kvstream.methods import edgeinfinite
    from kvstream.methods.tools.gates import LearnedGate, new_gate

    load = edgeinfinite.load_gates

    def gates(
        form: str, file: str, model: edgeinfinite.ModelFacts, rows: int
    ) -> dict[int, edgeinfinite.Gate]:
        if file or model.folder:
            return load(form, file, model, rows)
        made = {}
        for layer in model.layers:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(layer.index)
                gate = new_gate(form, layer, rows, layer.value_dim)
                torch.nn.init.normal_(gate.w2, std=0.1)
                if isinstance(gate, LearnedGate):  # else next to nothing is found in memory
                    torch.nn.init.zeros_(gate.b_key)
            made[layer.index] = gate.requires_grad_(False).to(layer.device)
        return made

    monkeypatch.setattr(edgeinfinite, "load_gates", gates)


@pytest.fixture(autouse=True)
def _untrained_scorers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the scorers of ``foresight``."""
    from kvstream.methods import foresight
    from kvstream.methods.tools.scorer import new_scorer

    load = foresight.load_scorers

    def scorers(model: foresight.ModelFacts, file: str = "") -> torch.nn.ModuleDict:
        if file or model.folder:
            return load(model, file)
        made = torch.nn.ModuleDict()
        for layer in model.layers:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(layer.index)
                scorer = new_scorer(layer, hidden=4)
            made[str(layer.index)] = scorer.requires_grad_(False).to(layer.device)
        return made

    monkeypatch.setattr(foresight, "load_scorers", scorers)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of books and questions; skips the test where it is not there."""
    if not DATA.is_dir():
        pytest.skip(f"needs the texts of {DATA} (or KVSTREAM_TEST_DATA), which are not there")
    return DATA


@dataclass
class Ran:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def session() -> Session:
    """The embedded model, in numbers that are the same on every machine."""
    from kvstream.session.session import Session
    from kvstream.settings import ModelSettings

    torch.set_num_threads(1)
    return Session.open(ModelSettings(dtype="float32"))


@pytest.fixture(scope="module")
def write_story(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a made-up text with facts; takes what `generate` of `synthetic/document.py` takes."""
    from kvstream.evaluation.synthetic.document import generate

    def write(**how: int) -> Path:
        path = tmp_path_factory.mktemp("story") / "story.txt"
        path.write_text("".join(generate(**how)))
        return path

    return write


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command line in this process; standard input is a pipe that holds ``stdin``."""
    from kvstream.cli.app import run

    def call(*arguments: str, stdin: bytes = b"") -> Ran:
        reader, writer = os.pipe()
        os.write(writer, stdin)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            monkeypatch.setattr("sys.stdin", pipe)
            capfd.readouterr()
            code = run(arguments)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture(scope="session")
def warm() -> Iterator[list[str]]:
    """What to put before ``-mkvstream`` or a script to start it from a process with PyTorch in it.

    For what is not about the start of the program itself: see ``warm.py``.
    """
    from warm import CLIENT

    if not sys.platform.startswith("linux"):
        yield CLIENT
        return
    path = Path(tempfile.mkdtemp()) / "socket"  # its name must be short
    server = subprocess.Popen([sys.executable, CLIENT[-1], "--serve", str(path)])
    try:
        while not path.exists():
            assert server.poll() is None
            time.sleep(0.05)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WARM", str(path))
            yield CLIENT
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(path.parent)


@pytest.fixture
def kvstream() -> Callable[..., Ran]:
    """Runs the real program in a process of its own."""
    return partial(run_program, [sys.executable, "-m", "kvstream"])


@pytest.fixture
def forked(warm: list[str]) -> Callable[..., Ran]:
    """The same, without the time that the imports take."""
    return partial(run_program, [*warm, "-mkvstream"])


def run_program(
    program: list[str], *arguments: str, stdin: bytes = b"", timeout: float = 240, **env: str
) -> Ran:
    done = subprocess.run(
        [*program, *arguments],
        input=stdin,
        capture_output=True,
        timeout=timeout,
        env={**os.environ, **env},
        cwd=ROOT,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
