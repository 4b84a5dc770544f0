"""Messages as texts that memory reads, one after the other, and the question that comes last."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvstream.api.sources import Text
from kvstream.server.errors import ApiError
from kvstream.server.question import Split, split
from kvstream.server.schema import ChatRequest, clean, text_of


@dataclass(frozen=True)
class Message:
    """A message of a request, as it came."""

    name: str
    """``message 1``, ``message 2``, ...: what citations call it."""
    role: str
    text: str


@dataclass(frozen=True)
class Turn:
    """A question, and what came before it."""

    pieces: int
    """Of `Conversation.pieces`, those before the answer to the question."""
    messages: int
    """Of `Conversation.messages`, those up to the question, its own message too."""
    asked: Split


@dataclass(frozen=True)
class Conversation:
    """What a request asks, of which texts."""

    pieces: tuple[Text, ...]
    """All texts in order; the answer to the last question is not among them."""
    turns: tuple[Turn, ...]
    """Of every question, the last one too."""
    messages: tuple[Message, ...] = ()
    """All but those of the system."""
    settled: tuple[Message, ...] = ()
    """Those of the system, wherever they stood: they hold from the first question on."""
    system: str = ""
    warnings: tuple[str, ...] = field(default=())

    @property
    def asked(self) -> Split:
        """The last question."""
        return self.turns[-1].asked

    def keys(self, base: str) -> list[str]:
        """A digest for each of `turns`: of `base`, of all messages up to its own, and of it.

        Two conversations have a key in common if and only if their messages are the same up to a
        question, and the question was found in the same way. The digest is of the messages and
        not of the texts that are read: different messages can make the same texts (a user can
        write what an answer looks like), and their memories kept what different questions asked.
        """
        digest = hashlib.sha256()
        _add(digest, base)
        _add_messages(digest, self.settled)
        found, done = [], 0
        for turn in self.turns:
            _add_messages(digest, self.messages[done : turn.messages])
            done = turn.messages
            own = digest.copy()
            _add(own, turn.asked.place, turn.asked.question)
            found.append(own.hexdigest())
        return found


def _add_messages(digest: hashlib._Hash, messages: Sequence[Message]) -> None:
    _add(digest, str(len(messages)))
    for message in messages:
        _add(digest, message.name, message.role, message.text)


def _add(digest: hashlib._Hash, *texts: str) -> None:
    """Each with its length in front, so that no two lists of texts look alike."""
    for text in texts:
        data = text.encode()
        digest.update(f"{len(data)}:".encode() + data)


def conversation(
    request: ChatRequest, count: Callable[[str], int], *, of_memory: bool, longest_system: int
) -> Conversation:
    """The texts and the question of a request. Raises ApiError.

    `of_memory`: there is a text in memory already, which has a system text of its own. A system
    message of more than `longest_system` tokens is read as text.
    """
    own = request.kvstream.question if request.kvstream is not None else None
    settled: list[Message] = []
    messages: list[Message] = []
    for index, sent in enumerate(request.messages):
        message = Message(f"message {index + 1}", sent.role, text_of(sent, index))
        (settled if sent.role in ("system", "developer") else messages).append(message)
    if not messages or messages[-1].role != "user":
        raise _invalid("The last message must be of the role user: it has the question.")
    if own is not None and not own.strip():
        raise _invalid(
            "kvstream.question is empty; write the question in it, or leave it out.",
            "kvstream.question",
        )
    if own is None and not messages[-1].text.strip():
        raise _invalid("The last message is empty; write the question in it.")
    pieces: list[Text] = []
    warnings = []
    prompt = "\n\n".join(message.text for message in settled if message.text.strip())
    if prompt and (of_memory or not _fits(prompt, count, longest_system)):
        pieces.append(Text(prompt, "system message"))
        prompt = ""
        why = (
            "a memory file already has its prompt"
            if of_memory
            else f"it has more than {longest_system} tokens"
        )
        warnings.append(f"The system message was read as text: {why}.")
    turns = _turns(messages, own, count, of_memory, pieces)
    if not pieces and not of_memory:
        raise _invalid(
            "There is no text to read except kvstream.question; write the text in a message."
        )
    return Conversation(
        tuple(pieces), tuple(turns), tuple(messages), tuple(settled), prompt, tuple(warnings)
    )


def _invalid(message: str, param: str = "messages") -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)


def _turns(
    messages: Sequence[Message],
    own: str | None,
    count: Callable[[str], int],
    of_memory: bool,
    pieces: list[Text],
) -> list[Turn]:
    """The questions of messages, of which the last asks; what they say is added to `pieces`."""
    turns: list[Turn] = []
    waiting = ""
    for at, message in enumerate(messages):
        text = message.text
        if message.role == "assistant":
            # As a page of questions and answers, which models have seen.
            told = f"\nQuestion: {waiting}" * bool(waiting) + f"\nAnswer: {text.strip()}\n"
            pieces.append(Text(told, message.name))
            waiting = ""
            continue
        last = at + 1 == len(messages)
        if not last and messages[at + 1].role == "user":  # the question follows
            if text.strip():
                pieces.append(Text(text, message.name))
            continue
        if last and own is not None:
            asked = Split(text.strip(), clean(own).strip(), "request")
        elif text.strip():
            asked = split(text, count, alone=not pieces and not of_memory)
        else:
            continue
        if asked.text:
            pieces.append(Text(asked.text, message.name))
        turns.append(Turn(len(pieces), at + 1, asked))
        waiting = "" if asked.text == asked.question else asked.question
    return turns


def _fits(text: str, count: Callable[[str], int], most: int) -> bool:
    """Whether a text has at most so many tokens; a very long one is not counted."""
    return len(text) <= 40 * most and count(text) <= most
