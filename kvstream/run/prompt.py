"""The prompt around the document: the model's chat template, split at the document.

The template is rendered once with random words in place of document, question and system text, and
is then split at the document.  Document and typed text are encoded as plain text without control
sequences (tokenization/control.py), so nothing in them can close a turn or open another.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

from kvstream.tokenization.tokenizer import Tokenizer, without_surrogates

Task = Literal["ask", "summarize"]

REFUSAL = "not in the text"
"""What the prompt asks a model to write if the text has no answer. `pocket` was trained with it."""
SUMMARY_QUESTION = "What is the summary of the text?"
_THINK_OPEN, _THINK_CLOSED = "<think>", "\n</think>\n\n"
# The harmony format of gpt-oss: every message names its channel.
_ASSISTANT, _CHANNEL, _MESSAGE, _END = "<|start|>assistant", "<|channel|>", "<|message|>", "<|end|>"


@dataclass(frozen=True)
class Layout:
    """Words around the document that replace those of kvstream; a question is used unchanged."""

    before: str
    chat: bool = True
    """Whether all of it goes into the model's chat template, if there is one."""


@dataclass(frozen=True)
class Wording:
    """The instructions for a chat model around the document."""

    question: str
    """Text next to the answer; ``{}`` stands for the question."""
    brief: str
    """Replaces `question` for a short answer; has no more tokens."""
    reasons: str = ""
    """Replaces `question` where a phrase is no answer (`_SENTENCES`); may be empty."""
    opening: ClassVar = "<document>\n"
    closing: ClassVar = "\n</document>\n\n"
    """Without these tags SmolLM2 answers with sentences of the prompt."""

    def ask(self, question: str, brief: bool) -> str:
        long = self.reasons and _SENTENCES.search(question)
        words = self.brief if brief else self.reasons if long else self.question
        return words.replace("{}", question.strip())

    def summarize(self, topic: str, brief: bool) -> str:
        about = topic.strip()
        return (
            "Summarize the document above: what it is about, what happens or is said, and how it "
            "ends. Use only what the document says."
            + (f" Pay attention to this above all: {about}" if about else "")
        )


_SENTENCES = re.compile(
    r"\b(?:why|explain|describe|what is \S+( \S+)* like)\b"
    r"|\bhow (?!(?:much|many|old|long|far|tall|big|large|often|deep|high|heavy|fast|soon|late)\b)",
    re.IGNORECASE,
)
"""Questions for a reason, a manner or a description."""
_PHRASE = "Question: {}\nAnswer with a short phrase copied from the document."
_BRIEFLY = "Question: {}\nAnswer briefly from the document."
NEUTRAL = Wording(
    _PHRASE, _PHRASE, "Question: {}\nAnswer in one to three sentences from the document."
)
"""No sentence invites a refusal: with one, models refuse to name what they have read
(docs/research/answers.md)."""
REFUSING = Wording(f"{_BRIEFLY} If it does not say, write: {REFUSAL}.", _PHRASE)
"""The wording that the adapter of `reader` was trained with."""
BRIEF = Wording(_BRIEFLY, _BRIEFLY)
"""The wording that the adapter for Qwen was trained with. It refuses without a request."""
TRAINED = {"refusing": REFUSING, "brief": BRIEF}
"""The wordings that an adapter can name in its file `support.json`."""


def wording_for(folder: str | Path) -> Wording:
    """Return the wording that the model of a folder was trained with; NEUTRAL if there is none."""
    try:
        support = json.loads((Path(folder) / "support.json").read_text("utf-8"))
        return TRAINED.get(support["wording"], NEUTRAL) if folder else NEUTRAL
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return NEUTRAL


