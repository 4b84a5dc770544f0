"""The counts of a log, and the page that shows them."""

from __future__ import annotations

import gzip
import json
import random
import re
import time
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvstream.logs.findings import ROWS, report
from kvstream.logs.summary import MOST_BUCKETS, MOST_COMPONENTS, LogSummary
from kvstream.logs.telling import check
from kvstream.logs.text_page import FEWEST, page, page_of_screen, record

SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))]


def read(lines: list[str], **settings) -> LogSummary:
    log = LogSummary(**settings)
    log.begin("app.log")
    log.feed("".join(f"{line}\n" for line in lines))
    log.close()
    return log


def balanced(log: LogSummary) -> bool:
    held = sum(shape.count for shape in log.shapes)
    return held + log.tree.forgotten + log.blank + log.trails == log.lines and (
        sum(log.levels.values()) == log.total.count
    )


def at(seconds: float, text: str) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(1_714_521_600 + seconds))
    return f"{stamp} {text}"


def quiet_day(rng: random.Random) -> list[tuple[float, str]]:
    """Return a day of two services with 4,000 lines each."""
    lines = []
    for _ in range(4000):
        t = rng.uniform(0, 86_400)
        took = rng.lognormvariate(3, 0.3)
        lines.append((t, f"INFO shop: order {rng.randint(1, 9999)} served in {took:.1f} ms"))
        lines.append(
            (rng.uniform(0, 86_400), f"INFO mail: queue holds {rng.randint(0, 9)} letters")
        )
    return lines


def finished(lines: list[tuple[float, str]]) -> LogSummary:
    return read([at(t, text) for t, text in sorted(lines)])


def test_counts_times_and_lines() -> None:
    log = read([at(0, "INFO a: start 1"), at(5, "INFO a: start 2"), at(9, "ERROR b: broken")])
    made = record(log)
    error, start = made["findings"]
    assert (error["level"], error["count"], error["first"]["line"]) == ("error", 1, 3)
    assert (start["count"], start["first"]["line"], start["last"]["line"]) == (2, 1, 2)
    assert start["last"]["time"] - start["first"]["time"] == 5
    assert made["levels"] == {"info": 2, "error": 1}
    assert balanced(log)


def test_a_quiet_log_has_no_findings_over_time() -> None:
    made = report(finished(quiet_day(random.Random(3))))
    assert not [f for f in made.findings if f.section == "changes over time"]


def test_a_burst_is_told_with_its_time() -> None:
    lines = quiet_day(random.Random(4))
    lines += [(40_000 + i / 2, f"WARN shop: retry {i}") for i in range(200)]
    rows = page(finished(lines)).split("\n")
    (place,) = [i for i, row in enumerate(rows) if "one burst of 200 lines" in row]
    assert "11:06:40 to 11:08:19" in rows[place - 1]


def test_a_burst_of_a_template_that_was_there_before_has_its_own_times() -> None:
    lines = quiet_day(random.Random(4))
    lines += [(40_000 + i / 2, f"INFO shop: order {i} served in 2.5 ms") for i in range(900)]
    (row,) = [x for x in page(finished(lines)).split("\n") if "burst of" in x]
    assert "times its rate" in row
    assert "from 11:0" in row


def test_a_service_that_goes_silent_is_told() -> None:
    lines = [x for x in quiet_day(random.Random(5)) if "mail" not in x[1] or x[0] < 60_000]
    notes = [n for f in report(finished(lines)).findings for n in f.notes]
    assert any(n.startswith("silent since") for n in notes)


def test_many_lines_before_the_first_time_are_no_silence() -> None:
    lines = [f"loading plugin p{i} from cache" for i in range(25)]
    log = read([*lines, *(at(i, f"INFO app: request {i} served") for i in range(100))])
    assert "loading plugin <*> from cache" in page(log)
    assert not [n for f in report(log).findings for n in f.notes if "silent" in n]


def months(rng: random.Random, days: int = 60) -> list[tuple[float, str]]:
    """Return quiet weeks of two services. One takes three times as long from day 40 to day 44."""
    lines = []
    for _ in range(days * 250):
        t = rng.uniform(0, days * 86_400)
        slow = 3 if 40 < t / 86_400 < 44 else 1
        lines.append((t, f"INFO pay: charge took {rng.lognormvariate(3, 0.2) * slow:.1f} ms"))
        lines.append((rng.uniform(0, days * 86_400), f"INFO mail: queue of {rng.randint(0, 9)}"))
    return lines


def months_of_errors(rng: random.Random) -> list[tuple[float, str]]:
    """Return three months of a service, with eight errors that occur at a steady rate."""
    lines = [(rng.uniform(0, 90 * 86_400), f"INFO shop: order {i}") for i in range(40_000)]
    for name in ("ba", "ke", "lo", "mi", "nu", "ra", "so", "ti"):
        for _ in range(500):
            moment = rng.uniform(0, 90 * 86_400)
            lines.append((moment, f"ERROR {name}: {name} lost {rng.randint(1, 9999)}"))
    return lines


