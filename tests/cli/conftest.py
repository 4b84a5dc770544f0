"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest
from fakes import FakeSession


@pytest.fixture
def fake_session(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    """A fresh class of sessions without a model, which the command line opens."""

    class Session(FakeSession):
        pass

    # The class itself stays: modules that are first imported now would keep a fake for good. And
    # `open` is looked up when it is called, since tests replace it.
    monkeypatch.setattr(
        "kvstream.session.session.Session.open", lambda settings: Session.open(settings)
    )
    return Session
