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
class Conversation:
    """What a request asks, of which texts."""

    pieces: tuple[Text, ...]
    """All texts in order; the answer to the last question is not among them."""
    asked: Split
    system: str = ""
    turns: tuple[tuple[int, str], ...] = ()
    """Of every question, the last one too: how many pieces came before it, and its words."""
    warnings: tuple[str, ...] = field(default=())

    def keys(self, base: str) -> list[str]:
        """A digest for each of `turns`: of `base`, of all that was read before it, and of it.

        Two conversations whose messages are the same up to a question have its key in common.
        """
        digest = hashlib.sha256()
        _add(digest, base, self.system)
        found, done = [], 0
        for count, question in self.turns:
            _add(digest, *(piece.text for piece in self.pieces[done:count]))
            done = count
            own = digest.copy()
            _add(own, "question", question)
            found.append(own.hexdigest())
        return found


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
    system, messages = [], []
    for index, message in enumerate(request.messages):
        text = text_of(message, index)
        if message.role in ("system", "developer"):
            system.append(text)
        else:
            messages.append((f"message {index + 1}", message.role, text))
    if not messages or messages[-1][1] != "user":
        raise ApiError(
            400, "The last message must be of the role user: it has the question.",
            param="messages",
        )  # fmt: skip
    if own is not None and not own.strip():
        raise ApiError(400, "kvstream.question is empty.", param="kvstream.question")
    if own is None and not messages[-1][2].strip():
        raise ApiError(400, "The last message is empty; it has the question.", param="messages")
    pieces: list[Text] = []
    warnings = []
    prompt = "\n\n".join(text for text in system if text.strip())
    if prompt and (of_memory or not _fits(prompt, count, longest_system)):
        pieces.append(Text(prompt, "system message"))
        prompt = ""
        why = (
            "the prompt of a memory file is settled"
            if of_memory
            else f"it has more than {longest_system} tokens"
        )
        warnings.append(f"The system message was read as text: {why}.")
    turns: list[tuple[int, str]] = []
    asked = _turns(messages, own, count, of_memory, pieces, turns)
    if not pieces and not of_memory:
        raise ApiError(400, "There is no text to read beside kvstream.question.", param="messages")
    return Conversation(tuple(pieces), asked, prompt, tuple(turns), tuple(warnings))


def _turns(
    messages: Sequence[tuple[str, str, str]],
    own: str | None,
    count: Callable[[str], int],
    of_memory: bool,
    pieces: list[Text],
    turns: list[tuple[int, str]],
) -> Split:
    """Fills `pieces` and `turns` with what the messages say; returns the last question."""
    asked, waiting = Split("", "", "message"), ""
    for at, (name, role, text) in enumerate(messages):
        if role == "assistant":
            # As a page of questions and answers, which models have seen.
            told = f"\nQuestion: {waiting}" * bool(waiting) + f"\nAnswer: {text.strip()}\n"
            pieces.append(Text(told, name))
            waiting = ""
            continue
        last = at + 1 == len(messages)
        if not last and messages[at + 1][1] == "user":  # the question follows
            if text.strip():
                pieces.append(Text(text, name))
            continue
        if last and own is not None:
            asked = Split(text.strip(), clean(own).strip(), "request")
        elif text.strip():
            asked = split(text, count, alone=not pieces and not of_memory)
        else:
            continue
        if asked.text:
            pieces.append(Text(asked.text, name))
        turns.append((len(pieces), asked.question))
        waiting = "" if asked.text == asked.question else asked.question
    return asked


def _fits(text: str, count: Callable[[str], int], most: int) -> bool:
    """Whether a text has at most so many tokens; a very long one is not counted."""
    return len(text) <= 40 * most and count(text) <= most