@pytest.mark.parametrize("seed", SEEDS)
def test_a_burst_hours_from_a_flood_outranks_errors_of_every_day(seed: int) -> None:
    """In a log of three months, a burst and a flood of one day share a bucket of 18 hours."""
    rng = random.Random(seed)
    lines = months_of_errors(rng)
    flood = 60 * 86_400 + 8 * 3600
    for name in ("red", "green", "blue"):
        for i in range(300):
            moment = flood + rng.expovariate(1 / 120)
            lines.append((moment, f"ERROR shop: {name} order {i} is not saved"))
    lines += [(flood + 3 * 3600 + i, f"ERROR disk: sector {i} is bad") for i in range(150)]
    log = finished(lines)
    assert log.width > 4 * 3600
    errors = [f for f in report(log).findings if f.level == "error"]
    bursts = [f for f in errors if any("one burst of" in note for note in f.notes)]
    assert "sector <*> is bad" in [f.text for f in bursts]
    assert errors[: len(bursts)] == bursts
    assert len(errors) > len(bursts)  # the others follow


@pytest.mark.parametrize("seed", SEEDS)
def test_bursts_of_known_errors_have_their_minute_and_their_cause(seed: int) -> None:
    rng = random.Random(seed)
    lines = months_of_errors(rng)
    flood = 60 * 86_400 + 8 * 3600
    for name in ("ba", "ke", "lo", "mi"):
        for i in range(500):
            lines.append((flood + rng.expovariate(1 / 120), f"ERROR {name}: {name} lost {i}"))
    lines += [(flood + 3 * 3600 + i / 2, f"ERROR so: so lost {i}") for i in range(300)]
    lines.append((flood - 8, "INFO disk: volume is now read only"))
    for i in range(24):  # none of these lines is a cause
        moment = 60 * 86_400 + 3600 * i + 1800
        lines.append((moment, f"INFO odd: {'abcdefghijklmnopqrstuvwx'[i] * 4} happened"))
    found = report(finished(lines)).findings
    first = [f for f in found if f.level == "error"][:3]
    notes = {f.text: " ".join(f.notes) for f in first}
    assert "around 06-30 11:00:" in notes["so lost <*>"]
    assert sum("around 06-30 08:0" in note for note in notes.values()) == 2
    rare = [f.text for f in found if any("before a burst" in note for note in f.notes)]
    assert rare == ["volume is now read only"]


def test_a_silence_and_a_slow_day_of_a_long_log_are_told() -> None:
    lines = months(random.Random(11))
    day = 86_400
    lines = [x for x in lines if "mail" not in x[1] or not 20.0 * day < x[0] < 20.4 * day]
    lines.append((20.3 * day, "INFO mail: still here"))  # one line does not end the silence
    notes = [n for f in report(finished(lines)).findings for n in f.notes]
    assert any(n.startswith("silent from 05-2") for n in notes), notes
    assert any("charge took goes from 2" in n and "from 06-" in n for n in notes), notes


def test_a_service_that_is_silent_in_the_last_hours_of_weeks_is_told() -> None:
    lines = [x for x in months(random.Random(12)) if "mail" not in x[1] or x[0] < 59.6 * 86_400]
    notes = [n for f in report(finished(lines)).findings for n in f.notes]
    assert any(n.startswith("silent since 06-29") for n in notes), notes


@pytest.mark.parametrize("seed", SEEDS)
def test_a_latency_that_grows_for_eight_hours_of_three_months_is_told(seed: int) -> None:
    rng = random.Random(seed)
    begin, end, lines = 60.6 * 86_400, 61 * 86_400, []
    for _ in range(90 * 400):
        t = rng.uniform(0, 90 * 86_400)
        slow = 1 + 2 * (t - begin) / (end - begin) if begin < t < end else 1
        lines.append((t, f"INFO pay: charge took {rng.lognormvariate(3, 0.4) * slow:.1f} ms"))
        lines.append((rng.uniform(0, 90 * 86_400), f"INFO mail: sent {rng.randint(1, 999_999)}"))
    (note,) = [n for f in report(finished(lines)).findings for n in f.notes if "goes from" in n]
    assert note.startswith("charge took goes from 2")
    assert "ms from 06-30 " in note


@pytest.mark.parametrize("seed", SEEDS)
def test_a_latency_that_is_high_every_night_is_no_finding(seed: int) -> None:
    rng = random.Random(seed)
    lines = []
    for _ in range(60 * 400):
        t = rng.uniform(0, 60 * 86_400)
        slow = 3 if t % 86_400 < 7200 else 1
        lines.append((t, f"INFO pay: charge took {rng.lognormvariate(3, 0.4) * slow:.1f} ms"))
    made = report(finished(lines)).findings
    assert not [n for f in made for n in f.notes if "goes from" in n]


def test_quiet_weeks_have_no_findings_over_time() -> None:
    for seed in range(3):
        made = report(finished(months(random.Random(seed), days=20)))
        assert not [f for f in made.findings if f.section == "changes over time"]


def test_a_drift_is_told() -> None:
    rng = random.Random(6)
    lines = quiet_day(rng)
    for _ in range(3000):
        t = rng.uniform(0, 86_400)
        took = rng.lognormvariate(3, 0.3) * (1 + 3 * t / 86_400)
        lines.append((t, f"INFO pay: charge took {took:.1f} ms"))
    (found,) = [n for f in report(finished(lines)).findings for n in f.notes if "goes from" in n]
    assert found.startswith("charge took goes from")


