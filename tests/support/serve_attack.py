"""Send malformed and hostile requests to a server: ``python tests/support/serve_attack.py URL N``.

Bodies are random changes of one that works, or are not JSON; some requests are not HTTP. Every
reply must be an answer or an error in OpenAI's shape with a status below 500, come in time, and
contain nothing that another client has sent.
"""

from __future__ import annotations

import copy
import json
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import httpx

SECRET = "zebra marmalade umbrella"
"""Sent by another client all the time. No reply to an attack may contain it."""
SECONDS = 300.0
GOOD: dict[str, Any] = {
    "model": "book",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ada hid the letter."},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": [{"type": "text", "text": "Who hid the letter?"}]},
    ],
    "stream": False,
    "stream_options": {"include_usage": True},
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 1,
    "kvstream": {"question": "Who hid it?", "cache": True},
}
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, -0.0, 1e-320, 1e308,
    float("nan"), float("inf"), "", " ", "\0", "\ud800", "x" * 10_000, "?" * 600,
    "\n\n" * 2000,
    "../../etc/passwd",
    "..", "book.kvs", "book\0", "%2e%2e%2f", "<|bos|>", "<|im_start|>system", "{{7*7}}", "${x}",
    "<script>alert(1)</script>", "\u202e\u2066", "\u0000\u0001", "🦓" * 100,
    "a" + "\u0301" * 300,
    [], {}, [[]], [None], [{}], {"a": {"b": []}}, {"type": "text"}, [{"type": "text", "text": 1}],
    [{"type": "input_audio"}], {"role": "user"}, {"role": "user", "content": "x"},
    "pocket", "other",
)  # fmt: skip
NO_JSON = (
    b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}", b"{}" * 99, b"NaN",
    b"[" * 100_000, b'{"a":' * 50_000,
    b'{"model":"book","messages":[{"role":"user","content":"\xff"}]}',
    b'{"model":"book","model":"other","messages":[]}', b"\0" * 1000, b"9" * 100_000,
    b'{"model":"book","messages":[{"role":"user","content":"\\ud800 who?"}]}',
    b'{"messages":' + b"1e" + b"9" * 5000 + b"}",
)  # fmt: skip
PATHS = (
    "/", "/v1", "/v1/", "/v1/models/", "/v1/models/..%2f..%2fetc%2fpasswd", "/v1/models/../health",
    "/v1/models/%00", "/v1/models/book.kvs", "/v1/completions", "/v1/embeddings", "//v1/models",
    "/v1/models?x=" + "y" * 5000, "/openapi.json", "/docs", "/health/..", "/v1/models/%ff%fe",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "X")
NO_HTTP = (
    b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: -5\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 99999999999999999999\r\n\r\n{}",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n"
    b"abcGET /x HTTP/1.1\r\n\r\n",
)  # fmt: skip


def mutated(chance: random.Random) -> Any:
    """Return a body that works, changed at two to six places."""
    body = copy.deepcopy(GOOD)
    if chance.random() < 0.7:  # otherwise it has a question, and often gets an answer
        del body["kvstream"]
    for _ in range(chance.randint(2, 6)):
        places = list(_places(body))
        if not places:
            return body
        holder, key = chance.choice(places)
        what = chance.random()
        if what < 0.2:
            del holder[key]
        elif what < 0.3 and isinstance(holder, dict):
            holder[chance.choice(("tools", "n", "stop", "xyz", "__proto__", "audio", "name"))] = (
                chance.choice(VALUES)
            )
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    return body


def _places(value: Any) -> Any:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


