"""The summary of a log shows the exception of a stack trace and its cause, in each language."""

from __future__ import annotations

import json
import time

import pytest

from kvstream.logs.findings import report
from kvstream.logs.summary import LogSummary
from kvstream.logs.text_page import page

JAVA = """\
org.sample.OrderException: order 3 is gone
\tat org.sample.Shop.order(Shop.java:3)
\tSuppressed: org.sample.CloseError: not closed
\t\tat org.sample.Shop.close(Shop.java:9)
Caused by: org.sample.StoreException: no store
\tat org.sample.Store.get(Store.java:4)
\t... 2 more
Caused by: java.net.ConnectException: refused by db.internal
\tat java.base/java.net.Socket.connect(Socket.java:1)
\t... 5 more"""
PYTHON = """\
Traceback (most recent call last):
  File "shop.py", line 3, in order
    stock[item]
KeyError: 'lamp'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
""" + '  File "shop.py", line 9, in f\n    f()\n' * 9 + "shop.OutOfStock: no lamp"  # fmt: skip
RUST = """\
the row is 7 but there are 3
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
stack backtrace:
   0: rust_begin_unwind
             at /rustc/1/library/std/src/panicking.rs:1:5"""
ANYHOW = """\

Caused by:
    0: cannot open the store
    1: No such file or directory (os error 2)"""
CSHARP = """\
System.InvalidOperationException: order 3 failed
 ---> System.IO.IOException: the disk is gone
 ---> System.TimeoutException (0x80131505): 30 s are over
   at Shop.Store.Get(Int32 id) in /src/Store.cs:line 3
   --- End of inner exception stack trace ---
   at Shop.Order.Run() in /src/Order.cs:line 9"""
NODE = """\
TypeError [ERR_INVALID]: price is not a number
    at price (/app/shop.js:3:9)
    at process.processTicksAndRejections (node:internal/process/task_queues:95:5) {
  code: 'ERR_INVALID',
  [cause]: RangeError: 99 is too much
      at check (/app/check.js:1:1)
}

Node.js v20.1.0"""
GO = """\

goroutine 7 [running]:
main.(*Shop).order(0xc000012345, {0x1, 0x2})
\t/src/shop.go:3 +0x1d
net/http.HandlerFunc.ServeHTTP(...)
\t/go/src/net/http/server.go:1
created by main.main in goroutine 1
\t/src/main.go:9 +0x25

goroutine 1 [chan receive]:
main.main()
\t/src/main.go:10
exit status 2"""
PHP = """\
Stack trace:
#0 /app/shop.php(9): order()
#1 {main}
  thrown in /app/shop.php on line 3"""
CASES = {
    "java": ("ERROR shop: request failed", JAVA,
             ["org.sample.OrderException: order 3 is gone",
              "Caused by: java.net.ConnectException: refused by db.internal"]),
    "python": ("ERROR shop: request failed", PYTHON, ["shop.OutOfStock: no lamp"]),
    "python in the line": ("ERROR shop: Traceback (most recent call last):",
                           PYTHON.partition("\n")[2], ["shop.OutOfStock: no lamp"]),
    "rust": ("ERROR thread 'main' panicked at src/main.rs:4:5:", RUST,
             ["the row is 7 but there are 3"]),
    "anyhow": ("ERROR start failed", ANYHOW,
               ["Caused by: 1: No such file or directory (os error 2)"]),
    "anyhow with frames": (
        "ERROR start failed",
        f"{ANYHOW}\n\nStack backtrace:\n   0: anyhow::error::new\n   1: shop::main",
        ["Caused by: 1: No such file or directory (os error 2)"]),
    "c#": ("fail: request failed", CSHARP,
           ["System.InvalidOperationException: order 3 failed",
            "---> System.TimeoutException (0x80131505): 30 s are over"]),
    "node": ("ERROR request failed", NODE,
             ["TypeError [ERR_INVALID]: price is not a number",
              "[cause]: RangeError: 99 is too much"]),
    "go": ("panic: runtime error: index out of range [5] with length 3", GO,
           ["main.(*Shop).order(0xc000012345, {0x1, 0x2})"]),
    "go again": ("ERROR panic: no stock [recovered]", "\tpanic: no lamp" + GO, ["panic: no lamp"]),
    "a message of several lines": (
        "ERROR shop: org.sample.StoreException: no store",
        "Hint: look into the cellar\n\tat org.sample.Store.get(Store.java:4)\n"
        "Caused by: x.GrammarError: near\nselect a\nfrom b",
        ["Caused by: x.GrammarError: near"]),
    "c# with such a message": (
        "ERROR request failed",
        "System.IO.IOException: gone\n ---> System.TimeoutException: 30 s\nare over\n   at A.B()",
        ["System.IO.IOException: gone", "---> System.TimeoutException: 30 s"]),
    "asyncio": (
        "ERROR Task exception was never retrieved",
        f"future: <Task finished coro=<f() done>>\n{PYTHON}", ["shop.OutOfStock: no lamp"]),
    "python with such a message": (
        "ERROR shop: request failed",
        "Traceback (most recent call last):\n" + '  File "shop.py", line 3, in order\n'
        "db.IntegrityError: twice\nDETAIL:  Key (id)=(1) already exists.\n\n[SQL: INSERT]",
        ["db.IntegrityError: twice"]),
    "exception group": (
        "ERROR shop: request failed",
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "shop.py", line 3, in order\n  | ExceptionGroup: unhandled (1 sub-exception)\n'
        "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
        '    |   File "shop.py", line 9, in price\n    | ValueError: no price\n'
        "    +------------------------------------",
        ["ValueError: no price"]),
    "php": ("PHP Fatal error:  Uncaught RuntimeException: no lamp in /app/shop.php:3", PHP,
            ["#0 /app/shop.php(9): order()"]),
}  # fmt: skip


