"""Parts of the server that need no model: turns, the queue, the bound, the cache, settings."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="needs the extra serve")

from kvstream.errors import KvstreamError, UsageError
from kvstream.server.bound import Bound, Entry
from kvstream.server.client_errors import ApiError
from kvstream.server.conversation import conversation
from kvstream.server.conversation_cache import ConversationCache
from kvstream.server.schema import REFUSED, ChatRequest
from kvstream.server.server_settings import ServerSettings
from kvstream.store.writing import hidden_name


def talk(*messages: tuple[str, str], of_memory: bool = False, **more: Any):
    body = {"model": "m", "messages": [{"role": r, "content": c} for r, c in messages], **more}
    request = ChatRequest.model_validate(body)
    return conversation(
        request, lambda text: len(text.split()), of_memory=of_memory, longest_system=10
    )


BOOK = "Ada hid the letter.\n\nWho hid it?"
FIRST = [("user", BOOK), ("assistant", "Ada")]


def test_a_conversation_is_text_with_its_questions_and_answers() -> None:
    found = talk(("system", "Be brief."), *FIRST, ("user", "And where?"))
    assert [piece.text for piece in found.pieces] == [
        "Ada hid the letter.",
        "\nQuestion: Who hid it?\nAnswer: Ada\n",
    ]
    assert [piece.name for piece in found.pieces] == ["message 2", "message 3"]
    assert found.around == ["system message", "message 3"]
    assert found.last.question == "And where?"
    assert found.system == "Be brief."
    assert [(turn.pieces, turn.messages, turn.split.question) for turn in found.turns] == [
        (1, 1, "Who hid it?"), (2, 3, "And where?"),
    ]  # fmt: skip


def test_of_several_messages_in_a_row_the_last_has_the_question() -> None:
    found = talk(("user", "Ada hid the letter.\n\nGrace saw it."), ("user", "Who saw it?"))
    assert [piece.text for piece in found.pieces] == ["Ada hid the letter.\n\nGrace saw it."]
    assert found.last.question == "Who saw it?"


def test_a_system_message_behind_the_last_answer_is_the_question() -> None:
    found = talk(*FIRST, ("system", "Summarize the discussion."))
    assert (found.last.question, found.system) == ("Summarize the discussion.", "")
    found = talk(*FIRST, ("system", "简要概述讨论内容。"))
    assert (found.last.question, found.system) == ("简要概述讨论内容。", "")


def test_a_text_can_come_after_its_question() -> None:
    found = talk(("user", "Who saw it?"), ("user", "Here it is:\n\nAda hid it.\n\nGrace saw it."))
    assert found.last.question == "Who saw it?"
    assert [piece.text[:7] for piece in found.pieces] == ["Here it"]


def test_a_question_to_a_memory_file_has_no_text() -> None:
    assert talk(("user", "Who hid it?"), of_memory=True).pieces == []


def test_a_system_message_is_the_prompt_unless_it_is_long_or_the_prompt_is_settled() -> None:
    long = "word " * 11
    assert talk(("system", long), *FIRST[:1]).pieces[0].text == long
    of_memory = talk(("system", "Be brief."), ("user", "Who?"), of_memory=True)
    assert [p.name for p in of_memory.pieces] == ["system message"]
    assert of_memory.warnings
    assert of_memory.around == ["system message"]


def test_a_system_message_with_the_text_of_a_bare_question_is_read() -> None:
    """Frameworks put the passages that they found into the system message."""
    system = "Use this context.\n\n" + "Ada hid the letter. " * 10
    body = {"model": "m", "messages": [{"role": "system", "content": system}]}

    def found(*texts: str):
        roles = ("user", "assistant", "user")
        more = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
        request = ChatRequest.model_validate({**body, "messages": [*body["messages"], *more]})
        return conversation(
            request, lambda text: len(text.split()), of_memory=False, longest_system=99
        )

    asked = found("Who hid it?")
    assert ([p.text for p in asked.pieces], asked.system) == ([system], "")
    again = found("Who hid it?", "Ada", "And when?")
    assert again.pieces[0] == asked.pieces[0]
    assert found(BOOK).system == system


CHAT = "USER: The boats are late.\nASSISTANT: Who saw them?"


@pytest.mark.parametrize(
    "system",
    [
        "You write titles. Generate a title for the chat.",
        "Summarize the conversation in five words.",
        "You are a translator.\n\n# Task\nTranslate into French.\n# Rules\nBe exact.",
        "你是一名助理，你需要将会话总结为标题",
        "You see a chat. What is it about?",
        "You are an assistant. You need to summarize the chat into a title.",
        "You are to act as an author. Your mission is to shorten what the user sends.",
    ],
)
@pytest.mark.parametrize("of_memory", [False, True])
def test_a_system_message_asks_about_a_message_that_asks_nothing(system, of_memory) -> None:
    found = talk(("system", system), ("user", CHAT), of_memory=of_memory)
    assert found.last.place == "system message"
    assert found.last.question in system
    assert found.pieces[-1].text == CHAT
    assert not any("asks" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("Answer in French.", "The boats are late."), ("Be kind.", "The boats are late."),
        ("Translate the text.", "Who saw the boats?"), ("List your sources.", "hello"),
        ("You need to list your sources for the user.", "hello"),
    ],
)  # fmt: skip
def test_a_system_message_about_all_answers_is_no_question(system, message) -> None:
    found = talk(("system", system), ("user", message))
    assert (found.last.question, found.system) == (message, system)


def test_a_system_message_asks_about_a_few_words() -> None:
    found = talk(("system", "Translate the input text."), ("user", "keeper of the light"))
    assert (found.last.question, found.pieces[0].text) == (
        "Translate the input text.", "keeper of the light",
    )  # fmt: skip


def test_a_message_that_asks_nothing_has_a_warning() -> None:
    (warning,) = talk(("user", "Ada hid it.\n\nBob saw it.")).warnings
    assert warning.startswith("Nothing in the message asks a question")
    assert not talk(*FIRST, ("user", "And the mill.")).warnings


def test_the_own_question_takes_nothing_from_the_message() -> None:
    found = talk(("user", BOOK), kvstream={"question": "Where is it?"})
    assert found.pieces[0].text == BOOK
    assert (found.last.question, found.last.place) == ("Where is it?", "request")


@pytest.mark.parametrize(
    "messages",
    [
        [("assistant", "Ada")],
        [("system", "Be brief.")],
        [("user", " \n ")],
        [("user", "\ufeff")],
        [*FIRST],
        [("tool", "3")],
    ],
)
def test_messages_that_ask_nothing_are_refused(messages) -> None:
    with pytest.raises(ApiError) as caught:
        talk(*messages)
    assert caught.value.status == 400
    assert caught.value.code in ("invalid_value", "unsupported_parameter")


def test_what_to_write_in_place_of_nothing_is_told() -> None:
    with pytest.raises(ApiError) as caught:
        talk(*FIRST, ("user", " \n "))
    assert caught.value.to_json()["error"] == {
        "message": "The last message is empty; write the question in it.",
        "type": "invalid_request_error", "param": "messages", "code": "invalid_value",
    }  # fmt: skip
    for messages, own, param in (
        (("user", "Ada hid it."), " ", "kvstream.question"), (("user", " "), "Who?", "messages"),
    ):  # fmt: skip
        with pytest.raises(ApiError) as caught:
            talk(messages, kvstream={"question": own})
        assert (caught.value.code, caught.value.param) == ("invalid_value", param)


TEXT = st.text(alphabet="ab ?\n", min_size=1, max_size=12).filter(str.strip)


@given(st.lists(TEXT, min_size=1, max_size=4), TEXT, st.integers(0, 3))
def test_conversations_share_the_keys_of_what_they_share(texts, other, at) -> None:
    def messages(contents: list[str]) -> list[tuple[str, str]]:
        return [(("user", "assistant")[i % 2], text) for i, text in enumerate(contents)]

    texts = texts[: len(texts) - (len(texts) + 1) % 2]  # the user has the last turn
    keys = talk(*messages(texts)).keys("base")
    longer = talk(*messages([*texts, "answer", "and then?"])).keys("base")
    assert longer[: len(keys)] == keys
    assert len(set(longer)) == len(longer)
    changed = list(texts)
    changed[at % len(texts)] = other
    same = talk(*messages(changed)).keys("base")[-1] == keys[-1]
    assert same == (changed == texts)
    assert talk(*messages(texts)).keys("another")[-1] != keys[-1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Both have the text "a" and the question "?".
        ([("user", "a\n?")], [("user", "?\na")]),
        ([("user", "a")], [("user", "a\na")]),
        # A user writes text in the form of an answer.
        (
            [("user", "a"), ("assistant", "b"), ("user", "c")],
            [("user", "a"), ("user", "\nAnswer: b\n"), ("user", "c")],
        ),
        # In the other, citations name the second message.
        ([("user", "a")], [("system", " "), ("user", "a")]),
        ([("system", "a"), ("system", "b"), ("user", "a")], [("system", "a\n\nb"), ("user", "a")]),
    ],
)
def test_conversations_that_read_the_same_text_share_no_key(one, other) -> None:
    assert talk(*one).keys("base")[-1] != talk(*other).keys("base")[-1]


def test_the_own_question_has_a_key_of_its_own() -> None:
    plain = talk(("user", "a\n\nb?")).keys("base")
    own = [talk(("user", "a\n\nb?"), kvstream={"question": q}).keys("base") for q in ("b?", "c?")]
    assert len({*plain, *own[0], *own[1]}) == 3


def test_no_two_short_conversations_share_a_key() -> None:
    """All conversations of one to three short messages, in all roles."""
    texts = ["a", "a ", "?", "a\n?", "?\na", "\nAnswer: a\n"]
    roles = [("user",), *product(("user", "assistant", "system"), ("user",))]
    roles += product(("user", "assistant"), ("user", "assistant"), ("user",))
    seen: dict[str, Any] = {}
    for who in roles:
        for said in product(texts, repeat=len(who)):
            messages = tuple(zip(who, said, strict=True))
            assert seen.setdefault(talk(*messages).keys("base")[-1], messages) == messages


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_answer_is_refused_by_name(name) -> None:
    value: Any = {"tools": [{"type": "function"}], "n": 2, "logprobs": True}.get(name, ["x"])
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(ApiError, match=name) as caught:
        ChatRequest.model_validate({**body, name: value}).check()
    assert caught.value.param == name
    ChatRequest.model_validate({**body, name: None}).check()


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_the_bound_holds_whatever_comes(steps) -> None:
    bound, working = Bound(100), []
    entries: list[Any] = [
        Entry(path=None, signature=(i, 0, 0), digest=str(i), bytes=size, tokens=1)  # type: ignore
        for i, size in enumerate((30, 40, 50, 100))
    ]
    for which, begin in steps:
        entry = entries[which]
        if begin and bound.fits(entry.bytes):
            memory = bound.take(entry.bytes, entry) or SimpleNamespace(of=entry)
            assert memory.of == entry  # never the memory of another file
            working.append((entry, memory))
        elif working:
            entry, memory = working.pop(0)
            bound.give_back(entry.bytes)
            bound.keep(entry, memory)
        assert bound.bytes <= 100
        assert bound.bytes >= sum(e.bytes for e, _ in working)
        assert bound.peak <= 100
    for each, _ in working:
        bound.give_back(each.bytes)
    assert bound.working == 0


def test_a_memory_that_never_fits_is_refused() -> None:
    with pytest.raises(ApiError, match="101"):
        Bound(100).check(101)


def test_bytes_over_the_bound_are_never_taken() -> None:
    bound = Bound(100)
    bound.take(60)
    with pytest.raises(KvstreamError, match="41 bytes were to be taken beside 60"):
        bound.take(41)
    assert bound.bytes == 60


def test_the_bytes_that_are_held_can_be_read_while_the_worker_changes_them() -> None:
    """``/health`` reads them in another thread, and never finds more than the bound."""
    bound = Bound(1000)
    entries: list[Any] = [
        Entry(path=None, signature=(i, 0, 0), digest=str(i), bytes=1, tokens=1)  # type: ignore
        for i in range(500)
    ]
    for entry in entries:
        bound.keep(entry, SimpleNamespace())  # type: ignore[arg-type]
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for entry in entries:
                memory = bound.take(entry.bytes, entry)
                bound.give_back(entry.bytes)
                assert memory is not None
                bound.keep(entry, memory)

    thread, pause = threading.Thread(target=work), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            assert 499 <= bound.bytes <= 500
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(pause)
    assert (bound.bytes, bound.working, bound.peak) == (500, 0, 500)


def test_the_cache_never_outgrows_its_size(tmp_path) -> None:
    cache = ConversationCache(tmp_path / "new", 1000)

    def memory(size: int) -> Any:
        return SimpleNamespace(budget=(1, size), save=lambda path: path.write_bytes(b"x" * size))

    keys = [f"{i:064x}" for i in range(6)]
    others = [tmp_path / "new" / name for name in ("notes.txt", f"{'notes':-<64}.kvs")]
    for other in others:
        other.write_text("of somebody else")
    for key in keys[:3]:
        cache.save(key, memory(300))
    assert cache.find(keys[0]) is not None  # used now, so the next one is the oldest
    cache.save(keys[3], memory(300))
    assert [cache.find(key) is not None for key in keys[:4]] == [True, False, True, True]
    assert cache.bytes <= 1000
    cache.save(keys[4], memory(1001))
    assert cache.find(keys[4]) is None
    again = ConversationCache(tmp_path / "new", 500)
    assert again.count == 1
    assert all(other.exists() for other in others)
    again.close()
    assert again.find(keys[3]) is not None


def test_a_memory_that_cannot_be_saved_is_logged(tmp_path, logged) -> None:
    def full(path: Path) -> None:
        raise KvstreamError("No space left on device.")

    memory: Any = SimpleNamespace(budget=(1, 9), save=full)
    ConversationCache(tmp_path, 1000).save("a" * 64, memory)
    assert logged.messages == [
        "The memory of a conversation is not saved. No space left on device."
    ]


def test_what_a_killed_save_left_goes_at_the_next_start(tmp_path) -> None:
    ended = f"{socket.gethostname()}-999999999-1.partial"
    lost = [hidden_name(Path(f"{'a' * 64}{suffix}")) for suffix in (".kvs", ".reading")]
    others = [f"{lost[0]}.{ended}~", f"{hidden_name(Path('book.kvs'))}.{ended}", f".{ended}"]
    for name in (*(f"{each}.{ended}" for each in lost), *others):
        (tmp_path / name).touch()
    ConversationCache(tmp_path, 1000)
    assert {path.name for path in tmp_path.iterdir()} == set(others)


def test_a_temporary_cache_goes_with_the_server() -> None:
    cache = ConversationCache(None, 1000)
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert cache.checkpoint("a") is None
    cache.close()
    assert not cache.folder.exists()


@pytest.mark.parametrize("lasting", [True, False])
def test_a_cache_whose_folder_is_gone_begins_anew(tmp_path, lasting) -> None:
    cache = ConversationCache(tmp_path / "own" if lasting else None, 1000)
    memory: Any = SimpleNamespace(budget=(1, 9), save=lambda path: path.write_bytes(b"x" * 9))
    first, second = "a" * 64, "b" * 64
    cache.save(first, memory)
    shutil.rmtree(cache.folder)
    assert (cache.bytes, cache.count) == (0, 0)
    cache.shrink()
    assert cache.find(first) is None
    shutil.rmtree(cache.folder)
    cache.save(second, memory)
    assert cache.find(second) is not None
    assert cache.count == 1
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(cache.folder)
    place = cache.checkpoint(first)
    assert place is None or place.parent.is_dir()
    cache.close()


def test_a_folder_that_took_the_place_of_a_temporary_one_is_not_used(tmp_path) -> None:
    cache = ConversationCache(None, 1000)
    was = cache.folder
    memory: Any = SimpleNamespace(budget=(1, 9), save=lambda path: path.write_bytes(b"x" * 9))
    was.rmdir()
    was.symlink_to(tmp_path)
    cache.save("a" * 64, memory)
    was.unlink()
    assert cache.count == 1
    assert not list(tmp_path.iterdir())
    cache.close()


def test_a_cache_whose_folder_is_read_only_is_refused_or_keeps_nothing(
    tmp_path, monkeypatch
) -> None:
    """A reading with a checkpoint that cannot be written would fail."""
    cache = ConversationCache(tmp_path, 1000)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cache.checkpoint("a" * 64) is None
    with pytest.raises(KvstreamError, match="Cannot write in the folder"):
        ConversationCache(tmp_path, 1000)


def test_a_cache_whose_folder_cannot_be_made_again_keeps_nothing(tmp_path) -> None:
    folder = tmp_path / "own"
    cache = ConversationCache(folder, 1000)
    folder.rmdir()
    folder.write_text("a file")
    cache.save("a" * 64, SimpleNamespace(budget=(1, 9)))  # type: ignore[arg-type]
    assert cache.find("a" * 64) is None
    assert cache.checkpoint("a" * 64) is None
    assert cache.count == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"host": "0.0.0.0"}, "key"),
        ({"host": "::"}, "key"),
        ({"host": "192.168.1.5"}, "key"),
        ({"key": ""}, "empty"),
        ({"key": "schlüssel"}, "ASCII"),
        ({"cache": 0, "cache_dir": Path()}, "no effect"),
        ({"memories": Path("a/.."), "cache_dir": Path()}, "all conversations to all clients"),
        ({"allow_host": ("host", "http://host")}, "http://host' is not a name"),
        ({"allow_host": ("host:80",)}, "is not a name"),
        ({"allow_host": ("",)}, "is not a name"),
    ],
)
def test_settings_that_cannot_be(fields, message) -> None:
    with pytest.raises(UsageError, match=message):
        ServerSettings(**fields)
    ServerSettings(host="0.0.0.0", key="k" * 20)
