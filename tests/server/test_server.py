"""The server over HTTP: answers, streams, memories, conversations, limits and shutdown."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import threading
import time
import urllib.error
import urllib.request
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="needs the extra test")

from serving import FACT, FILLER, QUESTION, SMALL, Running, as_message  # noqa: E402

from kvstream.api.source_objects import Text  # noqa: E402
from kvstream.model.cache import BoundedCache  # noqa: E402
from kvstream.model.layer_store import LayerStore  # noqa: E402
from kvstream.server import request_checks, run  # noqa: E402
from kvstream.server.bound import Bound  # noqa: E402
from kvstream.server.catalog import Catalog  # noqa: E402
from kvstream.server.client_errors import ApiError  # noqa: E402
from kvstream.server.request_job import Job, Reply  # noqa: E402
from kvstream.server.schema import ChatRequest  # noqa: E402

LONG = FACT + FILLER * 40
ENDLESS = FILLER * 20_000
"""A text that takes minutes to read."""


def chunks(response: Any, *, fails: bool = False) -> list[dict[str, Any]]:
    """Return the objects of a stream. Assert that it ends with [DONE] unless it `fails`."""
    lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
    assert (lines[-1] == "data: [DONE]") is not fails
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def said(response: Any) -> str:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


def read(reply: dict[str, Any]) -> int:
    """Return the number of tokens that were read."""
    return int(reply["kvstream"]["tokens"]["read"])


def error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found = response.json()
    assert set(found) == {"error"}
    assert set(found["error"]) == {"message", "type", "param", "code"}
    return found["error"]


@pytest.mark.parametrize("body", [b"\xff", b"[" * 100_000, b"9" * 5000, b"{"])
def test_a_body_that_is_no_json_is_told_as_such(server, body) -> None:
    kind = {"Content-Type": "application/json"}
    reply = server.http.post("/v1/chat/completions", content=body, headers=kind)
    if body == b"9" * 5000:  # pydantic may parse it as a number
        assert error(reply, 400)["code"] in ("invalid_json", "invalid_value")
    else:
        assert error(reply, 400)["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/completions", 404), ("GET", "/v1/chat/completions", 405)],
)
def test_a_path_that_is_not_there_is_told_with_those_that_are(server, method, path, status) -> None:
    found = error(server.http.request(method, path, json={}), status)
    assert f"{method} {path}" in found["message"]
    assert "POST /v1/chat/completions" in found["message"]


def test_models_are_the_loaded_one_and_every_memory(server) -> None:
    rows = server.http.get("/v1/models").json()
    assert [row["id"] for row in rows["data"]] == ["pocket", "book", "other"]
    assert rows["object"] == "list"
    one = server.http.get("/v1/models/book").json()
    assert one in rows["data"]
    error(server.http.get("/v1/models/nobody"), 404)


def test_files_of_other_models_and_broken_ones_are_not_offered(model, memories, tmp_path) -> None:
    """A file with another fingerprint and model name in its header is not offered."""
    data = (memories / "book.kvs").read_bytes()
    (tmp_path / "book.kvs").write_bytes(data)
    (tmp_path / "cut.kvs").write_bytes(data[:100])
    print_of = model.session.model.fingerprint.encode()
    changed = data.replace(print_of, b"0" * len(print_of), 1)
    (tmp_path / "other.kvs").write_bytes(changed.replace(b'\\"pocket\\"', b'\\"reader\\"', 1))
    catalog = Catalog(model, tmp_path, Bound(10**9))
    offered, problems = catalog.offers()
    assert list(offered) == ["book"]
    assert [row["id"] for row in catalog.listing()] == ["pocket", "book"]
    assert catalog.row("book")["id"] == "book"
    with pytest.raises(ApiError, match="no model 'other'"):
        catalog.row("other")
    assert any("cut.kvs" in problem for problem in problems)
    assert any("other.kvs is not offered: it was made by reader" in each for each in problems)


@pytest.mark.parametrize("head", ["{}", '{{"__metadata__": {{"state": "{}"}}}}'])
def test_a_file_that_is_nested_too_deep_hides_no_other_one(server, memories, head) -> None:
    data = head.format("[" * 200_000).encode()
    path = memories / "nested.kvs"
    path.write_bytes(len(data).to_bytes(8, "little") + data)
    try:
        rows = server.http.get("/v1/models").json()["data"]
        assert [row["id"] for row in rows] == ["pocket", "book", "other"]
        assert any("nested.kvs" in each for each in server.service.catalog.offers()[1])
        assert "nested.kvs" in error(server.ask(QUESTION, model="nested"), 400)["message"]
    finally:
        path.unlink()


def test_a_long_message_is_read_through_the_bounded_memory(server, model) -> None:
    reply = server.ask(f"{LONG}\n\n{QUESTION}").json()
    plain = model.ask(text=LONG.strip(), question=QUESTION, **SMALL).result
    own = reply["kvstream"]
    tokens = own["tokens"]
    assert reply["choices"][0]["message"]["content"] == plain.answer
    assert (own["question"], own["question_from"]) == (QUESTION, "last paragraph")
    assert tokens["read"] == plain.read == tokens["retained"] + tokens["evicted"]
    assert tokens["evicted"] > 0
    assert own["support"] is not None
    assert own["coverage"] is not None
    assert own["citations"]
    assert own["citations"][0]["source"] == "message 1"
    usage = reply["usage"]
    assert usage["prompt_tokens"] == tokens["read"] + model.count(QUESTION)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_a_stream_says_the_same(server) -> None:
    body = f"{LONG}\n\nWhat lay under the third stone?"
    whole = server.ask(body).json()
    options = {"include_usage": True}
    found = chunks(server.ask(body, stream=True, stream_options=options))
    assert (
        "".join(c["choices"][0]["delta"].get("content", "") for c in found[:-1])
        == (whole["choices"][0]["message"]["content"])
    )
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
    assert found[-2]["kvstream"] == whole["kvstream"]
    assert (found[-1]["choices"], found[-1]["usage"]["completion_tokens"]) == (
        [],
        whole["usage"]["completion_tokens"],
    )
    assert len({c["id"] for c in found}) == 1
    without = chunks(server.ask(body, stream=True))
    assert all("usage" not in c for c in without)


def test_a_stream_also_ends_with_the_newest_value_where_messages_disagree(server) -> None:
    fee = "Minutes of {}.\nThe annual fee for a berth in Norvik is {} crowns. The wind was calm."
    old, new = fee.format("2024-03-01", 500), fee.format("2025-04-02", 700)
    asked = (old, new, "What is the annual fee for a berth in Norvik?")
    whole = said(server.ask(*asked))
    assert whole.startswith("700 crowns (message 2:2, 2025-04-02); in an older source: 500")
    found = chunks(server.ask(*asked, stream=True))
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in found)
    assert text == f"500 crowns\n\n{whole}"


def test_max_tokens_ends_an_answer(server) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        reply = server.ask(f"{LONG}\n\n{QUESTION}", **{name: 1}).json()
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["completion_tokens"] == 1


def test_a_stop_string_ends_an_answer_before_it(server) -> None:
    """It is never shown, whole or as a stream, whatever the tokens it is made of."""
    more = {"model": "book", "temperature": 2.0, "seed": 8, "max_tokens": 40}
    answer = said(server.ask(QUESTION, **more))
    assert len(answer) > 60
    places = [(3, 4), (20, 29), (35, 36), (0, 2), (len(answer) - 2, len(answer))]
    for number, (start, end) in enumerate(places):
        stop, several = answer[start:end], number % 2
        expected = answer[: answer.index(stop)].strip()
        asked = ["zzz", stop, "yyy", stop + "?"] if several else stop
        whole = server.ask(QUESTION, stop=asked, **more).json()
        assert whole["choices"][0]["message"]["content"] == expected
        assert whole["choices"][0]["finish_reason"] == "stop"
        assert whole["kvstream"]["stopped"] == "stop"
        found = chunks(server.ask(QUESTION, stop=asked, stream=True, **more))
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in found)
        assert text == expected
        assert found[-1]["choices"][0]["finish_reason"] == "stop"
        assert found[-1]["kvstream"] == whole["kvstream"]


def test_an_answer_that_a_stop_string_begins_says_why_it_is_empty(server) -> None:
    answer = said(server.ask(QUESTION, model="book"))
    reply = server.ask(QUESTION, model="book", stop=answer[:3]).json()
    assert reply["choices"][0]["message"]["content"] == ""
    assert reply["kvstream"]["warnings"][0].startswith("The answer is empty, because it begins")


@pytest.mark.parametrize("stop", ["", [], ["", ""], None, "nowhere in it", ["\ud800"]])
def test_a_stop_string_that_is_not_in_an_answer_changes_nothing(server, stop) -> None:
    plain = server.ask(QUESTION, model="book").json()
    content = json.dumps({
        "model": "book", "messages": [as_message(QUESTION)], "stop": stop,
    })  # fmt: skip
    kind = {"Content-Type": "application/json"}
    same = server.http.post("/v1/chat/completions", content=content, headers=kind).json()
    assert [same[name] for name in ("choices", "usage", "kvstream")] == [
        plain[name] for name in ("choices", "usage", "kvstream")
    ]


def test_a_seed_repeats_an_answer(server) -> None:
    def ask(seed: int) -> str:
        more = {"temperature": 2.0, "seed": seed, "max_tokens": 12}
        return said(server.ask(QUESTION, model="book", **more))

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(5)}) > 1


def test_options_of_sampling_have_no_effect_at_temperature_0(server) -> None:
    """Clients always send them."""
    greedy = said(server.ask(QUESTION, model="book"))
    assert said(server.ask(QUESTION, model="book", temperature=0, top_p=0.5, top_k=3)) == greedy


def test_a_memory_file_is_a_model(server, model, memories) -> None:
    for name in ("book", "other"):
        expected = model.recall(memories / f"{name}.kvs").ask(QUESTION, max_tokens=16)
        for _ in range(2):  # from the file, then from the memory still held
            reply = server.ask(QUESTION, model=name).json()
            assert reply["choices"][0]["message"]["content"] == expected.text
            assert read(reply) == expected.result.read
            assert reply["kvstream"]["citations"] == list(expected.citations)
            assert reply["usage"]["prompt_tokens"] == model.count(QUESTION)
    assert said(server.ask(QUESTION, model="book")) != said(server.ask(QUESTION, model="other"))


def test_the_fields_of_a_reply_are_those_of_json(server, model, memories) -> None:
    both = [Text(FACT, "monday"), Text(FILLER * 30, "tuesday")]
    model.read(both, **SMALL).save(memories / "two.kvs")
    asked = "Who saw the boats that evening?"
    expected = model.recall(memories / "two.kvs").ask(asked, max_tokens=16).to_json()
    own = server.ask(asked, model="two").json()["kvstream"]
    (memories / "two.kvs").unlink()
    assert own["narrowed"]["sources"] == ["tuesday"]
    assert own.pop("question_from") == "message"
    assert own.keys() <= expected.keys()
    assert own == {name: expected[name] for name in own}
    assert {"withheld", "stopped", "tokens"} <= own.keys()


def test_a_refused_request_leaves_the_memory_for_the_next_one(server, monkeypatch) -> None:
    said(server.ask(QUESTION, model="book"))
    recall = Mock(wraps=server.service.model.recall)
    monkeypatch.setattr(server.service.model, "recall", recall)
    refused = [
        ["who " * 190],  # memory has no room for it
        [{"role": "tool", "content": "x"}, QUESTION],
        [QUESTION, {"role": "assistant", "content": "Ada"}],
    ]
    for messages in refused:
        error(server.ask(*messages, model="book"), 400)
    error(server.ask(QUESTION, model="book", kvstream={"question": " "}), 400)
    assert said(server.ask(QUESTION, model="book"))
    assert not recall.called


def test_a_memory_that_a_failure_tore_is_read_again(server, memories, monkeypatch) -> None:
    """Two sources, one of which answers: entries of the other one are moved aside."""
    path, both = memories / "torn.kvs", [Text(FACT, "monday"), Text(FILLER * 30, "tuesday")]
    server.service.model.read(both, **SMALL).save(path)
    asked = "Who saw the boats that evening?"
    answer = said(server.ask(asked, model="torn"))
    with monkeypatch.context() as patched:
        patched.setattr(LayerStore, "park", Mock(side_effect=MemoryError))
        error(server.ask(asked, model="torn"), 503)
    assert said(server.ask(asked, model="torn")) == answer
    path.unlink()


def test_messages_do_not_hide_the_memory_from_an_answer(server) -> None:
    rules = {"role": "system", "content": "You answer questions about the letter somebody hid."}
    earlier = [QUESTION, {"role": "assistant", "content": "Ada hid the letter."}]
    for messages in ([rules], earlier):
        reply = server.ask(*messages, "Who hid this letter?", model="book").json()
        cited = {each["source"] for each in reply["kvstream"]["citations"]}
        assert cited - {"system message", "message 2"}, reply


def test_a_memory_file_that_changes_is_read_again(server, model, memories) -> None:
    path = memories / "changing.kvs"
    answers = []
    for name in ("Grace", "Ada"):
        model.read(text=FACT.replace("Ada", name), questions=[QUESTION], **SMALL).save(path)
        answers.append(said(server.ask(QUESTION, model="changing")))
    path.unlink()
    assert answers[0] != answers[1]
    error(server.ask(QUESTION, model="changing"), 404)


def test_a_memory_file_that_changes_before_its_turn_is_not_opened(server, memories) -> None:
    """The bound has room for the earlier file only."""
    entry = server.service.catalog.entry(memories / "book.kvs")
    with pytest.raises(ApiError, match="'book' was replaced just now") as refused:
        server.service.worker.answering._recall(replace(entry, digest="0" * 64))
    assert refused.value.status == 503


def test_a_broken_memory_is_an_error_that_tells_no_path(server, memories) -> None:
    data = (memories / "book.kvs").read_bytes()
    for name, content in (("cut", data[:5000]), ("empty", b""), ("text", b"not a memory" * 99)):
        (memories / f"{name}.kvs").write_bytes(content)
        found = error(server.ask(QUESTION, model=name), 400)
        (memories / f"{name}.kvs").unlink()
        assert str(memories) not in json.dumps(found)
        assert f"{name}.kvs" in found["message"]


@pytest.mark.parametrize(
    "name",
    ["../book", "..", "/etc/passwd", "book.kvs", "./book", "book\0", "BOOK", "", "link", "*",
     "%2e%2e/book", "\ud800"],
)  # fmt: skip
def test_names_of_memories_cannot_leave_their_folder(server, memories, tmp_path, name) -> None:
    outside = tmp_path / "outside.kvs"
    outside.write_bytes((memories / "book.kvs").read_bytes())
    (memories / "link.kvs").symlink_to(outside)
    try:
        content = json.dumps(
            {"model": name, "messages": [{"role": "user", "content": QUESTION}]}
        ).encode()
        response = server.http.post(
            "/v1/chat/completions", content=content, headers={"Content-Type": "application/json"}
        )
        assert response.status_code in (400, 404)
        assert "error" in response.json()
    finally:
        (memories / "link.kvs").unlink()


def test_a_conversation_goes_on_from_its_memory(server, model) -> None:
    first = f"{LONG}It was in May.\n\n{QUESTION}"
    one = server.ask(first).json()
    answer = {"role": "assistant", "content": one["choices"][0]["message"]["content"]}
    assert one["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = server.ask(first).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == read(one)
    assert again["choices"] == one["choices"]
    assert again["kvstream"] == one["kvstream"]
    two = server.ask(first, answer, "What did Ada hide?").json()
    usage = two["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == read(one)
    told = f"\nQuestion: {QUESTION}\nAnswer: {answer['content']}\n"
    assert read(two) == read(one) + model.count(told)
    # Another beginning is another conversation.
    other = server.ask(first.replace("May", "June"), answer, "What did Ada hide?").json()
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert read(other) == read(two)
    anew = server.ask(first, answer, "What did Ada hide?", kvstream={"cache": False}).json()
    assert anew["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_conversation_with_a_memory_file_goes_on(server) -> None:
    talk = [QUESTION, {"role": "assistant", "content": "Ada"}, "Under which stone?"]
    one = server.ask(*talk, model="book").json()
    two = server.ask(*talk, model="book").json()
    assert one["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert two["choices"] == one["choices"]
    assert one["usage"]["prompt_tokens"] < 60 < read(one)


class Caches:
    """The existing KV caches, and the maximum of their total bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive: weakref.WeakSet[BoundedCache] = weakref.WeakSet()
        self.peak, made = 0, BoundedCache.__init__

        def counted(cache: BoundedCache, *args: Any, **more: Any) -> None:
            made(cache, *args, **more)
            self.alive.add(cache)
            self.peak = max(self.peak, sum(each.capacity_bytes for each in self.alive))

        monkeypatch.setattr(BoundedCache, "__init__", counted)


