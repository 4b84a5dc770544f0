"""Fixtures for the tests of the lab."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def _not_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable torch.compile, which takes longer than these tests. `pytest -m long` has it."""
    if request.node.get_closest_marker("long"):
        return
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # for subprocesses


@pytest.fixture
def lab(cli: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a script of the lab in this process: its name and arguments."""

    def call(name: str, *arguments: str) -> Any:
        return cli(*arguments, command=import_module(name).command)

    return call
