"""Times and levels of log lines, and which texts are logs."""

from __future__ import annotations

import calendar
import gzip
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstream.logs.components import component_of, message_of
from kvstream.logs.containers import LONGEST_LINE
from kvstream.logs.levels import level_of
from kvstream.logs.line_parser import LineParser, LineSplitter, looks_like_log
from kvstream.logs.summary import LogSummary

NOON = calendar.timegm((2024, 5, 1, 12, 0, 0))


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("2024-05-01T12:00:00.250Z hello", NOON + 0.25),
        ("2024-05-01T14:00:00+02:00 hello", NOON),
        ("2024-05-01 12:00:00,500 INFO [main] a.B: hello", NOON + 0.5),
        ("2024-05-01 12:00:00,500,INFO,hello", NOON + 0.5),
        ("2024-05-01 12:00:00,5 INFO hello", NOON + 0.5),
        ("[2024-05-01 12:00:00] hello", NOON),
        ("web.log 2024-05-01 12:00:00.000 17 INFO hello", NOON),
        ("- 1 2024.05.01 R0 2024-05-01-12.00.00.500000 R0 hello", NOON + 0.5),
        ("[Wed May 01 12:00:00 2024] [error] hello", NOON),
        ('10.0.0.1 - - [01/May/2024:14:00:00 +0200] "GET / HTTP/1.1" 200 5', NOON),
        ('10.0.0.1 - - [01/May/2024:14:00:00.500 +0200] "GET / HTTP/1.1" 200 5', NOON + 0.5),
        ("10.0.0.1:5 [01/May/2024:12:00:00.500] fe be/s1 hello", NOON + 0.5),
        ("24/05/01 12:00:00 INFO a.B: hello", NOON),
        ("[43200.500s][info][gc] hello", 43200.5),
        ("<6>[43200.500000] hello", 43200.5),
        ("daemon:info  : [43200.500000] hello", 43200.5),
        ("2024 May  1 12:00:00 hello", NOON),
        ("2024:05:01-12:00:00 hello", NOON),
        ("I [01/May/2024:14:00:00 +0200] hello", NOON),
        ("13/5/2024 -- 12:00:00 - <Notice> - hello", NOON + 12 * 86_400),
        ("05/13/2024-12:00:00.500000  hello", NOON + 12 * 86_400 + 0.5),
        (
            "[pid: 1|app: 0|req: 7/7] 10.0.0.1 () {42 vars in 512 bytes} "
            "[Wed May  1 12:00:00 2024] hello",
            NOON,
        ),
        ("240501 120000 148 INFO a.B: hello", NOON),
        ("5/1/2024 12:00:00 PM hello", NOON),
        ("05/01/2024 12:00:00 AM hello", NOON - 43_200),
        ("Information\t5/1/2024 1:00:00 PM\tdisk\t7", NOON + 3600),
        ('Error,5/1/2024 1:00:00 PM,Disk,11,None,"hello"', NOON + 3600),
        ("01.05.2024 12:00:00,500 hello", NOON + 0.5),
        ("240501 12:00:00 [Note] hello", NOON),
        ("240501  1:00:00 [Note] hello", NOON - 39_600),
        ("1:M 01 May 2024 12:00:00.500 * hello", NOON + 0.5),
        ("2024-05-01  9:00:00 0 [Note] hello", NOON - 10_800),
        ("I240501 12:00:00.500000 1 a.go:3  [n1] 1  hello", NOON + 0.5),
        ("79a59d shop-images [01/May/2024:12:00:00 +0000] 10.0.0.1 - hello", NOON),
        ("20240501-12:00:00:500|Part|1|hello", NOON + 0.5),
        (f"{NOON}.5 hello", NOON + 0.5),
        (f"{NOON}500 hello", NOON + 0.5),
        (f"type=CWD msg=audit({NOON}.500:24287):  cwd=hello", NOON + 0.5),
        (f"node=web type=UNKNOWN[1334] msg=audit({NOON}.500:7): hello", NOON + 0.5),
        ('{"time": "2024-05-01T12:00:00Z", "level": "info", "msg": "hello"}', NOON),
        (f'{{"ts": {NOON}.5, "msg": "hello"}}', NOON + 0.5),
        ('time=2024-05-01T12:00:00Z level=info msg="hello there"', NOON),
    ],
)
def test_times(line: str, seconds: float) -> None:
    time, rest = LineParser().parse(line)
    assert time == pytest.approx(seconds)
    assert "12:00:00" not in rest


def test_a_time_without_a_year_runs_on_over_new_year() -> None:
    parser = LineParser()
    old, _ = parser.parse("Dec 31 23:59:59 host cron[1]: a")
    new, rest = parser.parse("Jan  1 00:00:01 host cron[1]: b")
    assert new - old == pytest.approx(366 * 86400 - 365 * 86400 - 86400 + 2)
    assert rest.strip() == "cron[1]: b"
    assert not parser.dated


def utc(line: str, parser: LineParser | None = None) -> str:
    seconds = (parser or LineParser()).parse(line)[0]
    assert seconds is not None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


@pytest.mark.parametrize(
    "before", [[], ["Jan 31"], ["Feb  1"], ["Dec 31"], ["Mar  1", "Dec  9", "Jan  2"]]
)
def test_february_has_29_days_in_a_log_without_years(before: list[str]) -> None:
    parser = LineParser()
    days = [*before, "Feb 28", "Feb 29", "Mar  1"]
    found = [utc(f"{day} 12:00:00 host cron[1]: a", parser) for day in days]
    assert [day[5:10] for day in found[-3:]] == ["02-28", "02-29", "03-01"]
    assert found == sorted(found)


def test_the_days_of_a_year_return_without_a_year() -> None:
    parser, months = LineParser(), ("Jan", "Mar", "Jun", "Sep", "Dec")
    stamps = [f"{month} {day:2} 03:00:00" for month in months for day in (1, 15)] * 3
    times = [parser.parse(f"{stamp} host cron[1]: a")[0] or 0 for stamp in stamps]
    assert times == sorted(set(times))


def test_two_sources_around_a_new_year_keep_their_years() -> None:
    parser = LineParser()
    stamps = ["Dec 31 23:59:58", "Jan  1 00:00:01", "Dec 31 23:59:59", "Jan  1 00:00:02"]
    times = [parser.parse(f"{stamp} host cron[1]: a")[0] or 0 for stamp in stamps]
    assert [t - times[0] for t in times] == [0, 3, 1, 4]


def test_a_second_february_without_a_29th_day_keeps_its_lines_in_order() -> None:
    parser = LineParser()
    for month in "Feb", "Jun", "Dec", "Jan":
        parser.parse(f"{month} 28 12:00:00 host cron[1]: a")
    assert utc("Feb 29 12:00:00 host cron[1]: b", parser) == "1973-03-01 12:00:00"


