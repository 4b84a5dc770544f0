"""Measure a server under load, from outside: ``python tests/support/serve_load.py --help``.

Starts ``kvstream serve`` as a program and sends requests of several clients at once: about memory
files, texts that are read through memory, conversations, streams, and from clients that leave.
Prints one JSON object: requests sent, answered and lost, the time to the first token without load,
the bound in bytes and its peak, the memory of the process over time, and how long the server took
to end (``exit_code`` is null if it had not ended after a minute).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

QUESTION = "Who hid the letter?"
FACT = "Ada hid the letter under the third stone of the garden wall. "
FILLER = "Nobody in the village saw the boats that came home that evening. "


def make_memory(folder: Path, budget: str) -> None:
    """Write ``book.kvs``, a memory that is full."""
    text = FACT + FILLER * 600
    (folder / "book.txt").write_text(text)
    subprocess.run(
        [sys.executable, "-m", "kvstream", "remember", str(folder / "book.txt"), "-Q", QUESTION,
         "-o", str(folder / "book.kvs"), "--budget", budget, "--threads", "1", "-q"],
        check=True,
    )  # fmt: skip


class Load:
    """Clients that send requests until an end; each is counted when it ends."""

    def __init__(self, url: str, lines: int) -> None:
        self.url, self.lines = url, lines
        self.sent = self.answered = self.left = 0
        self.lost: list[str] = []
        self._lock = threading.Lock()

    def ask(self, http: httpx.Client, chance: random.Random, kind: str) -> None:
        """Send one request of a kind."""
        filler = FILLER * chance.randint(5, self.lines)
        text = f"{FACT}{filler}In the year {chance.randint(1, 40)}.\n\n"
        body: dict[str, Any] = {
            "model": "book" if kind == "book" else "pocket",
            "messages": [{"role": "user", "content": QUESTION}],
            "stream": chance.random() < 0.5,
            "max_tokens": 16,
        }
        if kind != "book":
            body["messages"] = [{"role": "user", "content": text + QUESTION}]
        if kind == "talk":
            answer = {"role": "assistant", "content": "Ada"}
            body["messages"] += [answer, {"role": "user", "content": "What did Ada hide?"}]
        with self._lock:
            self.sent += 1
        try:
            if kind == "leave":
                with suppress(httpx.TimeoutException):
                    http.post("/v1/chat/completions", json=body, timeout=0.2)
                with self._lock:
                    self.left += 1
                return
            response = http.post("/v1/chat/completions", json=body)
            good = response.status_code == 200 and (
                response.text.rstrip().endswith("[DONE]")
                if body["stream"]
                else bool(response.json()["choices"][0]["message"]["content"])
            )
            with self._lock:
                self.answered += good
                if not good:
                    self.lost.append(f"{response.status_code} {response.text[:200]}")
        except Exception as error:
            with self._lock:
                self.lost.append(f"{type(error).__name__}: {error}")

    def client(self, number: int, count: int | None, end: float, kinds: tuple[str, ...]) -> None:
        """Send `count` requests, or send them until `end`."""
        chance = random.Random(number)
        with httpx.Client(base_url=self.url, timeout=300) as http:
            done = 0
            while (done < count) if count is not None else time.monotonic() < end:
                self.ask(http, chance, chance.choice(kinds))
                done += 1


def first_tokens(url: str, count: int) -> list[float]:
    """Return the seconds to the first text of an answer from the memory file, one by one."""
    times = []
    body = {
        "model": "book", "stream": True, "messages": [{"role": "user", "content": QUESTION}],
    }  # fmt: skip
    with httpx.Client(base_url=url, timeout=60) as http:
        for _ in range(count):
            began = time.perf_counter()
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                for line in response.iter_lines():
                    if re.search(r'"content": ?"[^"]', line):
                        times.append(time.perf_counter() - began)
                        break
            time.sleep(0.3)
    return times


def under_load(
    url: str, pid: int, clients: int, requests: int, minutes: float, lines: int
) -> dict[str, Any]:
    """Send requests of all clients at once: `requests` in all, or for `minutes`."""
    load, process = Load(url, lines), psutil.Process(pid)
    kinds = ("book", "read") if not minutes else ("book", "book", "read", "talk", "leave")
    end = time.monotonic() + 60 * minutes
    each = requests // clients if not minutes else None
    threads = [
        threading.Thread(target=load.client, args=(number, each, end, kinds), daemon=True)
        for number in range(clients)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    rss: list[int] = []
    over, held = 0, 0
    with httpx.Client(base_url=url, timeout=60) as http:
        while any(thread.is_alive() for thread in threads):
            found = http.get("/health").json()
            rss.append(process.memory_info().rss)
            held = max(held, found["kv_bytes"]["held"])
            over += found["kv_bytes"]["held"] > found["kv_bytes"]["bound"]
            time.sleep(0.1 if not minutes else 2)
        for thread in threads:
            thread.join()
        time.sleep(1 if minutes else 0.2)
        health = http.get("/health").json()
    tenth = max(1, len(rss) // 10)
    return {
        "clients": clients, "seconds": round(time.monotonic() - began, 1), "sent": load.sent,
        "answered": load.answered, "left": load.left, "lost": len(load.lost),
        "first_losses": load.lost[:3],
        "kv_bytes": {**health["kv_bytes"], "most_seen": held, "times_over": over},
        "requests": health["requests"], "cache": health["cache"],
        "rss_mib": {
            name: round(value / 2**20, 1)
            for name, value in (
                ("first", rss[0]),
                ("second_tenth", statistics.median(rss[tenth : 2 * tenth] or rss)),
                ("half", statistics.median(rss[len(rss) // 2 :][:tenth])),
                ("last_tenth", statistics.median(rss[-tenth:])), ("most", max(rss)),
            )
        },
        "looks": len(rss),
    }  # fmt: skip


def measure(
    *,
    budget: str,
    clients: int,
    requests: int,
    minutes: float,
    parallel: int,
    quiet: int,
    lines: int = 120,
    memories: Path | None = None,
    program: Sequence[str] = (sys.executable, "-m", "kvstream"),
) -> dict[str, Any]:
    """Start a server, send it requests, end it.

    `memories` has a ``book.kvs``; if it is None, the function makes one.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = memories or Path(name)
        if memories is None:
            make_memory(folder, budget)
        command = [
            *program, "serve", "--memories", str(folder),
            "--budget", budget, "--port", "0", "--parallel", str(parallel),
            "--threads", "1", "--cache", "50MB", "--queue", str(max(32, 2 * clients)),
        ]  # fmt: skip
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        url = ""
        for line in process.stderr:
            if found := re.search(r"Listening on (\S+)/v1", line):
                url = found[1]
                break
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            first = first_tokens(url, quiet + 1) if quiet else []
            found_load = under_load(url, process.pid, clients, requests, minutes, lines)
        finally:
            process.terminate()
        asked_to_end = time.monotonic()
        try:
            code: int | None = process.wait(60)
        except subprocess.TimeoutExpired:  # keep the measurements even so
            process.kill()
            code = None
        ended_s = time.monotonic() - asked_to_end
    found_first = {
        "cold_ms": round(1000 * first[0]), "median_ms": round(1000 * statistics.median(first[1:])),
        "most_ms": round(1000 * max(first[1:])), "n": len(first) - 1,
    } if first else None  # fmt: skip
    return {
        "budget": budget, "parallel": parallel, "first_token": found_first, **found_load,
        "exit_code": code, "ended_s": round(ended_s, 1), "load_average": os.getloadavg()[0],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="1k")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=200, help="of all clients together")
    parser.add_argument("--minutes", type=float, default=0.0, help="in place of --requests")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--lines", type=int, default=120, help="of the longest text")
    parser.add_argument("--quiet", type=int, default=20, help="requests before the load")
    print(json.dumps(measure(**vars(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