def test_a_talk_goes_on_beside_no_other_memory(start, memories, monkeypatch) -> None:
    """The memory kept for a plain question is released before that of the talk is loaded."""
    caches = Caches(monkeypatch)
    running: Running = start(memories=memories, parallel=1)
    talk = [QUESTION, {"role": "assistant", "content": "Ada"}, "Where?"]
    more = [{"role": "assistant", "content": "There"}, "And who saw it?"]
    for messages in ([QUESTION], talk, [QUESTION], [*talk, *more]):
        reply = running.ask(*messages, model="book")
        assert said(reply)
    assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    told = running.health()["kv_bytes"]
    assert 0 < caches.peak <= told["peak"] <= told["bound"]


def test_what_a_slow_client_has_not_taken_yet_holds_no_memory(start, monkeypatch) -> None:
    caches = Caches(monkeypatch)
    running: Running = start(parallel=1)
    waiting: list[list[Any]] = []

    def ask(*messages: str | dict[str, str], until_read: bool = False, **more: Any) -> Any:
        sent = [as_message(message) for message in messages]
        body = ChatRequest.model_validate({"model": "pocket", "messages": sent, **more})
        waiting.append([])
        job = Job(body, waiting[-1].append, 60.0)
        running.service.worker.submit(job)
        if until_read:
            running.wait(lambda: any(isinstance(each, int) and each for each in waiting[-1]))
            job.timeout = 0.0
        running.wait(lambda: isinstance((waiting[-1] or [None])[-1], Reply | ApiError))
        running.wait(lambda: not caches.alive, seconds=5)
        return waiting[-1][-1]

    first = f"{LONG}It was in August.\n\n{QUESTION}"
    longer = "And tell me, if you please, " + "and if the text says so, " * 14 + "who saw it?"
    assert ask(first).result.answer
    # The memory of the first question has no room for this one, so the text is read again.
    anew = ask(first, {"role": "assistant", "content": "Ada"}, longer)
    assert (anew.cached_tokens, anew.split.question) == (0, longer)
    assert ask(LONG, kvstream={"question": "who " * 400}).code == "context_length_exceeded"
    assert ask(f"{ENDLESS}\n\n{QUESTION}", until_read=True).code == "timeout"
    assert 0 < caches.peak <= running.service.bound.most


