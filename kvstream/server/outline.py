"""The marked sections of a prompt: headings, labels and tags with what they hold."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

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
    "task": re.compile(rf"(?:{_OWN} )?(?:{_TASK})"),
    "text": re.compile(rf"(?:.* )?(?:{_TEXT})(?: .*)?"),
}
_MARK = re.compile(
    rf"""(?:^|(?<=>))[ \t]*(?:(?:[->]|\*(?!\*)|\d+[.)])[ \t]+)?(?:
    \#{{1,6}}[ \t]+(?P<heading>[^\n:：]{{1,80}})[:：]?\**
    |(?:\*\*|__)(?P<bold>[^\n*_:：]{{1,60}})(?:[:：](?:\*\*|__)|(?:\*\*|__)(?:[:：]|(?=[ \t\r]*$)))
    |(?:[=-]{{2,}}|\[)[ \t]*(?P<rule>[\w '’-]{{1,40}}?)[ \t]*(?:[=-]{{2,}}|\])[:：]?(?=[ \t\r]*$)
    |(?P<label>(?:{_OWN}[ _-])?(?:{_TASK}|{_QUERY}|{_TEXT}))[ \t]*(?:[:：]|(?=\r?$))
    |(?P<line>[^\W\d][\w '’-]{{0,40}})[:：](?=[ \t\r]*$)
    |<(?P<tag>[^\W\d][\w-]*)(?:[ \t][^<>\n]*)?>
    )""",
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


def sections(text: str) -> list[Section]:
    """Return the sections in their order. A tag with all that it holds is one section."""
    found: list[Section] = []
    at = 0
    while (mark := _MARK.search(text, at)) is not None:
        at = mark.end()
        tag, end, kind = mark["tag"], len(text), _kind(mark[mark.lastgroup or 0])
        if tag is not None:
            end = text.find(f"</{tag}>", at)
            if end < 0:
                continue
            at = end + len(f"</{tag}>")
        if found and not found[-1].tagged:
            found[-1] = replace(found[-1], end=mark.start(), after=mark.start())
        if tag is None:
            found.append(Section(kind, False, mark.start(), mark.end(), end, end))
        else:
            found.append(Section(kind or "text", True, mark.start(), mark.end(), end, at))
    return found


def without_marks(text: str) -> str:
    """Return a text without the marks of its sections."""
    return _MARK.sub("", text)


def _kind(name: str) -> Kind:
    name = re.sub(r"[\W_]+", " ", name.casefold().replace("’s", "s").replace("'s", "s")).strip()
    kinds: tuple[Kind, ...] = ("query", "task", "text")
    return next((kind for kind in kinds if _NAME[kind].fullmatch(name)), "")