def test_the_line_before_a_flood_comes_first_among_the_rare() -> None:
    rng = random.Random(7)
    lines = quiet_day(rng)
    lines += [
        (rng.uniform(0, 86_400), f"INFO odd: {'abcdefghij'[i] * 4} happened") for i in range(10)
    ]
    lines.append((50_000 - 8, "INFO disk: volume is now read only"))
    lines += [(50_000 + i / 20, f"ERROR shop: cannot write {i}") for i in range(2000)]
    rare = [f for f in report(finished(lines)).findings if f.section == "new or rare"]
    assert "read only" in rare[0].text
    assert any("before a burst" in note for note in rare[0].notes)


def test_a_stack_trace_stays_with_its_line() -> None:
    trace = ["java.io.IOException: gone", "\tat a.B.c(B.java:7)", "\t... 3 more"]
    log = read([at(0, "INFO a: start"), at(1, "INFO a: caught"), *trace, at(2, "INFO a: start")])
    (finding,) = [f for f in report(log).findings if f.section == "errors and warnings"]
    assert finding.trace.lines == trace
    assert log.trails == 3
    assert balanced(log)


def test_a_stack_trace_stays_with_the_line_of_its_container() -> None:
    trace = ["java.io.IOException: gone", "\tat a.B.c(B.java:7)"]
    lines = [("web", at(0, "INFO start")), ("web", at(1, "ERROR caught")), ("web", trace[0])]
    lines += [("web", trace[1]), ("db", at(2, "INFO start")), ("web", trace[1]), ("db", "")]
    log = read([f"{name}-1  | {line}" for name, line in lines])
    (finding,) = [f for f in report(log).findings if f.section == "errors and warnings"]
    assert (finding.trace.lines, finding.text) == ([*trace, trace[1]], "caught")
    assert (log.trails, log.blank) == (3, 1)
    assert balanced(log)


def test_a_stack_trace_that_another_container_interrupts_is_one() -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in f',
        "    g()",
        "X: gone",
    ]
    lines = [line for part in trace for line in (f"web-1  | {part}", f"db-1  | {at(1, 'INFO ok')}")]
    log = read([f"web-1  | {at(0, f'INFO served {i}')}" for i in range(9)] + lines)
    (finding,) = [f for f in report(log).findings if f.section == "errors and warnings"]
    assert (finding.count, finding.trace.key_lines) == (1, ["X: gone"])
    assert finding.notes == ["stack trace of 3 lines"]
    assert balanced(log)
    lines = [f"{name}-1  | {part}" for part in trace for name in ("web", "db")]  # two at once
    log = read(
        [f"{name}-1  | {at(i, 'INFO served')}" for i in range(9) for name in ("web", "db")] + lines
    )
    assert dict(log.levels) == {"info": 18, "error": 2}


@pytest.mark.parametrize("level", ["INFO ", "DEBUG ", ""])
def test_lines_that_went_well_are_no_errors_because_a_stack_trace_follows_one(level: str) -> None:
    lines = [at(i, f"{level}served {i}") for i in range(30)]
    trace = ["java.io.IOException: gone", "\tat a.B.c(B.java:7)"]
    log = read([*lines[:9], *trace, *lines[9:]])
    assert sum(log.levels[level] for level in ("error", "suspect", "fatal")) == 1
    (finding,) = [f for f in report(log).findings if f.section == "errors and warnings"]
    assert finding.notes == ["stack trace of 1 line"]
    assert balanced(log)
    log = read([*lines[:9], trace[1], *lines[9:]])  # of another thread
    assert not log.levels["error"]


def test_lines_that_continue_another_are_a_stack_trace_only_if_they_look_like_one() -> None:
    first = at(0, "ERROR db: failed: UPDATE orders")
    for more, told in (
        (["\tWHERE id = 7"], "1 continuation line"),
        (["\tSET x = 1", "\tWHERE id = 7"], "2 continuation lines"),
        (["java.io.IOException: gone", "\tat a.B.c(B.java:7)"], "stack trace of 2 lines"),
    ):
        (finding,) = report(read([first, *more])).findings
        assert finding.notes == [told]


def test_colors_are_no_part_of_a_log() -> None:
    red = "\x1b[2m{}\x1b[0m \x1b[31mERROR\x1b[0m db: pool is full"
    of_rsyslog = at(0, "#033[1;31mERROR#033[0m db: pool is full")
    lines = [of_rsyslog, red.format(at(0, "").strip()), "\x1b[31mCaused by:\x1b[39m a.B: gone"]
    inner = {"time": "2024-05-01T00:00:01Z", "log": "\x1b[31mERROR\x1b[0m db: pool is full\n"}
    log = read([*lines, json.dumps(inner)])
    (finding,) = report(log).findings
    assert (finding.count, finding.level, finding.text) == (3, "error", "pool is full")
    assert finding.example == at(0, "ERROR db: pool is full")
    assert finding.trace.lines == ["Caused by: a.B: gone"]
    assert finding.first_time == 1_714_521_600


def test_a_source_without_times_has_none_of_another() -> None:
    log = read([at(i, "INFO web: up") for i in range(9)])
    log.begin("b.log")
    log.feed("ERROR worker died\n" * 20)
    log.close()
    (finding,) = [f for f in report(log).findings if f.level == "error"]
    assert (finding.first_time, finding.notes) == (None, [])
    assert not log.by_line
    log.feed(at(20, "INFO worker up\n") + "ERROR worker died again\n")
    log.close()
    assert next(s for s in log.shapes if "again" in s.text).first_time == log.total.high