def test_a_longer_question_than_memory_has_room_for_is_read_anew(server) -> None:
    first = f"{LONG}It was in July.\n\n{QUESTION}"
    one = server.ask(first)
    answer = {"role": "assistant", "content": said(one)}
    longer = "And tell me, if you please, " + "and if the text says so, " * 14 + "who saw it?"
    two = server.ask(first, answer, longer).json()
    assert two["kvstream"]["question"] == longer
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("n", 2),
        ("response_format", {"type": "json_object"}),
        ("logprobs", True),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", ["a", 5]),
        ("frequency_penalty", 0.5),
        ("functions", [{"name": "f"}]),
        ("temperature", 3),
        ("stop", 5),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 10**30),
        ("max_completion_tokens", 0),
        ("seed", 1.5),
        ("messages", []),
        ("messages", "text"),
        ("stream", "yes"),
        ("nonsense", 1),
        ("kvstream", {"nonsense": 1}),
        ("kvstream", {"question": " "}),
    ],
)
def test_what_is_not_supported_is_refused_by_name(server, field, value) -> None:
    body = {"model": "book", "messages": [{"role": "user", "content": QUESTION}], field: value}
    found = error(server.http.post("/v1/chat/completions", json=body), 400)
    assert found["param"].startswith(field)


@pytest.mark.parametrize(
    ("fields", "param", "remedy"),
    [
        ({"temperatur": 0.5}, "temperatur", "use 'temperature', or leave it out"),
        ({"topK": 5}, "topK", "use 'top_k', or leave it out"),
        ({"max_token": 5}, "max_token", "use 'max_tokens', or leave it out"),
        ({"nonsense": 5}, "nonsense", "leave it out"),
        ({"nonsense": 5, "": "none"}, "nonsense", "leave it out"),
        ({"x" * 900: 5}, "x" * 40, "leave it out"),
        ({"kvstream": {"queston": "Who?"}}, "kvstream.queston",
         "use 'kvstream.question', or leave it out"),
        ({"kvstream": {"nonsense": 1}}, "kvstream.nonsense", "leave it out"),
        ({"stream_options": {"includeUsage": True}}, "stream_options.includeUsage",
         "use 'stream_options.include_usage', or leave it out"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_exist_is_told_with_the_one_that_was_meant(
    server, fields, param, remedy
) -> None:
    assert error(server.ask(QUESTION, model="book", **fields), 400) == {
        "message": f"There is no parameter {param!r} here; {remedy}.",
        "type": "invalid_request_error", "param": param, "code": "unknown_parameter",
    }  # fmt: skip


def test_parts_that_are_no_text_are_refused(server) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    text = {"type": "text", "text": QUESTION}
    ask = [{"role": "user", "content": [text, image]}]
    found = error(server.ask(*ask, model="book"), 400)
    assert "image_url" in found["message"]
    assert said(server.ask({"role": "user", "content": [text]}, model="book"))  # type: ignore
    found = error(server.ask({"role": "user", "content": [{"type": "text"}]}, model="book"), 400)
    assert "needs the field 'text'" in found["message"]
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    error(server.ask(called, QUESTION, model="book"), 400)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content", [5, True, {}, [5], [{"text": "x"}], [{"type": "text", "text": 5}]]
)
def test_content_that_is_no_text_is_refused_by_its_name(server, content) -> None:
    body = {"model": "book", "messages": [{"role": "user", "content": content}]}
    found = error(server.http.post("/v1/chat/completions", json=body), 400)
    assert found["param"] == "messages.0.content"
    assert "a string, or at most 10,000 parts of the type text" in found["message"]


@pytest.mark.parametrize("name", ["images", "files", "experimental_attachments"])
def test_what_a_message_has_beside_its_text_is_not_dropped_without_a_word(server, name) -> None:
    ask = {"role": "user", "content": QUESTION, name: ["AAAA"]}
    assert error(server.ask(ask, model="book"), 400)["param"] == f"messages.0.{name}"
    assert said(server.ask({**ask, name: []}, model="book"))


def test_models_have_a_head(server) -> None:
    for path in ("/v1/models", "/v1/models/book"):
        assert server.http.head(path).status_code == 200


def test_harmless_fields_are_ignored(server) -> None:
    more = {
        "suffix": None, "stop": ["@", "", "@", "~", "", "^"], "kvstream": {"cache": None},
        "user": "u", "store": True, "metadata": {"a": "b"}, "n": 1,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "text"}, "logprobs": False, "presence_penalty": 0,
        "tool_choice": "none", "function_call": "none", "functions": [{"name": "f"}],
        "service_tier": "auto", "parallel_tool_calls": True,
        "stream_options": {"include_usage": None, "include_obfuscation": False},
    }  # fmt: skip
    assert said(server.ask(QUESTION, model="book", **more)) == (
        said(server.ask(QUESTION, model="book"))
    )


def test_a_question_that_never_fits_is_an_error(server) -> None:
    found = error(server.ask(LONG, kvstream={"question": "who " * 400}), 400)
    assert found["code"] == "context_length_exceeded"


def test_control_sequences_and_text_that_looks_like_a_file_stay_text(server) -> None:
    for text in ("%PDF-1.7 ", "<html><body>", "\x1f\x8b\x08", "PK\x03\x04", "<|eos|>"):
        reply = server.ask(f"{text}{FACT}\n\n{QUESTION}").json()
        assert read(reply) > 12, text
        assert reply["kvstream"]["tokens"]["evicted"] == 0


# Access.


def test_the_host_header_is_checked(server) -> None:
    def ask(host: str) -> int:
        return server.http.get("/v1/models", headers={"Host": host}).status_code

    assert [ask(h) for h in ("localhost:1", "127.0.0.1", "[::1]:80", "LOCALHOST")] == [200] * 4
    assert {ask(h) for h in ("evil.example", "127.0.0.1.evil.example", "192.168.1.9")} == {403}
    assert {ask(h) for h in ("", "a b:c:d", "localhost:99x")} == {400}


def test_other_sites_get_no_permission(server) -> None:
    headers = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    asked = server.http.options("/v1/chat/completions", headers=headers)
    assert asked.status_code == 405
    for response in (asked, server.http.get("/v1/models", headers=headers)):
        assert not [name for name in response.headers if name.startswith("access-control")]
    body = json.dumps({"model": "book", "messages": [{"role": "user", "content": "x"}]})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        plain = server.http.post(
            "/v1/chat/completions", content=body, headers={"Content-Type": kind}
        )
        error(plain, 415)


def test_a_refusal_reaches_a_client_that_still_sends(server) -> None:
    """If a connection is closed with unread bytes, it is reset and the answer is lost."""
    host, port = server.server.socket.getsockname()[:2]
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    body = b"x" * 2**20
    with socket.create_connection((host, port), 10) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        time.sleep(0.1)
        client.sendall(body)
        told = b""
        while part := client.recv(4096):
            told += part
    assert told.startswith(b"HTTP/1.1 415 ")
    assert told.endswith(b"}")


def chat(length: int, *more: str) -> bytes:
    """Return the head of a request with a body of `length` bytes."""
    head = (
        "POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {length}", *more,
    )  # fmt: skip
    return "\r\n".join((*head, "", "")).encode()


def all_of(client: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    told = b""
    while part := client.recv(4096):
        told += part
    return told


def test_a_client_that_sends_all_of_a_large_body_first_can_read_why_it_is_refused(server) -> None:
    """urllib is such a client. The default of --max-body is 16 MB."""
    body = b" " * 24_000_000
    asked = urllib.request.Request(
        f"{server.url}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(asked, timeout=30)
    found = json.loads(caught.value.read())["error"]
    assert (caught.value.code, found["code"]) == (413, "request_too_large")
    assert "24,000,000 bytes" in found["message"]


def test_a_client_whose_headers_are_too_long_can_read_why_it_is_refused(server) -> None:
    host, port = server.server.socket.getsockname()[:2]
    with socket.create_connection((host, port), 30) as client:
        for _ in range(8):
            client.sendall(b"GET /health HTTP/1.1\r\nx: " + b"y" * 2**20)
            time.sleep(0.01)
        assert all_of(client).startswith(b"HTTP/1.1 431 ")


def test_a_body_of_any_announced_size_is_refused_at_once(server) -> None:
    host, port = server.server.socket.getsockname()[:2]
    with socket.create_connection((host, port), 30) as client:
        client.sendall(chat(10**20 - 1))
        assert client.recv(16).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("sends", [False, True])
def test_who_waits_for_100_continue_gets_the_refusal_in_place_of_it(
    server, sends, monkeypatch
) -> None:
    """curl is such a client. A client need not wait and may begin to send."""
    monkeypatch.setattr(run, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(request_checks, "SILENT_SECONDS", 0.2)
    host, port = server.server.socket.getsockname()[:2]
    with socket.create_connection((host, port), 30) as client:
        client.sendall(chat(24_000_000, "Expect: 100-continue"))
        if sends:
            client.sendall(b" " * 24_000_000)
        told = all_of(client)
    assert told.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in told
    assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_too_large"


def test_who_waits_for_100_continue_gets_it_if_the_body_is_wanted(server) -> None:
    body = json.dumps({"model": "book", "messages": [as_message(QUESTION)]}).encode()
    host, port = server.server.socket.getsockname()[:2]
    with socket.create_connection((host, port), 30) as client:
        client.sendall(chat(len(body), "Expect: 100-continue", "Connection: close"))
        assert client.recv(4096).startswith(b"HTTP/1.1 100 ")
        client.sendall(body)
        assert all_of(client).startswith(b"HTTP/1.1 200 ")


def test_a_refused_client_that_says_no_more_is_let_go(server, monkeypatch) -> None:
    """The answer comes immediately, and the connection ends soon after."""
    monkeypatch.setattr(request_checks, "SILENT_SECONDS", 0.2)
    host, port = server.server.socket.getsockname()[:2]
    with socket.create_connection((host, port), 30) as client:
        began = time.monotonic()
        client.sendall(chat(24_000_000))
        assert client.recv(16).startswith(b"HTTP/1.1 413 ")
        all_of(client)
        assert time.monotonic() - began < 4


@pytest.mark.parametrize(
    ("head", "code", "status"),
    [
        (b"GET /health HTTP/1.1\r\nAccept: */*\r\n\r\n", "invalid_host", 400),
        (b"GET /health HTTP/1.0\r\n\r\n", "invalid_host", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "invalid_host", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "invalid_http", 400),
        (b"hello\r\n\r\n", "invalid_http", 400),
        (b"GET /\x1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n", "invalid_http", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "invalid_host", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000, "invalid_http", 431),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: x\r\n\r\n",
         "invalid_http", 501),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ", "timeout", 408),
    ],
)  # fmt: skip
def test_what_is_no_request_gets_an_error_like_all_others(
    server, monkeypatch, head, code, status
) -> None:
    monkeypatch.setattr(run, "HEADER_SECONDS", 0.4)
    with socket.create_connection(server.server.socket.getsockname()[:2], 10) as client:
        client.sendall(head)
        told = all_of(client)
    assert told.startswith(b"HTTP/1.1 %d " % status)
    assert b"application/json" in told
    assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"] == code
    assert (b"more than 16,384 bytes" in told) == (status == 431)


@pytest.mark.parametrize(
    ("headers", "body", "told"),
    [
        ({"Host": "a:b:c"}, b"", "'a:b:c' is not a name or an address"),
        ({"Transfer-Encoding": "gzip"}, b"", "send chunked, or a Content-Length"),
        ({"Content-Length": "x"}, b"", "bad Content-Length"),
        ({}, b'{"a": 1,}', "at character 8"),
        ({}, b"[" * 100_000, "nested too deep"),
        ({}, b'{"a": "\xff"}', "not UTF-8"),
        ({}, b'{"seed": ' + b"1" * 5000 + b"}", "a number has too many digits"),
        ({}, b"", "it is empty"),
        ({}, b"[]", "The body: Input should be an object."),
        ({}, b'{"model": "m", "messages": []}', "should have at least 1 item."),
        ({}, b'{"model": "m", "messages": [{"role": "user"}], "stop": 5}', "a string, or a list"),
        ({"Content-Encoding": "gzip"}, b"\x1f\x8b", "send the body as it is"),
    ],
)
def test_a_refusal_says_what_is_wrong(server, headers, body, told) -> None:
    lines = {
        "Host": "localhost", "Content-Type": "application/json", "Content-Length": len(body),
        "Connection": "close", **headers,
    }  # fmt: skip
    if "Transfer-Encoding" in lines:
        del lines["Content-Length"]
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    with socket.create_connection(server.server.socket.getsockname()[:2], 10) as client:
        client.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        reply = all_of(client)
    assert told in json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_two_numbers_for_the_same_are_refused(server) -> None:
    reply = server.ask(QUESTION, max_tokens=2, max_completion_tokens=3)
    assert "max_completion_tokens is 3" in error(reply, 400)["message"]
    assert server.ask(QUESTION, max_tokens=2, max_completion_tokens=2).status_code == 200


def test_headers_that_never_end_keep_nobody_out(start, monkeypatch) -> None:
    """Neither those of the first request of a connection nor those of a later one."""
    monkeypatch.setattr(run, "SPARE", 4)
    running: Running = start(queue=2)
    slow = []
    for number in range(40):
        slow.append(socket.create_connection(running.server.socket.getsockname()[:2], 10))
        if number % 2:
            slow[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert slow[-1].recv(64).startswith(b"HTTP/1.1 200 ")
        slow[-1].sendall(b"GET /health HTTP/1.1\r\nHost: loc")
    assert running.http.get("/health").json()["status"] == "ok"
    assert len(running.server.server_state.connections) <= 8
    for each in slow:
        each.close()


def test_an_answer_waits_while_other_connections_come_and_go(start, monkeypatch) -> None:
    monkeypatch.setattr(run, "SPARE", 4)
    running: Running = start(queue=2)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(running.ask, f"{LONG * 3}\n\n{QUESTION}")
        running.wait(lambda: running.busy)
        slow = [
            socket.create_connection(running.server.socket.getsockname()[:2], 10) for _ in range(40)
        ]
        assert said(answer.result())
    for each in slow:
        each.close()


def test_headers_that_come_in_drops_have_a_deadline(server, monkeypatch) -> None:
    monkeypatch.setattr(run, "HEADER_SECONDS", 0.4)
    with socket.create_connection(server.server.socket.getsockname()[:2], 10) as client:
        began = time.monotonic()
        with suppress(OSError):  # the connection is closed
            for byte in b"GET /health HTTP/1.1\r\nHost: localhost\r\n" * 99:
                client.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - began < 5


def test_a_key_is_needed_where_there_is_one(start, memories, logged) -> None:
    logging.getLogger("kvstream.server").setLevel("INFO")
    running: Running = start(memories=memories, key="a-long-key", host="0.0.0.0")
    port = running.server.socket.getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as stranger:
        for headers in (
            {}, {"Authorization": "Bearer wrong"}, {"Authorization": "a-long-key"},
            {"Authorization": "Basic a-long-key"}, {"Authorization": "Bearer ä".encode()},
        ):  # fmt: skip
            found = error(stranger.get("/v1/models", headers=headers), 401)
            assert "a-long-key" not in json.dumps(found)
        error(stranger.post("/v1/chat/completions", json={}), 401)
        assert stranger.get("/health").json() == {"status": "ok"}
        assert stranger.head("/health").status_code == 200
        stranger.get("/v1/models/a%0Ab")
    for line in (  # written behind the answer
        "POST /v1/chat/completions from 127.0.0.1: refused with status 401",
        "GET /v1/models/a b from 127.0.0.1: refused with status 401",
    ):
        running.wait(lambda line=line: line in logged.messages)
    assert running.http.get("/v1/models").status_code == 200
    assert "kv_bytes" in running.health()


# Limits.


def test_a_body_that_is_too_large_is_refused(start) -> None:
    running: Running = start(max_body=10_000)
    error(running.ask("x" * 20_000), 413)

    def pieces():  # a body without a length
        for _ in range(100):
            yield b" " * 1000

    headers = {"Content-Type": "application/json"}
    error(running.http.post("/v1/chat/completions", content=pieces(), headers=headers), 413)
    assert said(running.ask(LONG[:2000] + "\n\n" + QUESTION))


def later(running: Running, *messages: str, **more: Any) -> tuple[threading.Thread, list[Any]]:
    """Send a request in a thread. Return the thread and the list that gets the response."""
    found: list[Any] = []

    def ask() -> None:
        body = {
            "model": "pocket", "messages": [{"role": "user", "content": m} for m in messages],
            **more,
        }  # fmt: skip
        found.append(httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=120))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    return thread, found


def test_a_full_queue_says_so_and_a_question_is_answered_beside_a_reading(start, memories) -> None:
    running: Running = start(memories=memories, parallel=2, queue=1, cache=0)
    with httpx.stream(
        "POST",
        f"{running.url}/v1/chat/completions",
        json={
            "model": "pocket", "stream": True,
            "messages": [{"role": "user", "content": f"{ENDLESS}\n\n{QUESTION}"}],
        },
        timeout=60,
    ) as reading:  # fmt: skip
        assert reading.status_code == 200
        assert said(running.ask(QUESTION, model="book"))  # during a reading that takes minutes
        others = [later(running, f"{ENDLESS}{i}\n\n{QUESTION}", stream=True) for i in range(2)]
        running.wait(
            lambda: (
                running.service.worker.load["active"] == 2
                and running.service.worker.load["waiting"] == 1
            )
        )
        found = running.ask(QUESTION, model="book")
        assert error(found, 429)["code"] == "rate_limit_exceeded"
        assert error(found, 429)["message"].startswith("3 requests are already in progress or")
        assert int(found.headers["Retry-After"]) > 0
        bytes_held = running.health()["kv_bytes"]
        assert bytes_held["peak"] <= bytes_held["bound"]
    # The client left. Its reading stops, and the waiting request begins.
    running.wait(lambda: running.health()["requests"]["waiting"] == 0)
    assert running.health()["requests"]["left"] == 1
    running.service.worker.stop()
    for thread, _ in others:
        thread.join(30)


@pytest.mark.parametrize("parallel", [2, 3])
def test_beside_two_readings_a_question_waits_unless_three_may_be_at_work(
    start, memories, parallel
) -> None:
    running: Running = start(memories=memories, parallel=parallel, cache=0)
    readings = [later(running, f"{ENDLESS}{i}\n\n{QUESTION}") for i in range(2)]
    running.wait(lambda: running.health()["requests"]["active"] == 2)
    asked, found = later(running, QUESTION, model="book")
    if parallel == 2:
        running.wait(lambda: running.health()["requests"]["waiting"] == 1)
    else:
        running.wait(lambda: bool(found))
        assert said(found[0])
    assert running.health()["requests"]["active"] == 2
    running.service.worker.stop()
    for thread in (asked, *(thread for thread, _ in readings)):
        thread.join(30)


def test_a_client_that_leaves_while_it_waits_is_forgotten(start) -> None:
    running: Running = start(parallel=1, cache=0)
    _, first = later(running, f"{ENDLESS}\n\n{QUESTION}")
    running.wait(lambda: running.health()["requests"]["active"] == 1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{running.url}/v1/chat/completions",
            json={"model": "pocket", "messages": [{"role": "user", "content": QUESTION}]},
            timeout=0.3,
        )
    running.wait(lambda: running.health()["requests"]["left"] == 1)
    assert running.health()["requests"]["waiting"] == 0
    running.service.worker.stop()
    running.wait(lambda: bool(first))
    assert error(first[0], 503)["code"] == "shutting_down"


def test_a_request_that_takes_too_long_is_ended(start) -> None:
    running: Running = start(timeout=1.0, parallel=1)
    began = time.monotonic()
    _, waiting = later(running, f"{ENDLESS}\n\n{QUESTION}", stream=True)
    running.wait(lambda: running.health()["requests"]["active"] == 1)
    found = running.ask(f"{ENDLESS}!\n\n{QUESTION}")
    assert error(found, 504)["code"] == "timeout"
    assert found.headers["X-Should-Retry"] == "false"
    running.wait(lambda: bool(waiting))
    assert chunks(waiting[0], fails=True)[-1]["error"]["code"] == "timeout"
    assert time.monotonic() - began < 15
    running.wait(lambda: not running.busy)


def test_who_waits_until_the_time_is_over_counts_as_failed(start) -> None:
    """No client left: each is told that its request took too long."""
    running: Running = start(timeout=1.0, parallel=1, cache=0)
    asked = [later(running, f"{ENDLESS}{i}\n\n{QUESTION}") for i in range(4)]
    running.wait(lambda: all(found for _, found in asked))
    assert {error(found[0], 504)["code"] for _, found in asked} == {"timeout"}
    running.wait(lambda: not running.busy)
    counts = running.health()["requests"]
    assert (counts["failed"], counts["left"], counts["done"]) == (4, 0, 0)


def test_a_reading_that_is_stopped_goes_on_after_a_restart(start, tmp_path) -> None:
    """The answer is the same as without the stop."""
    text = f"{FACT}{FILLER * 250}\n\n{QUESTION}"
    expected = start(cache=0).ask(text).json()
    one: Running = start(cache_dir=tmp_path / "cache", grace=0.1)
    _, found = later(one, text)
    one.wait(lambda: one.health()["requests"]["active"] == 1)
    time.sleep(0.2)
    one.server.end()
    one.wait(lambda: bool(found))
    assert error(found[0], 503)["code"] == "shutting_down"
    assert "saved" in found[0].json()["error"]["message"]
    assert len(list((tmp_path / "cache").glob("*.reading"))) == 1
    two: Running = start(cache_dir=tmp_path / "cache")
    reply = two.ask(text).json()
    assert reply["choices"] == expected["choices"]
    assert reply["kvstream"] == expected["kvstream"]
    assert not list((tmp_path / "cache").glob("*.reading"))
    again = two.ask(text).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == read(reply)


def test_a_damaged_cache_is_passed_over(start, tmp_path) -> None:
    running: Running = start(cache_dir=tmp_path / "cache")
    text = f"{LONG}\n\n{QUESTION}"
    one = running.ask(text).json()
    for path in (tmp_path / "cache").glob("*.kvs"):
        path.write_bytes(path.read_bytes()[:-100])
    two = running.ask(text).json()
    assert two["choices"] == one["choices"]
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize("lasting", [True, False])
def test_a_cache_whose_folder_is_gone_is_begun_anew(start, tmp_path, lasting) -> None:
    """Programs that clean up temporary files can remove the folder."""
    running: Running = start(cache_dir=tmp_path / "cache" if lasting else None)
    text = f"{LONG}\n\n{QUESTION}"
    for removed in (True, False):
        assert said(running.ask(text))
        assert running.health()["cache"]["memories"] == 1
        if removed:
            shutil.rmtree(running.service.cache.folder)
            assert running.health()["cache"]["memories"] == 0


def test_a_connection_that_says_nothing_holds_up_nobody(server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(50)]
    silent[0].sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    assert said(server.ask(QUESTION, model="book"))
    for each in silent:
        each.close()


def test_a_signal_while_a_line_of_the_log_is_written_ends_the_server(start, monkeypatch) -> None:
    running = start()
    here = threading.current_thread()

    def info(*told: Any) -> None:
        if threading.current_thread() is here:
            raise RuntimeError("reentrant call")

    monkeypatch.setattr("kvstream.server.run.log.info", info)
    running.server.handle_exit(15, None)
    assert running.server.should_exit
    end = time.monotonic() + 10
    while running.server.socket.fileno() >= 0:
        assert time.monotonic() < end
        time.sleep(0.01)
