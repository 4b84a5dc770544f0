"""Lines that are records with keys: JSON and logfmt."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from kvstream.logs.levels import OF_LETTER, level_of_status, number_level

TIMES = ("time", "timestamp", "@timestamp", "ts", "date", "datetime", "asctime", "t",
         "__REALTIME_TIMESTAMP", "timeMillis", "Timestamp", "@t", "instant", "eventTime",
         "EventTime", "time_iso8601", "time_local")  # fmt: skip
_TEXT = ("msg", "message", "event", "log", "text", "short_message", "MESSAGE", "RenderedMessage",
         "MessageTemplate", "@m", "@mt", "@message", "textPayload", "body")  # fmt: skip
_LEVEL = ("level", "levelname", "severity", "lvl", "loglevel", "log.level", "PRIORITY", "Level",
          "@l", "@level", "level_name", "sev", "log_level", "logLevel", "severity_text",
          "severityText")  # fmt: skip
_NAME = ("logger", "name", "service", "component", "module", "source", "caller", "app",
         "SYSLOG_IDENTIFIER", "logger_name", "loggerName", "log.logger",
         "@module")  # fmt: skip
_CAUSE = ("err", "error", "error.message")
_STATUS = ("status", "status_code", "statusCode", "http_status", "http.status_code",
           "http.response.status_code")  # fmt: skip
_TRACE = ("exception", "stack", "stack_trace", "exc_info")
_INNER = ("_source", "jsonPayload", "payload", "data", "record", "body")
"""Keys of an object with the text of a record that has none itself."""
_SECONDS = ("$date", "epochSecond", "seconds")
"""Keys of a time that is an object."""
_OWN = ("name", "message", "msg", "text", "stringValue")
"""Keys of what an object is called, or says."""
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_OF_SYSLOG = ("PRIORITY", "severity")
# An atomic group and space between pairs prevent catastrophic backtracking.
_LOGFMT = re.compile(r"^(?:[\w.@/-]+=(?>\"(?:[^\"\\]|\\.)*\"(?!\S)|\S*)(?:\s+|$)){2,}$")
_KEY_FIRST = re.compile(r"[\w.@/-]+=[\"\w]")
LONGEST_KEY = 48
"""Number of characters within which the first key of logfmt must end."""
_PAIR = re.compile(r"([\w.@/-]+)=(\"(?:[^\"\\]|\\.)*\"|\S*)")
_LONGEST_RECORD = 4000
"""Number of characters that are read of logfmt."""


def record_of(line: str) -> dict[str, Any] | None:
    """Return the values of a line of JSON or logfmt by key; None for another line."""
    if line[:1] == "{":
        return _json(line)
    if _KEY_FIRST.match(line) is None:
        return None
    line = line[:_LONGEST_RECORD]
    if not _LOGFMT.match(line):
        return None
    return {key: value.strip('"') for key, value in _PAIR.findall(line)}


def _json(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    record = {str(key): value for key, value in found.items()}
    for key in () if any(key in record for key in _TEXT[:-1]) else _INNER:
        if isinstance(inner := record.get(key), dict) and any(k in inner for k in _TEXT):
            record = inner | {k: v for k, v in record.items() if k != key}
            for other in [value for value in record.values() if isinstance(value, dict)]:
                record = {k: other[k] for k in (*TIMES, *_LEVEL) if k in other} | record
            break
    if isinstance(record.get("t"), dict):  # MongoDB
        letter = OF_LETTER.get(str(record.get("s"))[:1], "")
        record |= {"level": letter, "component": record.get("c")}
    for key in TIMES:
        if isinstance(inner := record.get(key), dict):
            record[key] = next((inner[k] for k in _SECONDS if k in inner), None)
    if isinstance(inner := record.get("log"), dict):  # Elastic Common Schema
        record.pop("log")
        record = {f"log.{key}": value for key, value in inner.items()} | record
    if isinstance(inner := record.get("fields"), dict) and "message" in inner:  # tracing of Rust
        record = {"module": record.get("target")} | inner | record
    return record


def line_of(record: dict[str, Any]) -> str:
    """Return a line with the level, the name and the message of a record, without its time."""
    text = _first_of(record, _TEXT)
    status = next((str(record[k]) for k in _STATUS if k in record), "")
    failure, level = level_of_status(status), _level_of(record)
    if failure and (level == "" or (failure == "error" and level.lower() == "info")):
        level = failure
    name = _first_of(record, _NAME)
    if text is None:
        used = {*TIMES, *_LEVEL, *_TEXT}
        text = " ".join(f"{k}={v}" for k, v in record.items() if k not in used)
    else:
        text = f"{text} status={status}" if failure else text
        cause = _cause(next((record[k] for k in _CAUSE if record.get(k)), None))
        text = f"{text}: {cause}" if cause and cause not in text else text
    trace = next((record[k] for k in _TRACE if record.get(k)), "")
    return f"{level.upper()} {name + ': ' if name else ''}{text} {trace}".rstrip()


def _level_of(record: dict[str, Any]) -> str:
    """Return the level that a record names, as it is written; the name of a number."""
    key = next((k for k in _LEVEL if record.get(k) is not None), "")
    level = record.get(key, "")
    if isinstance(level, str) and _WHOLE.fullmatch(level):  # journald's are strings
        level = int(level)
    if isinstance(level, int) and not isinstance(level, bool):
        # GELF, the only format with a short_message, also has the numbers of syslog.
        return number_level(level, syslog=key in _OF_SYSLOG or "short_message" in record)
    return _written(level)


def _first_of(record: dict[str, Any], keys: Sequence[str]) -> str | None:
    """Return the text of the first of these keys with a value; empty: null, None: no key."""
    values = [record[key] for key in keys if key in record]
    return _written(next((v for v in values if v is not None), None)) if values else None


def _written(value: Any) -> str:
    """Return a value as text. journald writes a text that may be unprintable as a list of bytes."""
    if value is None:
        return ""
    if isinstance(value, list) and value and all(type(n) is int and 0 <= n < 256 for n in value):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, dict):
        return str(next((value[key] for key in _OWN if key in value), value))
    return str(value)


def _cause(value: Any) -> str:
    """Return the cause of an error that a field of a record names: text, or an object's message."""
    if isinstance(value, dict):
        value = value.get("message") or value.get("msg")
    return value if isinstance(value, str) else ""