@dataclass(frozen=True)
class Prompt:
    """The token ids before and behind the document."""

    head: list[int]
    """Before the document: control tokens, system text, instruction. They are never evicted."""
    stop_ids: tuple[int, ...]
    style: Literal["chat", "completion"]
    """Whether the model gets an instruction, or a text that the answer continues."""
    task: Task
    lacks_template: bool
    """Whether the model has a chat template that cannot be rendered, or split at the document."""
    _parts: _Parts = field(repr=False)
    _tokenizer: Tokenizer = field(repr=False)

    def tail(
        self, question: str, earlier: Sequence[tuple[str, str]] = (), *, brief: bool = False
    ) -> list[int]:
        """Return the ids behind the document: question, end of the turn, beginning of the answer.

        With `brief`, a chat model is asked for a short phrase; the tail is never longer then. The
        question of a summary names its topic. Questions and answers from ``earlier`` come before
        the question as plain text, so no template needs to support more turns.
        """
        turns = "".join(f"Question: {q.strip()}\nAnswer: {a.strip()}\n" for q, a in earlier)
        text = turns + self._parts.phrase(question, brief)
        return _encode(self._tokenizer, self._parts.behind, text, continuing=True)

    def catalyst(self, text: str) -> list[int]:
        """Return the ids of ``text`` as a catalyst: plain text without control tokens."""
        return self._tokenizer.encode("\n" + text.strip(), continuing=True)

    def broken(self, text: str) -> int:
        """Return the number of broken-up control sequences in a question or system text."""
        text = without_surrogates(text.strip())  # `spans` expects the text of a document
        return len(self._tokenizer.spans(text, continuing=True).broken)


def broken_apart(what: str, count: int) -> str:
    """Return the warning for a text that has control sequences."""
    sequences = "control sequences" if count > 1 else "control sequence"
    return (
        f"The {what} holds {count:,} {sequences} of the model's chat template; the model reads "
        "their characters one by one, as plain text."
    )


@dataclass(frozen=True)
class _Parts:
    """A rendered template, split at the document, the system text and the question."""

    before: Sequence[str]
    """One piece, or two with the system text between them."""
    behind: Sequence[str]
    """Two pieces with the question between them."""
    phrase: Callable[[str, bool], str]
    """Words a question, or the topic of a summary; the second argument asks for a short answer."""

    @property
    def completes(self) -> bool:
        """Whether the answer continues a text, instead of following an instruction."""
        return self.behind[1].rstrip().endswith("Answer:")


def build_prompt(
    tokenizer: Tokenizer,
    *,
    system: str | None = None,
    task: Task = "ask",
    layout: Layout | None = None,
    wording: Wording = NEUTRAL,
) -> Prompt:
    """Build the prompt for a model: from its chat template, or as a plain text to complete.

    ``system`` goes into the system turn, or before the user's text if the template has none.  A
    ``layout`` replaces the instruction and the words around a question. ``wording`` is for chat
    models.
    """
    system = (system or "").strip()
    chat = tokenizer.has_template and (layout is None or layout.chat)
    parts = _chat_parts(tokenizer, system, task, layout, wording) if chat else None
    lacks = chat and parts is None
    stop_ids = list(tokenizer.eos_ids)
    style: Literal["chat", "completion"] = "completion"
    if parts is None:
        parts = _Parts([""], ["\n", "\nAnswer:"], partial(_completed, task))
        if layout is not None:
            parts = _Parts([layout.before], ["", ""], _unchanged)
        head = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        before = (system + "\n\n" if system else "") + parts.before[0]
        head += tokenizer.encode(before) if before else []
    else:
        if not parts.completes:
            style = "chat"
            stop_ids += _end_of_turn(tokenizer)
        head = _encode(tokenizer, parts.before, system, continuing=False)
    return Prompt(head, tuple(dict.fromkeys(stop_ids)), style, task, lacks, parts, tokenizer)


def _completed(task: Task, question: str, brief: bool) -> str:
    default = SUMMARY_QUESTION if task == "summarize" else ""
    return f"Question: {question.strip() or default}"


def _unchanged(question: str, brief: bool) -> str:
    return question