def test_frequent_values_are_named() -> None:
    log = read([at(i, f"WARN a: state {6 if i % 4 else 7}") for i in range(3000)])
    (variable,) = report(log).findings[0].variables
    (six, seven) = variable["values"]
    assert (six["value"], seven["value"]) == ("6", "7")
    assert variable["looked_at"] < 200
    assert abs(six["lines"] / variable["looked_at"] - 0.75) < 0.06  # the log has a period of 4
    assert "state = 6 (~7" in page(log), "not all lines were looked at"


def test_a_word_that_becomes_a_value_takes_nothing_from_the_others() -> None:
    zones = ["zeta", "eta", "iota", "kappa", "mu", "nu", "xi", "pi", "rho", "tau", "phi", "chi"]
    lines = []
    for i in range(3000):
        zone = "north" if i < 300 else zones[i % 12]
        values = " ".join(f"{name} {(i + n) % 3}" for n, name in enumerate("abcdefgh"))
        lines.append(at(i, f"ERROR the worker of zone {zone} read {values}"))
    (finding,) = report(read(lines)).findings
    assert all(variable["looked_at"] > 150 for variable in finding.variables)


@pytest.mark.parametrize("rule", ["rule <*>", "rule=<*>", "<*> 7", "<*><*>", "a<*>b"])
def test_the_mark_of_a_value_may_stand_in_the_log(rule: str) -> None:
    log = read([at(i, f"INFO acl: {rule} took {i % 5 + 1} ms") for i in range(400)])
    assert (log.lines, log.levels["info"]) == (400, 400)
    assert "acl:" in page(log)
    assert balanced(log)


def test_shares_of_all_lines_are_no_estimates() -> None:
    for count, text in ((16, "(25%)"), (40, "(~28%)")):
        log = read([at(i, f"WARN a: state {i % 4}") for i in range(count)])
        (variable,) = report(log).findings[0].variables
        assert (variable["looked_at"] == count) == (count == 16)
        assert text in page(log)


def test_a_time_alone_is_that_of_the_next_lines() -> None:
    log = read([f"2024-05-01T0{i}:00:00+02:00\nORA-00{i}: error\nARC{i}: done" for i in range(9)])
    assert page(log).startswith("27 lines, 2024-05-01 00:00:00 to 2024-05-01 08:00:00; 2 templates")
    assert log.blank == 9


def test_times_are_shown_in_the_zone_of_the_first_one() -> None:
    times = [f"2024-05-0{day}T{hour}:30:00+0300" for day in (1, 2) for hour in ("01", "22")]
    log = read([f"{time} INFO a: b" for time in times])
    assert page(log).startswith("4 lines, 2024-05-01 01:30:00 to 2024-05-02 22:30:00;")
    assert record(log)["first_time_iso"] == "2024-04-30T22:30:00Z"


def test_what_is_new_since_the_last_report() -> None:
    log = read([at(i, f"INFO a: beat {i}") for i in range(10)])
    log.mark()
    log.feed(at(20, "INFO a: beat 10") + "\n" + at(21, "ERROR a: lost it") + "\n")
    error, beat = report(log, news=True).findings
    assert (error.count, error.first_line) == (1, 12)
    assert "new" in error.notes
    assert (beat.count, beat.first_line) == (1, 11)
    assert "beat 10" in page(log, news=True)
    assert "beat 0" not in page(log, news=True), "which is the text of another line"


def test_the_example_of_a_later_report_is_the_first_new_line() -> None:
    log = read([at(0, "ERROR a: lost 1"), "  at old.trace(1)"])
    log.mark()
    for i in (2, 3):
        log.feed(at(i, f"ERROR a: lost {i}") + f"\n  at new.trace({i})\n")
    [row] = record(log, news=True)["findings"]
    assert (row["count"], row["example"]) == (2, at(2, "ERROR a: lost 2"))
    assert row["trace"] == ["  at new.trace(2)"]
    assert "new.trace(2)" in page(log, news=True)
    [row] = record(log)["findings"]
    assert (row["count"], row["example"]) == (3, at(0, "ERROR a: lost 1"))
    assert row["trace"] == ["  at old.trace(1)"]


def test_the_bulk_has_its_values_in_one_line() -> None:
    log = read([at(i, f"INFO web: GET /{i} gave {200 if i % 9 else 404}") for i in range(900)])
    (row,) = [x for x in page(log).split("\n") if "GET" in x]
    assert "gave = 200 (" in row
    assert "404 (" in row


def test_new_is_said_where_it_tells_something() -> None:
    usual = [at(i, f"INFO a: beat {i}") for i in range(4000)]
    late = [at(3000 + 10 * i, f"WARN a: retry {i}") for i in range(100)]
    twice = [at(3500, "INFO b: one by one"), at(3900, "INFO b: one by one")]
    notes = {f.text: f.notes for f in report(read(sorted(usual + late + twice))).findings}
    assert "new" in notes["retry <*>"]
    assert "new" not in notes["one by one"]  # two lines may be late by chance