def read(text: str) -> LogSummary:
    log = LogSummary()
    log.begin("a.log")
    log.feed(text)
    log.close()
    return log


def around(lines: str) -> str:
    before = "".join(f"2025-04-02 08:00:{i:02} INFO shop: order {i} priced\n" for i in range(20))
    return f"{before}{lines}\n{before.replace('08:00', '08:02')}"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("name", CASES)
def test_the_exception_and_its_cause_are_shown(name: str, end: str) -> None:
    head, trace, told = CASES[name]
    log = read(around(f"2025-04-02 08:01:00 {head}\n{trace}").replace("\n", end))
    (finding,) = [f for f in report(log).findings if f.section == "errors and warnings"]
    assert len(log.shapes) == 2, [shape.text for shape in log.shapes]
    assert finding.trace.key_lines == told
    assert set(told) <= {line.strip("\t |") for line in finding.trace.lines}
    shown = page(log)
    assert all(line in shown for line in [*told, head.partition(": ")[2][:60]])


@pytest.mark.parametrize("name", ["java", "python", "exception group", "rust", "c#", "node", "go"])
def test_a_container_writes_the_same_without_times(name: str) -> None:
    head, trace, told = CASES[name]
    lines = [f"INFO order {i} priced" for i in range(9)] + [head, *trace.split("\n"), "INFO end"]
    stamp = "2025-05-09T01:00:{:02}.000000001Z stderr F "
    log = read("".join(f"{stamp.format(i % 60)}{line}\n" for i, line in enumerate(lines)))
    keys = [f.trace.key_lines for f in report(log).findings if f.section == "errors and warnings"]
    shown = page(log)
    told = [line.removeprefix("org.sample.") for line in told]  # a row has the name of the class
    assert all(line in shown for line in told), shown
    assert all(len(each) <= 2 for each in keys)


def test_a_record_may_hold_the_trace() -> None:
    records = [
        {"time": f"2025-04-02T08:00:0{i}Z", "level": "info", "msg": "priced"} for i in range(9)
    ]
    records += [{"time": "2025-04-02T08:00:10Z", "level": "error", "msg": "failed", key: JAVA}
                for key in ("exception", "stack_trace")]  # fmt: skip
    log = read("".join(json.dumps(record) + "\n" for record in records))
    (finding,) = [f for f in report(log).findings if f.section == "errors and warnings"]
    assert finding.text == "failed org.sample.OrderException: order <*> is gone".replace("<*>", "3")
    assert finding.trace.key_lines == [CASES["java"][2][1]]
    assert log.trails == 0


def test_the_first_trace_is_shown_though_the_first_line_has_none() -> None:
    line = "2025-04-02 08:01:00 ERROR shop: request failed"
    log = read(around(f"{line}\n{line}\n{JAVA}\n{line}\n{PYTHON}"))
    (finding,) = [f for f in report(log).findings if f.section == "errors and warnings"]
    assert finding.trace.key_lines == CASES["java"][2]


def test_a_cut_trace_takes_no_line_of_others() -> None:
    for head in ("Traceback (most recent call last):", "thread 'a' panicked at src/a.rs:1:1:"):
        cut = f"2025-04-02 08:01:00 ERROR a: {head}\n2025-04-02 08:01:01 INFO b: well\nDisk is full"
        log = read(around(cut))
        assert "Disk is full" in {shape.text for shape in log.shapes}


@pytest.mark.parametrize("name", ["java", "python", "exception group", "rust", "c#", "go"])
@pytest.mark.parametrize("stamp", ["May  9 01:00:{:02} web1", "2025-05-09T01:00:{:02}+0200 web1"])
def test_journald_writes_a_time_before_every_line(name: str, stamp: str) -> None:
    head, trace, told = CASES[name]
    lines = [f"INFO order {i} priced" for i in range(9)] + [head, *trace.split("\n"), "INFO end"]
    stamp += " shop[12]: "
    log = read("".join(f"{stamp.format(i % 60)}{line}\n" for i, line in enumerate(lines)))
    shown = page(log)
    told = [line.removeprefix("org.sample.") for line in told]  # a row has the name of the class
    assert all(line in shown for line in told), shown
    assert len([f for f in report(log).findings if f.section == "errors and warnings"]) <= 2


