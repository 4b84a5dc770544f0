"""Run the whole program in a process of its own, with a session that needs no model.

The environment variable ``FAKE`` sets attributes of the session, one per line, such as
``pause=0.1``.
"""

from __future__ import annotations

import os
import sys
import types
from ast import literal_eval
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fakes import FakeSession

for pair in filter(None, os.environ.get("FAKE", "").splitlines()):
    name, _, value = pair.partition("=")
    setattr(FakeSession, name, literal_eval(value))

module = types.ModuleType("kvstream.session.session")
module.Session = FakeSession  # type: ignore[attr-defined]
sys.modules["kvstream.session.session"] = module

from kvstream.cli import main  # noqa: E402  after the session is replaced

main()
