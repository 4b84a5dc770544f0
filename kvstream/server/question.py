"""Splitting of a message into the text to read and the question."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvstream.server import asking
from kvstream.server.asking import announces, asks, asks_without_mark, ends_as_question
from kvstream.server.sections import GAP, REACH, Outline, defers, fields_of, opening_of

MOST = 200
"""Maximum number of tokens of a question that is found in a message."""
_LABEL = re.compile(r"\s*\n[^\w\n]*(?:[\w;-]+[ \t]+){0,3}[\w;-]+[ \t]*[:：]$")
"""A last line, such as "Answer:" or "The title is:", with which prompts end after the question."""
_LONGEST_LABEL = 80
_WORK = re.compile(
    r"\b(?:summary|tl;?dr|title|headline|keywords|topics?|translation|zusammenfassung|titel|résumé|"
    r"titre|resumen|título)\W*$",
    re.IGNORECASE,
)
"""A label that tells what to make of a text, if nothing else does."""
_ANNOUNCES = re.compile(r"^(?!.*(?:question|answer|frage)).*[:：]$", re.IGNORECASE | re.DOTALL)
"""A request to do something with all that follows."""
_WRAPPED = re.compile(r"\w[,;:–—-]?$")
"""The end of a line that continues on the next one."""
_FOLLOWS = re.compile(
    r"(?:please[ ,]+)?(?:answer|respond|reply|be|keep|use|limit|format|return|output|cite|quote|"
    r"explain|think|include|give|write|do not|don[’']t|only|in one|note|remember|important|hint|"
    r"let[’']s|make sure|avoid)\b(?!.*[?？])|\([^()?]*\)\Z|"
    r"#*\W*(?:\d+\W+)?(?:answer|response|output)\W*\Z|"
    r"\(?(?:[A-Ha-h]|\d)[).:]\s|"
    r"(?:many |best |kind |warm )?"
    r"(?:thanks?|thank you|regards|cheers|greetings|best|yours|sent from)\b[^?.]{0,40}\Z|"
    r"-- ?\n[^?]{0,200}\Z",
    re.IGNORECASE,
)
"""The beginning of a paragraph that belongs to a question before it: the manner of the answer,
one of several choices, a closing, or the signature of mail."""
_MOST_FOLLOWING = 9
_GREETS = re.compile(
    r"(?:hi|hello|hey|dear|good (?:morning|day|evening)|hallo|bonjour|hola|here)\b[^?\n]{0,60}\Z",
    re.IGNORECASE,
)
_LITTLE = 16
"""Maximum number of tokens of a remark beside the question in a conversation."""
_TAGS = re.compile(r"\A<[\w-]+>\s*|\s*</[\w-]+>\Z")
_CLOSED = re.compile(r"(?:</[\w-]+>|```)$")


@dataclass(frozen=True)
class Split:
    """A message as text and question. Together they contain the whole message, except the mark of
    an instruction (``### Task:``)."""

    text: str
    """The text to read; empty if the message is only a question."""
    question: str
    place: str
    """Where the question was found: ``message``, ``instruction``, ``last paragraph``, ``first
    paragraph``, ``first sentence``, ``last sentences``, ``system message`` or ``request``."""
    asks: bool = True
    """Whether it is a question or a request, as far as its words show."""


def split(message: str, count: Callable[[str], int], *, alone: bool) -> Split:
    """Split a message into text and question; ``count`` returns the number of tokens of a text.

    An instruction is behind a heading, a label or a tag that announces it (`_instruction`). If
    there is other text to read (not `alone`), a message of at most MOST tokens is the question,
    unless it has a text and a question about it. In other messages, the question is the last
    paragraph, or the first one if only the first asks. If the paragraph has more than MOST tokens,
    its last sentences are the question. A message of one paragraph that is `alone` and has at most
    MOST tokens is both text and question. A label such as "Answer:" at the end belongs to the
    paragraph before it.
    """
    message = message.strip()

    def fits(text: str) -> bool:
        return len(text) <= REACH and count(text) <= MOST

    fields = fields_of(message)
    if fields is not None and fields[1] and fits(fields[0]):
        return Split(fields[1], fields[0].strip(), "instruction")
    label = _LABEL.search(message, max(0, len(message) - _LONGEST_LABEL))
    body = message if label is None else message[: label.start()].rstrip()
    end = message[len(body) :]
    outline = Outline(body)
    first, last = _paragraphs(body)
    single = first == last == body
    first = first if single else outline.before_text(first)
    last_asks = fits(last) and not outline.ends_quoted and (asks(last) or asks_without_mark(last))
    first_asks = not (single or outline.begins_as_text) and fits(first) and asks(first)
    task = first_asks and _ANNOUNCES.search(first)
    last_asks = last_asks and not task
    if label and not (first_asks or last_asks):  # the end of a conversation: "Assistant:"
        last_asks = fits(last) and asks(asking.without_role(last))
    if instruction := outline.instruction(fits, first_asks=first_asks, last_asks=last_asks):
        return Split(instruction[1], instruction[0] + end, "instruction")
    rest = body[: len(body) - len(last)] if last_asks else body[len(first) :] * first_asks
    about = task or (not asks(rest.strip()) and count(rest[:REACH]) > _LITTLE)
    if fits(message) and (single or not (alone or about)):
        question = (
            asks(body) or first_asks or last_asks or (single and not alone)
            or asking.STATEMENT.search(body) is None
        )  # fmt: skip
        return Split(message if alone else "", message, "message", question)
    opening = opening_of(body)
    if first_asks and not last_asks:
        wraps = _ANNOUNCES.search(opening) and not re.search("[?？]", first[len(opening) :])
        first = opening if wraps else first
        return Split(message[len(first) :].strip(), first, "first paragraph")
    if asks(opening) and fits(opening) and not asks(asking.SENTENCE.split(last[-REACH:])[-1]):
        return Split(message[len(opening) :].strip(), opening, "first sentence")
    if not (last_asks or single or outline.begins_as_text) and announces(first) and fits(first):
        # With a capital, it can also be a title.
        certain = first[:1].islower()
        return Split(message[len(first) :].strip(), first, "first paragraph", certain)
    if fits(last) and not single:
        if not last_asks and _WORK.search(end):
            return Split(body, end.strip(), "last paragraph")
        text = body[: len(body) - len(last)].strip()
        words = asking.unmarked(last) + end if last_asks else last + end
        return Split(text, words, "last paragraph", last_asks)
    return _last_sentences(message, fits)


def instruction_of_system(system: str, message: str, count: Callable[[str], int]) -> str | None:
    """Return what a system message asks to do with a message that asks nothing, if anything."""
    system = system[:REACH].strip()
    halves = split(system, count, alone=True)
    if halves.place == "instruction":
        return halves.question
    parts = (_TAGS.sub("", part) for part in (system, *GAP.split(system)))
    requests = (part for part in parts if asking.asks_of_a_text(part, message))
    return next((part for part in requests if count(part) <= MOST), None)


def _paragraphs(message: str) -> tuple[str, str]:
    """Return the first and the last paragraph.

    Without empty lines, return the first and the last line. A last line that asks alone is the last
    paragraph. Return the message twice if it has one line.
    """
    for gap in (GAP, re.compile("\n")):
        head, tail = message[:REACH], message[-REACH:]
        begins = gap.search(head)
        ends = list(gap.finditer(tail))
        if begins or ends:
            first = head[: _end_of_first(head, gap, begins)] if begins else message
            starts = [match.end() for match in ends]
            last = _with_question(tail, starts) if ends else message
            return first.strip(), _last_line(last.strip())
    return message, message


def _end_of_first(head: str, gap: re.Pattern[str], begins: re.Match[str]) -> int:
    """Return where the first paragraph ends, or the question after it, if it is a greeting or the
    manner of an answer. At least one paragraph is left.
    """
    after = gap.search(head, begins.end())
    opening = head[: begins.start()].strip()
    if after is None or not (_FOLLOWS.match(opening) or _GREETS.match(opening)):
        return begins.start()
    question = head[begins.end() : after.start()]
    alone = "\n" not in question and ends_as_question(question) and asks(question)
    return after.start() if alone else begins.start()


def _with_question(tail: str, starts: Sequence[int]) -> str:
    """Return the last paragraph with the question that it follows, and with questions before it.

    At least one paragraph is left.
    """
    last = tail[starts[-1] :]
    parts = [tail[a:b].strip() for a, b in pairwise((*starts, len(tail)))]
    at = len(parts) - 1
    while at > max(0, len(parts) - _MOST_FOLLOWING) and _FOLLOWS.match(parts[at]):
        at -= 1
    if not ends_as_question(parts[at]):
        return last
    while at and "\n" not in parts[at - 1] and ends_as_question(parts[at - 1]) and asks(parts[at]):
        at -= 1
    return tail[starts[at] :]


def _last_line(paragraph: str) -> str:
    """Return the last line if only this line asks, else the paragraph.

    A file ends with one line break, so a question after it is a line of its last paragraph.
    """
    before, _, line = (part.strip() for part in paragraph[-REACH:].rpartition("\n"))
    if _CLOSED.search(before) and asks(line):
        return line
    mark = re.search(r"[?？][ \t\r]*$", before, re.MULTILINE)
    others_ask = mark or (asks(before) and not defers(before))
    alone = before and not others_ask and not _WRAPPED.search(before)
    return line if alone and asks(line) else paragraph


def _last_sentences(message: str, fits: Callable[[str], bool]) -> Split:
    """Use the last sentences that fit, or a part of the last sentence if it is too long."""
    tail = message[-REACH:]
    starts = [match.end() for match in asking.SENTENCE.finditer(tail)]
    question = _longest(tail, starts, fits)
    if not question:
        after = starts[-1] if starts else 0
        words = [match.end() for match in re.finditer(r"\s+", tail) if match.end() >= after]
        question = _longest(tail, words, fits)
    size = MOST
    while not question:  # one very long word
        question = tail[-size:] * fits(tail[-size:])
        size //= 2
    text = message[: len(message) - len(question)].strip()
    last = asking.SENTENCE.split(_LABEL.sub("", question))[-1]
    return Split(text, question, "last sentences", asks(last))


def _longest(tail: str, starts: Sequence[int], fits: Callable[[str], bool]) -> str:
    """Return the longest tail that fits and begins at one of `starts`, or an empty text."""
    at = bisect_left(starts, True, key=lambda start: fits(tail[start:]))
    # A later start can give one token more than an earlier one.
    return next((tail[start:] for start in starts[at:] if fits(tail[start:])), "")
