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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

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
class Prompt:
    """The token ids before and behind the document."""

    head: list[int]
    """Before the document: control tokens, system text, instruction. They are never evicted."""
    stop_ids: tuple[int, ...]
    style: Literal["chat", "completion"]
    """Whether the model gets an instruction, or a text that the answer continues."""
    task: Task
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
        told = "".join(f"Question: {q.strip()}\nAnswer: {a.strip()}\n" for q, a in earlier)
        phrase = self._parts.brief_phrase if brief else None
        asked = told + (phrase or self._parts.phrase)(question)
        pieces = self._parts.behind.split(self._parts.question)
        texts = [(pieces[0], False)]
        for piece in pieces[1:]:
            texts += [(asked, True), (piece, False)]
        return _encode(self._tokenizer, texts, continuing=True)

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
    """A rendered template, split at the document."""

    before: str
    behind: str
    question: str
    """Placeholder of the question in ``behind``."""
    phrase: Callable[[str], str]
    brief_phrase: Callable[[str], str] | None = None
    """As `phrase`, for a short answer; None: answers are short already."""
    system: str = ""
    """Placeholder of the system text in ``before``; empty if there is none."""


def build_prompt(
    tokenizer: Tokenizer,
    *,
    system: str | None = None,
    task: Task = "ask",
    layout: Layout | None = None,
    wording: Wording | None = None,
) -> Prompt:
    """Build the prompt for a model: from its chat template, or as a plain text to complete.

    ``system`` goes into the system turn, or before the user's text if the template has none.  A
    ``layout`` replaces the instruction and the words around a question. ``wording`` is for chat
    models; the default is NEUTRAL.
    """
    system = (system or "").strip()
    parts = _chat_parts(tokenizer, system, task, layout, wording or NEUTRAL)
    stop_ids = list(tokenizer.eos_ids)
    style: Literal["chat", "completion"] = "completion"
    if parts is None:
        parts = _completion_parts(task, layout)
        head = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        before = (system + "\n\n" if system else "") + parts.before
        head += tokenizer.encode(before) if before else []
    else:
        if not _completes(parts):
            style = "chat"
            stop_ids += _end_of_turn(tokenizer)
        pieces = parts.before.split(parts.system) if parts.system else [parts.before]
        texts = [(pieces[0], False)]
        for piece in pieces[1:]:
            texts += [(system, True), (piece, False)]
        head = _encode(tokenizer, texts, continuing=False)
    return Prompt(head, tuple(dict.fromkeys(stop_ids)), style, task, parts, tokenizer)


# Wordings. The document comes first, so that the question is next to the answer.


@dataclass(frozen=True)
class Wording:
    """The instructions for a chat model around the document."""

    opening: str
    closing: str
    question: str
    """Text next to the answer; ``{}`` stands for the question."""
    summary: str
    brief: str
    """Replaces `question` for a short answer; has no more tokens."""
    reasons: str = ""
    """Replaces `question` where a phrase is no answer (`_SENTENCES`); may be empty."""

    def phrase(self, task: Task) -> Callable[[str], str]:
        """Return the function that words a question, or the topic of a summary."""

        def ask(question: str) -> str:
            long = self.reasons and _SENTENCES.search(question)
            return _put(self.reasons if long else self.question, question)

        def summarize(question: str) -> str:
            about = question.strip()
            return self.summary + (f" Pay attention to this above all: {about}" if about else "")

        return summarize if task == "summarize" else ask

    def brief_phrase(self, question: str) -> str:
        return _put(self.brief, question)


_SENTENCES = re.compile(
    r"\b(?:why|explain|describe|what is \S+( \S+)* like)\b"
    r"|\bhow (?!(?:much|many|old|long|far|tall|big|large|often|deep|high|heavy|fast|soon|late)\b)",
    re.IGNORECASE,
)
"""Questions for a reason, a manner or a description."""


def _put(words: str, question: str) -> str:
    return words.replace("{}", question.strip())


