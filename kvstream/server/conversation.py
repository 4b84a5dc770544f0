"""Messages as texts that memory reads one after the other, and the last question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvstream.api.source_objects import Text
from kvstream.server.asking import asks
from kvstream.server.question import MOST, REACH, Split, instruction_of_system, split
from kvstream.server.schema import ChatRequest, clean, invalid, text_of

SYSTEM = "system message"
"""The name, in citations, of a system message that is read as text."""
SHORT = 32
"""Maximum number of tokens of a system message that has no text to read for certain."""


@dataclass(frozen=True)
class Message:
    """A message of a request, as received."""

    name: str
    """``message 1``, ``message 2``, ...: its name in citations."""
    role: str
    text: str


@dataclass(frozen=True)
class Turn:
    pieces: int
    """Number of `Conversation.pieces` before the answer to the question."""
    messages: int
    """Number of `Conversation.messages` up to the question, with the message that has it."""
    split: Split


@dataclass(frozen=True)
class Conversation:
    """The texts and the questions of a request."""

    pieces: Sequence[Text]
    """All texts in order. The answer to the last question is not part of them."""
    turns: Sequence[Turn]
    """A turn for every question, the last one included."""
    messages: Sequence[Message]
    """All messages except system messages."""
    rules: Sequence[Message]
    """System messages, at any place: they apply from the first question on."""
    system: str
    warnings: Sequence[str]

    @property
    def around(self) -> list[str]:
        """Names of texts that are no documents, which every answer sees."""
        answers = [message.name for message in self.messages if message.role == "assistant"]
        return [SYSTEM, *answers]

    @property
    def last(self) -> Split:
        return self.turns[-1].split

    def keys(self, base: str) -> list[str]:
        """Return a digest for each turn: of `base`, the messages up to its question, and it.

        Two conversations share a key if and only if their messages are the same up to a question
        and the question was found in the same way. The digest covers the messages instead of the
        texts that are read: different messages can give the same texts (a user can write what
        looks like an answer), and their memories kept entries for different questions.
        """
        digest = hashlib.sha256()
        _add(digest, base, *_texts(self.rules))
        keys, begin = [], 0
        for turn in self.turns:
            _add(digest, *_texts(self.messages[begin : turn.messages]))
            begin = turn.messages
            own = digest.copy()
            _add(own, turn.split.place, turn.split.question)
            keys.append(own.hexdigest())
        return keys


def _texts(messages: Sequence[Message]) -> list[str]:
    texts = (text for each in messages for text in (each.name, each.role, each.text))
    return [str(len(messages)), *texts]


def _add(digest: hashlib._Hash, *texts: str) -> None:
    """Add each text with its length in front, so that different lists have different digests."""
    for text in texts:
        data = text.encode()
        digest.update(f"{len(data)}:".encode() + data)


def conversation(
    request: ChatRequest, count: Callable[[str], int], *, of_memory: bool, longest_system: int
) -> Conversation:
    """Return the texts and the questions of a request. Raises ApiError.

    `of_memory`: the request asks a memory file, which has its own system text. A system message
    of more than `longest_system` tokens is read as text.
    """
    own = request.kvstream.question if request.kvstream is not None else None
    rules, messages = _by_role(request)
    _check_last(messages, own)
    system = "\n\n".join(message.text for message in rules if message.text.strip())
    begin = next(at for at, message in enumerate(messages) if message.role == "user")
    why = ""
    if system and of_memory:
        why = "a memory file already has its prompt"
    elif len(system) > 40 * longest_system or count(system) > longest_system:  # counts no long text
        why = f"it has more than {longest_system} tokens"
    elif count(system) > SHORT and (own is None or begin + 1 < len(messages)):
        first = split(messages[begin].text, count, alone=True)
        why = "no message has a text" * (first.asks and first.place == "message")
    pieces, warnings = [], []
    if why:
        pieces.append(Text(system, SYSTEM))
        warnings.append(f"The system message was read as text: {why}.")
    turns = _Division(messages, pieces, own, system, count, of_memory).turns()
    last = turns[-1].split
    is_question = last.place == SYSTEM and last.question == system.strip()
    if not last.asks:
        part = "" if last.place == "message" else f"the {last.place} of "
        warnings.append(
            f"Nothing in the message asks a question, so kvstream took {part}it for the question. "
            "Ask at the end of the message, or in the field kvstream.question."
        )
    if not pieces and not of_memory:
        raise invalid(
            "There is no text to read except kvstream.question; write the text in a message."
        )
    prompt = "" if why or is_question else system
    return Conversation(pieces, turns, messages, rules, prompt, warnings)


def _by_role(request: ChatRequest) -> tuple[list[Message], list[Message]]:
    """Return the system messages and the others. One behind the last answer is the user's."""
    rules: list[Message] = []
    messages: list[Message] = []
    for index, item in enumerate(request.messages):
        message = Message(f"message {index + 1}", item.role, text_of(item, index))
        is_rule = item.role in ("system", "developer")
        answered = bool(messages) and messages[-1].role == "assistant"
        final = index + 1 == len(request.messages)
        if is_rule and final and answered:
            message, is_rule = replace(message, role="user"), False
        (rules if is_rule else messages).append(message)
    return rules, messages


