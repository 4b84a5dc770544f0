"""Lines that a container runtime wraps and splits are read as their programs wrote them."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from kvstream.logs import containers
from kvstream.logs.findings import report
from kvstream.logs.line_parser import LineParser, looks_like_log
from kvstream.logs.summary import LogSummary
from kvstream.logs.text_page import page
from kvstream.logs.thinning import Thinner

ERROR = '{"level":"error","msg":"batch of invoices rejected","rows":[10,20,30,40,50,60]}'
INFO = '{"level":"info","msg":"alive"}'


def read(lines: list[str]) -> LogSummary:
    log = LogSummary()
    log.begin("a.log")
    log.feed("".join(f"{line}\n" for line in lines))
    log.close()
    parts = sum(shape.count for shape in log.shapes) + log.trails + log.blank
    assert (log.lines, parts) == (len(lines), len(lines))
    return log


def cri(text: str, second: int, stream: str, flag: str, prefix: str = "") -> str:
    return f"{prefix}2025-05-09T01:00:{second:02}.00000000{second % 10}Z {stream} {flag} {text}"


def templates(log: LogSummary) -> dict[str, int]:
    return {shape.text: shape.count for shape in log.shapes}


@pytest.mark.parametrize("tag", ["", ":x"])
@pytest.mark.parametrize("prefix", ["", "web-1  | ", "[pod/web/app] "])
@pytest.mark.parametrize("cuts", [(30,), (10, 20, 30, 40), (0, 79)])
def test_pieces_of_a_line_are_joined_in_each_stream(
    cuts: tuple[int, ...], prefix: str, tag: str
) -> None:
    lines = [cri(INFO, 1, "stdout", "F", prefix)]
    edges = [0, *cuts, len(ERROR)]
    for begin, end in pairwise(edges):
        flag = ("F" if end == len(ERROR) else "P") + tag
        lines += [cri(ERROR[begin:end], 2, "stderr", flag, prefix)]
        lines += [cri(INFO[:9], 3, "stdout", "P", prefix), cri(INFO[9:], 3, "stdout", "F", prefix)]
    log = read(lines)
    assert templates(log) == {"alive": 1 + (len(edges) - 1), "batch of invoices rejected": 1}
    (error,) = [f for f in report(log).findings if f.level == "error"]
    assert (error.first_line, error.example) == (2, ERROR)


def test_what_is_held_of_split_lines_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "MOST_STREAMS", 8)
    lines = [cri("x" * 60_000, 1, "stdout", "P", f"web-{i}  | ") for i in range(20)] * 3
    log = LogSummary()
    log.begin("a.log")
    for line in lines:
        log.feed(f"{line}\n")
        held = log.parser.split_lines._open
        assert len(held) <= 8
        assert all(len(each.text) <= containers.LONGEST_LINE for each in held.values())
    read(lines)
    long = [cri("x" * 60_000, 1, "stdout", "P"), cri("x" * 60_000, 1, "stdout", "F")]
    assert read(long).splitter.long_lines == 1


def test_a_log_may_begin_with_the_pieces_of_a_very_long_line() -> None:
    lines = [cri("x" * 16_000, second, "stdout", "P") for second in range(4)]
    assert looks_like_log([*lines, lines[0][:99]])


def test_the_name_of_a_task_of_swarm_is_that_of_a_container() -> None:
    lines = [f"web.{n % 2}.k3j2lxq0a1b2@node-{n % 2}    | {INFO}" for n in range(9)]
    assert looks_like_log(lines)
    log = read(lines)
    assert templates(log) == {"alive": 9}
    assert not looks_like_log([f"liv{n}@sea.example | {n} | Oslo" for n in range(9)])


def test_a_line_whose_end_is_missing_is_counted() -> None:
    log = read([cri("INFO up", 1, "stdout", "F"), cri("ERROR disk", 2, "stderr", "P")])
    assert templates(log) == {"up": 1, "disk": 1}


def test_a_line_is_new_in_the_report_after_its_end() -> None:
    log = LogSummary()
    log.feed("".join(cri("INFO up\n", second, "stdout", "F") for second in range(9)))
    log.feed(cri("ERROR db: conn\n", 10, "stderr", "P"))
    assert log.whole_lines == 9
    log.mark()
    log.feed(cri("INFO up\n", 11, "stdout", "F") + cri("ection lost\n", 12, "stderr", "F"))
    shown = page(log, news=True)
    assert "connection lost" in shown
    assert "reported before" not in shown
    log.feed(cri("ERROR its end is miss\n", 13, "stderr", "P"))
    before = log.whole_lines
    log.close()
    assert log.whole_lines > before


def test_pieces_in_any_order_are_all_counted() -> None:
    rng = random.Random(3)
    for _ in range(50):
        read([
            cri(rng.choice(["a", '{"level":', "ERROR x", ""]), rng.randrange(60),
                rng.choice(["stdout", "stderr"]), rng.choice("PPF"), rng.choice(["", "web-1 | "]))
            for _ in range(40)
        ])  # fmt: skip


def test_a_trace_of_one_stream_takes_no_line_of_the_other() -> None:
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 'k'"]
    lines = [cri(line, 1, "stderr", "F") for line in trace]
    lines[1:1] = [cri(INFO, 1, "stdout", "F")] * 9
    log = read(lines)
    assert templates(log) == {"alive": 9, trace[0]: 1}
    assert log.trails == 2


def test_docker_writes_pieces_as_records_without_a_newline() -> None:
    def record(log: str, stream: str) -> str:
        return json.dumps({"log": log, "stream": stream, "time": "2025-05-12T09:00:00.5Z"})

    lines = [record(f"{INFO}\n", "stdout"), record(ERROR[:30], "stderr")]
    lines += [record(f"{INFO}\n", "stdout"), record(f"{ERROR[30:]}\r\n", "stderr")]
    assert templates(read(lines)) == {"alive": 2, "batch of invoices rejected": 1}
    for flag in ("logtag", "_p"):
        made = [{"log": ERROR[:30], flag: "P"}, {"log": ERROR[30:], flag: "F"}]
        lines = [json.dumps({"stream": "stderr", "time": "2025-05-12"} | each) for each in made]
        assert templates(read(lines)) == {"batch of invoices rejected": 1}
    lines = [record(f"order {i} priced", "stdout") for i in range(9)]  # of a collector
    assert templates(read(lines)) == {"order <*> priced": 9}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : ")])
@pytest.mark.parametrize(
    "keys",
    [("log", "stream", "time"), ("time", "log", "stream"), ("attrs", "stream", "time", "log"),
     ("kubernetes", "stream", "log", "time", "logtag")],
)  # fmt: skip
def test_a_record_of_docker_may_have_any_order_and_spaces(
    keys: tuple[str, ...], separators: tuple[str, str]
) -> None:
    def record(text: str, second: int) -> str:
        time = f"2025-05-12T09:00:{second:02}.5+00:00"
        values = {"log": f"{text}\n", "stream": "stdout", "attrs": {"tag": "a"}, "time": time}
        values |= {"logtag": "F", "kubernetes": {"pod": "a"}}
        return json.dumps({key: values[key] for key in keys}, separators=separators)

    lines = [record(INFO, i) for i in range(9)] + [record(ERROR, 10)]
    for pad in ("", "  "):
        log = read([pad + line for line in lines])
        assert templates(log) == {"alive": 9, "batch of invoices rejected": 1}
        assert log.levels == {"info": 9, "error": 1}
        assert log.total.high - log.total.low == 10


def test_other_records_with_a_log_stay_as_they_are() -> None:
    made = {"time": "2025-05-12T09:00:00Z", "level": "error", "log": "app.log", "msg": "rotated"}
    assert templates(read([json.dumps(made)])) == {"rotated": 1}
    ecs = {"@timestamp": "2025-05-12T09:00:00Z", "log": {"level": "error"}, "message": "gone"}
    assert templates(read([json.dumps(ecs)])) == {"gone": 1}


def test_a_thinned_log_keeps_the_pieces_of_a_line_together() -> None:
    thinner = Thinner()
    lines = [cri(INFO[:9], 1, "stdout", "P"), cri(INFO[9:], 1, "stdout", "F")]
    passed = [[thinner.passes(line) for line in lines] for _ in range(50)]
    assert passed[0] == [True, True]
    assert all(first == second for first, second in passed)


@pytest.mark.parametrize(
    "before", ["web-1  | ", "[pod/web/app] ", "2025-07-01T09:00:01.123456789Z "]
)
def test_a_line_of_a_container_keeps_its_number(before: str) -> None:
    parser = LineParser()
    for number in (3, 4):
        entry = parser.entry(f"{before}2025-07-01 09:00:01 ERROR disk full", number)
        assert entry is not None
        assert entry.number == number


@pytest.mark.parametrize("form", ["{} ERROR job lost", "[{}] ERROR job lost"])
@pytest.mark.parametrize("clock", ["2025-05-09 01:00:0{}", "01:00:0{}"])
def test_an_exception_continues_a_line_of_a_program_that_writes_times(
    form: str, clock: str
) -> None:
    trace = ["a.b.GoneException: no disk", "\tat a.b.C(D.java:1)"]
    lines = [form.format(clock.format(1)), *trace, form.format(clock.format(2))]
    log = read([cri(text, 1, "stderr", "F") for text in lines])
    assert (log.levels, log.trails, log.jumps) == ({"error": 2}, 2, 0)


def test_the_runtime_dates_hours_of_a_program() -> None:
    lines = ["starting", "[01:00:02] [main/INFO]: up", "[01:00:03] [main/INFO]: ready"]
    log = read([cri(text, second, "stdout", "F") for second, text in enumerate(lines, 1)])
    assert log.total.low is not None
    assert log.total.high == log.total.low + 2


def test_the_letter_of_a_level_precedes_the_name_of_a_container() -> None:
    line = "web-1  | E0501 10:00:00.123456       1 a.go:1] lost"
    (shape,) = read([line]).shapes
    assert (shape.level, dict(shape.components)) == ("error", {"web-1": 1})


def test_docker_splits_a_color() -> None:
    pieces = ["\x1b[3", "1mERROR\x1b[0m lost\n"]
    record = {"stream": "stdout", "time": "2025-05-09T01:00:01.1Z"}
    lines = [json.dumps({"log": text, **record}) for text in ("INFO up\n", *pieces)]
    assert read(lines).levels == {"info": 1, "error": 1}


def test_of_many_streams_the_one_with_the_oldest_line_is_forgotten() -> None:
    many = range(containers.MOST_STREAMS)
    lines = [cri("INFO start", 1, "stdout", "F", f"pod-{i}  | ") for i in many]
    lines.append(cri("ERROR job: failed", 2, "stdout", "F", "pod-0  | "))
    lines.append(cri("INFO start", 2, "stdout", "F", "pod-new  | "))
    lines.append(cri("\tat a.Job.run(Job.java:1)", 2, "stdout", "F", "pod-0  | "))
    assert read(lines).trails == 1


def test_a_trace_below_a_line_with_a_level_is_no_error_of_its_own() -> None:
    trace = ["Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 'k'"]
    for level, own in (("ERROR", 0), ("INFO", 1)):
        lines = [f"{level} shop: order {i}" for i in range(5)]
        log = read([cri(line, 1, "stderr", "F") for line in [*lines, *trace]])
        assert (log.total.count, log.trails) == (5 + own, 3 - own)
        assert log.levels["error"] + log.levels["suspect"] == (5 if level == "ERROR" else 1)