NEUTRAL = Wording(
    "<document>\n",
    "\n</document>\n\n",
    "Question: {}\nAnswer with a short phrase copied from the document.",
    "Summarize the document above: what it is about, what happens or is said, and how it ends. "
    "Use only what the document says.",
    "Question: {}\nAnswer with a short phrase copied from the document.",
    "Question: {}\nAnswer in one to three sentences from the document.",
)
"""Tags mark the document: without them SmolLM2 answers with sentences of the prompt. No sentence
invites a refusal: with one, models refuse to name what they have read (docs/research/answers.md).
"""
REFUSING = replace(
    NEUTRAL,
    question="Question: {}\nAnswer briefly from the document. "
    f"If it does not say, write: {REFUSAL}.",
    reasons="",
)
"""The wording that the adapter of `reader` was trained with."""
BRIEF = replace(
    NEUTRAL,
    question="Question: {}\nAnswer briefly from the document.",
    brief="Question: {}\nAnswer briefly from the document.",
    reasons="",
)
"""The wording that the adapter for Qwen was trained with. It refuses without a request."""
TRAINED = {"refusing": REFUSING, "brief": BRIEF}
"""The wordings that an adapter can name in its file `support.json`."""


def wording_for(folder: str | Path) -> Wording:
    """Return the wording that the model of a folder was trained with; NEUTRAL if there is none."""
    try:
        said = json.loads((Path(folder) / "support.json").read_text("utf-8"))
        return TRAINED.get(said["wording"], NEUTRAL) if folder else NEUTRAL
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return NEUTRAL


def _completion_phrase(task: Task) -> Callable[[str], str]:
    def phrase(question: str) -> str:
        question = question.strip()
        return f"Question: {question or (SUMMARY_QUESTION if task == 'summarize' else '')}"

    return phrase


def _completion_parts(task: Task, layout: Layout | None) -> _Parts:
    """Return the parts of ``DOC\\nQuestion: ...\\nAnswer:``, or those of the layout."""
    mark = _mark()
    if layout is not None:
        return _Parts(layout.before, mark, mark, str)
    return _Parts("", f"\n{mark}\nAnswer:", mark, _completion_phrase(task))


def _completes(parts: _Parts) -> bool:
    return parts.behind.rstrip().endswith("Answer:")


# Rendering and splitting.


def _mark() -> str:
    return f"kvstream{secrets.token_hex(12)}"


def _chat_parts(
    tokenizer: Tokenizer, system: str, task: Task, layout: Layout | None, wording: Wording
) -> _Parts | None:
    """Return the template split at the document; None if there is none that can be split."""
    if not tokenizer.has_template or (layout is not None and not layout.chat):
        return None
    if layout is not None:
        return _rendered(tokenizer, system, layout.before, "", str)
    bare = _rendered(tokenizer, system, "", "\n", _completion_phrase(task))
    if bare is not None and _completes(bare):
        return bare
    parts = _rendered(tokenizer, system, wording.opening, wording.closing, wording.phrase(task))
    if parts is None or task == "summarize":
        return parts
    return replace(parts, brief_phrase=wording.brief_phrase)


def _rendered(
    tokenizer: Tokenizer, system: str, before: str, between: str, phrase: Callable[[str], str]
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
        wanted = [document, question, *([role] if system else [])]
        if any(text.count(mark) != 1 for mark in wanted):
            continue
        head, tail = text.split(document)
        if question in tail and (not system or role in head):
            own = role if system else ""
            return _Parts(head, _thought(tokenizer, tail), question, phrase, system=own)
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
    longest_first = sorted(tokenizer.special_strings, key=len, reverse=True)
    for token in longest_first:
        if closing.startswith(token):
            return tokenizer.encode_template(token, continuing=True)[:1] + ends
    return ends


def _encode(tokenizer: Tokenizer, texts: list[tuple[str, bool]], *, continuing: bool) -> list[int]:
    """Encode template text (False) with the user's text (True) in it.

    Encode all of it together if that gives no control sequences but the template's, because that is
    what the model saw in training.  Else encode each text separately, the user's as plain text.
    """
    whole = "".join(text for text, _ in texts)
    ids = tokenizer.encode_template(whole, continuing=continuing) if whole else []
    own = sum(
        tokenizer.controls(tokenizer.encode_template(text, continuing=True))
        for text, users in texts
        if text and not users
    )
    if tokenizer.controls(ids) == own:
        return ids
    ids = []
    for text, users in texts:
        if text:
            encode = tokenizer.encode if users else tokenizer.encode_template
            ids += encode(text, continuing=continuing or bool(ids))
    return ids