def test_new_is_left_out_where_most_rows_would_have_it() -> None:
    lines = [at(i, f"INFO a: beat {i}") for i in range(2000)]
    for word in ("alpha", "beta", "gamma"):
        lines += [at(2000 + 5 * i, f"WARN {word}: {word} {i}") for i in range(400)]
    assert not [f for f in report(read(sorted(lines))).findings if "new" in f.notes]


def test_rows_are_bounded_and_the_rest_is_counted() -> None:
    words = [a + b + c for a in "bcdfg" for b in "aeiou" for c in "klmnp"]
    log = read([at(i, f"ERROR {w}x{w}: {w} {w}y") for i, w in enumerate(words)])
    made = record(log, 5)
    assert len(made["findings"]) == 5
    told = sum(f["count"] for f in made["findings"])
    assert made["more_lines"] + told == log.total.count


@pytest.mark.parametrize(
    "lines",
    [
        [at(0, "INFO a: x\0y"), "\0\0\0", "\ud800 broken", "\x1b[31mred\x1b[0m"],
        [at(0, "INFO a: x"), at(-9e7, "INFO a: x"), at(9e8, "INFO a: x"), at(0, "INFO a: x")],
        ["no time at all"] * 2000,
        ["", " ", "\t"],
        ["9999-12-31 23:59:59 a", "0001-01-01 00:00:00 b", "0000-00-00 00:00:00 c"],
        [at(0, "INFO a: " + "word " * 20_000)],
        ["1" * 5000 + " x", "{" * 3000, "[" * 3000, "=" * 3000, "a=" * 3000],
    ],
)
def test_odd_lines_are_counted_and_shown(lines: list[str]) -> None:
    log = read(lines)
    assert log.lines == len(lines)
    assert balanced(log)
    text = page(log)
    assert "\0" not in text
    assert "\x1b" not in text
    record(log)


TIMES = st.one_of(st.none(), st.floats(-3e9, 3e9).map(round), st.integers(0, 5))


@given(st.lists(st.tuples(TIMES, st.sampled_from(["INFO a: open 1", "WARN b: shut"]))))
def test_times_are_counted_wherever_lines_have_none(lines: list[tuple[int | None, str]]) -> None:
    """A line without a time has that of the line before. The first lines may have no time."""
    log = read([text if seconds is None else at(seconds, text) for seconds, text in lines])
    spans: dict[str, list[float]] = {}
    now = None
    for seconds, text in lines:
        now = now if seconds is None else 1_714_521_600 + seconds
        if now is not None:
            spans.setdefault(text, []).append(now)
    every = [t for times in spans.values() for t in times]
    assert (log.total.low, log.total.high) == (min(every, default=None), max(every, default=None))
    for shape in log.shapes:
        times = spans.get(next(t for _, t in lines if shape.first.line.endswith(t)), [])
        assert (shape.low, shape.high) == (min(times, default=None), max(times, default=None))
    assert balanced(log)
    page(log)
    record(log)


def test_jumps_of_the_clock_are_told_and_leave_the_buckets_bounded() -> None:
    rng = random.Random(8)
    log = read([at(rng.uniform(-1e9, 1e9), f"INFO a: {i}") for i in range(3000)])
    assert len(log.total.buckets) <= MOST_BUCKETS
    assert "the clock goes back" in page(log)
    assert balanced(log)


def test_one_jump_of_the_clock_is_told_as_one() -> None:
    for jumps, text in ((1, "back once, at line 2"), (3, "back 3 times, first at line 2")):
        log = read([at(-3600 * i, f"INFO a: {i}") for i in range(jumps + 1)])
        assert f"the clock goes {text}" in page(log)


def test_what_is_held_is_bounded() -> None:
    log = LogSummary(capacity=100)
    log.begin("x")
    for n in range(2000):
        letters = "".join(chr(97 + int(digit)) for digit in str(n))
        log.feed(at(n * 60, f"INFO {letters}-svc: {letters} {letters * 2} {n}") + "\n")
    assert len(log.tree) <= 100
    assert len(log.components) <= 256
    assert balanced(log)
    assert f"{log.drops:,} templates" in page(log)


def test_components_that_go_on_stay_and_keep_their_counts() -> None:
    lines = []
    for n in range(MOST_COMPONENTS * 3):
        lines.append(at(2 * n, "INFO steady: all is well"))
        lines.append(at(2 * n + 1, f"INFO once{n}: here for a moment"))
    log = read(lines)
    assert log.components["steady"].count == MOST_COMPONENTS * 3
    assert len(log.components) == MOST_COMPONENTS


def test_line_numbers_are_those_of_each_source() -> None:
    log = read([at(0, "INFO a: x")])
    log.begin("other.log")
    log.feed(at(5, "ERROR b: y") + "\n")
    assert "other.log:1" in page(log)


def test_lines_that_are_left_out_have_numbers() -> None:
    log = LogSummary()
    log.begin("a.log")
    log.feed(at(0, "INFO a: x") + "\n", 3)
    log.feed(at(9, "INFO a: x") + "\n" + at(-3600, "ERROR b: y") + "\n", 10)
    assert "L13" in page(log)
    assert "the clock goes back once, at line 13" in page(log)
    log.begin("b.log")
    log.feed(at(5, "WARNING c: z") + "\n")
    assert "b.log:1" in page(log)