def _check_last(messages: Sequence[Message], own: str | None) -> None:
    """Raise ApiError if the last message cannot have the question, and `own` is none."""
    if not messages or messages[-1].role != "user":
        raise invalid("The last message must be of the role user: it has the question.")
    if own is not None and not own.strip():
        raise invalid(
            "kvstream.question is empty; write the question in it, or leave it out.",
            "kvstream.question",
        )
    if own is None and not messages[-1].text.strip():
        raise invalid("The last message is empty; write the question in it.")


@dataclass
class _Division:
    """Divides messages into texts to read and questions."""

    messages: Sequence[Message]
    pieces: list[Text]
    """Texts to read; `turns` adds those of the messages."""
    own: str | None
    """The question of the request's own field."""
    system: str
    count: Callable[[str], int]
    of_memory: bool

    def turns(self) -> list[Turn]:
        """Return the questions of the messages, and add the other texts to `pieces`."""
        messages, pieces = self.messages, self.pieces
        turns: list[Turn] = []
        waiting = ""
        for at, message in enumerate(messages):
            text = message.text
            if message.role == "assistant":
                # The format of a page of questions and answers, which models know from training.
                page = f"\nQuestion: {waiting}" * bool(waiting) + f"\nAnswer: {text.strip()}\n"
                pieces.append(Text(page, message.name))
                waiting = ""
                continue
            last = at + 1 == len(messages)
            if not last and messages[at + 1].role == "user":  # the next message has the question
                if text.strip():
                    pieces.append(Text(text, message.name))
                continue
            if not last and not text.strip():
                continue
            parts = self._split(at)
            if parts.text:
                pieces.append(Text(parts.text, message.name))
            turns.append(Turn(len(pieces), at + 1, parts))
            waiting = "" if parts.text == parts.question else parts.question
        return turns

    def _split(self, at: int) -> Split:
        """Split a message. If the first one asks nothing, the system message may ask about it."""
        text, count = self.messages[at].text, self.count
        if self.own is not None and at + 1 == len(self.messages):
            return Split(text.strip(), clean(self.own).strip(), "request")
        halves = split(text, count, alone=not self.pieces and not self.of_memory)
        before = self.messages[at - 1] if at else None
        if before is None and not self.system:
            return halves
        plain = split(text, count, alone=True)
        if before is not None:
            waits = before.role == "user" and asks(before.text) and not plain.asks
            if waits and count(before.text[:REACH]) <= MOST:  # its text came after it
                self.pieces.pop()
                return Split(text.strip(), before.text.strip(), "message")
            return halves
        if plain.asks and (plain.place != "message" or asks(text)):
            return halves
        instruction = instruction_of_system(self.system, text, count)
        return halves if instruction is None else Split(text.strip(), instruction, SYSTEM)
