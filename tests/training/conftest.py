"""Fixtures for the tests of training."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _not_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable torch.compile, which takes longer than these tests. `pytest -m long` has it."""
    if request.node.get_closest_marker("long"):
        return
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # for subprocesses
