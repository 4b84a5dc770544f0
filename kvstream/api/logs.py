"""Logs: a table of the contents of a log, made without a model.

``LogSummary.feed`` takes text in pieces. ``page`` formats the table of the text so far, and
``record`` returns it for JSON. ``check`` compares a model's text about a page with the page.
"""

from __future__ import annotations

from kvstream.logs.findings import ROWS
from kvstream.logs.line_parser import LineParser, looks_like_log
from kvstream.logs.summary import Clock, LogSummary
from kvstream.logs.telling import MOST_TOKENS, NOTHING_LEFT, QUESTION, ROWS_READ, check
from kvstream.logs.text_page import WIDTH, page, page_of_screen, record

__all__ = [
    "MOST_TOKENS", "NOTHING_LEFT", "QUESTION", "ROWS", "ROWS_READ", "WIDTH", "Clock", "LineParser",
    "LogSummary", "check", "looks_like_log", "page", "page_of_screen", "record",
]  # fmt: skip
