"""The marked sections of a prompt: headings, labels and tags with what they hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from kvstream.server.asking import asks, asks_without_mark

REACH = 8000
"""Characters at each end of a message in which its question is searched."""
GAP = re.compile(r"\n[ \t\r]*\n\s*|(?<=[.:!?\"”)])[ \t\r]*\n[ \t]*[-=_*]{4,}[ \t\r]*\n\s*")
"""Empty lines, or a line between sentences. (Under words, such a line makes them a heading.)"""
_DEFERS = re.compile(r"\b(?:answer|respond|reply)\b[^.\n]*\b(?:query|questions?)\b", re.I)
_OPENING = re.compile(r"[^\n]{1,400}?(?:[.!?:](?=\s)|[。！？：]|\n)")
"""A first sentence, or the words before a colon."""
_FENCES = ("```", '"""', "'''", "~~~", "---", "===", "###")
_FENCE = re.compile(
    r"(?:^|(?<=[.!?:])[ \t]?)(?:```|~~~|\"\"\"|\'\'\')|^[=-]{3,}[ \t\r]*$", re.MULTILINE
)
"""The beginning of a quoted text, or a line between texts."""
_FENCED = re.compile(r"\A```(?:json)?\s*(?=\{)|(?<=\})\s*```\Z")
_JOINT = "\n\n# ...\n\n"
"""Stands for the middle of a long message. No section extends over a heading."""
_TRIED = 8
"""Maximum number of sections that are tried: a text may consist of marks."""
_OWN = r"(?:the|your|my|users?|user[’']s|main|current|final|new|latest|last|follow[ _-]?up)"
_TASK = (
    "tasks?|instructions?|directives?|prompt|command|goal|objective|assignment|request|aufgabe|"
    "anweisung(?:en)?|auftrag|tâche|consignes?|tarea|instrucci[oó]n(?:es)?|istruzioni|compito|"
    "задани[ея]|任务|指令|指示|要求|タスク"
)
_QUERY = "questions?|query|frage|pregunta|domanda|вопрос|问题|問題|質問|질문"
_TEXT = (
    "texts?|context|documents?|sources?|passages?|articles?|chat|history|conversation|transcript|"
    "contents?|inputs?|messages?|e?mails?|excerpts?|data|dialog(?:ue)?|notes?|story|report|letter|"
    "kontext|verlauf|texte|texto|testo|текст|正文|文本|内容|对话|文章|本文"
)
_NAME = {
    "query": re.compile(rf"(?:{_OWN} )?(?:{_QUERY})"),
    "task": re.compile(rf"(?:{_OWN} )?(?:{_TASK}|task description)|your job|what (?:i want|to do)"),
    "text": re.compile(rf"(?:.* )?(?:{_TEXT})(?: .*)?"),
}
# A name in small letters that is indented is a field of code or data.
_MARK = re.compile(
    rf"""(?:^|(?<=>))(?!(?-i:[ \t]+[a-z_]+[:：][ ]*[^\s]))[ \t]*
    (?:(?:[->]|\*(?!\*)|\d+[.)])[ \t]+)?(?:
    \#{{1,6}}[ \t]+(?P<heading>[^\n:：]{{1,80}})[:：]?\**
    |(?:\*\*|__)(?P<bold>[^\n*_:：]{{1,60}})(?:[:：](?:\*\*|__)|(?:\*\*|__)(?:[:：]|(?=[ \t\r]*$)))
    |(?:[=-]{{2,}}+|\[)[ \t]*(?P<rule>/?[\w '’-]{{1,40}}?)[ \t]*(?:[=-]{{2,}}|\])[:：]?(?=[ \t\r]*$)
    |(?P<label>(?:{_OWN}[ _-])?(?:{_TASK}|{_QUERY}|{_TEXT}))(?:[ ]is)?[ \t]*(?:[:：]|(?=\r?$))
    |\[\[[ ]?\#\#[ ](?P<field>[\w ]{{1,40}}?)[ ]\#\#[ ]?\]\]
    |(?P<line>[^\W\d][\w '’-]{{0,40}})[:：](?=[ \t\r]*$)
    |<(?!(?:p|div|span|[bi]|em|strong|h[1-6]|[uo]l|li|t[drh])\b)
        (?P<tag>[^\W\d][\w-]*)(?:[ \t][^<>\n]*)?>
    )(?:[ \t\r]*\n[=-]{{3,}}(?=[ \t\r]*$))?""",
    re.MULTILINE | re.IGNORECASE | re.VERBOSE,
)

Kind = Literal["query", "task", "text", ""]


@dataclass(frozen=True)
class Section:
    """A marked part of a text, by its places."""

    kind: Kind
    """What its name promises; empty for another name."""
    tagged: bool
    begin: int
    """Where its mark begins."""
    start: int
    """Where its content starts, and where it ends."""
    end: int
    after: int
    """The end of its closing tag, if it has one."""


