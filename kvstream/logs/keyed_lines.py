"""Lines that are records with keys: JSON and logfmt."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from kvstream.logs.levels import OF_LETTER, SEVERE, level_of_status, number_level
from kvstream.logs.traces import TRACE

TIMES = ("time", "timestamp", "@timestamp", "ts", "date", "datetime", "asctime", "t",
         "__REALTIME_TIMESTAMP", "timeMillis", "Timestamp", "@t", "instant", "eventTime",
         "EventTime", "TimeCreated", "TimeGenerated", "time_iso8601", "time_local")  # fmt: skip
_TEXT = ("msg", "message", "event", "log", "text", "short_message", "MESSAGE", "RenderedMessage",
         "MessageTemplate", "@m", "@mt", "@message", "textPayload",
         "eventMessage", "body")  # fmt: skip
_LEVEL = ("level", "levelname", "severity", "lvl", "loglevel", "log.level", "PRIORITY",
          "LevelDisplayName", "Level", "@l", "@level", "level_name", "sev", "log_level", "logLevel",
          "severity_text", "severityText", "error_severity", "messageType")  # fmt: skip
_NAME = ("logger", "name", "service", "component", "module", "source", "caller", "app",
         "SYSLOG_IDENTIFIER", "logger_name", "loggerName", "log.logger",
         "@module")  # fmt: skip
_CAUSE = ("err", "error", "error.message", "exception.message")
_STATUS = ("status", "status_code", "statusCode", "http_status", "http.status_code",
           "http.response.status_code")  # fmt: skip
_TRACE = ("exception", "stack", "stack_trace", "exc_info", "Exception", "@x", "stackTrace",
          "error.stack_trace", "thrown", "stacktrace", "exception.stacktrace",
          "full_message")  # fmt: skip
_OF_EXCEPTION = ("name", "exceptionType", "class", "exc_type", "message", "exc_value")
"""Keys of the name of an exception that is an object, and of its message."""
MOST_CAUSES = 20
"""Maximum causes of an exception that are read."""
_ENDS_OF_TIMES = ("timestamp", "unixnano")
"""Ends of other names of times, in lower case; ``time`` too, but numbers there are durations."""
_SHORTEST_TIME = len("1714557600")
_DECODER = json.JSONDecoder()
_INNER = ("_source", "jsonPayload", "payload", "data", "record", "body")
"""Keys of an object with the text of a record that has none itself."""
_SECONDS = ("$date", "epochSecond", "seconds", "$numberLong", "timestamp")
"""Keys of a time that is an object."""
_OWN = ("name", "message", "msg", "text", "stringValue")
"""Keys of what an object is called, or says."""
_WHOLE = re.compile(r"-?[0-9]{1,9}")
_HOLE = re.compile(r"\{[@$]?(\w+)[^{}]*\}")
"""A place for a value in a template of Serilog."""
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
    pairs = _PAIR.findall(line)
    return {k: v.removeprefix('"').removesuffix('"').replace('\\"', '"') for k, v in pairs}


def _json(line: str) -> dict[str, Any] | None:
    try:
        data, end = _DECODER.raw_decode(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or line[end:].strip(" \t\r\n,]"):  # it may be one of a list
        return None
    record = {str(key): value for key, value in data.items()}
    for key in () if any(key in record for key in _TEXT[:-1]) else _INNER:
        if isinstance(inner := record.get(key), dict) and any(k in inner for k in _TEXT):
            record = inner | {k: v for k, v in record.items() if k != key}
            for other in [value for value in record.values() if isinstance(value, dict)]:
                record = {k: other[k] for k in (*TIMES, *_LEVEL) if k in other} | record
            break
    for key in _TEXT:
        text = record.get(key)
        if isinstance(text, str) and text[:2] == '{"' and (own := _json(text)) and _says(own):
            record = {k: v for k, v in record.items() if k != key} | own
            break
    if isinstance(record.get("t"), dict):  # MongoDB
        letter = OF_LETTER.get(str(record.get("s"))[:1], "")
        record |= {"level": letter, "component": record.get("c")}
    if "@mt" in record and "@m" not in record:  # Serilog leaves out the usual level
        text = _HOLE.sub(lambda hole: str(record.get(hole[1], hole[0])), str(record["@mt"]))
        record = {"@l": "Information"} | record | {"@mt": text}
    if isinstance(inner := record.get("context"), dict) and "exception" in inner:  # Monolog
        record = {"exception": inner["exception"]} | record
    some = record.get("attributes")  # of OpenTelemetry: an object, or a list of pairs
    if isinstance(some, dict):
        some = [{"key": key, "value": value} for key, value in some.items()]
    for pair in some if isinstance(some, list) else ():
        if isinstance(pair, dict) and str(pair.get("key")).startswith("exception."):
            record[pair["key"]] = _as_text(pair.get("value"))
    if isinstance(inner := record.get("log"), dict):  # Elastic Common Schema
        record.pop("log")
        record = {f"log.{key}": value for key, value in inner.items()} | record
    if isinstance(inner := record.get("fields"), dict) and "message" in inner:  # tracing of Rust
        record = {"module": record.get("target")} | inner | record
    if not (_says(record) and any(key in record for key in TIMES)):
        record = _usual(record)
    for key in TIMES:
        while isinstance(inner := record.get(key), dict):
            record[key] = next((inner[k] for k in _SECONDS if k in inner), None)
    return record


def _says(record: dict[str, Any]) -> bool:
    """Return whether a record has a text and a level under usual keys."""
    return any(key in record for key in _TEXT) and any(key in record for key in _LEVEL)


def _usual(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its time, text and level under usual keys, if it has others."""
    for others in ({k.lower(): v for k, v in record.items()}, *record.values()):
        if isinstance(others, dict):
            for keys in (TIMES, _TEXT, _LEVEL):
                if not any(key in record for key in keys):
                    more = {k: others[k] for k in keys if k in others}
                    record = record | {k: v for k, v in more.items() if not isinstance(v, list)}
    if not any(key in record for key in TIMES):
        for key, value in record.items():
            ends = (*_ENDS_OF_TIMES, "time") if isinstance(value, str) else _ENDS_OF_TIMES
            if key.lower().endswith(ends) and len(str(value)) >= _SHORTEST_TIME:
                return record | {"time": value}
    return record


