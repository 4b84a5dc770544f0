"""Logs: the table of what a log says, made without a model.

``LogSummary.feed`` takes text in pieces; ``page`` prints what it knows so far, ``record`` is the
same for JSON.
"""

from __future__ import annotations

from kvstream.logs.lines import LineParser, looks_like_log
from kvstream.logs.page import ROWS, page, record
from kvstream.logs.summary import LogSummary

__all__ = ["ROWS", "LineParser", "LogSummary", "looks_like_log", "page", "record"]
