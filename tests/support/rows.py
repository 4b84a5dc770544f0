"""The rows that a benchmark prints with --json."""

from __future__ import annotations

import json
from typing import Any


def rows_of(done: Any) -> list[dict[str, Any]]:
    assert done.code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