class Attack:
    """Sends requests and counts the replies; `wrong` has those that must not come."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.chance = url, random.Random(seed)
        self.http = httpx.Client(base_url=url, timeout=SECONDS)
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.slowest = 0.0
        self.ended = False

    def run(self, count: int) -> None:
        """Send `count` requests."""
        for number in range(count):
            if self.ended:
                return
            began = time.monotonic()
            kind = self.chance.random()
            try:
                if kind < 0.05:
                    self._raw(self.chance.choice(NO_HTTP))
                elif kind < 0.12:
                    self._path()
                elif kind < 0.2:
                    self._post(self.chance.choice(NO_JSON))
                else:
                    text = json.dumps(mutated(self.chance))
                    self._post(text.encode("utf-8", "surrogatepass"))
            except httpx.HTTPError as error:
                self.wrong.append(f"{number}: {type(error).__name__} {error}")
            self.slowest = max(self.slowest, time.monotonic() - began)

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json"}
        if self.chance.random() < 0.05:
            headers = {"Content-Type": self.chance.choice(("text/plain", "", "application/xml"))}
        response = self.http.post("/v1/chat/completions", content=body, headers=headers)
        self._check(response, body)

    def _path(self) -> None:
        method = self.chance.choice(METHODS)
        path = self.chance.choice(PATHS)
        self._check(self.http.request(method, path), f"{method} {path}".encode())

    def _check(self, response: Any, sent: bytes) -> None:
        self.statuses[str(response.status_code)] += 1
        told = f"{response.status_code} {response.text[:200]!r} for {sent[:300]!r}"
        if response.status_code >= 500 or SECRET in response.text:
            self.wrong.append(told)
        elif response.status_code >= 400 and response.request.method != "HEAD":
            try:
                error = response.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
            except Exception:
                self.wrong.append(told)

    def _raw(self, data: bytes) -> None:
        """Send bytes that are not a request; they may get no reply, but must not get a 500."""
        parts = urlsplit(self.url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), SECONDS) as link:
            link.settimeout(0.2)
            found = b""
            try:
                link.sendall(data)
                while piece := link.recv(65536):
                    found += piece
                    link.settimeout(0.1)  # more of a reply that has begun
            except OSError:  # the server waits for more, or has closed the connection
                pass
        self.statuses["raw"] += 1
        if b" 500 " in found[:20] or SECRET.encode() in found:
            self.wrong.append(f"{found[:200]!r} for {data[:100]!r}")


class Neighbor:
    """Another client. Nobody else may receive its text, and its own answers must not change."""

    def __init__(self, url: str, pause: float = 0.2) -> None:
        self.url, self.pause, self.asked, self.wrong = url, pause, 0, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Neighbor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join(SECONDS)

    def _run(self) -> None:
        text = f"Winifred keeps a {SECRET} in the cellar.\n\nWho keeps a {SECRET}?"
        body = {"model": "pocket", "messages": [{"role": "user", "content": text}]}
        expected = None
        with httpx.Client(base_url=self.url, timeout=SECONDS) as http:
            while not self._end.wait(self.pause):
                reply = http.post("/v1/chat/completions", json=body).json()
                answer = reply["choices"][0]["message"]["content"]
                expected = answer if expected is None else expected
                self.asked += 1
                self.wrong += answer != expected


def main() -> int:
    """Attack with four clients at once; after SIGTERM, end early and print what was seen."""
    url, count = sys.argv[1], int(sys.argv[2])
    attacks = [Attack(url, seed) for seed in range(1, 5)]
    signal.signal(signal.SIGTERM, lambda *_: [setattr(each, "ended", True) for each in attacks])
    threads = [threading.Thread(target=each.run, args=(count // 4,)) for each in attacks]
    with Neighbor(url, 2.0) as neighbor:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wrong = [told for each in attacks for told in each.wrong]
    statuses = sum((each.statuses for each in attacks), Counter())
    print(json.dumps({
        "requests": sum(statuses.values()), "statuses": dict(sorted(statuses.items())),
        "slowest_s": round(max(each.slowest for each in attacks), 2), "wrong": len(wrong),
        "neighbor": {"asked": neighbor.asked, "wrong": neighbor.wrong},
    }))  # fmt: skip
    for each in wrong[:20]:
        print(each, file=sys.stderr)
    return 1 if wrong or neighbor.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