SYSLOG = "Dec  4 12:00:0{} host cron[1]: a"
DATED = "2024-12-04 12:00:0{} a"


@pytest.mark.parametrize(("first", "second"), [(DATED, SYSLOG), (SYSLOG, DATED)])
def test_times_with_and_without_a_year_have_one_clock(first: str, second: str) -> None:
    parser = LineParser()
    lines = [text.format(n) for n, text in enumerate([first, second] * 2)]
    times = [parser.parse(line)[0] or 0 for line in lines]
    assert [t - times[0] for t in times] == [0, 1, 2, 3]
    assert not parser.dated
    parser.parse("valid until 2031-01-01 12:00:00")  # a message, no line of its own time
    assert parser.parse(SYSLOG.format(4))[0] == times[0] + 4


@pytest.mark.parametrize(
    ("line", "date"),
    [
        ("00/06/09 12:00:00 INFO a: x", "2000-06-09"),
        ("99/06/09 12:00:00 INFO a: x", "2099-06-09"),
        ("2024-02-29 12:00:00 x", "2024-02-29"),
    ],
)
def test_dates(line: str, date: str) -> None:
    assert utc(line) == f"{date} 12:00:00"


@pytest.mark.parametrize(
    ("proof", "line", "date"),
    [
        ("26/11/2026 08:07:12 x", "05/12/2026 12:00:00 y", "2026-12-05"),
        ("[26-11-2026 08:07:12,123] x", "[05-12-2026 12:00:00,123] y", "2026-12-05"),
        ("11/26/2026 08:07:12 x", "05/12/2026 12:00:00 y", "2026-05-12"),
        ("26/11/2026 8:07:12 AM x", "05/12/2026 12:00:00 PM y", "2026-12-05"),
        ("Error,26/11/2026 08:07:12,Disk", "Error,05/12/2026 12:00:00,Disk", "2026-12-05"),
    ],
)
def test_a_number_above_12_shows_whether_the_day_comes_first(
    proof: str, line: str, date: str
) -> None:
    parser = LineParser()
    if "M " not in line:
        assert parser.parse(line)[0] is None
    assert utc(proof, parser) == "2026-11-26 08:07:12"
    assert utc(line, parser) == f"{date} 12:00:00"


def test_years_of_four_digits_are_as_they_are_written() -> None:
    assert LineParser().parse("0099-06-09 12:00:00 x")[0] == calendar.timegm((99, 6, 9, 12, 0, 0))


@pytest.mark.parametrize(
    "line",
    [
        "2024-13-45 12:00:00 x",
        "2023-02-29 12:00:00 x",
        "2024-06-31 12:00:00 x",
        "Jun 31 12:00:00 host cron[1]: x",
        "0000-01-01 00:00:00 x",
        "0001-01-01T00:00:00Z x",
        '{"time": "0001-01-01T00:00:00Z"}',
        "99:99:99 x",
        "{broken json",
        "{}",
        "=",
    ],
)
def test_what_is_no_time_is_none(line: str) -> None:
    assert LineParser().parse(line)[0] is None


DIGITS = "1" * 400


@pytest.mark.parametrize(
    "line",
    [
        '{"ts": 1e999}',
        '{"time": Infinity}',
        '{"time": -Infinity}',
        '{"time": NaN}',
        f'{{"ts": "{DIGITS}"}}',
        f'{{"ts": {DIGITS}}}',
        f'{{"ts": -{DIGITS}}}',
        f"ts={DIGITS} msg=x",
        '{"ts": "²"}',
        "ts=² msg=x",
        '{"ts": 1e30}',
    ],
)
def test_a_number_that_is_no_time_leaves_the_line(line: str) -> None:
    assert LineParser().parse(line)[0] is None


@given(st.one_of(st.integers(), st.floats(), st.text("0123456789.²٣-e"), st.integers().map(str)))
def test_a_time_in_a_record_is_finite_or_none(value: object) -> None:
    time, _ = LineParser().parse(json.dumps({"ts": value, "msg": "x"}))
    assert time is None or 0 < time <= 1e11


@pytest.mark.parametrize(
    "line",
    [
        "a=" * 40 + " b c",
        'a="b" ' * 40 + "b c",
        'a="b"' * 40 + " c",
        "time=" * 700 + "1",
        "t=" * 1500 + "a=1 " * 40,
    ],
)
def test_pairs_in_pairs_are_refused_at_once(line: str) -> None:
    begin = time.process_time()
    assert LineParser().parse(line) == (None, line)
    assert time.process_time() - begin < 1


def test_logfmt_shows_what_went_wrong() -> None:
    line = 'time=2024-05-01T12:00:00Z level=error msg="target down" err="no route to host"'
    assert LineParser().parse(line) == (NOON, "ERROR target down: no route to host")


def test_logfmt_has_empty_and_quoted_values() -> None:
    line = 'time=2024-05-01T12:00:00Z level=warn empty= said="a \\"b\\" = c" msg="hello there"'
    seconds, rest = LineParser().parse(line)
    assert (seconds, rest) == (NOON, "WARN hello there")


@pytest.mark.parametrize(
    ("key", "number", "level"),
    [
        *[("level", n, "debug") for n in (-1000, -8, -4, -1, 10, 20, 100)],
        *[("level", n, "info") for n in (0, 6, 30, 200)],
        *[("level", n, "warning") for n in (1, 4, 40, 300)],
        *[("level", n, "error") for n in (2, 3, 8, 50, 400)],
        *[("level", n, "fatal") for n in (60, 500)],
        ("lvl", 10**400, "fatal"),
        *[("PRIORITY", n, "fatal") for n in (0, 1, 2)],
        ("severity", 0, "fatal"),
        ("PRIORITY", 3, "error"),
        ("severity", 7, "debug"),
    ],
)
def test_levels_that_are_numbers(key: str, number: int, level: str) -> None:
    for value in (number, str(number)) if len(str(number)) < 10 else (number,):
        line = json.dumps({"time": NOON, key: value, "msg": "x"})
        assert level_of(LineParser().parse(line)[1]) == level


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("INFO [main] a.B: set level=error", "info"),
        ("[warn] alert with severity: critical", "warning"),
        ("Error handler level=debug", "debug"),
        ("module=a level=warn ERROR", "warning"),
    ],
)
def test_a_level_of_the_line_comes_before_one_in_its_message(line: str, level: str) -> None:
    assert level_of(line) == level


