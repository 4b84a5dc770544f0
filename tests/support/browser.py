"""Real headless Chromium, for tests of pages; they skip with a reason if it is missing."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str:
    """Return the path of Chromium; skip the test if it is missing."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    return found


@contextmanager
def opened(path: Path, **context: Any) -> Iterator[Any]:
    """Open a file as a page; `asked` has its requests, and `wrong` its errors and warnings."""
    context_made = _browser().new_context(**context)
    page = context_made.new_page()
    page.asked, page.wrong = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on(
        "console",
        lambda told: page.wrong.append(told.text) if told.type in ("error", "warning") else None,
    )
    page.goto(path.as_uri(), timeout=120_000)
    try:
        yield page
    finally:
        context_made.close()


@cache
def _browser() -> Any:
    """Start one browser for all tests of a process: playwright starts only once in a thread."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    place = executable()
    player = api.sync_playwright().start()
    browser = player.chromium.launch(executable_path=place, args=["--no-sandbox"])
    atexit.register(player.stop)
    return browser
