"""``kvstream serve`` as a program: its address, its messages and its end."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import pytest
from warm import CLIENT

pytest.importorskip("fastapi", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs the extra test")

RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

pytestmark = pytest.mark.usefixtures("warm")


@contextmanager
def program(*arguments: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the program. Yield the process and its URL once it listens."""
    process = subprocess.Popen(
        [
            *CLIENT,
            "-mkvstream",
            "serve",
            "--port",
            "0",
            "--budget",
            "300",
            "-m",
            "pocket",
            *arguments,
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"Listening on (\S+)/v1", line):
                break
        else:
            pytest.fail(f"it ended with {process.wait()}")
        yield process, found[1]
    finally:
        process.kill()
        process.wait()


UNFINISHED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
)


def asked(text: str) -> dict[str, object]:
    """Return the body of a request for a stream."""
    message = {"role": "user", "content": f"{text}\n\nWho hid the letter?"}
    return {"model": "pocket", "stream": True, "messages": [message], "max_tokens": 8}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_good_order(tmp_path, number) -> None:
    """The running request finishes, the exit code is 0, and no temporary folder is left."""
    body = asked("Ada hid the letter. " * 100)
    with program(TMPDIR=str(tmp_path)) as (process, url):
        assert len(list(tmp_path.glob("kvstream-serve-*"))) == 1
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as reply:
            assert reply.status_code == 200
            process.send_signal(number)
            assert "[DONE]" in reply.read().decode()
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
    assert not list(tmp_path.glob("kvstream-serve-*"))


def test_names_of_clients_and_files_cannot_write_to_the_log(tmp_path) -> None:
    for name in ("a\x1b[31m.kvs", "b\n12:00:00 All is well.kvs", "c\u202e\x9b2J.kvs"):
        (tmp_path / name).write_text("no memory")
    with program("--memories", str(tmp_path)) as (process, url):
        names = [quote(f"x\x1b[2J\n\u202e\x9b{number}") for number in range(2)]
        for name in names:
            reply = httpx.get(f"{url}/v1/models/{name}")
            assert reply.status_code == 404
            assert not RAW.search(reply.text)
            assert "\x1b[2J" in reply.json()["error"]["message"]
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    assert not RAW.search(told)
    assert len(re.findall("refused with status 404", told)) == 2
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in told.splitlines())


def test_a_second_signal_ends_it_at_once() -> None:
    """After the first signal running requests continue: the short one finishes."""
    short, endless = asked("Ada hid the letter. " * 50), asked("Nobody saw the boats. " * 40_000)
    with (
        program("--grace", "60", "--parallel", "3") as (process, url),
        httpx.stream("POST", f"{url}/v1/chat/completions", json=endless, timeout=60) as cut,
        httpx.stream("POST", f"{url}/v1/chat/completions", json=short, timeout=60) as reply,
        ThreadPoolExecutor() as pool,
    ):
        whole = {**endless, "stream": False}
        refused = pool.submit(httpx.post, f"{url}/v1/chat/completions", json=whole, timeout=60)
        while httpx.get(f"{url}/health").json()["requests"]["active"] < 3:
            time.sleep(0.05)
        partial = socket.create_connection((httpx.URL(url).host, httpx.URL(url).port))
        partial.sendall(UNFINISHED)
        httpx.get(f"{url}/health")  # accepted after the connection before
        process.send_signal(signal.SIGINT)
        assert "[DONE]" in reply.read().decode()
        assert process.poll() is None
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert time.monotonic() - began < 20
        assert "Traceback" not in (err or "")
        assert process.returncode == 0
        assert "client left" not in err
        *_, last = cut.read().decode().strip().split("\n\n")
        assert '"shutting_down"' in last
        assert refused.result().json()["error"]["code"] == "shutting_down"
        assert b'"shutting_down"' in partial.recv(3000)


def test_a_signal_while_it_ends_changes_nothing() -> None:
    with program() as (process, _):
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.005)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--host", "0.0.0.0"], 2, "KVSTREAM_KEY"),
        (["--memories", "nowhere"], 2, "nowhere"),
        (["--method", "h2o,tova"], 2, "one method"),
        (["--extract"], 2, "no effect"),
        (["--method", "passages"], 2, "--method passages needs its questions"),
        (["--skim", "words"], 2, "--skim words needs its questions"),
        (["--skim", "pocket", "-m", "pocket"], 2, "both pocket"),
        (["--budget", "10"], 5, "10"),
        (["--bound", "1MB"], 5, "1,000,000"),
        (["--port", "99999"], 2, "99999"),
    ],
)
def test_what_cannot_be_served_is_told_at_once(cli, arguments, code, message) -> None:
    ran = cli("serve", "--port", "0", *arguments)
    assert (ran.code, ran.stdout) == (code, "")
    assert message in ran.stderr


@pytest.mark.parametrize("host", ["no.such.host.invalid", "a..b", "x" * 70])
def test_a_host_that_does_not_exist_needs_no_port_and_no_key(cli, monkeypatch, host) -> None:
    without = cli("serve", "--port", "0", "--host", host)
    monkeypatch.setenv("KVSTREAM_KEY", "a" * 48)
    for ran in (without, cli("serve", "--port", "0", "--host", host)):
        assert ran.code == 1
        assert "Check --host" in ran.stderr


def test_an_address_of_another_machine_is_no_matter_of_the_port(cli, monkeypatch) -> None:
    monkeypatch.setenv("KVSTREAM_KEY", "a" * 48)
    ran = cli("serve", "--port", "0", "--host", "192.0.2.1")  # RFC 5737: for documentation only
    assert ran.code == 1
    assert "check --host" in ran.stderr
    assert "--port" not in ran.stderr


def test_a_port_that_is_taken_is_an_error(cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = cli("serve", "--port", str(taken.getsockname()[1]))
    assert ran.code == 1
    assert "Cannot listen" in ran.stderr
    log = logging.getLogger("kvstream.server")  # as it was before
    assert (log.handlers, log.propagate) == ([], True)


def test_without_its_packages_it_says_what_to_install(cli, monkeypatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "uvicorn" else find(name, *a)
    )
    ran = cli("serve")
    assert ran.code == 2
    assert "pip install 'kvstream[serve]'" in ran.stderr