def test_what_journalctl_writes_as_json() -> None:
    record = {
        "__REALTIME_TIMESTAMP": str(NOON) + "000000", "PRIORITY": "3", "MESSAGE": "it broke",
        "SYSLOG_IDENTIFIER": "cron", "_COMM": "cron",
    }  # fmt: skip
    seconds, rest = LineParser().parse(json.dumps(record))
    assert (seconds, rest) == (NOON, "ERROR cron: it broke")


def test_what_services_print_is_info_in_a_journal_also_their_errors() -> None:
    record = {"__REALTIME_TIMESTAMP": str(NOON) + "000000", "PRIORITY": "6", "_PID": "7",
              "SYSLOG_IDENTIFIER": "shop"}  # fmt: skip
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 7"]
    lines = ["up", "2024-05-01 12:00:00 ERROR job lost", *trace, "up"]
    logs = LogSummary(), LogSummary()
    for text in lines:
        logs[0].feed(json.dumps({**record, "MESSAGE": text}) + "\n")
        logs[1].feed(f"May  1 12:00:00 host shop[7]: {text}\n")
    for log in logs:
        assert (log.levels, log.trails) == ({"error": 2, "": 2}, 2)
        assert list(log.components) == ["shop"]


def test_what_mongodb_writes() -> None:
    record = {
        "t": {"$date": "2024-05-01T14:00:00.000+02:00"}, "s": "E", "c": "STORAGE", "id": 22435,
        "ctx": "conn1", "msg": "it broke", "attr": {"error": 28},
    }  # fmt: skip
    seconds, rest = LineParser().parse(json.dumps(record))
    assert (seconds, rest) == (NOON, "ERROR STORAGE: it broke")
    odd = json.dumps(record | {"t": {}, "s": None})
    assert LineParser().parse(odd) == (None, " STORAGE: it broke")


def test_a_message_of_bytes_and_what_is_null_in_a_record() -> None:
    record = {
        "__REALTIME_TIMESTAMP": str(NOON) + "000000", "PRIORITY": "3",
        "MESSAGE": [*"\x1b[1mgrün".encode(), 255], "SYSLOG_IDENTIFIER": list(b"cron"),
    }  # fmt: skip
    seconds, rest = LineParser().parse(json.dumps(record))
    assert (seconds, rest) == (NOON, "ERROR cron: \x1b[1mgrün\ufffd")
    null = dict.fromkeys(("PRIORITY", "MESSAGE", "SYSLOG_IDENTIFIER"))
    assert LineParser().parse(json.dumps(record | null)) == (NOON, "")


@pytest.mark.parametrize(
    ("record", "rest"),
    [
        ({"level": None, "severity": "error", "msg": None, "event": "x"}, "ERROR x"),
        ({"level": 0, "name": None, "app": "a", "msg": [1, 256]}, "INFO a: [1, 256]"),
        ({"msg": []}, " []"),
        ({"msg": [True]}, " [True]"),
        ({"msg": 0, "level": "info"}, "INFO 0"),
        ({"level": "warn", "a": 1}, "WARN a=1"),
        ({"level": "error", "msg": "x", "err": "no route"}, "ERROR x: no route"),
        ({"level": "error", "msg": "x", "err": {"type": "A", "message": "gone"}}, "ERROR x: gone"),
        ({"msg": "x", "err": None, "error": "no route"}, " x: no route"),
        ({"msg": "x: no route", "error": "no route"}, " x: no route"),
        ({"msg": "x", "error": False, "err": {}}, " x"),
        ({"level": "warn", "err": "no route"}, "WARN err=no route"),
    ],
)
def test_values_of_a_record_are_written_as_text(record: dict[str, object], rest: str) -> None:
    assert LineParser().parse(json.dumps(record))[1] == rest


@pytest.mark.parametrize(
    "record",
    [
        {"timeMillis": NOON * 1000, "level": "ERROR", "loggerName": "app", "message": "it broke"},
        {"Timestamp": "2024-05-01T12:00:00Z", "Level": "Error", "MessageTemplate": "app: it broke"},
        {"@t": "2024-05-01T12:00:00Z", "@l": "Error", "@mt": "app: it broke"},
        {"ts": NOON, "log": {"level": "error", "logger": "app"}, "message": "it broke"},
        {"ts": NOON, "level": "ERROR", "fields": {"message": "it broke"}, "target": "app"},
    ],
)
def test_keys_of_other_loggers(record) -> None:
    assert LineParser().parse(json.dumps(record)) == (NOON, "ERROR app: it broke")


@pytest.mark.parametrize(
    ("record", "level"),
    [
        ({"status": 502}, "error"),
        ({"status": "404"}, "warning"),
        ({"level": "info", "msg": "served", "status": 503}, "error"),
        ({"level": "info", "msg": "served", "status_code": 404}, "info"),
        ({"level": "warn", "msg": "served", "statusCode": 500}, "warning"),
        ({"level": "info", "msg": "served", "status": 200}, "info"),
        ({"msg": "served", "status": "done"}, ""),
        ({"msg": "served", "status": None}, ""),
        ({"msg": "served", "status": 5021}, ""),
    ],
)
def test_a_status_of_failure_in_a_record_is_a_level(record, level: str) -> None:
    for line in (json.dumps(record), " ".join(f"{k}={v}" for k, v in record.items())):
        rest = LineParser().parse(line if line[0] == "{" else f"time={NOON} {line}")[1]
        assert level_of(rest) == level
        assert ("status=50" in rest) == bool({500, 502, 503} & {*record.values()})


@pytest.mark.parametrize(
    ("line", "level", "component"),
    [
        ("<11>May  1 12:00:00 host app[7]: no route", "error", "app"),
        ("<28>May  1 12:00:00 host app[7]: no route", "warning", "app"),
        ("<131>1 2024-05-01T12:00:00Z host app 7 - - no route", "error", "app"),
        ("<14>May  1 12:00:00 host app[7]: no route", "", "app"),
        ("<14>May  1 12:00:00 host app[7]: connection refused", "suspect", "app"),
        ("<134>1 2024-05-01T12:00:00Z host app 7 - - no route", "", "app"),
        (
            '<132>1 2024-05-01T12:00:00Z host app - ID7 [a@1 b="c\\] d"][e@1] no route',
            "warning",
            "app",
        ),
        ("<132>1 2024-05-01T12:00:00Z host app web.1 - no route", "warning", "app"),
        ("<134>1 2024-05-01T12:00:00Z - - - - - no route", "", None),
    ],
)
def test_priorities_of_syslog_are_levels(line: str, level: str, component: str | None) -> None:
    rest = LineParser().parse(line)[1]
    assert (level_of(rest), component_of(rest)) == (level, component)
    assert "<" not in rest
    assert component is None or message_of(rest) in ("no route", "connection refused")


