"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest
from fakes import FakeSession


@pytest.fixture
def fake_session(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    """A fresh class of sessions without a model, which the command line opens."""

    class Session(FakeSession):
        pass

    # There and not where it is opened: modules that are first imported now would keep a fake.
    # The class itself stays: modules that are first imported now keep what they import.
    monkeypatch.setattr("kvstream.session.session.Session.open", Session.open)
    return Session
