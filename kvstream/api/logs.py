"""Logs: the table of what a log says, made without a model.

``LogSummary.feed`` takes text in pieces; ``page`` prints what it knows so far, ``record`` is the
same for JSON. ``checked`` compares what a model writes about a page with it.
"""

from __future__ import annotations

from kvstream.logs.findings import ROWS
from kvstream.logs.lines import LineParser, looks_like_log
from kvstream.logs.page import WIDTH, page, page_of_screen, record
from kvstream.logs.summary import LogSummary
from kvstream.logs.telling import MOST_TOKENS, NOTHING_LEFT, QUESTION, ROWS_READ, checked

__all__ = [
    "MOST_TOKENS", "NOTHING_LEFT", "QUESTION", "ROWS", "ROWS_READ", "WIDTH", "LineParser",
    "LogSummary", "checked", "looks_like_log", "page", "page_of_screen", "record",
]  # fmt: skip
