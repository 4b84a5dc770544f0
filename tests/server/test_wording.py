"""Messages for clients are about the server, not about the command line."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs the extra test")

from serving import FACT, FILLER, QUESTION, Running

from kvstream.server.client_errors import for_clients
from kvstream.session.reading import out_of_sight


def warned(running: Running, monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Return the warnings of a reply in which the model refuses."""
    from kvstream.answer import answering

    monkeypatch.setattr(answering, "abstains", lambda text: True)
    text = QUESTION if name != "pocket" else f"{FACT}{FILLER * 60}\n\n{QUESTION}"
    found: list[str] = running.ask(text, model=name).json()["kvstream"]["warnings"]
    return found


@pytest.mark.parametrize(("name", "whose"), [("pocket", "server"), ("book", "memory")])
def test_the_warning_of_a_refusal_names_the_budget_that_is_too_small(
    server, monkeypatch, name, whose
) -> None:
    [warning] = [each for each in warned(server, monkeypatch, name) if "not in what" in each]
    assert warning.endswith(f"in the rest. The {whose}'s budget is too small to keep all of it.")


def test_a_question_that_is_too_long_is_told_with_the_budget_of_the_server(server) -> None:
    error = server.ask(FACT, kvstream={"question": "who " * 400}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert re.search(
        r" Use a shorter question, or set the server's budget to \d+ or more\.$", error["message"]
    )


def test_a_question_that_a_memory_has_no_room_for_is_told_without_an_option(server) -> None:
    error = server.ask("who " * 190, model="book").json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].endswith(" of 300; ask a shorter one.")


def test_a_text_that_does_not_fit_is_told_with_what_the_server_needs(start) -> None:
    running: Running = start(reading={"method": "full"})
    error = running.ask(f"{FILLER * 60}\n\n{QUESTION}").json()["error"]
    assert error["message"].endswith("; the server needs a larger budget, or a method that evicts.")


def test_other_remedies_are_those_of_a_client_or_of_a_server() -> None:
    assert for_clients("It was rounded; --kv-dtype float32 keeps it as it is.") == (
        "It was rounded; a server with --kv-dtype float32 keeps it as it is."
    )
    assert for_clients("--repetition-penalty 1.2 makes repetition less likely.") == (
        "repetition_penalty 1.2 makes repetition less likely."
    )
    assert for_clients("Use words of the text, or --skim self.") == ("Use words of the text.")
    assert for_clients(out_of_sight("m", 4096, 8192)).endswith(
        " of 8,192 entries; the server needs a budget of 4096."
    )
