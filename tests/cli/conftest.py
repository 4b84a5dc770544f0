"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest
from fakes import FakeSession


@pytest.fixture
def fake_session(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    """A fresh session class without a model, which the command line opens."""

    class Session(FakeSession):
        pass

    # Replace only `open`: a module that is first imported now would keep a fake class. The lambda
    # looks `open` up at the call, because tests replace it.
    monkeypatch.setattr(
        "kvstream.session.session.Session.open", lambda settings: Session.open(settings)
    )
    return Session