def inner_line(rest: str) -> str:
    """Return a line without its time with the level and the message of a record at its end."""
    at = rest.find('{"')
    if at < 0 or rest[:at].rstrip()[-1:] not in ("", ":", "|"):
        return rest
    record = _json(rest[at:])
    if record is None or not _says(record):
        return rest
    return rest[:at].replace("@cee:", "") + line_of(record).lstrip()


def line_of(record: dict[str, Any]) -> str:
    """Return a line with the level, the name and the message of a record, without its time."""
    text = _first_of(record, _TEXT)
    status = next((str(record[k]) for k in _STATUS if k in record), "")
    failure, level = level_of_status(status), _level_of(record)
    if failure and (level == "" or (failure == "error" and level.lower() == "info")):
        level = failure
    name = _first_of(record, _NAME)
    if name and "_PID" in record:  # of a journal: traces have a record for each line
        name = f"{name}[{record['_PID']}]"
    if text is None:
        keys = {*TIMES, *_LEVEL, *_TEXT}
        text = " ".join(f"{k}={v}" for k, v in record.items() if k not in keys)
    else:
        text = f"{text} status={status}" if failure else text
        error = next((record[k] for k in _CAUSE if record.get(k)), None)
        cause = error.get("message") or error.get("msg") if isinstance(error, dict) else error
        if isinstance(cause, str) and cause and cause not in text:
            text = f"{text}: {cause}"
        if isinstance(error, dict):
            record = record | {k: f"\n{v}" for k, v in error.items() if isinstance(v, str)}
    trace = next((_trace_of(k, record[k]) for k in _TRACE if record.get(k)), "")
    trace = trace.removeprefix(text).lstrip(" ")  # GELF repeats the text
    return f"{level.upper()} {name + ': ' if name else ''}{text} {trace}".rstrip()


def _trace_of(key: str, value: Any) -> str:
    """Return the text of a stack trace; loggers of Java write the exception as an object."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):  # of structlog
        value = value[-1]
    if isinstance(value, dict) and isinstance(value.get("extendedStackTrace"), str):
        value = value["extendedStackTrace"]
    if not isinstance(value, dict):  # that of zap has only places
        text = str(value)
        return text if key != "stacktrace" or any(map(TRACE.match, text.split("\n"))) else ""
    lines: list[str] = []
    while isinstance(value, dict) and len(lines) < MOST_CAUSES:
        inner = value.get("exception")  # of JBoss, around each cause
        value = inner if isinstance(inner, dict) else value
        lines.append(": ".join(str(value[k]) for k in _OF_EXCEPTION if value.get(k)))
        value = value.get("cause") or value.get("causedBy") or value.get("previous")
    return "\nCaused by: ".join(lines)


def _level_of(record: dict[str, Any]) -> str:
    """Return the level that a record names, as it is written; the name of a number."""
    key = next((k for k in _LEVEL if record.get(k) is not None), "")
    level = record.get(key, "")
    if isinstance(level, str) and _WHOLE.fullmatch(level):  # journald's are strings
        level = int(level)
    if isinstance(level, int) and not isinstance(level, bool):
        # GELF, the only format with a short_message, also has the numbers of syslog.
        name = number_level(level, syslog=key in _OF_SYSLOG or "short_message" in record)
        # A journal has what a service prints as info, also its errors.
        return name if key != "PRIORITY" or name in SEVERE else ""
    return _as_text(level)


def _first_of(record: dict[str, Any], keys: Sequence[str]) -> str | None:
    """Return the text of the first of these keys with a value; empty: null, None: no key."""
    values = [record[key] for key in keys if key in record]
    return _as_text(next((v for v in values if v is not None), None)) if values else None


def _as_text(value: Any) -> str:
    """Return a value as text. journald writes a text that may be unprintable as a list of bytes."""
    if value is None:
        return ""
    if isinstance(value, list) and value and all(type(n) is int and 0 <= n < 256 for n in value):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, dict):
        return str(next((value[key] for key in _OWN if key in value), value))
    return str(value)
