"""Fixtures that several test files share, and an environment without the user's settings."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from kvstream.model.bounded import BoundedModel
    from kvstream.session.session import Session
    from kvstream.settings import ModelSettings

# The process that hands out the tests need not load torch, so fixtures import it.
# torch.compile imports setuptools, and fails if another test imported Python's distutils before.
with suppress(ImportError):
    import setuptools  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("KVSTREAM_TEST_DATA", ROOT.parent / "shared" / "data"))
"""Texts that are not part of the project. Tests that need them skip if they are missing."""

# Otherwise each process that a test starts would compile kvstream anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_NUMBERS = itertools.count()
FEW_LAYERS = dict.fromkeys(
    ("answer", "api", "cli", "engine", "evaluation", "exact", "lab", "methods", "project", "run",
     "session"), 2,
)  # fmt: skip
FEW_LAYERS["memory"] = 3
"""Folders whose tests read with so many of the six layers of the embedded model: see `_layers`."""
NARROW = 64
"""Width of the MLP of those layers. Memory does not depend on it."""
METERED = ("methods", "model", "run", "test_cli_end_to_end")
"""Folders and modules whose tests measure scratch memory, as all runs of users do. Operations take
five times as long, so the others do not."""

# A build must not fail by chance, so CI draws fixed examples. `pytest -m long` searches further.
settings.register_profile(
    "kvstream",
    deadline=None,
    max_examples=50,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("kvstream")


def pytest_collection_finish() -> None:
    """Leave what was imported to itself: the garbage collector would go through it again."""
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(autouse=True, scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which each test gets a config folder and caches, if it makes them.

    Fixtures of modules must not find the user's models either: `reader` would answer instead.
    """
    homes = tmp_path_factory.mktemp("homes")
    os.environ["KVSTREAM_CACHE"] = str(homes / "none")
    return homes


@pytest.fixture(autouse=True, scope="session")
def _entry_points_at_once() -> Iterator[None]:
    """Look through the installed packages once for a search path: each command does so twice."""
    from importlib import metadata

    look = lru_cache(lambda path, asked: find(**dict(asked)))
    find = metadata.entry_points
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            metadata, "entry_points", lambda **asked: look(tuple(sys.path), tuple(asked.items()))
        )
        yield


@lru_cache(16)
def _pocket(settings: ModelSettings, fast: bool, layers: int | None) -> BoundedModel:
    """Return the embedded model with its first ``layers``, one object for the same settings.

    `_load` leaves out the settings that change no weights.
    """
    from kvstream.model import loading

    made = loading.in_precision

    def first(model: Any, *how: Any) -> BoundedModel:
        model.model.layers = model.model.layers[:layers]
        model.config.num_hidden_layers = len(model.model.layers)
        if layers is not None:
            for layer in model.model.layers:
                for part in (layer.mlp.gate_proj, layer.mlp.up_proj):
                    part.weight.data = part.weight.data[:NARROW].clone()
                part = layer.mlp.down_proj
                part.weight.data = part.weight.data[:, :NARROW].clone()
                part.in_features = NARROW  # by which a row is recognized
        return made(model, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "in_precision", first)
        return loading.load(settings)


def _load(settings: ModelSettings, where: str, layers: int | None) -> BoundedModel:
    import torch

    from kvstream.model import loading, precision

    if settings.model != loading.POCKET:
        return loading.load(settings, where)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    like = settings.like and "A MEMORY FILE"  # only one line of the model's description has it
    weights = replace(settings, threads=None, quiet=False, offline=False, like=like)
    model = _pocket(weights, precision.is_fast("bfloat16"), layers)
    if settings.like and like:
        model = copy.copy(model)
        model.precision = model.precision.replace(like, settings.like)
    return model


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Load the embedded model once for the same settings: that is half of a short run."""
    from kvstream.model.scratch import Scratch
    from kvstream.session import session

    session.load = partial(_load, layers=_layers(item))  # type: ignore[assignment]
    due = _due()
    measures = not {item.path.stem, item.path.parent.name}.isdisjoint(METERED)
    Scratch.due = due if measures else lambda *_: None  # type: ignore[method-assign,assignment]


@lru_cache
def _due() -> Any:
    """Return `Scratch.due`; call it before it is replaced."""
    from kvstream.model.scratch import Scratch

    return Scratch.due


def _layers(node: pytest.Item | pytest.Module) -> int | None:
    """Return the number of layers of the embedded model for a test; None for all.

    Reading is most of the time of these tests, and few of them need what the model answers: those
    have the mark `whole_pocket`. Programs in processes of their own always have the whole model.
    """
    whole = node.get_closest_marker("whole_pocket")
    return None if whole else FEW_LAYERS.get(node.path.parent.name)


@lru_cache
def _session(layers: int | None) -> Session:
    import torch

    from kvstream.session.session import Session
    from kvstream.settings import ModelSettings

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstream.session.session.load", partial(_load, layers=layers))
        return Session.open(ModelSettings(dtype="float32"))


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, _homes: Path) -> None:
    """Hide the config file, KVSTREAM_* and the models of the user who runs the tests."""
    for name in [n for n in os.environ if n.startswith("KVSTREAM_")]:
        monkeypatch.delenv(name)
    home = str(_homes / str(next(_NUMBERS)))  # hardly any test needs that it exists
    monkeypatch.setenv("XDG_CONFIG_HOME", home)
    for name in ("KVSTREAM_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE"):
        monkeypatch.setenv(name, os.path.join(home, name.lower()))


@pytest.fixture(autouse=True)
def _untrained_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give models that only exist in memory untrained gates for ``edgeinfinite``."""
    import torch

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
                if isinstance(gate, LearnedGate):  # otherwise memory returns almost nothing
                    torch.nn.init.zeros_(gate.b_key)
            made[layer.index] = gate.requires_grad_(False).to(layer.device)
        return made

    monkeypatch.setattr(edgeinfinite, "load_gates", gates)