def test_levels_of_gelf_are_those_of_syslog() -> None:
    line = json.dumps({"timestamp": NOON, "level": 0, "short_message": "x"})
    assert level_of(LineParser().parse(line)[1]) == "fatal"


@pytest.mark.parametrize(
    ("rest", "level"),
    [
        (" ERROR [main] a.B: x", "error"),
        (" - WARN  [x] - y", "warning"),
        (" [notice] x", "notice"),
        ("  1702  2395 E Tag: x", "error"),
        ("level=warn msg=x", "warning"),
        (" app.go:7:run() [W] x", "warning"),
        ("[E][wifi:7]: x", "error"),
        (" (EE) x", "error"),
        (" (EW) (7) [Errno] x", ""),
        (" host daemon.err app[7]: x", "error"),
        (" cpu1:7)WARNING: x", "warning"),
        ("kern  :err   : x", "error"),
        ("ERRO[0007] x", "error"),
        (" FATAL x", "fatal"),
        (" kernel: Out of memory: killed process 7", "suspect"),
        (" BUG: kernel NULL pointer dereference, address: 8", "suspect"),
        (" INFO finished with 0 errors", "info"),
        (" finished with 0 errors", ""),
        (" session opened", ""),
        ("fail: Shop.Orders[0]", "error"),
        (" ERR] order 7 was not stored", "error"),
        (" WRN] order 7 was slow", "warning"),
        (" x = INF y = FAIL", "suspect"),
        (" haproxy: backend orders has no server available!", "suspect"),
        (" cp: /var/spool/7.job: No space left on device", "suspect"),
        (" nginx: accept4() (24: Too many open files)", "suspect"),
        (" postfix: can't open queue file", "suspect"),
        (" logrotate: ALERT exited abnormally with [1]", "suspect"),
        (" [alert] child died", "fatal"),
        (" kernel: exception support... done.", ""),
        (" mod_jk child in error state 6", "suspect"),
        ('10.0.0.1 - - "GET /errors?id=7 HTTP/1.1" 200 5 "-" "Invalid/1.0"', ""),
        (" [error] mod_jk child in error state 6", "error"),
        (" gige temperature 1 critical", "suspect"),
        (" sshd: error: bind failed", "error"),
        (" QQ.exe - a.b.com:443 error : no proxy", "error"),
        (" see the info page: connection failed", "suspect"),
        (" a: wrote /var/log/fail/crash.txt", ""),
        (" job: 0 failed, 9 passed", ""),
        (" 1702 2395 I Tag: error: none", "info"),
        ("  1234-5678  Radio  com.example.app  E  gone", "error"),
        (" [mpm_event:notice] [pid 7:tid 8] AH00489: failed before", "notice"),
        (" [core:error] [pid 7:tid 8] [client 10.0.0.1:80] AH00126: x", "error"),
        (" [Server thread/WARN]: behind by 2000 ms", "warning"),
        ("production.CRITICAL: x", "fatal"),
        ("npm ERR! Found: react", "error"),
        ("thread 'main' panicked at src/main.rs:4:5:", "suspect"),
        ("security.INFO: login failed", "info"),
    ],
)
def test_levels(rest: str, level: str) -> None:
    assert level_of(rest) == level


def test_the_name_of_the_component_is_no_part_of_the_message() -> None:
    assert component_of(" sshd[77]: Failed password") == "sshd"
    assert component_of(" web-01 sshd[77]: Failed password") == "sshd"
    assert message_of(" db2.example.org kernel: eth0: link up") == "eth0: link up"
    assert message_of(" INFO [main] org.a.B: Started in 3 s") == "Started in 3 s"
    assert component_of(" WARN shop::orders: late") == "shop::orders"
    assert message_of("[INFO ][o.e.n.Node  ] started") == "[o.e.n.Node  ] started"
    kernel = " kernel: [ 6200.120000] eth0: link up"
    assert (component_of(kernel), message_of(kernel)) == ("kernel", "eth0: link up")
    line = "E0501 12:00:00.123456       1 election.go:330] lease lost"
    rest = LineParser().parse(line)[1]
    assert (component_of(rest), message_of(rest)) == ("election.go", "lease lost")
    assert level_of(rest) == "error"
    assert message_of(", Info                  CBS    Session 3") == "CBS    Session 3"


def test_a_status_of_failure_is_a_level() -> None:
    line = '10.0.0.1 - - [01/May/2024:12:00:00 +0000] "GET / HTTP/1.1" {} 5'
    levels = [level_of(LineParser().parse(line.format(s))[1]) for s in (200, 404, 503)]
    assert levels == ["", "warning", "error"]
    ingress = line.replace(" 5", ' 5 "-" "curl/8" 441 0.003 [pay] [] 10.0.1.2:80 500 0.003 200 f')
    levels = [level_of(LineParser().parse(ingress.format(s))[1]) for s in (200, 404, 503)]
    assert levels == ["", "warning", "error"]
    envoy = '[2024-05-01T12:00:00.000Z] "GET / HTTP/1.1" {} UH - "-" 0 441 "curl/8" 503 '
    levels = [level_of(LineParser().parse(envoy.format(s))[1]) for s in (200, 404, 503)]
    assert levels == ["", "warning", "error"]


@pytest.mark.parametrize(
    "line",
    [
        'INFO:     127.0.0.1:54321 - "GET /items HTTP/1.1" {} Reason',
        '2024-05-01 12:00:00 INFO httpx: Request: GET http://a/ "HTTP/1.1 {} Reason"',
        "I, [2024-05-01T12:00:00.123456 #12]  INFO -- : Completed {} Reason in 3ms",
    ],
)
def test_a_status_of_failure_outranks_the_level_info(line: str) -> None:
    read = [LineParser().parse(line.format(status))[1] for status in (200, 404, 503)]
    assert [level_of(rest) for rest in read] == ["info", "info", "error"]


@pytest.mark.parametrize(
    "line",
    [
        '[01/May/2024 12:00:00] "GET / HTTP/1.1" {} 145',  # Django
        '127.0.0.1 - - [01/May/2024 12:00:00] "GET / HTTP/1.1" {} -',  # Flask
        "1714564800.123    20 10.0.0.1 TCP_MISS/{} 12 GET http://a/ - DIRECT/1.2.3.4 -",
        'May  1 12:00:00 lb haproxy[1]: 10.0.0.1:5 fe be/s1 0/0/1/2/3 {} 12 - - "GET / HTTP/1.1"',
        '10.0.0.1:5 [01/May/2024:12:00:00.1] fe be/s1 0/0/1/2/3 {} 12 - - ---- "GET / HTTP/2"',
        'h2 2024-05-01T12:00:00.1Z app/lb/1 1.2.3.4:5 - -1 -1 0.1 {} - 3 4 "GET https://a/ HTTP/2"',
    ],
)
def test_a_status_of_failure_is_a_level_in_other_logs(line: str) -> None:
    read = [LineParser().parse(line.format(status)) for status in (200, 404, 503)]
    assert all(time is not None for time, _ in read)
    assert [level_of(rest) for _, rest in read] == ["", "warning", "error"]