@pytest.mark.parametrize("jumps", [1, 3])
def test_a_jump_of_the_clock_is_in_its_source(jumps: int) -> None:
    log = read([at(0, "INFO a: x")] * 100)
    log.begin("other.log")
    log.feed("".join(at(-3600 * i, "INFO a: x") + "\n" for i in range(jumps + 1)))
    times = "once," if jumps == 1 else "3 times, first"
    assert f"the clock goes back {times} at other.log:2" in page(log)


@pytest.mark.parametrize("sources", [1, 2, 3])
def test_sources_that_overlap_are_no_jump_of_the_clock(sources: int) -> None:
    """They belong to several services, or are newer and older files of one service."""
    log = read([at(3600, "INFO a: x")] * 100)
    for number in range(sources):
        log.begin("empty.log")
        log.begin(f"{number}.log")
        log.feed("no time yet\n" + at(-3600 * number, "INFO a: x") + "\n")
    log.close()
    assert (log.jumps, log.overlaps) == (0, sources)
    told = page(log)
    others = {1: "", 2: ", as does 1 other", 3: ", as do 2 others"}[sources]
    assert f"0.log begins before the end of app.log{others}\n" in told
    assert "goes back" not in told
    assert record(log)["overlapping_sources"] == sources


def read_both(first: str, second: str) -> LogSummary:
    """Summarize a warning in one source and an error in another source, seven hours earlier."""
    log = LogSummary()
    for name, hour, text in (first, 9, "WARN a: disk is full"), (second, 2, "ERROR b: shut down"):
        log.begin(name)
        log.feed(at(3600 * hour, text) + "\n")
    log.close()
    return log


@pytest.mark.parametrize("brief", [False, True])
@pytest.mark.parametrize("width", [80, 119, 120, 160])
def test_rows_with_long_paths_fit_and_have_their_messages(width: int, brief: bool) -> None:
    folder = "/srv/deployments/" + "another-folder/" * 12
    text = page(read_both(f"{folder}disk.log", f"{folder}net.log"), width=width, brief=brief)
    assert max(map(len, text.split("\n"))) <= width
    rows = text[text.index("\nErrors and warnings") :]
    for end in "folder/disk.log:1", "folder/net.log:1", "a: disk is full", "b: shut down":
        assert end in rows
    assert all(len(name) <= 40 for name in re.findall(r"(\S+):1\b", text))


@pytest.mark.parametrize("width", [40, 50, 60])
def test_a_place_that_leaves_no_room_has_its_own_line(width: int) -> None:
    text = page(read_both("logs/" * 20 + "disk.log", "net.log"), width=width, brief=True)
    assert max(map(len, text.split("\n"))) <= width
    assert "/disk.log:1" in text


@pytest.mark.parametrize("width", [80, 160])
def test_names_of_sources_are_harmless_on_a_terminal(width: int) -> None:
    text = page(read_both("a.log", "b\x1b[31m\udcff\nRED.log"), width=width)
    assert "b?[31m??RED.log begins before the end of a.log" in text
    assert "  b?[31m??RED.log:1  " in text
    assert all(c.isprintable() or c == "\n" for c in text)


def test_marks_do_not_pile_up_on_a_page() -> None:
    text = page(finished([(i, f"INFO a: e{chr(0x301) * 40} is full") for i in range(9)]))
    assert 0 < text.count("\u0301") <= 4 * text.count("is full")


def test_rows_with_shortened_and_odd_names_can_be_cited() -> None:
    text = page(read_both("logs/" * 20 + "disk.log", "b\x1b[31mRED.log"))
    for said in "The disk of a is full (line 1).", "It shut down (mRED.log:1).":
        assert check(said, text) == (said, [])


@pytest.mark.parametrize("width", [80, 130])
def test_characters_of_two_columns_fit_the_screen(width: int) -> None:
    names = ("用户甲乙丙", "管理员")
    log = read([at(i, f"ERROR web: {'数据库连接失败，' * 9}{names[i % 2]} {i}") for i in range(40)])
    for line in page_of_screen(log, 23, width=width).split("\n"):
        assert cell_len(line) <= width


def test_a_long_name_of_wide_characters_leaves_room_for_the_place_and_the_times() -> None:
    log = LogSummary()
    for name in ("数据" * 20 + ".log", "服务" * 20 + ".log"):
        log.begin(name)
        log.feed(
            "".join(f"2024-05-01 12:0{i}:00 ERROR {name[:i]}: b{i} is gone\n" for i in range(9))
        )
    text = page(log, width=80)
    assert max(map(cell_len, text.split("\n"))) <= 80
    assert "据数据.log:1  12:00:00\n" in text


@pytest.mark.parametrize("width", [40, 79, 80, 119, 120, 160])
def test_no_line_of_the_page_is_wider_than_the_screen(width: int) -> None:
    rng = random.Random(9)
    lines = quiet_day(rng)
    lines += [(40_000 + i / 2, f"ERROR shop: retry {'of an order ' * 20} {i}") for i in range(200)]
    text = page(finished(lines), width=width)
    assert max(map(len, text.split("\n"))) <= width
    assert "shop: retry" in text


