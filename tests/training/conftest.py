"""Fixtures of the training's tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _not_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler takes longer than all of these tests; `pytest -m long` has one that compiles."""
    if request.node.get_closest_marker("long"):
        return
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")  # for processes of their own