@pytest.mark.parametrize("mark", ["%ASA-{}-106100:", "%LINK-{}-UPDOWN:", "%SYS-SP-{}-A:", "%X-{}:"])
def test_the_level_of_a_router(mark: str) -> None:
    lines = [f"May  1 12:00:00 r1: {mark.format(level)} a 3" for level in (2, 3, 4, 6)]
    found = [level_of(LineParser().parse(line)[1]) for line in lines]
    assert found == ["fatal", "error", "warning", ""]


def test_a_header_names_the_field_of_the_status() -> None:
    parser = LineParser()
    for header, line in (
        ("#Fields: date time cs-uri sc-status sc-bytes", "2024-05-01 12:00:00 /a {} 500"),
        ("#Fields: date time sc-bytes sc-status", "2024-05-01\t12:00:00\t500\t{}"),
    ):
        assert parser.parse(header) == (None, header)
        read = [parser.parse(line.format(status)) for status in (200, 404, 503)]
        assert [time for time, _ in read] == [NOON] * 3
        assert [level_of(rest) for _, rest in read] == ["", "warning", "error"]
    assert parser.parse("2024-05-01 12:00:00 /a")[1].strip() == "/a"


def test_a_header_counts_until_the_next_one_and_in_its_own_source() -> None:
    parser, line = LineParser(), "2024-05-01 12:00:00 wrote 404 rows"
    levels = []
    for end in lambda: parser.parse("#Fields: date time cs-uri"), parser.begin:
        parser.parse("#Fields: date time cs-method sc-status")
        levels.append(level_of(parser.parse(line)[1]))
        end()
        levels.append(level_of(parser.parse(line)[1]))
    assert levels == ["warning", "", "warning", ""]


def test_a_level_is_no_component() -> None:
    rest = 'INFO:     127.0.0.1:54321 - "GET / HTTP/1.1" 200 OK'
    assert component_of(rest) is None
    assert message_of(rest) == '127.0.0.1:54321 - "GET / HTTP/1.1" 200 OK'
    assert message_of("ERROR ::1 refused") == "::1 refused"


@pytest.mark.parametrize(
    ("prefix", "name"),
    [
        ("web-1  | ", "web-1"),
        ("\x1b[36mweb-1  | \x1b[0m", "web-1"),
        ("[pod/web-7d9f/nginx] ", "web-7d9f/nginx"),
    ],
)
def test_the_name_of_a_container_is_the_component(prefix: str, name: str) -> None:
    noon = "2024-05-01T12:00:00Z"
    record = json.dumps({"time": noon, "level": "error", "msg": "db down"})
    for line in (f"{noon} ERROR db down", record):
        entry = LineParser().entry(prefix + line)
        assert entry is not None
        assert (entry.time, entry.container, entry.continues) == (NOON, name, False)
        assert level_of(entry.rest) == "error"
        assert (component_of(entry.rest), message_of(entry.rest)) == (name, "db down")
    for line in (
        f"[{noon[:-1]}: ERROR/Worker-2] down",
        f"[{noon}] app.CRITICAL: down",
        f"{noon} ERR x",
    ):
        entry, plain = LineParser().entry(prefix + line), LineParser().entry(line)
        assert entry is not None
        assert plain is not None
        assert level_of(entry.rest) == level_of(plain.rest) != ""
        assert component_of(entry.rest) == name
    assert looks_like_log([f"{prefix}{noon} up"] * 3)
    assert LineParser().entry("2024-05-01 12:00:00 | INFO | a").container == ""


@pytest.mark.parametrize(
    "line",
    [
        "2024-05-01T12:00:00.123456789Z {}",  # docker logs --timestamps
        "web-1  | 2024-05-01T12:00:00.123456789Z {}",
        "2024-05-01T14:00:00.1234+02:00 stderr F {}",  # files of Kubernetes
        '{{"log":"{}\\n","stream":"stdout","time":"2024-05-01T12:00:00.123456789Z"}}',
    ],
)
def test_what_a_container_runtime_adds_is_no_part_of_the_line(line: str) -> None:
    parser = LineParser()
    own = "2024-05-01 12:00:09 ERROR db down"
    assert parser.entry(line.format(own))[:2] == (own, NOON + 9)
    entry = parser.entry(line.format("db down"))
    assert (entry.text, entry.rest.removeprefix("web-1: ")) == ("db down", "db down")
    assert not entry.continues
    assert entry.time == pytest.approx(NOON + 0.1234, abs=1e-4)
    assert entry.container in ("", "web-1")
    entry = parser.entry(line.format("  at a.b(c)"))
    assert (entry.text, entry.time, entry.continues) == ("  at a.b(c)", None, True)
    assert parser.entry(line.format("")).time is None
    assert looks_like_log([line.format("up")] * 3)


def test_lines_of_containers_are_a_log_without_times() -> None:
    assert looks_like_log(["web-1  | up", "web-1  | down"])
    assert looks_like_log(["[pod/web-7d9f/nginx] up"] * 3)


@pytest.mark.parametrize(
    "text",
    [
        "name | age\n---- | ---\nada | 36\nbob | 41\n",
        "It was 12:30:45 when she left.\n\nOn 2024-05-01 nothing happened.\n\nThe end.\n",
        "time,value,name\n" + "".join(f"2024-05-01 12:00:0{i},{i},a\n" for i in range(5)),
        "def main():\n    return 0\n\n\nclass Error(Exception):\n    pass\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "2024-05-01 12:00:00,3.5,7\n2024-05-01 12:00:01,3.6,7",
        "13/05/2024 12:00:00,3.5,7\n13/05/2024 12:00:01,3.6,7",
        "[13/05/2024, 12:00:00] Ada: hello\n[13/05/2024, 12:00:09] Bob: It rained.",
        "",
    ],
)
def test_other_texts_are_no_logs(text: str) -> None:
    assert not looks_like_log(text.splitlines())


def test_a_log_of_json_lines_and_one_with_traces_are_logs() -> None:
    lines = [json.dumps({"ts": NOON + i, "level": "info", "msg": "x"}) for i in range(5)]
    assert looks_like_log(lines)
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: x"]
    assert looks_like_log(["2024-05-01 12:00:00 ERROR x", *trace] * 5)


