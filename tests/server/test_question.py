"""Finding the question in a message."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pydantic", reason="needs the extra serve")

from kvstream.server.question import MOST, split
from kvstream.server.schema import Message, text_of


def words(text: str) -> int:
    return len(text.split())


LONG = "The boats came home that evening. " * 60

CASES = [
    # If the text is elsewhere, the whole of a short message is the question.
    ("Who hid it?\n\nTell me.", False, ("", "Who hid it?\n\nTell me.", "message")),
    ("Who hid it?", True, ("Who hid it?", "Who hid it?", "message")),
    ("Ada hid it.\n\nWho hid it?", True, ("Ada hid it.", "Who hid it?", "last paragraph")),
    (f"{LONG}\n\nWho hid it?", False, (LONG.strip(), "Who hid it?", "last paragraph")),
    (f"Who hid it?\n\n{LONG}", False, (LONG.strip(), "Who hid it?", "first paragraph")),
    (f"Who hid it?\n\n{LONG}\n\nThe end.", True, (f"{LONG}\n\nThe end.", "Who hid it?",
                                                  "first paragraph")),
    (f"Who hid it?\n\n{LONG}\n\nWho found it?", True, (f"Who hid it?\n\n{LONG.strip()}",
                                                      "Who found it?", "last paragraph")),
    (f"Summarize this.\n\n{LONG}\n\nBye.", True, (f"{LONG}\n\nBye.", "Summarize this.",
                                                  "first paragraph")),
    ("one\ntwo\nWho is three?", True, ("one\ntwo", "Who is three?", "last paragraph")),
    # `cat book.txt question.txt` puts the question in the last paragraph of the book.
    (f"One.\n\n{LONG}\nWho hid it?", True, (f"One.\n\n{LONG.strip()}", "Who hid it?",
                                            "last paragraph")),
    ("One.\n\n<doc>\nIt rained.\n</doc>\n Who hid it?", True,
     ("One.\n\n<doc>\nIt rained.\n</doc>", "Who hid it?", "last paragraph")),
    (f"{LONG}\n\nWho hid it?\n\nBest regards\n\n-- \nAda\nThe Mill Ltd.", True,
     (LONG.strip(), "Who hid it?\n\nBest regards\n\n-- \nAda\nThe Mill Ltd.", "last paragraph")),
    # Templates of prompts end with a label, which is no question.
    (f"{LONG}\n\nQuestion: Who hid it?\n\nAnswer:", True,
     (LONG.strip(), "Question: Who hid it?\n\nAnswer:", "last paragraph")),
    ("It rained.\nQ: Who hid it?\nA:", True,
     ("It rained.", "Q: Who hid it?\nA:", "last paragraph")),
    ("One.\n\nIt rained.\n---\nUse the text.\nQuery: Who hid it?\nHelpful Answer:", True,
     ("One.\n\nIt rained.\n---\nUse the text.", "Query: Who hid it?\nHelpful Answer:",
      "last paragraph")),
    ("Who hid it?\n\n### Response:", True,
     ("Who hid it?\n\n### Response:", "Who hid it?\n\n### Response:", "message")),
    # Several questions, a list of requests and a wrapped line stay together.
    ("One.\n\n1. Who hid it?\n2. Who found it?", True,
     ("One.", "1. Who hid it?\n2. Who found it?", "last paragraph")),
    ("One.\n\nAnswer in one word.\nWho hid it?", True,
     ("One.", "Answer in one word.\nWho hid it?", "last paragraph")),
    ("One.\n\nIs it the man who\nhid it?", True,
     ("One.", "Is it the man who\nhid it?", "last paragraph")),
    ('"Who is there?" he said.\n\n' + LONG + "\n\nThe last line.", True,
     ('"Who is there?" he said.\n\n' + LONG.strip(), "The last line.", "last paragraph")),
]  # fmt: skip


CHAT = "<chat>\nGRACE: The boats are late.\n\nWho saw them?\nBOB: Nobody did.\n</chat>"
PROMPTS = [
    f"### Task:\nWrite a headline.\n### Guidelines:\n- Be brief.\n### Chat History:\n{CHAT}",
    f"# Instructions\n\nWrite a headline.\n\n# Letter\n\n{LONG}",
    f"# Letter\n\n{LONG}\n\nWho saw them?\n\n# Task\n\nWrite a headline.",
    "**Task:** Write a headline.\n\n**Text:** The boats are late. Who saw them?",
    "Your task: Write a headline.\nText: The boats are late. Who saw them?",
    "=== TASK ===\r\nWrite a headline.\r\n=== LETTER ===\r\nHow are you?",
    "TASK\nWrite a headline.\n\nTEXT\nThe boats are late.",
    f"<instruction>Write a headline.</instruction>{CHAT}",
    f"{CHAT}\n<user_query>\nWrite a headline.\n</user_query>",
    f"{CHAT}\nWrite a headline.",
    "Task\n====\n\nWrite a headline.\n\nLetter\n------\n\nThe boats are late. Who saw them?",
    "Text:\nThe boats are late. Who saw?\n\nInstructions:\nWrite a headline.\n\nForm:\nOne line",
    "Write a headline.\n\n> The boats are late.\n>\n> Who saw them?",
    f"Write a headline.\n\n{CHAT}",
    "Write a headline.\n\nUSER: The boats are late.\nASSISTANT: Who saw them?",
    "Write a headline.\n\n```\nThe boats are late.\n\nWho saw them?\n```",
    f"Context:\n{LONG * 40}\n\nWho saw them?\n\nInstruction: Write a headline.",
    f"## 1. Task\nWrite a headline.\n\n## 2. Letter\n{LONG}",
    f"## Your job\nWrite a headline.\n\n## Letter\n{LONG}",
    f"{CHAT}\n<task_description>Write a headline.</task_description>",
    f"<prompt><task>Write a headline.</task>{CHAT}</prompt>",
    f"You help with chats.\n\n## Request\nWrite a headline.\n## Transcript\n{LONG * 40}",
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_instruction_of_a_prompt_is_its_question(prompt) -> None:
    found = split(prompt, words, alone=True)
    assert (found.question, found.asks) == ("Write a headline.", True)
    text = prompt.replace("Write a headline.", "")
    kept = [line for line in text.splitlines() if "boats" in line or "Who" in line]
    assert all(line.strip() in found.text for line in kept)


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        ("# Plan\n\n## Task\nWrite a parser.\n\n## Result\nFine.\n\nWho led it?", "Who led it?"),
        (f"Summarize it.\n\n# Plan\n\n## Goal\n\nBe safe.\n\n{LONG}", "Summarize it."),
        ("Context: Ada hid it.\n\nWho hid it?", "Who hid it?"),
        ("Translate it:\n\nAda hid it.\n\nWho saw it?", "Translate it:"),
        ("Answer my question:\n\nAda hid it.\n\nWho saw it?", "Who saw it?"),
        (f"Name this.\n\n{CHAT}\n\nName this chat.\n\nThe name is:",
         "Name this chat.\n\nThe name is:"),
        (f"Translate into German:\nAda hid it.\n\n{LONG}", "Translate into German:"),
        (f"Please translate this text: {LONG}", "Please translate this text:"),
        ("fix grammar:\nAda go home.", "fix grammar:"),
        ("Vat deze tekst samen:\n\nAda ging.", "Vat deze tekst samen:"),
        ("Bu metni özetle:\n\nAda gitti.", "Bu metni özetle:"),
        ("请翻译下面的文字。\n\n他们回来了。", "请翻译下面的文字。"),
        ("## Aufgabe\nFasse den Text zusammen.\n## Text\nAda ging.", "Fasse den Text zusammen."),
    ],
)  # fmt: skip
def test_what_a_text_announces_is_not_taken_for_the_question(prompt, question) -> None:
    found = split(prompt, words, alone=True)
    assert (found.question, found.asks) == (question, True)


TALE = "Ida sold her boat in May. It was blue.\n\nOle paid for it. He had no money left."


@pytest.mark.parametrize(
    ("end", "question"),
    [
        # What follows a question belongs to it.
        ("Who sold it?\n\nReply in one word.", ...), ("Who sold it?\n\na) Ida\n\nb) Ole", ...),
        ("Who sold it?\n\nThank you!\nUna", ...), ("Who sold it?\n\nSent from my phone", ...),
        ("Who sold it?\n\nBest,\nUna", ...), ("Who sold it?\n\n(Use the text only.)", ...),
        ("Who sold it?\n\nNote: write German.", ...), ("Who sold it?\n\n## 3. Answer", ...),
        ("Who sold it?\n\nLet's think step by step.", ...), ("Who sold it?\n\nWhen was it?", ...),
        # A question in marks, or without its own.
        ("**Who sold it?**", "Who sold it?"), ("## Who sold it?", "Who sold it?"),
        ("(Who sold it?)", ...), ("Q: who sold it", ...), ("Who sold it?!", ...),
        ("<p>Who sold it?</p>", "Who sold it?"), ("Who sold it?\u200b", ...),
        ("من باع القارب؟", ...),
        ("who sold the boat", ...), ("wer hat es verkauft", ...), ("船を売ったのは誰ですか。", ...),
        ("TL;DR", ...), ("I want to know who sold it.", ...), ("True or false: Ole sold it.", ...),
        ("Her name, please.", ...), ("Ole paid ___.", ...),
        ("Human: Who sold it?\n\nAssistant:", ...),
        # Prompts of programs.
        ("[TEXT]\nIt rained.\n[/TEXT]\n[QUESTION]\nWho sold it?\n[/QUESTION]", "Who sold it?"),
        ("----------\nGiven this text, answer the query.\nQuery: Who sold it?\nAnswer:",
         "Query: Who sold it?\nAnswer:"),
    ],
)  # fmt: skip
def test_a_question_is_found_whole_at_the_end(end, question) -> None:
    found = split(f"{TALE}\n\n{end}", words, alone=True)
    assert (found.question, found.asks) == (end if question is ... else question, True)
    assert TALE in found.text


@pytest.mark.parametrize(
    ("before", "question"),
    [
        ("### Task:\nAnswer the user's query with this text.\n<text>\n", "Who sold it?"),
        ("Given the chat below, rephrase the last question to stand alone.\n\n", ...),
        ("Only extract the names.\n\n", ...),
        ("1. Read the text. 2. Tell who sold it.\n\nText:\n", ...),
        ("Refine the summary with this text.\n------------\n", ...),
        ("Fix each mistake of this text. Send only the text.\n\nText:\n", ...),
        ("Forkort denne teksten:\n\n", ...),
        ("短くしてください：\n\n", ...),
        ("ELI5:\n\n", ...),
        ("why did they sell it\n\n", ...),
        ("Question on the text: who sold it\n\n", ...),
    ],
)
def test_the_instruction_of_a_program_is_found(before, question) -> None:
    tagged = question is not ...
    message = f"{before}{TALE}" + "\n</text>\nWho sold it?" * tagged
    found = split(message, words, alone=True)
    assert found.question == (question if tagged else before.split("\n")[0])


@pytest.mark.parametrize(
    ("message", "question"),
    [
        (f"<attachment>\n{TALE}\n</attachment>\n<userRequest>\nWho sold it?\n</userRequest>",
         "Who sold it?"),
        (f"[[ ## question ## ]]\nWho sold it?\n\n[[ ## context ## ]]\n{TALE}", "Who sold it?"),
        (json.dumps({"question": "Who sold it?", "tales": [1], "context": TALE}), "Who sold it?"),
        (json.dumps({"text": TALE, "taskInstruction": 3, "task": "Summarize it"}, indent=1),
         "Summarize it"),
        (f"Answer in one word.\n\nWho sold it?\n\nThis is the text:\n{TALE}",
         "Answer in one word.\n\nWho sold it?"),
        (f'```json\n{json.dumps({"query": "Who sold it?", "text": TALE})}\n```', "Who sold it?"),
        (f"<prompt><task>Name the buyer.</task><text>{TALE}</text></prompt>", "Name the buyer."),
        (f"Who sold it?\n--- BEGIN DOCUMENT ---\n{TALE}\n--- END DOCUMENT ---", "Who sold it?"),
        (f"## 1. Text\n{TALE}\n\n## 2. Question\nWho sold it?\n\n## 3. Answer", "Who sold it?"),
        (f"Hello!\n\nWho sold it?\n\n{TALE}", "Hello!\n\nWho sold it?"),
        (f"{TALE}\n\nTL;DR:", "TL;DR:"),
        (f"{TALE}\nConcise summary:", "Concise summary:"),
    ],
)  # fmt: skip
def test_the_question_of_a_program_is_found_in_its_form(message, question) -> None:
    found = split(message, words, alone=True)
    assert (found.question, found.asks) == (question, True)
    assert TALE in found.text


@pytest.mark.parametrize(
    "message",
    ["{}", "{1}", '{"request": "GET /x", "text": "boom"}', '{"question": "Who?"}', '{"a": "Who?"}'],
)
def test_json_that_asks_nothing_of_a_text_is_a_message(message) -> None:
    assert split(message, words, alone=True).place == "message"


@pytest.mark.parametrize("ask", ["Explain this code:", "Explain this code."])
def test_fields_of_code_are_no_labels(ask) -> None:
    code = "class Asked:\n    text: str\n    question: str\n    request: Request\n    at: int = 0"
    found = split(f"{ask}\n\n{code}", words, alone=True)
    assert (found.question, found.text) == (ask, code)
    assert not split(f"import re\n\n\n{code}", words, alone=True).asks


def test_a_last_message_can_have_a_text_and_a_question_about_it() -> None:
    for message in (f"{TALE}\n\nWho sold it?", "Translate this:\n\nIda sold it."):
        found = split(message, words, alone=False)
        assert "Ida sold" in found.text
        assert "Ida" not in found.question


@pytest.mark.parametrize(
    ("message", "asks"),
    [
        (f"Here is the text:\n\n{LONG}\n\nIt rained.", False),
        (f"Minutes of the last meeting:\n\n{LONG}\n\nIt rained.", False),
        (f"Why They Left\n\n{LONG}\n\nIt rained.", False),
        ("Ada hid it. Bob saw it.", False), ("Ada hid it.\n\nBob saw it.", False), (LONG, False),
        ("USER: Who?\nASSISTANT: Ada?", False), ("the keeper of Skarholm", True),
        ("Who hid it?", True), (f"{LONG}\n\nName the keeper.", True), (LONG + "Who?", True),
    ],
)  # fmt: skip
def test_a_message_that_asks_nothing_is_known(message, asks) -> None:
    assert split(message, words, alone=True).asks == asks


def test_a_later_message_of_paragraphs_that_ask_nothing_is_known() -> None:
    assert not split(TALE, words, alone=False).asks
    assert split("And the green one", words, alone=False).asks


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        ("Summarize this text.", "```\nAda hid it.\n\nBob saw it.\n```"),
        ("Who hid it?", '"""\nAda hid it.\n\nBob saw it.\n"""'),
        ("Summarize the text in ``` marks.", "---\nAda hid it.\n\nBob saw it.\n---"),
    ],
)
@pytest.mark.parametrize("gap", ["\n", " "])
def test_a_fence_in_the_first_paragraph_begins_the_text(ask, text, gap) -> None:
    found = split(f"{ask}{gap if text[0] != '-' else chr(10)}{text}", words, alone=True)
    assert (found.question, found.text) == (ask, text)


@pytest.mark.parametrize(
    "message",
    [
        "ann: hi\n" + ">\n" * 30_000 + "-\nbob: hi\n\nWho hid it?",
        "ann: hi\n" + "\n" * 30_000 + "-\nbob: hi\n\nWho hid it?",
        "One.\n" + "-" * 30_000 + "x\n\nWho hid it?",
    ],
)
def test_no_message_is_searched_for_long(message) -> None:
    began = time.process_time()
    assert split(message, words, alone=True).question == "Who hid it?"
    assert time.process_time() - began < 5


def test_the_parts_of_a_message_are_paragraphs() -> None:
    texts = f"It rained.\n\n{LONG}".strip(), "Who hid it?"
    parts = [{"type": "text", "text": text} for text in texts]
    found = split(text_of(Message(role="user", content=parts), 0), words, alone=True)
    assert (found.text, found.question) == texts


@pytest.mark.parametrize(("message", "alone", "expected"), CASES)
def test_the_question_of_a_message(message, alone, expected) -> None:
    found = split(message, words, alone=alone)
    assert (found.text, found.question, found.place) == expected


def test_of_a_long_paragraph_the_last_sentences_are_the_question() -> None:
    found = split(LONG + "Who hid it?", words, alone=True)
    assert found.place == "last sentences"
    assert found.question.endswith("Who hid it?")
    assert MOST - 7 < words(found.question) <= MOST
    assert f"{found.text} {found.question}" == LONG + "Who hid it?"


def test_a_text_without_spaces_is_cut() -> None:
    found = split("x" * 100_000, len, alone=True)
    assert (len(found.text), len(found.question)) == (100_000 - MOST, MOST)


def test_a_long_message_is_not_counted_whole() -> None:
    counted = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text.split())

    split(LONG * 1000 + "\n\nWho hid it?", count, alone=True)
    assert sum(counted) < 20_000


@given(
    st.lists(st.sampled_from([*"ab.?! \n\t", "\nAnswer:"]), min_size=1, max_size=400).map("".join),
    st.booleans(),
)
def test_nothing_of_a_message_is_lost(message: str, alone: bool) -> None:
    if not message.strip():
        return
    found = split(message, lambda text: 40 * len(text), alone=alone)
    assert found.question.strip()
    whole = "".join(message.split())
    text, question = ("".join(part.split()) for part in (found.text, found.question))
    assert whole in (text + question, question + text) or text == question == whole


@pytest.mark.parametrize(
    "text", ["a. b! c? " * 900, "x " * 4100, "".join(f"{n} " for n in range(3000))]
)
def test_the_last_sentences_are_found_by_few_counts(text) -> None:
    """Each count makes the server tokenize, and it serves nobody else meanwhile."""
    counted = []

    def count(part: str) -> int:
        counted.append(part)
        return len(part.split())

    found = split(text, count, alone=True)
    assert found.place == "last sentences"
    assert words(found.question) == MOST
    assert len(counted) < 40


def test_a_label_alone_asks_nothing() -> None:
    found = split(f"Human: {LONG}\nAnswer:", words, alone=True)
    assert (found.place, found.asks) == ("last sentences", False)
    found = split(f"Human: {LONG} Who hid it?\nAnswer:", words, alone=True)
    assert found.question.endswith("Who hid it?\nAnswer:")
    assert found.asks