@pytest.mark.parametrize("height", [12, 23, 39, 49, 100])
def test_a_page_has_the_rows_that_fit_a_screen(height: int) -> None:
    words = [a + b + c for a in "bcdfg" for b in "aeiou" for c in "klmnp"]
    log = read([at(i, f"ERROR {w}x{w}: {w} {w}y is {'gone ' * 9}") for i, w in enumerate(words)])
    text = page_of_screen(log, height, width=80)
    assert text.count("\n") <= height
    rows = sum(" ERROR " in line for line in text.split("\n"))
    assert FEWEST <= rows <= ROWS


def of_data(data: Path, name: str) -> LogSummary:
    log = LogSummary()
    log.begin(name)
    log.feed(gzip.decompress((data / f"logs/{name}_2k.log.gz").read_bytes()).decode())
    log.close()
    return log


def test_on_a_small_screen_errors_come_first_and_repeated_ones_before_single_ones(
    data: Path,
) -> None:
    log = of_data(data, "hadoop")
    text = page_of_screen(log, 23, width=80)
    rows = re.findall(r"^ +(\d+) (FATAL|ERROR|WARNING)\b", text, re.MULTILINE)
    assert rows[:2] == [("2", "FATAL"), ("147", "ERROR")]
    assert [count for count, level in rows if level == "WARNING"][:2] == ["475", "326"]
    assert "silent since" in text  # the other sections keep a row
    assert "first seen, in order of time: 18:04:11 L668" in text
    assert text.count("\n") <= 23
    left = 808 - sum(int(count) for count, level in rows if level == "WARNING")
    *_, last = text.rstrip("\n").split("\n")
    assert last.endswith(f" lines ({left} warnings): --passages 30 shows more.")


def test_a_rare_error_before_a_burst_stays_first_on_a_small_page() -> None:
    rng = random.Random(7)
    lines = quiet_day(rng)
    lines += [(30_000 + 600 * i, f"ERROR mail: cannot send {i}") for i in range(80)]
    lines.append((40_000, "ERROR net: one packet is lost"))
    lines.append((50_000 - 8, "ERROR disk: volume is now read only"))
    lines += [(50_000 + i / 20, f"WARN shop: cannot write {i}") for i in range(2000)]
    errors = [f.text for f in report(finished(lines), 6).findings if f.level == "error"]
    assert errors == ["volume is now read only", "cannot send <*>", "one packet is lost"]


@pytest.mark.parametrize("height", [23, 39])
def test_a_page_that_fits_has_blank_lines_and_the_order_of_time(data: Path, height: int) -> None:
    log = of_data(data, "apache")
    assert page_of_screen(log, height, width=80) == page(log, width=80)
    assert "first seen, in order of time" in page(log, width=80)


def test_what_a_page_leaves_out_is_named(data: Path) -> None:
    lines = [at(i, f"INFO a: beat {i}") for i in range(9)] + [at(9, "INFO b: started")]
    text = page(read([*lines, at(10, "ERROR c: gone")]), 2)
    assert text.endswith("\n1 more template with 9 lines: --passages 30 shows more.\n")
    assert "--passages" not in page(read(lines))
    last = page(of_data(data, "hadoop"), 40).rstrip("\n").split("\n")[-1]
    assert last.endswith("--passages 80 shows more.")


def test_json_has_what_is_seen_first_and_its_times_as_text(data: Path) -> None:
    made = record(of_data(data, "apache"))
    first, second = made["first_seen"]
    assert (first["line"], first["time_iso"]) == (785, "2005-12-04T17:43:08Z")
    assert (first["level"], first["template"]) == (
        "error",
        "jk2_init() Can't find child <*> in scoreboard",
    )
    assert second["line"] == 796
    times = [first, made["findings"][0]["first"], made["findings"][0]["last"]]
    times += [
        {"time": made[name], "time_iso": made[f"{name}_iso"]}
        for name in ("first_time", "last_time")
    ]
    for each in times:
        assert datetime.fromisoformat(each["time_iso"]).timestamp() == each["time"]
    late = [at(i, f"INFO a: beat {i}") for i in range(9)] + [at(9, "ERROR disk: is full")]
    assert record(read(late))["first_seen"][0]["components"] == {"disk": 1}
    assert record(read(["no time"]))["first_time_iso"] is None
    assert record(read([at(0.0, "x").replace(" x", ".250 x")]))["first_time_iso"].endswith(".250Z")