@pytest.mark.parametrize(
    "line",
    [
        "2024-05-01 12:00:0{}, Info                  CBS    Session {}",
        "Information\t5/1/2024 2:05:0{} PM\tService Control Manager\t7036\tNone\tSession {}",
        'Information,5/1/2024 2:05:0{} PM,Service Control Manager,7036,None,"Session {}"',
    ],
)
def test_lines_of_windows_are_a_log(line: str) -> None:
    assert looks_like_log([line.format(i, i) for i in range(5)])


def test_the_console_of_dotnet_is_a_log() -> None:
    assert looks_like_log(["info: Microsoft.Hosting.Lifetime[14]", "      Listening on: x"] * 5)
    assert not looks_like_log(["info: see the manual", "fail: try again"] * 5)


def test_statements_below_a_line_with_a_time_and_other_names_of_keys() -> None:
    lines = ["2024-05-01 12:00:00 INFO query:", "SELECT a", "FROM b", "LEFT JOIN c", "WHERE d = 1"]
    assert looks_like_log(lines * 3)
    parser = LineParser()
    assert [parser.entry(line).continues for line in lines] == [False] + [True] * 4
    windows = {"TimeCreated": "2024-05-01T12:00:00Z", "LevelDisplayName": "Error", "Message": "x"}
    seconds, rest = LineParser().parse(json.dumps(windows))
    assert (seconds, level_of(rest)) == (NOON, "error")
    assert level_of("heroku[router]: at=error code=H12") == "error"


def test_the_logs_of_npm_and_the_slow_queries_of_mysql_are_logs() -> None:
    lines = ["verbose stack Error: gone", "http fetch GET 404 x", "error code E404"]
    for before in ("7 ", "npm "):
        assert looks_like_log([before + line for line in lines])
        assert [level_of(before + line) for line in lines] == ["debug", "", "error"]
    assert level_of("0 error lines") != "error"
    slow = ["# Time: 240501 12:00:00", "# User@Host: a[a] @ b []", *["SELECT", "1", ";"] * 9]
    assert looks_like_log(slow)
    assert LineParser().parse(slow[0])[0] == NOON


def test_a_log_of_columns_with_a_header_is_a_log() -> None:
    rows = [f"2024-05-01\t12:00:0{n}\tFRA2\tGET\t200" for n in range(5)]
    assert not looks_like_log(rows)
    assert looks_like_log(["#Version: 1.0", "#Fields: date time edge method sc-status", *rows])


def test_links_of_a_terminal_and_nuls_before_a_line_are_no_part_of_it() -> None:
    link = "\x1b]8;;https://x\x1b\\red\x1b]8;;\x1b\\ \x1b]8;id=1;https://x\x07blue\x1b]8;;\x07"
    assert LineParser().entry(f"{NOON} {link}")[2].strip() == "red blue"
    assert LineParser().entry(f"\0\0{NOON} hello")[1] == NOON


def test_one_very_long_line_is_enough_for_a_log() -> None:
    line = "2024-05-01 12:00:00 INFO start: "
    assert looks_like_log([line + "x" * 20_000])
    assert not looks_like_log([line + "x" * 200])
    assert not looks_like_log(["x" * 20_000])


def test_a_log_with_colors_is_a_log() -> None:
    line = "\x1b[2m2024-05-01T12:00:0{}Z\x1b[0m \x1b[1;31mERROR\x1b[0m db: pool is full"
    assert looks_like_log([line.format(i) for i in range(5)])


def test_shared_logs_are_logs_and_books_are_not(data: Path) -> None:
    def head(path: Path) -> list[str]:
        with gzip.open(path, "rt", errors="replace") as file:
            return file.read(65536).splitlines()

    logs = sorted((data / "logs").glob("*.gz"))
    books = sorted((data / "books").glob("*.txt.gz"))
    assert logs
    assert books
    assert [path for path in logs if not looks_like_log(head(path))] == []
    assert [path for path in books if looks_like_log(head(path))] == []


def test_lines_are_cut_wherever_the_pieces_end() -> None:
    text = "one\r\ntwo\n\nthree"
    for size in (1, 2, 5, 100):
        splitter = LineSplitter()
        found = [x for i in range(0, len(text), size) for x in splitter.feed(text[i : i + size])]
        assert found + splitter.close() == ["one", "two", "", "three"]


def test_a_long_line_is_held_in_part_and_counted() -> None:
    splitter = LineSplitter()
    for _ in range(60):
        assert splitter.feed("x" * 10_000) == []
        assert len(splitter._rest) <= LONGEST_LINE
    (line,) = splitter.feed("\n")
    assert len(line) == LONGEST_LINE
    assert splitter.long_lines == 1


@pytest.mark.parametrize("size", [1000, 65_535, 65_536, 65_537, 100_000, 10**6])
def test_only_the_beginning_of_a_long_line_counts(size: int) -> None:
    whole = "x" * LONGEST_LINE
    text = f"{whole}\n{whole}{'y' * 100_000}end\n{whole}z\r\nnext\r\n{whole}last"
    splitter = LineSplitter()
    found = [x for i in range(0, len(text), size) for x in splitter.feed(text[i : i + size])]
    assert found + splitter.close() == [whole, whole, whole, "next", whole]
    assert splitter.long_lines == 3


def test_code_is_no_log() -> None:
    root = Path(__file__).parents[2]
    files = [*(root / "kvstream").rglob("*.py"), *(root / "docs").rglob("*.md")]
    assert len(files) > 100
    heads = {path: path.read_text("utf-8")[:65536].splitlines() for path in files}
    assert [path for path, head in heads.items() if looks_like_log(head)] == []


def test_a_file_name_in_front_of_the_time_is_no_part_of_the_message() -> None:
    line = "api.log.1.2024-05-01_12:00:00 2024-05-01 12:00:00.5 17 INFO nova.api.server [req-1] up"
    time, rest = LineParser().parse(line)
    assert time == pytest.approx(NOON + 0.5)
    assert component_of(rest) == "nova.api.server"
    assert message_of(rest) == "[req-1] up"


def test_lines_of_one_second_have_their_own_fractions_and_zones() -> None:
    parser = LineParser()
    stamps = ["12:00:00.250Z", "12:00:00.500Z", "12:00:00Z", "12:00:00+02:00", "12:00:00,125"]
    times = [parser.parse(f"2024-05-01T{stamp} hello") for stamp in stamps]
    assert [time - NOON for time, _ in times] == [0.25, 0.5, 0, -7200, 0.125]
    assert {rest.strip() for _, rest in times} == {"hello"}