def _mark() -> str:
    return f"kvstream{secrets.token_hex(12)}"


def _chat_parts(
    tokenizer: Tokenizer, system: str, task: Task, layout: Layout | None, wording: Wording
) -> _Parts | None:
    """Return the template split at the document; None if it cannot be split."""
    if layout is not None:
        return _rendered(tokenizer, system, layout.before, "", _unchanged)
    bare = _rendered(tokenizer, system, "", "\n", partial(_completed, task))
    if bare is not None and bare.completes:
        return bare
    phrase = wording.summarize if task == "summarize" else wording.ask
    return _rendered(tokenizer, system, wording.opening, wording.closing, phrase)


def _rendered(
    tokenizer: Tokenizer, system: str, before: str, between: str, phrase: Callable[[str, bool], str]
) -> _Parts | None:
    document, question, role = _mark(), _mark(), _mark()
    content = f"{before}{document}{between}{question}"
    user = {"role": "user", "content": content}
    attempts = [[user]]
    if system:
        # Some templates have no system turn: they raise an error, or omit it silently.
        folded = {"role": "user", "content": f"{role}\n\n{content}"}
        attempts = [[{"role": "system", "content": role}, user], [folded]]
    for messages in attempts:
        try:
            text = tokenizer.render(messages, add_generation_prompt=True, enable_thinking=False)
        except Exception:  # a template may raise anything
            continue
        marks = [document, question, *([role] if system else [])]
        if any(text.count(mark) != 1 for mark in marks):
            continue
        head, tail = text.split(document)
        if question in tail and (not system or role in head):
            behind = _thought(tokenizer, tail).split(question)
            return _Parts(head.split(role), behind, phrase)
    return None


def _thought(tokenizer: Tokenizer, tail: str) -> str:
    """Return the tail without a thinking phase, in the channel of answers if there are channels."""
    if tail.rfind(_THINK_OPEN) > tail.rfind("</think>"):
        return tail.rstrip() + _THINK_CLOSED
    if _has_channels(tokenizer) and tail.endswith(_ASSISTANT):
        return f"{tail}{_CHANNEL}final{_MESSAGE}"
    return tail


def _has_channels(tokenizer: Tokenizer) -> bool:
    return {_CHANNEL, _MESSAGE} <= set(tokenizer.special_strings)


def _end_of_turn(tokenizer: Tokenizer) -> list[int]:
    """Return the control tokens that end an assistant's text, and with channels its thoughts."""
    channels = _has_channels(tokenizer) and _END in tokenizer.special_strings
    ends = tokenizer.encode_template(_END, continuing=True)[:1] if channels else []
    mark = _mark()
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
    try:
        text = tokenizer.render(turns, add_generation_prompt=False)
    except Exception:  # a template may raise anything
        return ends
    closing = text.partition(mark)[2].lstrip()
    token = max(filter(closing.startswith, tokenizer.special_strings), key=len, default="")
    return (tokenizer.encode_template(token, continuing=True)[:1] if token else []) + ends


def _encode(
    tokenizer: Tokenizer, pieces: Sequence[str], own: str, *, continuing: bool
) -> list[int]:
    """Encode pieces of a template with the user's `own` text between them.

    Encode all of it together if that gives no control sequences but the template's, because that is
    what the model saw in training.  Else encode each text separately, the user's as plain text.
    """
    whole = own.join(pieces)
    ids = tokenizer.encode_template(whole, continuing=continuing) if whole else []
    apart = [tokenizer.encode_template(piece, continuing=True) for piece in filter(None, pieces)]
    if tokenizer.controls(ids) == sum(map(tokenizer.controls, apart)):
        return ids
    ids = []
    for number, piece in enumerate(pieces):
        if number and own:
            ids += tokenizer.encode(own, continuing=continuing or bool(ids))
        if piece:
            ids += tokenizer.encode_template(piece, continuing=continuing or bool(ids))
    return ids