def test_the_reference_has_every_key_of_the_json_of_a_log(data: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/reference/json.md").read_text()
    section = text.partition("## `summarize --json` on a log")[2].partition("\n## ")[0]
    made = record(of_data(data, "apache"))
    keys = {*made, *made["bucket"], *made["first_seen"][0]}
    for finding in made["findings"]:
        keys |= {*finding, *finding["first"], *finding["last"]}
    assert {key for key in keys if f"`{key}`" not in section} == set()


def test_templates_are_shown_as_they_were_written() -> None:
    log = read([at(i, f"INFO a: child {i} (of 10.0.0.{i % 9}): done") for i in range(30)])
    assert "a: child <*> (of <*>): done" in page(log)


def test_the_span_is_that_of_the_times_and_not_of_the_lines() -> None:
    log = read([at(5000, "INFO a: x 1"), at(9000, "INFO a: x 2"), at(0, "INFO a: x 3")])
    made = record(log)
    assert made["last_time"] - made["first_time"] == 9000


def test_rare_templates_of_one_start_are_one_row() -> None:
    lines = [at(i, f"INFO shop: order {i} served") for i in range(500)]
    words = [a + b for a in "bcdfg" for b in "aeiou"]
    lines += [at(500, f"kernel: {w} {w}ing {'of ' * (i % 7)}{w}er") for i, w in enumerate(words)]
    lines += [at(501 + i, f"INFO shop: order {i} served") for i in range(500)]
    rare = [f for f in report(read(lines)).findings if f.section == "new or rare"]
    assert [f.templates for f in rare] == [25]
    assert "the first of 25 rare templates" in rare[0].notes[0]


def test_a_start_of_the_system_is_named() -> None:
    words = ["klogd started", *(f"{'abcdefghijklmnop'[i] * 4} is ready" for i in range(14))]
    begin = [(0.0 + 60 * i, "cron[7]: job done") for i in range(400)]
    lines = begin + [(20_000 + i, f"kernel: {w}") for i, w in enumerate(words)]
    (row,) = [f for f in report(finished(lines)).findings if f.templates > 10]
    assert row.notes[1] == "looks like a start of the system"


def test_errors_that_are_new_are_listed_in_the_order_of_time() -> None:
    lines = [(60.0 * i, f"INFO shop: order {i}") for i in range(400)]
    lines.append((18_000, "WARN net: address changed"))
    lines += [(18_100 + i, "ERROR shop: cannot reach mail") for i in range(20)]
    lines.append((18_030, "FATAL mail: gone"))
    text = page(finished(lines))
    assert "in order of time: 05:00:00 L302 net; 05:00:30 L303 mail; 05:01:40 L305 shop\n" in text
    assert text.index("FATAL") < text.index("WARNING")


def test_small_bursts_of_harmless_lines_are_none() -> None:
    for level, told in (("INFO", False), ("ERROR", True)):
        rng = random.Random(4)
        lines = [(rng.uniform(0, 86_400), f"{level} ui: drawn {i}") for i in range(400)]
        lines += [(rng.uniform(0, 86_400), f"INFO db: read {i}") for i in range(4000)]
        lines += [(40_000 + i, f"{level} ui: drawn {i}") for i in range(30)]
        notes = [n for f in report(finished(lines)).findings for n in f.notes]
        assert any("burst of" in n for n in notes) == told


def test_interleaved_streams_keep_their_levels_and_components() -> None:
    lines = []
    for n in range(200):
        lines.append(at(n, f"INFO shop: order {n} served"))
        lines.append(
            f'{{"time": "2024-05-01T00:00:{n % 60:02d}Z", "level": "warn", "msg": "x {n}"}}'
        )
        lines.append(f"time=2024-05-01T00:00:{n % 60:02d}Z level=error msg=gone id={n}")
    log = read(lines)
    assert {k: v for k, v in log.levels.items() if v} == {"info": 200, "warning": 200, "error": 200}
    assert balanced(log)


def test_fifty_megabytes_without_a_newline_are_one_shortened_line() -> None:
    log = LogSummary()
    log.begin("x")
    log.feed(at(0, "INFO a: begins ") + "\n" + at(1, "INFO a: "))
    for _ in range(50):
        log.feed("word " * 200_000)
    log.feed("\n" + at(2, "INFO a: goes on") + "\n")
    assert (log.lines, log.splitter.long_lines) == (3, 1)
    assert balanced(log)
    assert max(map(len, page(log).split("\n"))) <= 160


def test_a_value_that_all_lines_share_is_in_the_text() -> None:
    lines = [at(i, "ERROR pool: timeout waiting for connection to db-3") for i in range(40)]
    lines += [
        at(i, f"WARN net: host web-07 refused by node-12 (port 8080) try {i}") for i in range(40)
    ]
    text = page(read(lines))
    assert "timeout waiting for connection to db-3\n" in text
    assert "host web-07 refused by node-12 (port 8080) try <*>\n" in text
    assert "port =" not in text


@pytest.mark.parametrize("other", [3, 20, 70])
def test_one_line_with_another_value_takes_it_out_of_the_text(other: int) -> None:
    """The line counts even if its values are not sampled."""
    lines = [at(i, f"ERROR a: no answer of db-{7 if i == other else 71}") for i in range(90)]
    lines += [at(i, f"WARN b: id = {1 if i == other else 11}, left = {i}") for i in range(90)]
    texts = [f.text for f in report(read(lines)).findings]
    assert sorted(texts) == ["id =<*>, left =<*>", "no answer of db<*>"]


def test_a_variable_that_had_other_words_before_is_none_of_these_values() -> None:
    names = ["ash", "elm", "fir", "oak", "yew", *["db-3"] * 30]
    log = read([at(i, f"WARN a: no answer of {name}") for i, name in enumerate(names)])
    assert [f.text for f in report(log).findings] == ["no answer of <*>"]


def test_a_steady_rate_that_begins_late_is_no_burst() -> None:
    rng = random.Random(5)
    lines = [(rng.uniform(0, 80_000), f"INFO shop: order {i}") for i in range(8000)]
    lines += [(50_000 + rng.uniform(0, 7000), "ERROR pool: it timed out") for i in range(60)]
    lines += [
        (57_000 + i * 16 + rng.uniform(0, 9), "ERROR pool: it timed out") for i in range(1400)
    ]
    (notes,) = [f.notes for f in report(finished(lines)).findings if f.level == "error"]
    assert notes == ["new"]