class Outline:
    """The sections at both ends of a message, up to REACH characters from them."""

    def __init__(self, message: str) -> None:
        self._message = self._window = message
        if len(message) > 2 * REACH:
            self._window = f"{message[:REACH]}{_JOINT}{message[-REACH:]}"
        self._sections = _sections(self._window)

    @property
    def begins_as_text(self) -> bool:
        """Whether the message begins with a mark that announces a text."""
        return any(s.begin == 0 and s.kind == "text" for s in self._sections[:1])

    def before_text(self, first: str) -> str:
        """Return the first paragraph, or what is before a fence or a mark of a text in it."""
        begins = [s.begin for s in self._sections if s.kind == "text" and s.begin][:1]
        begin = min([len(first), *begins, *(fence.start() for fence in _FENCE.finditer(first))])
        return first[:begin].rstrip() if asks(first[:begin].rstrip()) else first

    @property
    def ends_quoted(self) -> bool:
        """Whether the message ends with a quoted text: in a tag, or between fences."""
        fence = self._window[-3:]
        if fence in _FENCES:
            return self._window.count(fence) % 2 == 0
        return any(s.tagged and self._ends(s) for s in self._sections[-_TRIED:])

    def _ends(self, section: Section) -> bool:
        """Return whether nothing follows a section, except empty ones."""
        return _is_empty(self._window[section.after :])

    def instruction(
        self, fits: Callable[[str], bool], *, first_asks: bool, last_asks: bool
    ) -> tuple[str, str] | None:
        """Return what a section asks, and the message without it; a question before a task."""
        in_text = any(s.kind == "text" and s.after == len(self._window) for s in self._sections)
        asking = [s for s in self._sections if s.kind in ("query", "task") and self._content(s)]
        for section in sorted(asking, key=self._rank)[:_TRIED]:
            instruction = self._instruction(section, fits)
            if instruction is None:
                continue
            leads, question = section.begin == 0, instruction[0]
            if last_asks and (defers(question) or not (in_text or (leads and asks(question)))):
                return None
            final = section.kind == "query" and (section.tagged or self._ends(section))
            return instruction if leads or final or not first_asks else None
        return None

    def _content(self, section: Section) -> str:
        return self._window[section.start : section.end].strip()

    def _rank(self, section: Section) -> tuple[int, int]:
        if section.kind == "query":
            return 0, -section.begin
        return 1 + (not asks(self._content(section))), section.begin

    def _instruction(self, section: Section, fits: Callable[[str], bool]) -> tuple[str, str] | None:
        """Return the content of a section, or its beginning if it is long or the whole message."""
        content = self._content(section)
        before, after = self._window[: section.begin], self._window[section.after :]
        alone = _is_empty(before + after)
        line, opening = content.partition("\n")[0], opening_of(content)
        for piece in (content, GAP.split(content)[0], line, opening):
            piece, whole = piece.strip(), piece == content
            if not piece or (whole and alone) or not fits(piece):
                continue
            begin = section.after
            if not whole:
                begin = self._window.index(content, section.start) + len(piece)
            rest = self._message[: self._place(section.begin)], self._message[self._place(begin) :]
            return piece, "\n\n".join(map(str.strip, rest)).strip()
        return None

    def _place(self, at: int) -> int:
        if self._window is self._message:
            return at
        from_end = len(self._window) - at
        return len(self._message) - from_end if from_end <= REACH else min(at, REACH)


def fields_of(message: str) -> tuple[str, str] | None:
    """Return what a message in JSON asks, and its other fields as text; None for other messages."""
    message = _FENCED.sub("", message)
    if not (message.startswith("{") and message.endswith("}")):
        return None
    try:
        fields = json.loads(message)
    except (ValueError, RecursionError):
        return None
    texts = [
        key for key, value in fields.items()
        if isinstance(value, str) and (asks(value) or asks_without_mark(value))
    ]  # fmt: skip
    for kind in ("query", "task"):
        name = next((key for key in texts if _kind(key) == kind), None)
        if name is not None:
            question = fields.pop(name)
            others = ((key, _plain(value)) for key, value in fields.items())
            return question, "\n\n".join(f"{key}: {value}" for key, value in others)
    return None


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def defers(task: str) -> bool:
    """Return whether a task is to answer a question that stands elsewhere."""
    return _DEFERS.search(task) is not None


def opening_of(text: str) -> str:
    """Return the first sentence of a text, or the words before its first colon; empty if long."""
    match = _OPENING.match(text)
    return match[0].strip() if match else ""


def _is_empty(text: str) -> bool:
    """Return whether a text has only the marks of sections and the ends of tags."""
    return not re.sub(r"</[\w-]+>", "", _MARK.sub("", text)).strip()


def _sections(text: str) -> list[Section]:
    """Return the sections in their order. A tag with all that it holds is one section."""
    sections: list[Section] = []
    at = 0
    while (mark := _MARK.search(text, at)) is not None:
        at = mark.end()
        tag, end, kind = mark["tag"], len(text), _kind(mark[mark.lastgroup or 0])
        if tag is not None:
            end = text.find(f"</{tag}>", at)
            after = end + len(f"</{tag}>")
            whole = not mark.start() and after == len(text.rstrip())
            if end < 0 or (whole and kind == "task"):  # <prompt> around other tags
                continue
            around = not text[: mark.start()].strip() and not text[after:].strip()
            if around and _MARK.search(text, at, end):  # the sections are inside
                continue
            at = after
        if sections and not sections[-1].tagged:
            sections[-1] = replace(sections[-1], end=mark.start(), after=mark.start())
        if tag is None:
            sections.append(Section(kind, False, mark.start(), mark.end(), end, end))
        else:
            sections.append(Section(kind or "text", True, mark.start(), mark.end(), end, at))
    return sections


def _kind(name: str) -> Kind:
    if name.startswith("/"):  # the end of what [NAME] begins
        return ""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)  # userRequest
    name = re.sub(r"^\d+\W+", "", name)
    name = re.sub(r"[\W_]+", " ", name.casefold().replace("’s", "s").replace("'s", "s")).strip()
    kinds: tuple[Kind, ...] = ("query", "task", "text")
    name = re.sub(r"^\d+ ", "", name)  # ## 1. Task
    return next((kind for kind in kinds if _NAME[kind].fullmatch(name)), "")