@pytest.mark.parametrize("name", ["java", "python"])
@pytest.mark.parametrize("joined", [False, True])
def test_rsyslog_writes_tabs_and_line_ends_as_numbers(name: str, joined: bool) -> None:
    head, trace, told = CASES[name]
    lines = ["INFO begin", *f"{head}\n{trace}".replace("\t", "#011").split("\n")]
    if joined:
        lines[1:] = ["#012".join(lines[1:])]
    log = read("".join(f"May  9 01:00:01 web1 shop[12]: {line}\n" for line in [*lines, "INFO end"]))
    shown = page(log)
    assert told[-1] in shown
    assert "#01" not in shown
    assert log.shapes[-1].first.message.endswith("INFO end"), "it is no part of the trace"


def test_lines_of_other_processes_and_indented_ones_are_no_trace() -> None:
    head = "shop[12]: Traceback (most recent call last):"
    lines = [f"May  9 01:00:01 web1 {line}\n" for line in (head, "cron[9]:   a", "cron[9]:   b")]
    log = read(around("".join(lines)))
    assert log.trails == 0


def test_the_steps_of_buildkit_are_no_trace() -> None:
    lines = "#5 [2/3] RUN make\n#5 0.512 Compiling a\n#5 0.9 ERROR: no rule for b\n#6 CACHED\n"
    log = read(around(lines))
    assert log.trails == 0
    assert any(shape.level == "error" and "no rule" in shape.text for shape in log.shapes)


def test_a_line_of_signs_alone_stands_for_no_text() -> None:
    log = read(around("error[E1]: wrong type\n  --> src/a.rs:2:18\n   |\n"))
    assert "src/a.rs:2:18" in page(log)


@pytest.mark.parametrize(
    "lines",
    [
        "lua: a.lua:3: index a nil value\nstack traceback:\n\ta.lua:3: in function 'f'\n",
        "LoadError: x not defined\nStacktrace:\n [1] f()\n   @ Main ./a.jl:3\n",
        "BUG: NULL pointer\nCall Trace:\n <TASK>\n dump_stack+0x5d/0x80\n",
        "prog: head: empty list\nCallStack (from HasCallStack):\n  error, called at List.hs:1:3\n",
        "a.rb:12:in `save': nil (NoMethodError)\n\tfrom a.rb:3:in `block'\n",
        "Can't locate x at b.pl line 12.\n\tmain::f(3) called at /a/b.pl line 20\n",
        'app.ERROR: no table {"exception":"[object] (QueryException(code: 42): no)\n[stacktrace]\n'
        "#0 /a/b.php(3): f()\n#1 {main}\n[previous exception] [object] (PDOException(code: 42))\n"
        '[stacktrace]\n#0 /a/c.php(3): g()\n"}\n',
        "** (RuntimeError) boom\n    (app 0.1.0) lib/a.ex:12: A.f/1\n",
    ],
)
def test_the_traces_of_other_languages_are_errors(lines: str) -> None:
    log = read(around(lines))
    assert log.trails == lines.count("\n") - 1
    assert log.levels["error"] == 1


def test_a_java_trace_with_the_root_cause_first() -> None:
    lines = "java.net.ConnectException: refused\n\tat a.B.f(B.java:1)\n"
    log = read(around(f"{lines}Wrapped by: a.StoreException: no store\n\tat a.B.g(B.java:1)\n"))
    assert log.levels["error"] == 1


def test_a_trace_that_arrives_after_a_report_is_in_the_next_one() -> None:
    log = LogSummary()
    log.feed(around("2025-04-02 08:01:00 ERROR shop: request failed"))
    log.feed("2025-04-02 08:03:00 ERROR shop: request failed\n")
    log.mark()
    log.feed(JAVA + "\n2025-04-02 08:04:00 INFO shop: order 9 priced\n")
    shown = page(log, news=True)
    assert "request failed" in shown
    assert "Caused by: java.net.ConnectException: refused by db.internal" in shown
    assert "reported before" in shown
    log.mark()
    log.feed("2025-04-02 08:05:00 INFO shop: order 9 priced\n")
    assert "request failed" not in page(log, news=True)


@pytest.mark.parametrize("name", ["a" + ".b" * 40, "." * 200, "main.f" + "(0x1)" * 5000])
def test_many_points_below_a_trace_of_go_take_no_time(name: str) -> None:
    began = time.process_time()
    read(f"ERROR shop: failed\ngoroutine 7 [running]:\n{name} and more\n")
    assert time.process_time() - began < 1


def test_a_stack_of_zap_has_names_without_parentheses() -> None:
    stack = ["main.run", "\t/app/main.go:10", "k8s.io/rest.(*Request).Do", "\t/go/rest.go:3"]
    log = LogSummary()
    log.feed("\n".join(["2024-05-01T12:00:00.5Z\tERROR\ta.go:1\tno disk", *stack, ""]) * 3)
    assert (log.total.count, log.trails) == (3, 12)
