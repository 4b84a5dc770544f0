"""Read questions about a table: which columns, rows and figures they ask for.

Only the words of a question and the header decide. A question in which a word is neither of the
grammar below nor of the header is none, and a model answers it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from kvstream.exact.routing import pattern_of

OPERATIONS = {
    "max": "largest|highest|biggest|greatest|latest|maximum|maximal|max|most",
    "min": "smallest|lowest|earliest|minimum|minimal|min|least|fewest",
    "sum": "sum total|total sum|sum|total",
    "mean": "arithmetic mean|mean|average|avg",
    "median": "median",
}
ROW_WORDS = frozenset(("row", "record", "entry", "line", "item", "one", "data", "table"))
"""Words for the rows themselves, in the singular."""
LABELS = frozenset(("id", "no", "nr", "number", "code", "zip", "key", "index", "phone", "date"))
"""Words of columns whose numbers are names: nobody means their sum by ``total orders``."""
_FILLERS = frozenset(("the", "a", "an", "all", "of", "column", "field", "value", "its", "their"))
_ALL = "|".join(OPERATIONS.values())
_BEST = f"{OPERATIONS['max']}|{OPERATIONS['min']}"
_POLITE = r"(?:(?:please|can you|could you|would you|tell me|i want to know|so|and)[, ]+)*"
_LEAD = (
    r"(?:(?:what(?: is|'s| are| was| were)|how (?:much|high|large|big) is|give me|show(?: me)?|find"
    r"|compute|calculate|get|determine|report|print)(?: me)? )?"
)
_WHERE = (
    r"(?: (?P<link>where|whose|with|without|having|for which|in which|that have|which have|when|if"
    r"|that has|that are|which are) (?P<where>.+?)| (?:in|for|from|of|among) (?P<anywhere>.+?))?"
)
_HAS = (
    r"(?:has|have|had|with|shows?|holds?|having|that has|earns?|gets?|makes?|pays?|costs?|scores?)"
)
_AMOUNT = r"(?:(?:number|amount|quantity|value|count)s? of )?(?:the )?"
_MANY = rf"(?:how many|{_LEAD}(?:the )?(?:total )?number of|count(?: all| the| of)*)"
_LINK = (
    r"(?P<link>where|whose|with|without|having|for which|in which|that have|which have|have|has|had"
    r"|that has|that are|which are|are|is|were)"
)
_LIST = (
    r"(?:list|show|give|print|find|name|get|which are|what are)(?: me)?(?: (?:all|every|each|the))*"
)
_PLACE = r"(?:in|from|for|of|with|about) (?:the )?(?P<anywhere>.+)"
_THERE = r"(?: (?:are|is) (?:there|in .+)| (?:does|do|has) .+)?"
PATTERNS = (
    ("sum", rf"{_LEAD}(?:the )?total (?:number|amount|quantity) of (?P<of>.+?){_WHERE}"),
    ("distinct", rf"{_MANY} (?:different|distinct|unique) (?P<show>.+?)(?: values)?{_THERE}"),
    ("count", rf"{_MANY} (?P<show>[\w -]+?) {_LINK} (?P<where>.+)"),
    ("count", rf"{_MANY} (?P<show>rows?|records|entries){_THERE}"),
    ("count", rf"{_MANY} (?P<show>[\w -]+?)(?: are| is| were)? {_PLACE}"),
    ("", rf"(?:which|what(?: is| are|'s)?|who) ?(?P<show>.*?) {_HAS} (?:the )?(?P<op>{_BEST}) "
     rf"{_AMOUNT}(?P<of>.+?){_WHERE}"),
    ("", rf"(?:in|on|for|at) (?:which|what) (?P<show>.+?) (?:is|was|are) (?:the )?(?P<of>.+?)"
     rf" (?:the )?(?P<op>{_BEST})"),
    ("sum", rf"what (?:does|do) (?:the )?(?P<of>.+?) (?:add up|sum|sum up) to{_WHERE}"),
    ("", rf"{_LEAD}(?:the )?(?P<show>[\w -]+?) (?:with|that has|having) the (?P<op>{_BEST}) "
     rf"(?P<of>.+?){_WHERE}"),
    ("", rf"{_LEAD}(?:the )?(?P<op>{_ALL})(?: value)?s? (?:(?:of|for) )?{_AMOUNT}"
     rf"(?P<of>.+?){_WHERE}"),
    ("list", rf"{_LIST} (?P<show>.+?) (?P<link>where|whose|with|without|having|for which|in which"
     r"|that have|which have|that are|which are) (?P<where>.+)"),
    ("list", rf"{_LIST} (?P<show>[\w -]+?) {_PLACE}"),
    ("list", r"(?:which|what) (?P<show>[\w -]+?) (?P<link>have|has|had|are|with|is) (?P<where>.+)"),
    ("distinct", rf"{_LIST} (?:(?:different|distinct|unique) )(?P<show>.+)"),
)  # fmt: skip
"""Patterns of whole questions, with the operation if no word names it, tried in this order."""
_BE = r"(?:is |are |was |were |of |lies )?"
_RELATIONS = (
    ("empty", r"(?:is|are) (?:empty|missing|blank|not (?:given|set|known))"),
    ("between", rf"{_BE}between (?P<value>.+?) and (?P<end>.+)"),
    (">=", rf"{_BE}(?:at least|>=|no less than|greater than or equal to) ?(?P<value>.+)"),
    ("<=", rf"{_BE}(?:at most|<=|no more than|less than or equal to|up to) ?(?P<value>.+)"),
    (">", rf"{_BE}(?:>|(?:great|larg|bigg|high|mor)e?r? than|above|over) ?(?P<value>.+)"),
    ("<", rf"{_BE}(?:<|(?:less|lower|smaller|fewer) than|below|under) ?(?P<value>.+)"),
    ("!=", r"(?:is not|isn't|are not|was not|!=|<>|not) ?(?P<value>.+)"),
    ("contains", r"(?:contains?|includes?|containing) (?P<value>.+)"),
    ("starts", r"(?:starts?|begins?) with (?P<value>.+)"),
    ("=", r"(?:(?:is|are|was|were|equals?|==?|of|:)(?: equal to| exactly)? ?)?(?P<value>.+)"),
)


@dataclass(frozen=True)
class Condition:
    """What the cell of a column must be."""

    column: int
    relation: str
    value: str = ""
    end: str = ""
    """The other end of ``between``."""
    stated: bool = True
    """Whether a word states the relation; without one, the words may mean something else."""


@dataclass(frozen=True)
class Query:
    """What a question asks of a table."""

    operation: str
    of: int | None = None
    """The column of the figures."""
    show: int | None = None
    """The column that is shown of the rows; None: the whole row."""
    where: tuple[Condition, ...] = ()
    anywhere: str = ""
    """A value that a cell of the row must have, in a column that the question does not name."""


class AmbiguousError(Exception):
    """Words of a question fit several columns. The message says so."""


def may_ask(question: str) -> bool:
    """Return whether a question has the form of a question about a table."""
    return any(pattern_of(pattern).fullmatch(_core(question)) for _, pattern in PATTERNS)


def query_of(question: str, header: Sequence[str]) -> Query | None:
    """Return what is computed for a question, or None. Raises AmbiguousError."""
    for operation, pattern in PATTERNS:
        if found := pattern_of(pattern).fullmatch(_core(question)):
            query = _resolved(operation, found.groupdict(), header)
            if query is not None:
                return query
    return None


def _resolved(operation: str, parts: dict[str, str | None], header: Sequence[str]) -> Query | None:
    said = (parts.get("op") or "").casefold()
    operation = operation or next(o for o, words in OPERATIONS.items() if said in words.split("|"))
    of = _column(parts["of"] or "", header, figures=True) if "of" in parts else None
    if operation == "distinct":
        show, rows = _column(parts["show"] or "", header), False
    else:
        show, rows = _shown(parts.get("show") or "", header)
    if "of" in parts and of is None:
        return None
    if operation == "distinct" and show is None:
        return None
    where = _conditions(parts.get("where"), parts.get("link") or "", header)
    selects = operation in ("count", "list")
    if where is None or (selects and show is None and not rows and not where):
        return None
    anywhere = re.sub(r"^(?:(?:all|each|every|the|an?) )+", "", parts.get("anywhere") or "")
    if selects or not _is_every(anywhere, header):
        located = _located(anywhere, header)
        return Query(operation, of, show, where + located, "" if located else _unquoted(anywhere))
    return Query(operation, of, show, where)


def _is_every(phrase: str, header: Sequence[str]) -> bool:
    """Return whether words such as ``orders``, of the column ``order_id``, mean every row."""
    every = words_of(phrase) if phrase.endswith("s") else ()
    names = ([word for word in words_of(name) if word not in LABELS] for name in header)
    return bool(every) and (every[0] in ROW_WORDS or [*every] in names)


def _located(phrase: str, header: Sequence[str]) -> tuple[Condition, ...]:
    """Return the condition of a column and a value: ``region south`` or ``south region``."""
    value, _, last = phrase.rpartition(" ")
    for words in (phrase, f"{last} {value}"):
        with suppress(AmbiguousError):
            if value and (found := _condition(words, "for", header)) and not found.stated:
                return (found,)
    return ()


def _shown(phrase: str, header: Sequence[str]) -> tuple[int | None, bool]:
    """Return the column that is shown, and whether the words mean rows."""
    if not phrase or ROW_WORDS.intersection(words_of(phrase)[:1]):
        return None, True
    for words in dict.fromkeys((phrase, phrase.partition(" of ")[0])):
        with suppress(AmbiguousError):  # the whole row then has all of these columns
            if (column := _column(words, header)) is not None:
                return column, False
    return None, False


def _conditions(text: str | None, link: str, header: Sequence[str]) -> tuple[Condition, ...] | None:
    """Return the conditions in words; None if they are none."""
    if not text:
        return ()
    if re.search(r"\bor\b", text) and not re.search(r"[\"'].*\bor\b.*[\"']|than or", text):
        return None
    whole = _condition(text, link, header)
    pieces = re.split(r",? and (?:whose |where |with |the )?", text)
    if len(pieces) > 1 and (whole is None or whole.relation != "between"):
        found = [_condition(piece, link, header) for piece in pieces]
        if all(found):
            return tuple(each for each in found if each is not None)
    return None if whole is None else (whole,)


def _condition(text: str, link: str, header: Sequence[str]) -> Condition | None:
    empty = re.match(r"(?:an? )?(?:empty|missing|blank|no) (.+)", text, re.IGNORECASE)
    if empty or link.casefold() == "without":
        column = _column(empty[1] if empty else text, header)
        return None if column is None else Condition(column, "empty")
    words = text.split()
    for count in range(len(words) - 1, 0, -1):
        phrase, rest = " ".join(words[:count]), " ".join(words[count:])
        if not words[count - 1][-1:].isalnum() and words[count - 1][-1:] not in "\"'”’)%":
            continue  # a sign of the relation
        if (column := _column(phrase, header)) is None:
            continue
        for relation, pattern in _RELATIONS:
            if found := pattern_of(pattern).fullmatch(rest):
                parts = found.groupdict()
                stated = relation != "=" or found.start("value") > 0
                if not stated and link.casefold() in ("is", "are", "was", "were", "when", "if"):
                    continue
                value, end = (_unquoted(parts.get(key) or "") for key in ("value", "end"))
                return Condition(column, relation, value, end, stated)
    return None


def _column(phrase: str, header: Sequence[str], *, figures: bool = False) -> int | None:
    """Return the one column with these words; with `figures`, LABELS must be among them."""
    asked = words_of(_unquoted(phrase.strip()))
    if not asked:
        return None
    names = [words_of(name) for name in header]
    found = [i for i, name in enumerate(names) if name == asked]
    if not found:
        parts = [set(name) - set(asked) for name in names]
        found = [i for i, name in enumerate(names) if set(asked) <= set(name)]
        found = [i for i in found if not (figures and parts[i] & LABELS)]
    if len(found) > 1:
        fitting = ", ".join(header[i] or f"column {i + 1}" for i in found)
        raise AmbiguousError(
            f'"{phrase.strip()}" fits several columns: {fitting}. Name one of them.'
        )
    return found[0] if found else None


@cache
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name for comparison: small, singular, without articles."""
    apart = re.sub(r"(?<=[a-z\d])(?=[A-Z])", " ", name)
    found = tuple(singular(word) for word in re.findall(r"[^\W_]+|%", apart.casefold()))
    return tuple(word for word in found if word not in _FILLERS) or found


def singular(word: str) -> str:
    """Return a word without the s of a plural."""
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 2 and word[-1] == "s" and word[-2] not in "su" else word


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'“”‘’`")


def _core(question: str) -> str:
    """Return a question without polite words and final signs."""
    text = " ".join(question.split()).rstrip("?!. ")
    text = re.sub(r",? (?:in|of|from) (?:the|this|that) (?:table|file|data|csv|tsv|sheet|dataset)$",
                  "", text, flags=re.IGNORECASE)  # fmt: skip
    return re.sub(f"^{_POLITE}", "", text, flags=re.IGNORECASE)
