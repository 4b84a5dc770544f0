"""What stands around the document: the model's chat template, split where the document goes.

The template is rendered once with unguessable words in the place of the document, the question and
the system text, and cut at the document's.  A document is encoded apart, as plain text, and the
tokenizer breaks control sequences in it apart (tokenization/control.py): nothing in it closes its
turn or opens another.  The same holds for what the user typed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kvstream.tokenization.tokenizer import Tokenizer

Task = Literal["ask", "summarize"]

REFUSAL = "not in the text"
"""What the prompt asks a model to write where the text has no answer; `pocket` learned it."""
SUMMARY_QUESTION = "What is the summary of the text?"
_THINK_OPEN, _THINK_CLOSED = "<think>", "\n</think>\n\n"
# The harmony format of gpt-oss: every message says in which channel it is.
_ASSISTANT, _CHANNEL, _MESSAGE, _END = "<|start|>assistant", "<|channel|>", "<|message|>", "<|end|>"


@dataclass(frozen=True)
class Layout:
    """Words around the document that replace the program's own; a question is put as it is."""

    before: str
    """In front of the document."""
    chat: bool = True
    """Whether all of it goes into the model's chat template, where there is one."""


@dataclass(frozen=True)
class Prompt:
    """The ids in front of the document and behind it."""

    head: list[int]
    """In front of the document: control tokens, system text, instruction. To be protected."""
    stop_ids: tuple[int, ...]
    """Tokens that end the answer."""
    style: Literal["chat", "completion"]
    """Whether the model gets an instruction, or a text that an answer would continue."""
    task: Task
    _parts: _Parts = field(repr=False)
    _tokenizer: Tokenizer = field(repr=False)

    def tail(
        self, question: str, earlier: Sequence[tuple[str, str]] = (), *, brief: bool = False
    ) -> list[int]:
        """Behind the document: the question, the end of the turn, the beginning of the answer.

        A `brief` one asks a chat model for a short phrase and is never longer than the other.

        A summary needs no question; one that is given says what it should be about. Questions and
        answers that came ``earlier`` stand before it as plain text: a model has seen such pages,
        and no template is asked for more turns than it knows.
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
        """``text`` as it is put behind a chunk to draw attention; plain, no control tokens."""
        return self._tokenizer.encode("\n" + text.strip(), continuing=True)

    def broken(self, text: str) -> int:
        """Control sequences in a question or a system text, which are broken apart."""
        return len(self._tokenizer.spans(text.strip(), continuing=True).broken)

    def phrase(self, question: str) -> str:
        """The words in which ``tail`` puts a question, for a catalyst that resembles it."""
        return self._parts.phrase(question)


def broken_apart(what: str, count: int) -> str:
    """The warning of a text that holds control sequences."""
    sequences = "control sequences" if count > 1 else "control sequence"
    return (
        f"The {what} holds {count:,} {sequences} of the model's chat template; the model reads "
        "their characters one by one, as plain text."
    )


@dataclass(frozen=True)
class _Parts:
    """A rendered template, cut at the document."""

    before: str
    behind: str
    question: str
    """Stands in ``behind`` where the question goes."""
    phrase: Callable[[str], str]
    brief_phrase: Callable[[str], str] | None = None
    """The same for a short answer; None: answers are short already."""
    system: str = ""
    """Stands in ``before`` where the system text goes."""


def build_prompt(
    tokenizer: Tokenizer,
    questions: Sequence[str] = (),
    *,
    system: str | None = None,
    task: Task = "ask",
    layout: Layout | None = None,
    wording: Wording | None = None,
) -> Prompt:
    """The prompt for a model: from its chat template, or as a plain text to be completed.

    ``questions`` are those known before reading; their wording does not depend on one another, so
    ``tail`` takes any.  ``system`` goes into the system turn, or before the user's text where the
    template has none.  A ``layout`` replaces the instruction and the words around a question;
    ``wording`` is that of chat models, CURRENT if there is none.
    """
    system = (system or "").strip()
    parts = _chat_parts(tokenizer, system, task, layout, wording or CURRENT)
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


# How things are put. The document comes first: what is asked stands next to the answer.


@dataclass(frozen=True)
class Wording:
    """The instructions for a chat model around the document."""

    opening: str
    """In front of the document, for a question."""
    summary_opening: str
    """The same for a summary."""
    closing: str
    """Behind the document."""
    question: str
    """Next to the answer; ``{}`` is the question."""
    summary: str
    brief: str
    """In place of `question` for a short answer; it takes no more tokens."""

    def phrase(self, task: Task) -> Callable[[str], str]:
        """The words in which a question, or what a summary is about, is put."""

        def ask(question: str) -> str:
            return _put(self.question, question)

        def summarize(question: str) -> str:
            about = question.strip()
            return self.summary + (f" Pay attention to this above all: {about}" if about else "")

        return summarize if task == "summarize" else ask

    def brief_phrase(self, question: str) -> str:
        """The words in which a question is put that wants a short answer."""
        return _put(self.brief, question)


def _put(words: str, question: str) -> str:
    return words.replace("{}", question.strip())


CURRENT = Wording(
    "<document>\n",
    "<document>\n",
    "\n</document>\n\n",
    f"Question: {{}}\nAnswer briefly from the document. If it does not say, write: {REFUSAL}.",
    "Summarize the document above: what it is about, what happens or is said, and how it ends. "
    "Use only what the document says.",
    "Question: {}\nAnswer with a short phrase copied from the document.",
)
"""Tags set the document off: without them SmolLM2 answers with sentences of the prompt
(docs/research/prompts.md)."""
OF_0_1 = Wording(
    "Here is a text. A question about it follows.\n\n",
    "Here is a text. It is to be summarized.\n\n",
    "\n\n",
    "Question: {}\n\nAnswer from the text above, briefly and exactly. "
    "If the answer is not in the text, say so.",
    "Summarize the text above: what it is about, what happens or is said, and how it ends. "
    "Use only what stands in the text.",
    "Question: {}\n\nAnswer with a short phrase copied from the text above.",
)
"""That of memory files and checkpoints that 0.1 made."""
WORDINGS = (CURRENT, OF_0_1)


def wording_of(
    head: Sequence[int], tokenizer: Tokenizer, *, system: str | None, task: Task
) -> Wording | None:
    """The wording whose prompt has these token ids in front of the document; None if none has."""
    for wording in WORDINGS:
        prompt = build_prompt(tokenizer, system=system, task=task, wording=wording)
        if prompt.head == list(head):
            return wording
    return None


def _completion_phrase(task: Task) -> Callable[[str], str]:
    def phrase(question: str) -> str:
        question = question.strip()
        return f"Question: {question or (SUMMARY_QUESTION if task == 'summarize' else '')}"

    return phrase


def _as_it_is(question: str) -> str:
    return question


def _completion_parts(task: Task, layout: Layout | None) -> _Parts:
    """``DOC\\nQuestion: ...\\nAnswer:``, or the words of the layout."""
    mark = _mark()
    if layout is not None:
        return _Parts(layout.before, mark, mark, _as_it_is)
    return _Parts("", f"\n{mark}\nAnswer:", mark, _completion_phrase(task))


def _completes(parts: _Parts) -> bool:
    """Whether the template itself asks to complete ``Answer:`` and needs no instruction."""
    return parts.behind.rstrip().endswith("Answer:")


# Rendering and cutting.


def _mark() -> str:
    """A word that no template, document or question contains."""
    return f"kvstream{secrets.token_hex(12)}"


def _chat_parts(
    tokenizer: Tokenizer, system: str, task: Task, layout: Layout | None, wording: Wording
) -> _Parts | None:
    """The template cut at the document; None if there is none, or none that can be cut."""
    if not tokenizer.has_template or (layout is not None and not layout.chat):
        return None
    if layout is not None:
        return _rendered(tokenizer, system, layout.before, "", _as_it_is)
    bare = _rendered(tokenizer, system, "", "\n", _completion_phrase(task))
    if bare is not None and _completes(bare):
        return bare
    summarizes = task == "summarize"
    opening = wording.summary_opening if summarizes else wording.opening
    parts = _rendered(tokenizer, system, opening, wording.closing, wording.phrase(task))
    if parts is None or summarizes:
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
        # Some templates know no system turn: they raise, or leave it out without a word.
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
    """No room to think aloud: a generation prompt that opens a block of thoughts gets it closed.

    One that leaves the choice of a channel to the model gets that of answers.
    """
    if tail.rfind(_THINK_OPEN) > tail.rfind("</think>"):
        return tail.rstrip() + _THINK_CLOSED
    if _has_channels(tokenizer) and tail.endswith(_ASSISTANT):
        return f"{tail}{_CHANNEL}final{_MESSAGE}"
    return tail


def _has_channels(tokenizer: Tokenizer) -> bool:
    return {_CHANNEL, _MESSAGE} <= set(tokenizer.special_strings)


def _end_of_turn(tokenizer: Tokenizer) -> list[int]:
    """The control token that the template puts behind an assistant's text.

    With channels also that of a message which others may follow: thoughts after the answer.
    """
    channels = _has_channels(tokenizer) and _END in tokenizer.special_strings
    ends = tokenizer.encode_template(_END, continuing=True)[:1] if channels else []
    mark = _mark()
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
    try:
        text = tokenizer.render(turns, add_generation_prompt=False)
    except Exception:  # as above
        return ends
    closing = text.partition(mark)[2].lstrip()
    longest_first = sorted(tokenizer.special_strings, key=len, reverse=True)
    for token in longest_first:
        if closing.startswith(token):
            return tokenizer.encode_template(token, continuing=True)[:1] + ends
    return ends


def _encode(tokenizer: Tokenizer, texts: list[tuple[str, bool]], *, continuing: bool) -> list[int]:
    """Ids of template text with the user's text (True) in it.

    Encoded as one where that gives no control sequence but the template's: it is what the model saw
    in training.  Else apart, the user's as plain text.
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
