"""Records with their time, level and text under unusual keys, in other objects or behind a time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvstream.logs.line_parser import LineParser, looks_like_log

NOON = 1714564800
DAY = "2024-05-01T12:00:00Z"
FORMS: list[Any] = [
    {"instant": {"epochSecond": NOON, "nanoOfSecond": 5}, "level": "ERROR", "message": "lost 3"},
    {"timestamp": {"seconds": NOON, "nanos": 0}, "severity": "ERROR", "message": "lost 3"},
    {"ts": {"$date": {"$numberLong": str(NOON * 1000)}}, "level": "ERROR", "msg": "lost 3"},
    {"meta": {"time": DAY, "level": "ERROR"}, "message": "lost 3"},
    {"timestamp": DAY, "severity": "ERROR", "jsonPayload": {"message": "lost 3"}},
    {"timeUnixNano": f"{NOON}000000000", "severityText": "ERROR",
     "body": {"stringValue": "lost 3"}},
    {"upTime": 1234567890, "eventTime": DAY, "level": "ERROR", "msg": "lost 3"},
    {"TS": DAY, "LEVEL": "ERROR", "MSG": "lost 3"},
    {"record": {"level": {"name": "ERROR", "no": 40}, "time": {"timestamp": NOON}},
     "text": "lost 3"},
    {"timestamp": NOON * 1000, "message": '{"level": "error", "message": "lost 3"}'},
]  # fmt: skip


@pytest.mark.parametrize("record", FORMS)
def test_time_level_and_text_of_a_record(record: dict[str, Any]) -> None:
    line = json.dumps(record)
    assert LineParser().parse(line) == (NOON, "ERROR lost 3")
    assert looks_like_log([line] * 3)


@pytest.mark.parametrize("line", ['[{"time":"%s","level":"error","msg":"lost 3"},',
                                  '  {"time":"%s","level":"error","msg":"lost 3"}]'])  # fmt: skip
def test_records_of_a_list(line: str) -> None:
    entry = LineParser().entry(line % DAY)
    assert entry is not None
    assert (entry.time, entry.rest) == (NOON, "ERROR lost 3")


@pytest.mark.parametrize(
    ("begin", "kept"),
    [("%s ", " "), ("%s app: @cee: ", " app:  "), ("%s INFO got ", None)],
)
def test_a_record_behind_a_time(begin: str, kept: str | None) -> None:
    record = '{"level":"error","msg":"lost 3"}'
    rest = LineParser().parse(begin % DAY + record)[1]
    assert rest == (f" INFO got {record}" if kept is None else f"{kept}ERROR lost 3")


def test_quotes_in_logfmt_stay_whole() -> None:
    line = f'time={DAY} level=error msg="no \\"key\\" in \\"map\\""'
    assert LineParser().parse(line)[1] == 'ERROR no "key" in "map"'


def test_traces_of_inner_errors_and_names_in_objects() -> None:
    trace = "a.B: gone\n\tat a.b(C.java:1)\nCaused by: x.Y: deep"
    error = {"type": "a.B", "message": "gone", "stack_trace": trace}
    record = {"time": DAY, "level": "error", "msg": "m", "service": {"name": "pay"}, "error": error}
    entry = LineParser().entry(json.dumps(record))
    assert entry is not None
    assert entry.rest.rstrip() == "ERROR pay: m: gone"
    assert entry.more[-1] == "Caused by: x.Y: deep"
    serilog = {"Timestamp": DAY, "Level": "Error", "MessageTemplate": "m", "Exception": trace}
    entry = LineParser().entry(json.dumps(serilog))
    assert entry is not None
    assert entry.more[-1] == "Caused by: x.Y: deep"


CAUSE = {"name": "java.io.IOException", "message": "disk full"}
LOG4J = {"name": "a.B", "message": "gone", "cause": CAUSE}
JBOSS = {"exceptionType": "a.B", "message": "gone", "frames": [], "causedBy": {"exception": {
    "exceptionType": "java.io.IOException", "message": "disk full"}}}  # fmt: skip
TEXT = "a.B: gone\n\tat a.b(C.java:1)\nCaused by: java.io.IOException: disk full"


@pytest.mark.parametrize(
    "fields",
    [
        {"thrown": LOG4J}, {"exception": JBOSS}, {"stacktrace": TEXT},
        {"thrown": {"name": "a.B", "message": "gone", "extendedStackTrace": TEXT}},
        {"context": {"exception": {"class": "a.B", "message": "gone", "previous": CAUSE}}},
        {"attributes": [{"key": "exception.stacktrace", "value": {"stringValue": TEXT}}]},
        {"attributes": {"exception.type": "a.B", "exception.stacktrace": TEXT}},
        {"short_message": "failed", "full_message": f"failed {TEXT}"},
    ],
)  # fmt: skip
def test_exceptions_that_are_objects(fields: dict[str, Any]) -> None:
    record = {"timestamp": DAY, "level": "ERROR", "message": "failed", **fields}
    entry = LineParser().entry(json.dumps(record))
    assert entry is not None
    assert entry.rest == "ERROR failed a.B: gone"
    assert entry.more[-1] == "Caused by: java.io.IOException: disk full"


def test_a_template_of_serilog_has_its_values_and_the_level_that_it_leaves_out() -> None:
    record = {"@t": DAY, "@mt": "Order {@Id:000} of {Who} is lost", "Id": 7}
    assert LineParser().parse(json.dumps(record))[1] == "INFORMATION Order 7 of {Who} is lost"
    record |= {"@l": "Error", "@m": "Order 007 is lost"}
    assert LineParser().parse(json.dumps(record))[1] == "ERROR Order 007 is lost"


def test_the_places_of_zap_are_left_out() -> None:
    record = {"ts": NOON, "level": "error", "msg": "failed", "stacktrace": "main.f\n\t/a.go:1"}
    entry = LineParser().entry(json.dumps(record))
    assert entry is not None
    assert (entry.rest.rstrip(), list(entry.more)) == ("ERROR failed", [])
