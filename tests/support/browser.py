"""Real Chromium, headless, for pages: skipped with a reason where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str:
    """Where Chromium is; skips the test where it is not."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("Chromium is missing: apt-get install chromium")
    return found


@contextmanager
def opened(path: Path, **context: Any) -> Iterator[Any]:
    """The page of a file; what it asks for and what goes wrong is in `asked` and `wrong`."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        page = browser.new_context(**context).new_page()
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on(
            "console",
            lambda told: page.wrong.append(told.text) if told.type in ("error", "warning") else 0,
        )
        page.goto(path.as_uri(), timeout=120_000)
        try:
            yield page
        finally:
            browser.close()