def test_a_number_in_the_message_is_no_time_once_a_stamp_was_found() -> None:
    """A number in an earlier line is none either: a stamp replaces what was taken for one."""
    stamped = "2024-05-01 12:00:00 ERROR order 1234567890 failed"
    trace = "Caused by: order 1234567890 was lost"
    for lines in ([stamped, trace, stamped, trace], [trace, stamped, trace, stamped]):
        parser = LineParser()
        found = dict.fromkeys(lines)
        for line in lines:
            found[line] = parser.parse(line)
        assert found[stamped] == (NOON, " ERROR order 1234567890 failed")
        assert found[trace] == (None, trace)
    assert LineParser().parse(f"host app {NOON} hello")[0] == NOON


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("2024-05-01 12:00:00 Zookeeper: expired", " Zookeeper: expired"),
        ("2024-05-01 12:00:00 -1500 items left", " -1500 items left"),
        ("2024-05-01 12:00:00 +9999 items left", " +9999 items left"),
        ("2024-05-01 12:00:00Z hello", " hello"),
        ("2024-05-01 14:00:00 +0200 hello", " hello"),
        ("2024-05-01 12:00:00 UTC [7] LOG:  hello", " [7] LOG:  hello"),
        ("2024-05-01 12:00:00 +0000 UTC hello", " hello"),
        ("2024-05-01 12:00:00 CEST hello", " hello"),
        ("2024-05-01 12:00:00 UTC: hello", " UTC: hello"),
        ("2024-05-01 12:00:00 LOG hello", " LOG hello"),
        ("[2024-05-01 12:00:00] INFO hello", " INFO hello"),
        ("[2024-05-01T14:00:00.000+02:00] hello", " hello"),
        ("2024-05-01 14:00:00.000+02 hello", " hello"),
        ("2024-05-01 09:00:00.000 -03 [7] LOG:  hello", " [7] LOG:  hello"),
        ("2024-05-01 12:00:00 -10.5 C", " -10.5 C"),
        ("2024-05-01 12:00:00 AEST hello", " hello"),
        ("Wed 2024-05-01 12:00:00 CEST hello", " hello"),
        ("01-May-2024 12:00:00.000 INFO hello", " INFO hello"),
        ("[01-May-2024 12:00:00 UTC] PHP Warning:  hello", " PHP Warning:  hello"),
        ("Wed May  1 12:00:00 CEST 2024 hello", " hello"),
        ("May 01, 2024 12:00:00 PM org.a.B main", " org.a.B main"),
        (f"{NOON}000000000 hello", " hello"),
        ("E20240501 12:00:00 31 a.cc:33] hello", "E  31 a.cc:33] hello"),
        ('"5/1/2024 12:00:00 PM","7","Error","hello"', ',"7","Error","hello"'),
        ('Error,"5/1/2024 12:00:00 PM",Disk,7', "Error Disk,7"),
        ("20240501T120000Z hello", " hello"),
        ("[20240501T140000.000+0200] hello", " hello"),
        ("2024-05-01_12:00:00.00000 hello", " hello"),
        ("app [2024-05-01 12:00:00] hello", "app  hello"),
        ("app [2024-05-01 12:00:00 7] hello", "app [  7] hello"),
    ],
)
def test_what_follows_a_time_is_a_zone_only_if_it_can_be_one(line: str, rest: str) -> None:
    assert LineParser().parse(line) == (NOON, rest)


@pytest.mark.parametrize(
    "line",
    [
        '{"time": null, "@timestamp": "2024-05-01T12:00:00Z", "msg": "hello"}',
        '{"time": 0.25, "timestamp": "2024-05-01T12:00:00Z", "msg": "hello"}',
        '{"t": true, "date": "2024-05-01T12:00:00Z", "msg": "hello"}',
        'date=2024-05-01 time=12:00:00 devname="fw" msg="hello"',
    ],
)
def test_a_record_has_the_first_time_that_is_one(line: str) -> None:
    assert LineParser().parse(line)[0] == NOON


@pytest.mark.parametrize(
    "line",
    [
        "2024-05-01 12:00:00 PM a",
        "2024-05-01 12:00:00.000 pm a",
        "2024-May-01 12:00:00 a",
        "2024\u5e7405\u670801\u65e5 12:00:00 a",
        "2024-05-01\u00a012:00:00 a",
        "2024-05-01T14:00:00+02:00[Europe/Berlin] a",
        "2024-05-01T12:00Z a",
        "01-MAY-24 12.00.00.000000 PM a",
        "Wednesday, 01-May-24 12:00:00 GMT a",
        "5/1/2024, 12:00:00\u202fPM a",
        "05/01/24 12:00:00 PM a",
        "May  1 2024 12:00:00: a",
        "May 1, 2024 12:00:00 a",
        "####<May 1, 2024 12:00:00 PM CEST> a",
        "20240501-120000 a",
        "20240501120000 a",
        "01.05.24 12:00:00 a",
        "1.5.2024 12:00:00 a",
        "1714564800000000000 a",
    ],
)
def test_times_that_fewer_programs_write(line: str) -> None:
    assert LineParser().parse(line) == (NOON, " a")


@pytest.mark.parametrize(
    ("line", "date"),
    [
        ("2024-05-01 01:00:00 PM a", "2024-05-01 13:00:00"),
        ("2024-05-01 12:00:00 AM a", "2024-05-01 00:00:00"),
        ("2024-05-01 01:00:00 PM: suspend entry", "2024-05-01 01:00:00"),
        ("[5/31/24 13:00:00:123 CEST] 0000004a a", "2024-05-31 13:00:00"),
        ("24/05/31 13:00:00 INFO a", "2024-05-31 13:00:00"),
        ("31/05/24 13:00:00 INFO a", "2024-05-31 13:00:00"),  # before 2031
        ("*Sept  3 13:00:00.123 UTC: %SYS-5-A: a", "1971-09-03 13:00:00"),
        ("SEP  3 13:00:00 web1 a", "1971-09-03 13:00:00"),
        ("I20240501 13:00:00.000000 123 a.cc:12] a", "2024-05-01 13:00:00"),
    ],
)
def test_halves_of_a_day_and_names_of_months(line: str, date: str) -> None:
    assert utc(line) == date


def test_a_log_with_numbers_for_times_keeps_them() -> None:
    """It keeps them after a line with a date in its message, and if only some lines have them."""
    parser = LineParser()
    for n in range(6):
        assert parser.parse(f"db1 app {NOON + n} GET /{n}")[0] == NOON + n
    dated = f"db1 app {NOON + 6} certificate until 2023-01-01 00:00:00 expired"
    assert parser.parse(dated)[0] == NOON + 6
    assert parser.parse(f"db1 app {NOON + 7} GET /b")[0] == NOON + 7
    mixed = LineParser()
    assert mixed.parse(f"{NOON} started")[0] == NOON
    assert mixed.parse(f"ALERT {NOON + 2} c")[0] == NOON + 2