@pytest.fixture(autouse=True)
def _untrained_scorers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the same models untrained scorers for ``foresight``."""
    import torch

    from kvstream.methods import foresight

    load = foresight.load_scorers

    def scorers(model: foresight.ModelFacts, file: str = "") -> torch.nn.ModuleDict:
        if file or model.folder:
            return load(model, file)
        made = torch.nn.ModuleDict()
        for layer in model.layers:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(layer.index)
                scorer = foresight.new_scorer(layer, hidden=4)
            made[str(layer.index)] = scorer.requires_grad_(False).to(layer.device)
        return made

    monkeypatch.setattr(foresight, "load_scorers", scorers)


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of books and questions; skip the test if it is missing."""
    if not DATA.is_dir():
        pytest.skip(f"needs the texts of {DATA} (or KVSTREAM_TEST_DATA), which are not there")
    return DATA


@dataclass
class Ran:
    """Exit code and output of a command."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> Session:
    """Open the embedded model in float32, the same number type on every machine."""
    return _session(_layers(request.node))


@pytest.fixture(scope="session")
def whole_session() -> Session:
    """Open the embedded model with all layers, for tests that depend on what it attends to."""
    return _session(None)


@pytest.fixture(scope="module")
def write_story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Yield a function that writes a made-up text with facts.

    It takes the arguments of `generate` in `synthetic/document.py`. Passages of a text of 1,300
    tokens are cut while it is read, like those of a book: their first cut comes earlier.
    """
    from kvstream.sample.document import generate

    def write(**how: int) -> Path:
        path = tmp_path_factory.mktemp("story") / "story.txt"
        path.write_text("".join(generate(**how)))
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvstream.tokenization.passages.SAMPLE", 4096)
        yield write


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Return a function that runs a command line in this process.

    Standard input is a pipe that holds ``stdin``.
    """
    from kvstream.cli.app import cli as program
    from kvstream.cli.app import run

    def call(*arguments: str, stdin: bytes = b"", command: click.Command = program) -> Ran:
        reader, writer = os.pipe()
        os.write(writer, stdin)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            monkeypatch.setattr("sys.stdin", pipe)
            capfd.readouterr()
            code = run(arguments, command)
        out, err = capfd.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Yield the command that starts ``-mkvstream`` or a script from a process with PyTorch in it.

    Use it for tests that are not about the start of the program itself: see ``warm.py``. The
    processes of one run share the server, which ends with the process that hands out the tests.
    """
    from warm import CLIENT

    if not sys.platform.startswith("linux"):
        yield CLIENT
        return
    run, folder = os.getpid(), tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run, folder = os.getppid(), folder.parent
    path = folder / "warm"
    server = None
    with suppress(FileExistsError):
        path.with_suffix(".begun").touch(exist_ok=False)
        command = [sys.executable, CLIENT[-1], "--serve", str(path), str(run)]
        server = subprocess.Popen(command, env={**os.environ, "HF_HUB_OFFLINE": "0"})
    while not path.exists():
        assert server is None or server.poll() is None
        time.sleep(0.05)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARM", str(path))
        yield CLIENT


@pytest.fixture
def kvstream() -> Callable[..., Ran]:
    """Return a function that runs the real program in a process of its own."""
    return partial(run_program, [sys.executable, "-m", "kvstream"])


@pytest.fixture
def forked(warm: list[str]) -> Callable[..., Ran]:
    """Return the same function, without the time that the imports take."""
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
