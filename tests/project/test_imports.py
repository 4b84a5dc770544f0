"""Imports point downward: the packages of kvstream ("rooms") import only lower ones."""

from __future__ import annotations

import ast
import os
import re
import resource
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "kvstream"

FLOORS: tuple[tuple[str, ...], ...] = (
    ("version", "errors", "streams"),
    ("settings", "events"),
    ("reporters",),
    ("input", "methods", "sample", "store"),
    ("tokenization",),
    ("logs",),
    ("exact",),
    ("model",),
    ("engine",),
    ("run",),
    ("memory",),
    ("passages",),
    ("answer",),
    ("session",),
    ("collection",),
    ("api",),
    ("server",),
    ("evaluation",),
    ("cli",),
    ("__main__", "__init__"),
)
"""The rooms from bottom to top. Rooms on the same floor do not import each other."""

ONLY: dict[str, set[str]] = {
    "methods": {"methods", "errors", "streams"},
    "reporters": {"reporters", "events"},
    "settings": {"errors"},
    "errors": set(),
    "streams": set(),
    "events": set(),
}
"""For each of these rooms, the only rooms that it may import."""

HEAVY = {"torch", "transformers", "accelerate", "tokenizers", "numpy", "rich", "tiktoken"}


def room(module: str) -> str:
    """Return ``model`` for ``kvstream.model.rotary``, and ``version`` for ``kvstream`` itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "version"


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


@cache
def imports_of(path: Path) -> set[str]:
    """Return the modules of kvstream that a file imports, also in functions and for types."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports from the package's root"
            module = node.module or ""
            # `from kvstream import config` imports a module, not a name of the package.
            names = [
                f"{module}.{alias.name}" if is_module(f"{module}.{alias.name}") else module
                for alias in node.names
            ]
        else:
            names = []
        found.update(name for name in names if name.split(".")[0] == "kvstream")
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8")))
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_lower_rooms_never_import_upper_ones(path: Path) -> None:
    floor = {name: index for index, names in enumerate(FLOORS) for name in names}
    relative = path.relative_to(PACKAGE)
    here = relative.parts[0] if len(relative.parts) > 1 else relative.stem
    assert here in floor, f"{here} has no floor yet: add it to FLOORS"
    for other in {room(module) for module in imports_of(path)} - {here}:
        assert floor[other] < floor[here], f"{relative} imports {other}, which is not below it"
        if here in ONLY:
            assert other in ONLY[here], f"{relative} imports {other}"


def test_the_package_imports_nothing_of_the_lab() -> None:
    """The lab is only in the repository, so an installed kvstream cannot import it."""
    for path in FILES:
        assert not re.search(r"(?:from|import) kvstream_lab", path.read_text("utf-8")), path


def test_an_import_for_types_is_an_import(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from kvstream.session.session import Session\n"
    )
    assert imports_of(path) == {"kvstream.session.session"}


BESIDE_THE_API = {
    "cli", "reporters", "events", "errors", "settings", "version", "store", "evaluation",
    "sample", "server", "streams",
}  # fmt: skip
"""The rooms that the command line may import beside the API. It gets models, readings, memories and
answers from the API, and benchmarks from `evaluation`."""


@pytest.mark.parametrize(
    "path",
    sorted((PACKAGE / "cli").rglob("*.py")),
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_the_command_line_stands_on_the_api(path: Path) -> None:
    assert {room(module) for module in imports_of(path)} <= {"api", *BESIDE_THE_API}


def test_no_circles_between_files() -> None:
    names = {
        path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES
    }
    graph = {
        name.removesuffix(".__init__"): imports_of(path) for path, name in names.items()
    }  # fmt: skip
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after running the code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.split(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["ask", "--help"], ["--version"], ["ask"], ["nonsense"]]
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded = loaded_by(
        "import contextlib, io\n"
        "from kvstream.cli.app import run\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):"
        f"\n    run({arguments!r})"
    )
    assert not loaded & HEAVY


def test_reading_sources_and_planning_sizes_needs_no_torch() -> None:
    loaded = loaded_by("import kvstream.input.sources, kvstream.engine.schedule, kvstream.events")
    assert "torch" not in loaded


def cpu_seconds(*commands: list[str]) -> list[float]:
    """Return the minimum of five alternating runs per command, as the machine may be shared."""
    times: list[list[float]] = [[] for _ in commands]
    for _ in range(5):
        for command, found in zip(commands, times, strict=True):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [min(found) for found in times]


def test_the_package_loads_nothing_until_it_is_asked() -> None:
    loaded = loaded_by("import kvstream; kvstream.load, kvstream.Memory, kvstream.Answered")
    assert not loaded & HEAVY


def test_help_is_there_at_once() -> None:
    """Help takes 0.050 s, little more than Python with click: 0.042 s. Python alone: 0.020 s."""
    command = [str(Path(sys.executable).with_name("kvstream")), "--help"]
    if not os.path.exists(command[0]):
        command = [sys.executable, "-m", "kvstream", "--help"]
    for _ in range(3):  # other programs can slow down one try
        ours, floor = cpu_seconds(command, [sys.executable, "-c", "import click"])
        if ours <= max(0.06, 1.5 * floor):
            break
    assert ours <= max(0.06, 1.5 * floor)


def test_help_imports_no_command() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "kvstream", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = set(re.findall(r"\| +(kvstream[\w.]*)$", done.stderr, re.MULTILINE))
    assert ours <= {
        "kvstream", "kvstream.version", "kvstream.errors", "kvstream.cli", "kvstream.cli.app",
        "kvstream.cli.groups", "kvstream.streams",
    }  # fmt: skip


def test_packing_begins_before_transformers_is_imported() -> None:
    assert "transformers" not in loaded_by("import kvstream.model.ahead")