@pytest.mark.parametrize(
    ("time", "level", "text"),
    [
        ({"instant": {"epochSecond": NOON, "nanoOfSecond": 0}}, {"level": "ERROR"}, {"message": 0}),
        ({"timestamp": {"seconds": NOON}}, {"severity": "ERROR"}, {"jsonPayload": {"message": 0}}),
        ({"meta": {"ts": NOON}}, {"evt": {"sev": "error"}}, {"body": {"text": 0}}),
        ({"eventTime": "2024-05-01T12:00:00Z"}, {"severityText": "ERROR"}, {"body": 0}),
        ({"time_local": "01/May/2024:14:00:00 +0200"}, {"level_name": "ERROR"}, {"msg": 0}),
        ({"@timestamp": "2024-05-01T12:00:00Z"}, {"@level": "error"}, {"@message": 0}),
        ({"_id": "7"}, {}, {"_source": {"ts": NOON, "level": "error", "msg": 0}}),
    ],
)
def test_a_record_may_hold_others(time: dict, level: dict, text: dict) -> None:
    made = time | level | text | {"service": {"name": "shop"}}
    line = json.dumps(made).replace(": 0}", ': "hello"}').replace(": 0,", ': "hello",')
    assert LineParser().parse(line) == (NOON, "ERROR shop: hello")


@pytest.mark.parametrize(
    ("rest", "level"),
    [
        (' ,"ada","shop",7,"10.0.0.1:5",66f.1,3,"INSERT",2024-05-01 09:00:00 UTC,3/1,0,ERROR,23505,'
         '"no, twice"'.strip(), "error"),
        (',"ada",7,LOG,00000,"connection lost"', "info"),
        (',"7034","Warning","disk"', "warning"),
        (' lvl=eror msg="no peers"', "error"),
    ],
)  # fmt: skip
def test_the_level_of_a_row_with_commas(rest: str, level: str) -> None:
    assert level_of(rest.lstrip()) == level


def test_words_before_a_colon_are_no_level() -> None:
    for text in ("Failed uploads: 3", "No route: db", "2 late orders: 7"):
        assert message_of(f" {text}").strip() == text


@pytest.mark.parametrize("line", ["(10:00:00) INFO: x", "10:00PM INF x", "[10:00:00][I][wifi]: x"])
def test_hours_in_brackets_and_halves_of_a_day(line: str) -> None:
    time, rest = LineParser().parse(line)
    assert time is not None
    assert (time // 3600 % 24, level_of(rest)) == (22 if "PM" in line else 10, "info")


@pytest.mark.parametrize(
    "line", ["E/Foo(  12): x", "WARN[0012] x", "[2024/05/01 12:00:00.5,  0] ../a.c:1(run)"]
)
def test_other_lines_that_begin_a_log(line: str) -> None:
    assert looks_like_log([line] * 3)


def test_the_level_of_syslog_is_no_host() -> None:
    rest = LineParser().parse("Wed May  1 12:00:00 2024 daemon.err dnsmasq[7]: no route")[1]
    assert (level_of(rest), component_of(rest)) == ("error", "dnsmasq")


@pytest.mark.parametrize("odd", ["12:30:45 x", "[   12.345678] x", "10.20.30.40 x", "2.31.0 x"])
def test_a_clock_without_a_day_is_no_time_beside_times_with_days(odd: str) -> None:
    lines = [f"2024-05-01 12:00:{i:02} INFO shop: order {i}" for i in range(60)]
    log = LogSummary()
    log.feed("\n".join([*lines[:30], odd, *lines[30:], ""]))
    assert (log.total.low, log.total.high, log.jumps) == (NOON, NOON + 59, 0)
    assert log.total.count == 61


def test_hours_below_a_line_with_a_day_are_times() -> None:
    parser = LineParser()
    lines = ["2024-05-01 12:00:00 begins", *(f"13:00:{i:02} x" for i in range(60))]
    times = [parser.parse(line)[0] for line in lines]
    assert times.count(None) == 1
    parser.begin()
    assert parser.parse("14:00:00 of another file")[0] is not None


def test_the_times_of_docker_are_not_those_of_a_program_without_days() -> None:
    parser = LineParser()
    for i in range(60):
        entry = parser.entry(f"2025-05-09T01:00:{i:02}.000000000Z 03:00:{i // 10:02} INFO x")
        assert entry is not None
        assert entry.rest.strip() == "INFO x"


@pytest.mark.parametrize("level", ["Error", "Fault", "Info", "Debug"])
def test_the_columns_of_the_unified_log_of_macos(level: str) -> None:
    line = f"2024-05-01 12:00:00.500000+0000 0x12a4  {level:11} 0x0   412    0    "
    rest = LineParser().parse(f"{line}mds: (Core) [com.a:b] disk 3")[1]
    assert level_of(rest) == level.lower().replace("fault", "error")
    assert (component_of(rest), message_of(rest)) == ("mds", "(Core) [com.a:b] disk 3")
    record = {"timestamp": "2024-05-01 12:00:00.5+0000", "eventMessage": "x", "messageType": level}
    time, rest = LineParser().parse(json.dumps(record))
    assert (time, level_of(rest)) == (NOON + 0.5, level.lower().replace("fault", "error"))


def test_the_letter_behind_the_short_name_of_websphere() -> None:
    lines = [f"[5/31/24 12:00:00:500 CEST] 0000006c SystemOut     {x} A 3" for x in "EWI"]
    rests = [LineParser().parse(line)[1] for line in lines]
    assert [level_of(rest) for rest in rests] == ["error", "warning", "info"]


def test_a_line_of_cef_or_leef_keeps_its_words() -> None:
    for text in ("LEEF:2.0|Acme|x|1|7|devTime=1 msg=disk sdb cannot", "CEF:0|Palo Alto|x|1|a b"):
        assert text in LineParser().parse(f"<13>1 2024-05-01T12:00:00Z lb {text}")[1]


@pytest.mark.parametrize(
    ("record", "level"),
    [
        ({"Level": 4, "LevelDisplayName": "Information"}, "info"),  # the event log of Windows
        ({"level": "Informational"}, "info"),  # Azure
        ({"error_severity": "FATAL"}, "fatal"),  # PostgreSQL
    ],
)
def test_names_of_levels_in_records(record: dict[str, object], level: str) -> None:
    line = json.dumps({"TimeGenerated": "2024-05-01T12:00:00Z", "message": "x", **record})
    time, rest = LineParser().parse(line)
    assert (time, level_of(rest)) == (NOON, level)
