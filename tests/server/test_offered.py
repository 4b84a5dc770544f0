"""Memory files that a server offers, files of other models, and what clients are told of them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs the extra test")

from serving import FACT, FILLER, QUESTION, SMALL, Running

from kvstream.api.model import Model
from kvstream.api.options import request_of
from kvstream.cli.commands import serve
from kvstream.errors import BudgetError, KvstreamError, ModelError, SourceError, UsageError
from kvstream.server.bound import Bound, rounded_up
from kvstream.server.catalog import Catalog
from kvstream.server.client_errors import ApiError, error_for_client, for_clients
from kvstream.session.scouting import Scouting
from kvstream.session.session import Session
from kvstream.settings import Budget

ALONE = (
    "The memory 'book' was made by pocket for reader. This server uses one model: pocket answered "
    "alone, without the passages that were kept for reader."
)
ROOT = Path(__file__).resolve().parents[2]
TALK = [QUESTION, {"role": "assistant", "content": "Ada"}, "Under which stone?"]


def under_another_name(model: Model, name: str) -> Model:
    """Return the same model with another name and another fingerprint of its weights."""
    other = replace(model.session.model, name=name)
    vars(other).update(fingerprint="0" * 16, rounded="0" * 16)
    return Model(Session(other, model.session.tokenizer))


@pytest.fixture(scope="module")
def reader(model) -> Model:
    return under_another_name(model, "reader")


@pytest.fixture(scope="module")
def folder(model, reader, tmp_path_factory) -> Path:
    """A folder with ``book`` by pocket for reader, ``alone`` by pocket, and ``own`` by reader."""
    folder = tmp_path_factory.mktemp("folder")
    both = Model(model.session, Scouting(reader.session, model.session))
    text = FACT + FILLER * 60
    for name, made in (("book", both), ("alone", model), ("own", reader)):
        made.read(text=text, questions=[QUESTION], **SMALL).save(folder / f"{name}.kvs")
    return folder


def error(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    return found


# A file of two models on a server with only its skimming model.


@pytest.fixture(scope="module")
def pocket_server(start, folder) -> Running:
    return start(memories=folder)


def test_a_file_of_two_models_is_answered_by_one_and_says_so_without_a_path(
    pocket_server, folder, model
) -> None:
    first = pocket_server.ask(QUESTION, model="book").json()
    again = pocket_server.ask(QUESTION, model="book").json()  # from the memory still held
    assert first["kvstream"]["warnings"].count(ALONE) == 1
    assert again["kvstream"] == first["kvstream"]
    assert str(folder) not in json.dumps(first)
    plain = model.recall(folder / "book.kvs").ask(QUESTION, max_tokens=16)
    assert first["choices"][0]["message"]["content"] == plain.text
    one = pocket_server.ask(QUESTION, model="alone").json()
    assert not any("one model" in warning for warning in one["kvstream"]["warnings"])


def test_a_stream_has_the_same_warning(pocket_server, folder) -> None:
    reply = pocket_server.ask(QUESTION, model="book", stream=True)
    assert ALONE in reply.text
    assert str(folder) not in reply.text


def test_a_conversation_from_the_cache_names_no_file_of_it(pocket_server, folder) -> None:
    cache = pocket_server.service.cache.folder
    for cached in (False, True):
        reply = pocket_server.ask(*TALK, model="book").json()
        assert bool(reply["usage"]["prompt_tokens_details"]["cached_tokens"]) == cached
        assert reply["kvstream"]["warnings"].count(ALONE) == 1
        assert str(cache) not in json.dumps(reply)
        assert str(folder) not in json.dumps(reply)


def test_other_warnings_of_a_file_have_no_path_either(start_of, model, tmp_path) -> None:
    """For example the warning that the KV cache was rounded."""
    wide = model.read(text=FACT + FILLER * 60, questions=[QUESTION], **SMALL)
    wide.save(tmp_path / "wide.kvs")
    half = Model(Session(model.session.model.storing(torch.bfloat16), model.session.tokenizer))
    [warning] = half.recall(tmp_path / "wide.kvs").warnings
    assert str(tmp_path) in warning
    running: Running = start_of(half, memories=tmp_path)
    for messages in ([QUESTION], TALK, TALK):  # the last reply comes from the cache
        reply = running.ask(*messages, model="wide").json()
        assert for_clients(warning, tmp_path) in reply["kvstream"]["warnings"]
        assert str(tmp_path) not in json.dumps(reply)


# A server with both models.


def test_two_models_answer_from_passages_and_both_caches_count(
    start_of, model, reader, folder
) -> None:
    both = Model(reader.session, Scouting(reader.session, model.session))
    running: Running = start_of(both, memories=folder)
    one = model.room_of(request_of((), **SMALL))
    assert running.service.memory_bytes == 2 * one  # the models have the same shape
    assert running.service.catalog.offers() == (
        {name: folder / f"{name}.kvs" for name in ("alone", "book", "own")}, []
    )  # fmt: skip
    reply = running.ask(QUESTION, model="book").json()
    assert not any("one model" in warning for warning in reply["kvstream"]["warnings"])
    right = both.recall(folder / "book.kvs").ask(QUESTION, max_tokens=16)
    assert right.result.skim is not None
    assert reply["choices"][0]["message"]["content"] == right.text
    long = f"{FACT} {FILLER * 60}\n\n{QUESTION}"
    for cached in (False, True):
        reply = running.ask(long, model=both.name).json()
        assert bool(reply["usage"]["prompt_tokens_details"]["cached_tokens"]) == cached
        assert "Ada" in reply["choices"][0]["message"]["content"]
    assert running.service.bound.peak <= running.service.bound.most == 4 * one


# Files of another model.


def test_why_a_file_is_not_offered_and_with_which_model_it_is(reader, model, folder) -> None:
    offered, problems = Catalog(reader, folder, Bound(2**40)).offers()
    assert list(offered) == ["own"]
    assert problems == [
        "alone.kvs is not offered: it was made by pocket, and the server uses one model, reader. "
        "With -m pocket the server offers it.",
        "book.kvs is not offered: it was made by pocket for reader, and the server uses one model, "
        "reader. With -m pocket the server offers it, and pocket answers alone.",
    ]
    offered, problems = Catalog(model, folder, Bound(2**40)).offers()
    assert list(offered) == ["alone", "book"]
    assert problems == [
        "own.kvs is not offered: it was made by reader, and the server uses one model, pocket. "
        "With -m reader the server offers it."
    ]


def test_the_name_of_a_model_in_a_file_is_shown_in_one_short_line(model, tmp_path) -> None:
    name = "a\x1b[2J\nb" * 50
    odd = under_another_name(model, name)
    odd.read(text=FACT, questions=[QUESTION], **SMALL).save(tmp_path / "odd.kvs")
    [problem] = Catalog(model, tmp_path, Bound(2**40)).offers()[1]
    assert problem.isprintable()
    assert len(problem) < 600


def test_files_that_no_client_can_name_hide_no_other_one(model, folder, tmp_path) -> None:
    data = (folder / "alone.kvs").read_bytes()
    for name in ("good.kvs", "pocket.kvs", "caf\udce9.kvs"):
        try:
            (tmp_path / name).write_bytes(data)
        except OSError:
            pytest.skip("this file system takes no such names")
    catalog = Catalog(model, tmp_path, Bound(2**40))
    assert [row["id"] for row in catalog.listing()] == ["pocket", "good"]
    assert catalog.offers()[1] == [
        "caf?.kvs is not offered: its name is not UTF-8. Rename the file.",
        "pocket.kvs is not offered: the loaded model has this name. Rename the file.",
    ]


@pytest.mark.parametrize("name", ["book", "alone"])
def test_a_file_of_another_model_is_not_found(start_of, reader, folder, name) -> None:
    made = {"book": "pocket for reader", "alone": "pocket"}[name]
    message = (
        f"There is no model '{name}' here: its file was made by {made}, and this server uses one "
        "model, reader. GET /v1/models lists those that are."
    )
    running: Running = start_of(reader, memories=folder)
    rows = running.http.get("/v1/models").json()["data"]
    assert [row["id"] for row in rows] == ["reader", "own"]
    for stream in (False, True):
        found = error(running.ask(QUESTION, model=name, stream=stream), 404)
        assert found == {
            "message": message, "type": "invalid_request_error", "param": "model",
            "code": "model_not_found",
        }  # fmt: skip
    assert error(running.http.get(f"/v1/models/{name}"), 404)["message"] == message
    unknown = error(running.ask(QUESTION, model="nobody"), 404)
    assert (unknown["code"], unknown["param"]) == ("model_not_found", "model")
    assert running.ask(QUESTION, model="own").status_code == 200


def test_a_client_does_not_see_where_the_model_of_a_file_lies(model, start, tmp_path) -> None:
    made = under_another_name(model, "/srv/secret/tiny-llama")
    made.read(text=FACT, questions=[QUESTION], **SMALL).save(tmp_path / "own.kvs")
    running: Running = start(memories=tmp_path)
    found = error(running.ask(QUESTION, model="own"), 404)
    assert "made by tiny-llama, and" in found["message"]
    assert "secret" not in json.dumps(found)
    assert "-m /srv/secret/tiny-llama" in running.service.catalog.offers()[1][0]


def test_a_file_of_other_weights_of_the_same_name_is_told_without_options(
    model, start, tmp_path
) -> None:
    """The file is listed, since other weights can be the same in another number type."""
    made = under_another_name(model, "pocket")
    made.read(text=FACT, questions=[QUESTION], **SMALL).save(tmp_path / "own.kvs")
    running: Running = start(memories=tmp_path)
    found = error(running.ask(QUESTION, model="own"), 400)
    assert found == {
        "message": "The memory 'own' cannot be used here: it was made by pocket with other "
        "weights than those of this server.",
        "type": "invalid_request_error", "param": "model", "code": "memory_unusable",
    }  # fmt: skip


def test_a_file_that_is_damaged_has_a_code_of_its_own(start, folder, tmp_path) -> None:
    data = (folder / "alone.kvs").read_bytes()
    (tmp_path / "cut.kvs").write_bytes(data[:-100])
    (tmp_path / "text.kvs").write_bytes(b"not a memory" * 99)
    running: Running = start(memories=tmp_path)
    for name in ("cut", "text"):
        found = error(running.ask(QUESTION, model=name), 400)
        assert (found["code"], found["param"]) == ("memory_unusable", "model")
        assert found["message"].startswith(f"{name}.kvs ")


def test_a_file_that_is_gone_meanwhile_is_not_found(model, folder, tmp_path, monkeypatch) -> None:
    shutil.copy(folder / "alone.kvs", tmp_path)
    catalog = Catalog(model, tmp_path, Bound(2**40))
    files = catalog.files()
    monkeypatch.setattr(catalog, "files", lambda: files)
    (tmp_path / "alone.kvs").unlink()
    with pytest.raises(Exception, match="'alone' is gone") as caught:
        catalog.path("alone")
    assert error_for_client(caught.value).code == "model_not_found"


# A file whose KV cache is larger than the bound of the server.


@pytest.fixture(scope="module")
def large(model, folder, tmp_path_factory) -> tuple[Path, int]:
    """A folder with ``alone`` and ``large``, and the bytes of the KV cache of ``large``."""
    place = tmp_path_factory.mktemp("large")
    shutil.copy(folder / "alone.kvs", place)
    size = 3 * SMALL["budget"]  # the server may hold two memories of the budget
    made = model.read(text=FACT, questions=[QUESTION], **{**SMALL, "budget": size})
    made.save(place / "large.kvs")
    return place, model.kv_bytes(budget=size, method=made.method)


def test_a_file_that_never_fits_is_not_offered_but_named_with_its_bound(start, large) -> None:
    memories, size = large
    running: Running = start(memories=memories)
    needed = f"{-(-size // 1000**2)}MB"
    most = running.service.bound.most
    assert running.service.catalog.offers()[1] == [
        f"large.kvs is not offered: it needs {size:,} bytes of KV cache, and all memories together "
        f"may hold {most:,}. With --bound {needed} the server offers it."
    ]
    rows = running.http.get("/v1/models").json()["data"]
    assert [row["id"] for row in rows] == ["pocket", "alone"]
    for reply in (
        running.ask(QUESTION, model="large"), running.ask(QUESTION, model="large", stream=True),
        running.http.get("/v1/models/large"),
    ):  # fmt: skip
        assert error(reply, 400) == {
            "message": f"The memory needs {size:,} bytes of KV cache, and all memories of this "
            f"server together may hold {most:,}; start the server with --bound {needed} or more.",
            "type": "invalid_request_error", "param": "model", "code": "context_length_exceeded",
        }  # fmt: skip


def test_with_the_bound_that_is_named_the_file_is_offered(start, large) -> None:
    memories, size = large
    running: Running = start(memories=memories, bound=Budget.parse(rounded_up(size)).bytes)
    assert running.service.catalog.offers()[1] == []
    assert running.ask(QUESTION, model="large").status_code == 200


def test_a_bound_is_rounded_up() -> None:
    assert [rounded_up(size) for size in (12_779_520, 13_000_000, 640_001)] == [
        "13MB", "13MB", "641kB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('\\"budget\\":300', '\\"budget\\":Infinity'),
        ('\\"name\\":\\"infinipot\\"', '\\"name\\":\\"nobody\\"'),
    ],
)
def test_what_a_header_says_of_its_size_ends_no_listing(model, folder, tmp_path, was, now) -> None:
    data = (folder / "alone.kvs").read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = data[8 : size + 8].decode().replace(was, now)
    assert now in head
    (tmp_path / "odd.kvs").write_bytes(
        len(head).to_bytes(8, "little") + head.encode() + data[size + 8 :]
    )
    shutil.copy(folder / "alone.kvs", tmp_path)
    offered = Catalog(model, tmp_path, Bound(10**9)).offers()[0]
    assert "alone" in offered


# Codes.


@pytest.mark.parametrize(
    ("raised", "code", "param"),
    [
        (BudgetError, "context_length_exceeded", "messages"),
        (SourceError, "request_failed", None),
        (UsageError, "invalid_request", None),
        (ModelError, "request_failed", None),
        (KvstreamError, "request_failed", None),
    ],
)
def test_no_code_is_the_name_of_a_class(raised, code, param, tmp_path) -> None:
    found = error_for_client(
        raised(f"{tmp_path}/a/x.kvs and {tmp_path}/b/y.kvs"), tmp_path / "a", tmp_path / "b"
    )
    assert (found.status, found.code, found.param) == (400, code, param)
    assert found.message == "x.kvs and y.kvs"


def test_every_code_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "guide" / "server.md").read_text("utf-8")
    sources = (ROOT / "kvstream" / "server").glob("*.py")
    codes = {code for path in sources for code in re.findall(r'code="(\w+)"', path.read_text())}
    assert {"model_not_found", "memory_unusable", "invalid_request", "request_failed"} <= codes
    codes.remove("client_left")  # no client gets this
    assert {code for code in codes if f"`{code}`" not in guide} == set()


def test_an_error_without_a_code_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="code"):
        ApiError(400, "No client can tell it from another one.")  # type: ignore[call-arg]


def test_a_path_is_cut_only_where_it_begins(tmp_path) -> None:
    text = f"/old{tmp_path}/a.kvs, '{tmp_path}/b.kvs' and ({tmp_path}/c.kvs)"
    assert for_clients(text, tmp_path, None) == f"/old{tmp_path}/a.kvs, 'b.kvs' and (c.kvs)"
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert for_clients(f"{tmp_path}/a.kvs {link}/b.kvs", link) == "a.kvs b.kvs"
    assert for_clients("cache/a.kvs", Path("cache")) == "cache/a.kvs"


def test_an_error_names_no_file_of_the_cache(start, monkeypatch) -> None:
    running: Running = start()
    place = running.service.cache.folder / "a.reading"

    def full(*arguments: Any, **more: Any) -> Any:
        raise KvstreamError(f"Cannot write {place}: No space left on device.")
        yield

    monkeypatch.setattr(running.service.worker.answering, "events", full)
    found = error(running.ask(FACT), 400)
    assert found["message"] == "Cannot write a.reading: No space left on device."
    assert found["code"] == "request_failed"


# Messages at the start of the program.


@pytest.fixture
def begun(model, reader, monkeypatch) -> Callable[..., list[str]]:
    """A function that returns the lines that ``kvstream serve`` logs until clients can connect."""

    def begin(name: str, memories: Path | None, *, quiet: bool = False) -> list[str]:
        from kvstream.server import run
        from kvstream.server.server_settings import ServerSettings

        lines: list[str] = []
        log = SimpleNamespace(
            info=lambda form, *values: lines.append(form % values if values else form),
            warning=lambda form, *values: lines.append(form % values if values else form),
        )
        loaded = model if name == "pocket" else reader
        asked = SimpleNamespace(command="ask")
        options: Any = SimpleNamespace(model=name, quiet=quiet, request=asked)
        settings = ServerSettings(request=request_of((), **SMALL), port=0, memories=memories)

        def serve_none(server: Any, ready: Any) -> None:
            ready(SimpleNamespace(service=server.service, address="http://127.0.0.1:1"))
            server.service.close()
            server.socket.close()

        monkeypatch.setattr(run.Server, "serve_all", serve_none)
        monkeypatch.setattr(serve, "_log", lambda options: nullcontext(log))
        monkeypatch.setattr(serve, "quiet_libraries", lambda options: None)
        monkeypatch.setattr(serve, "open_model", lambda options: loaded)
        serve.serve(options, settings)
        return lines

    return begin


def test_no_other_model_is_advised_where_files_are_of_pocket(begun, folder, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    for memories in (None, tmp_path / "empty"):
        [hint] = [line for line in begun("pocket", memories) if "demonstration" in line]
        assert "for better answers" in hint
    lines = begun("pocket", folder)
    assert lines[0] == (
        "pocket is a small model for demonstration, but only pocket answers from the memory files "
        "that it made."
    )
    assert not any("better answers" in line or "-m pocket" in line for line in lines)
    assert "Models: pocket, alone, book" in lines


def test_the_hint_is_for_pocket_alone_and_not_with_quiet(begun, folder) -> None:
    assert not any("demonstration" in line for line in begun("reader", folder))
    assert not any("demonstration" in line for line in begun("pocket", folder, quiet=True))
