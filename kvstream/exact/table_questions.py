"""Read questions about a table: which columns, rows and figures they ask for.

A question is read word by word. Each stretch of it is an operation, a column of the header, a value
of the first rows, a comparison, or a word that changes nothing. A question in which a word is none
of these is no question about the table, and a model answers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kvstream.exact import table_words as terms
from kvstream.exact.routing import pattern_of
from kvstream.exact.table_words import loose, related, singular, words_of
from kvstream.input.table_reader import NAMED

LONGEST = 6
"""Words of a value or a column."""
MOST_WORDS = 40
"""Words of a question that may be one about a table."""


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
    by: int | None = None
    """The column whose values make groups; each has a figure of the operation."""
    best: str = ""
    """Of groups: ``max`` or ``min`` if only the first of them is asked for."""


@dataclass(frozen=True)
class Sample:
    """What the first rows of a table say about its columns."""

    values: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Values as `loose` writes them, with their columns and a spelling in each."""
    figures: frozenset[int] = frozenset()
    """Columns whose cells are numbers that name no rows."""
    numeric: frozenset[int] = frozenset()
    """Columns whose cells are numbers, also those that name rows."""
    flags: Mapping[int, Mapping[bool, str]] = field(default_factory=dict)
    """Columns whose cells say yes or no, with the words for it."""
    dates: frozenset[int] = frozenset()
    """Columns whose cells are dates as in ISO 8601."""
    shared: frozenset[int] = frozenset()
    """Columns in which rows have the same value."""
    complete: bool = False
    """Whether these are all rows."""
    about: frozenset[str] = frozenset()
    """Words of the names of the files, which say nothing about a row."""


class AmbiguousError(Exception):
    """Words of a question fit several columns. The message says so."""


def may_ask(question: str, names: Sequence[str] = ()) -> bool:
    """Return whether a question may be one about the rows of a table.

    `names`: the texts; if these are not all tables by their names, it needs a word for figures.
    """
    text, tables = core(question), bool(names) and all(map(NAMED.search, names))
    few = len(text.split()) <= MOST_WORDS
    return few and (tables or pattern_of(terms.ASKS).search(text) is not None)


def asks_figure(question: str) -> bool:
    """Return whether a question has a word for a figure, such as `sum` and `largest`."""
    return pattern_of(terms.FIGURE).search(core(question)) is not None


def query_of(question: str, header: Sequence[str], sample: Sample | None = None) -> Query | None:
    """Return what is computed for a question, or None. Raises AmbiguousError."""
    text = core(question)
    few = len(text.split()) <= MOST_WORDS
    return _Reading(text, header, sample or Sample()).query() if few else None


@dataclass
class _Part:
    """A stretch of a question."""

    kind: str
    """``op`` (an operation), ``implied`` (the same with its column), ``column``, ``value``,
    ``amount`` (a comparison), ``group``, ``which``, ``every``, ``rows``, ``persons``, ``about``,
    ``before``, ``not``, ``does`` (a verb), or ``unknown``. Later, a column is ``used``,
    ``flag`` or ``each``, a value ``given``, and what was unknown a ``noun`` or a ``verb``.
    """
    text: str
    begin: int
    data: Any = None


class _Reading:
    """Reads one question with the header and the first rows of a table."""

    def __init__(self, text: str, header: Sequence[str], sample: Sample) -> None:
        self.text, self.header, self.sample = text, header, sample
        self.lists = pattern_of(terms.LIST).match(text)
        self.names = [words_of(name) for name in header]
        self.about = sample.about.union(*(g for g in terms.SAME if g & sample.about))
        persons = {c for c, name in enumerate(self.names) if terms.PEOPLE.intersection(name)}
        if (persons or terms.PEOPLE & self.about) and not persons & sample.shared:
            self.about |= terms.PERSONS  # each row is one
        times = {c for c in sample.numeric if terms.YEARS.intersection(self.names[c])}
        times |= sample.dates
        self.times = [c for c in times if terms.YEARS.issuperset(self.names[c])] or [*times]
        """Columns of dates or years; only those without another name, if there are such ones."""
        self.begun = False
        """Whether a part says what is asked for."""
        self.several = ""
        """The message about a value of several columns."""
        self.where: tuple[Condition, ...] | None = ()
        self.parts = [part for part in self._split() if part.kind != "empty"]

    def _split(self) -> Iterator[_Part]:
        """Yield the longest stretches that are known, up to conditions, which `where` gets."""
        tokens = [*terms.TOKEN.finditer(self.text)]
        at = 0
        while at < len(tokens):
            begin = tokens[at].start()
            for end in range(min(len(tokens), at + LONGEST), at, -1):
                phrase = self.text[begin : tokens[end - 1].end()]
                behind = self.text[tokens[end - 1].end() :].strip()
                if end - at < 3 and at and phrase.casefold() in terms.LINKS and behind:
                    where = None
                    with suppress(*[AmbiguousError] * (phrase.casefold() in terms.UNSURE)):
                        where = self._conditions(behind, phrase)
                    if where or phrase.casefold() in ("where", "whose"):
                        self.where = where
                        return
                found = self._part(phrase, behind, tokens[at]["quoted"], end - at)
                if found is not None:
                    self.begun |= found[0] not in ("empty", "which")
                    name = found[1] if found[0] in ("column", "does") else phrase
                    yield _Part(found[0], name, begin, found[1])
                    at = end
                    break

    def _part(self, phrase: str, behind: str, quoted: str | None, count: int) -> Any:
        """Return kind and data of a phrase; None if its words belong apart."""
        low, single = phrase.casefold(), count == 1
        if single and quoted:
            phrase = quoted
        elif single and terms.WORK.match(f"{low} {behind}"):
            return "empty", None
        elif low in terms.PHRASES or low in terms.TOTALLY:
            return ("op", terms.PHRASES[low]) if low in terms.PHRASES else ("total", None)
        elif terms.NOT.match(phrase if low == "will" else low):
            return "not", None
        elif low in terms.GROUPS and self._columns(behind.removeprefix("the ").split(" ")[0]):
            return "group", None
        elif (amount := _amount(low)) is not None:
            return "amount", amount
        elif self.times and count == 2 and (year := terms.IN_YEAR.match(f"{low} {behind} ")):
            return ("not", None) if year["more"] else ("amount", ("=", year[1], ""))
        for name, words, columns in terms.IMPLIED:
            fitting = self._columns(columns, any_word=True) if low in words.split("|") else []
            numbers = [each for each in fitting if each in self.sample.figures]
            if fitting:
                return "implied", (name, numbers or fitting)
            if not name and low in words.split("|") and not self._columns(phrase):
                return "empty", None
        bounded = single or terms.FILLERS.isdisjoint((low.split()[0], low.split()[-1]))
        if bounded and words_of(phrase) in {*self.names} - {()} and low not in terms.WHICH:
            return "column", phrase
        plain = single and not quoted
        if plain and low in terms.OPERATION:
            return "op", terms.OPERATION[low]
        for kind, some in terms.WORDS_OF.items():
            if plain and low in some - self.about:
                return kind, None
        if plain and terms.ROW_WORDS.intersection(words_of(low)[:1]):
            return "rows", None
        named = plain and phrase[:1].isupper() and self.begun  # somebody's name may be Will
        if plain and not (named and loose(phrase) in self.sample.values) and (
            low in terms.EMPTY or low in terms.FILLERS or low in terms.LINKS
            or (not self.begun and (low in terms.LISTS or low in terms.FRONT))
        ):  # fmt: skip
            return "empty", None
        bare = re.sub("['’]s$", "", phrase)
        if (found := self.sample.values.get(loose(bare))) is not None:
            return "value", found
        free = single or not terms.OPERATION.keys() & {*low.split()}
        if bounded and free and self._columns(phrase):
            return "column", phrase
        if quoted or single:
            own = singular(low) in self.about
            return ("about", None) if own else self._related(singular(low))
        return None

    def _related(self, word: str) -> tuple[str, Any]:
        """Return kind and data of a word that may mean a column or the rows."""
        text = self.text.lower()
        found = {
            ("does" if how == "verb" and not text.startswith(f"who {word}") else "column", own)
            for column, own in enumerate(self.header if self.sample.values else ())
            for how in (related(word, each) for each in self.names[column])
            if how and (how != "adverb" or column in self.sample.flags)
            and (how != "adjective" or f"how {word} " in text)
        }  # fmt: skip
        return found.pop() if len(found) == 1 else ("unknown", None)

    def query(self) -> Query | None:
        """Return what the question asks for, or None. Raises AmbiguousError."""
        if self.where is None:
            return None
        where = (*self.where, *self._compared(), *self._equal(), *self._flagged())
        rest = self._rest()
        unstated = [each.column for each in where if not each.stated]
        done = {*map(self._shown, self._of("does"))} - {*map(self._shown, self._of("column"))}
        odd = done or self._of("amount", "not")
        if rest is None or odd or len({*unstated}) < len(unstated):
            return None
        base = Query("", where=where + rest[0], anywhere=rest[1])
        for place, part in enumerate(self.parts):
            each = self._kind(place - 1) in ("every", "each") or self._is_rows(place)
            if part.kind == "column" and each:
                part.kind = "each"  # of all the orders, where the column is order_id
            elif part.kind == "column" and self._kind(place - 1) == "group":
                if base.by is not None or self._shown(part) in self.sample.figures:
                    return None  # two groups, or a ratio such as goals per game
                part.kind, base = "used", replace(base, by=self._column(part.text))
        said = {p.data if p.kind == "op" else p.data[0] for p in self._of("op", "implied")} - {""}
        said |= {"sum"} if not said and self._of("total") else set()
        figures = bool(said - {"count", "distinct"})
        if self._of("persons") and not said & {"sum", "mean", "median"}:
            return None  # people in a table of orders
        found = self._figure(said, base) if figures else self._selection(said, base)
        if found is not None and self.several:
            raise AmbiguousError(self.several)
        return found

    def _selection(self, said: set[str], base: Query) -> Query | None:
        """Return a query for rows, or for their number."""
        columns = self._of("column") or self._of("each")
        selected = bool(base.where or base.anywhere)
        first = next((p for p in columns if self._kind(self._ahead(p)) in ("op", "")), None)
        show = self._shown(columns[0]) if columns else None
        if "distinct" in said:
            return replace(base, operation="distinct", show=show) if len(columns) == 1 else None
        if len(columns) > 1 or (said and columns and first is None):
            return None
        compared = any(each.relation in (*terms.AMOUNTS, "between") for each in base.where)
        if said and compared and show in self.sample.shared:
            return None  # how many regions have more than 80 rows
        figures = self.sample.figures - {each.column for each in base.where}
        if said and show in figures and terms.LABELS.isdisjoint(words_of(self.header[show or 0])):
            whole = {*self.names[show or 0]} - {*words_of(columns[0].text)} <= {"sold", "number"}
            whole = whole and terms.GOOD.isdisjoint(self.names[show or 0])
            return replace(base, operation="sum", of=show) if whole else None  # how many units
        no = re.search(r"\b(?:not|no|never|without)\b|n['’]t\b", self.text)
        if no and show in self.sample.shared and not re.search(r"\b(?:where|whose)\b", self.text):
            return None  # rooms without an alarm in any of their rows
        rows = bool(self._of("rows"))
        if said and show is not None and (show in self.sample.shared or not (selected or rows)):
            return None if base.by is not None else replace(base, operation="distinct", show=show)
        if said:
            named = rows or show is not None or bool(base.where and not base.anywhere)
            films = [p for p in self._of("about") if self._kind(self._ahead(p)) == "op"]
            own = bool(films) and len(self.sample.about) < 2
            named, enough = named or own, selected or base.by is not None or rows or own
        else:
            text, asked = self.text.casefold(), ("", "which", "every")
            things = [p for p in self._of("about") if self._kind(self._ahead(p)) in asked]
            named = rows or show is not None or bool(things and " about " not in text)
            odd = text.startswith("who ") and show in self.sample.numeric | self.sample.dates
            odd = odd or (text.startswith("when ") and show not in self.times)
            enough = bool(selected and self.lists and not self._of("noun") and not odd)
        operation = "count" if said else "list"
        return replace(base, operation=operation, show=show) if named and enough else None

    def _ahead(self, part: _Part) -> int:
        """Return the place before a part and the values before it: late orders."""
        place = self.parts.index(part) - 1
        while place >= 0 and self.parts[place].kind in ("given", "flag"):
            place -= 1
        return place

    def _figure(self, said: set[str], base: Query) -> Query | None:
        """Return a query for a figure of a column."""
        at = max(self.parts.index(part) for part in self._of("op", "implied", "total"))
        words = {part.text.casefold() for part in self._of("op")}
        often, rows = words & terms.QUANTITY, self._of("rows", "about", "flag")
        columns = self._of("column")
        which = [p for p in columns if {"which", "implied"} & {self._before(p), self._before(p, 2)}]
        others = [p for p in columns if p not in which]
        after = [p for p in others if self.parts.index(p) > at]
        if implied := {column for p in self._of("implied") for column in p.data[1]}:
            if len(implied) > 1:
                raise AmbiguousError(several(self._of("implied")[0].text, implied, self.header))
            own = [p for p in after if self._shown(p) in implied]
            of = implied.pop()
        else:
            few = [] if rows else which[:1]
            groups = self.sample.shared if often and rows else ()
            last = [p for p in others if self._shown(p) not in groups][-1:]
            own = after[:1] or last or few or self._of("each")[:1]
            of = self._column(own[0].text, figures=True) if own else None
        rest = [p for p in columns if p not in own and self._shown(p) != of]
        aged = {p.text.casefold() for p in self._of("implied")} & {"oldest", "newest"}
        good = words.isdisjoint(("best", "worst")) or (of and terms.GOOD & {*self.names[of]})
        least = not words.isdisjoint(("at most", "at least")) and (after or "count" in said)
        if (
            any(p in after for p in rest)
            or least
            or not good
            or {"max", "min"} <= said
            or of in self.sample.flags
        ):
            return None
        shown = {self._shown(p) for p in rest} - {None}
        show = shown.pop() if len(shown) == 1 else None
        dated = aged and terms.YEARS & {*self.names[of or 0]}
        if dated and (show in self.sample.shared or re.match("who|whose", self.text.lower())):
            return None  # the year of a book is not the age of its author
        best = next(iter(said & {"max", "min"}), "")
        inner = said - {"max", "min", "count"}
        group = show if base.by is None else base.by
        if show is not None and base.by is not None:
            return None
        if {self._shown(p) for p in self._of("each") if p not in own} & self.sample.figures:
            return None  # the total price of all the stock
        if of is None:
            if not best and "count" in said and self._of("rows"):
                return replace(base, operation="count")
            if inner or group not in self.sample.shared or not ("count" in said or often):
                return None
            named = (own or rows) and not (best == "min" and base.where)  # a group may have none
            return replace(base, operation="count", by=group, best=best) if named else None
        if often and not inner and group in self.sample.shared and of in self.sample.figures:
            inner = {"sum"}  # who sold the most units
        if len(inner) > 1 or "distinct" in inner:
            return None
        operation = next(iter(inner), best)
        if inner and (best or base.by is not None):
            grouped = replace(base, operation=operation, of=of, by=group, best=best)
            return None if group is None else grouped
        if inner and rest:
            return None
        return replace(base, operation=operation, of=of, show=None if base.by is not None else show)

    def _of(self, *kinds: str) -> list[_Part]:
        return [part for part in self.parts if part.kind in kinds]

    def _kind(self, place: int) -> str:
        """Return the kind of the part at or before a place, but not of words such as ``of``."""
        while place >= 0 and self.parts[place].kind == "before":
            place -= 1
        return self.parts[place].kind if place >= 0 else ""

    def _before(self, part: _Part, count: int = 1) -> str:
        """Return the kind of the part before another; of the second, if the first is unknown."""
        place = self.parts.index(part)
        return self._kind(place - count) if count == 1 or self._kind(place - 1) == "unknown" else ""

    def _is_rows(self, place: int) -> bool:
        """Return whether a column stands for the rows, as in: the area of the islands."""
        part, ahead = self.parts[place], self._ahead(self.parts[place])
        plural = part.text.endswith("s") or ahead < place - 1
        over = ahead >= 0 and self.parts[ahead].text.lower() in ("of", "over", "across")
        asked = self._kind(ahead) == "which" or self._shown(part) in self.sample.figures
        return plural and over and not asked

    def _shown(self, part: _Part) -> int | None:
        """Return the column of a part; None if several fit: the whole row has all of them."""
        with suppress(AmbiguousError):
            return self._column(part.text)
        return None

    def _compared(self) -> Iterator[Condition]:
        """Yield the conditions of comparisons such as ``more than 80 units``, and of years."""
        for place, part in enumerate(self.parts):
            if part.kind != "amount":
                continue
            near = [p for p in self.parts[max(0, place - 1) : place + 2] if p.kind == "column"]
            near = [p for p in near if self._measures(self._shown(p), part)]
            timely = terms.TEMPORAL.match(part.text)  # after 2010
            some = [c for c in self.times if timely and self._measures(c, part)]
            column = self._column(near[0].text) if near else some[0] if len(some) == 1 else None
            if column is not None:
                for each in (part, *near[:1]):
                    each.kind = "used"
                relation, *ends = part.data
                dated = relation == "=" and column in self.sample.dates
                yield Condition(column, "starts" if dated else relation, *ends)

    def _measures(self, column: int | None, amount: _Part) -> bool:
        """Return whether a comparison may be one of a column; of times, only with a time."""
        if column in (*self.times, *self.sample.dates):
            return all(map(terms.YEAR.match, filter(None, amount.data[1:])))
        known = column in self.sample.numeric and not terms.TEMPORAL.match(amount.text)
        return known or column is None or not self.sample.values

    def _equal(self) -> Iterator[Condition]:
        """Yield the conditions of values, with the column that a value stands beside."""
        for place, part in enumerate(self.parts):
            if part.kind != "value":
                continue
            column = None
            beside = [*self.parts[place + 1 : place + 2], *self.parts[:place][-1:]]
            beside += [p for p in self.parts[:place] if p.kind != "before"][-1:]
            for near in beside:
                named = near.kind in ("column", "does") and self._shown(near) in part.data
                if named and column is None:
                    near.kind, column = "used", self._shown(near)
            if column is None:
                last = next((p for p in self.parts[:place][::-1] if p.kind == "given"), None)
                between = self.text[last.begin : part.begin] if last else ""
                if re.search(r"\b(?:and|or)\b", between):
                    self.several = f'"{between}{part.text}" may mean rows with one or with both.'
                if len(part.data) > 1:
                    self.several = of_several(part.text, part.data, self.header)
                column = next(iter(part.data))
            part.kind, relation = "given", "="
            for no in [p for p in self.parts[max(0, place - 2) : place] if p.kind == "not"]:
                if terms.NOT_IT.fullmatch(self.text[no.begin : part.begin].casefold()):
                    no.kind, relation = "used", "!="
            yield Condition(column, relation, part.data[column], stated=False)

    def _flagged(self) -> Iterator[Condition]:
        """Yield the conditions of columns that say yes or no: who has not paid."""
        for place, part in enumerate(self.parts):
            column = self._shown(part) if part.kind == "column" and place else None
            before, known = self.parts[place - 1], self.sample.flags.get(column or 0)
            said = before.kind != "op" or before.data == "count"
            most = before.text.lower() in terms.QUANTITY and (
                part.text[-1] == "s" or self.parts[place + 1 :]
            )
            if column is not None and known is not None and (said or most):
                wanted = before.kind != "not"
                part.kind, before.kind = "flag", before.kind if wanted else "used"
                yield Condition(column, "=", known.get(wanted, str(wanted)))

    def _rest(self) -> tuple[tuple[Condition, ...], str] | None:
        """Return what the words that nothing knows select; None if they say something else.

        They may name the rows (``how many requests``), or be a value of a row that was not seen.
        """
        for part, by, given in zip(self.parts, self.parts[1:], self.parts[2:], strict=False):
            known = part.text.casefold() in terms.VERBS
            if known and (part.kind, by.text, given.kind) == ("unknown", "by", "given"):
                part.kind = "verb"  # orders that were signed by a value
            own = re.search(r"\bif (?:i|we|you) $", self.text[: part.begin], re.IGNORECASE)
            if (
                own
                and (part.kind, by.kind) == ("unknown", "every")
                and given.kind in ("about", "rows", "each")
            ):
                part.kind = "verb"  # if I watched every film
        for place, part in enumerate(self.parts):
            if part.kind == "unknown" and self._names_rows(place):
                part.kind = "noun"
            elif part.kind == "unknown":
                begin = max((p for p in range(place) if self.parts[p].kind == "before"), default=-1)
                tail = self.parts[begin + 1 :]
                kinds = {part.kind for part in tail}
                if begin < 0 or self.sample.complete or not kinds <= {"unknown", "column"}:
                    return None
                text = self.text[self.parts[begin].begin + len(self.parts[begin].text) :].strip()
                text = re.sub(r"^(?:(?:all|each|every|the|an?) )+", "", text)
                located = self._located(text)
                for part in tail:
                    part.kind = "used"
                if located:
                    return located, ""
                return None if "column" in kinds else ((), _unquoted(text))
        return (), ""

    def _names_rows(self, place: int) -> bool:
        """Return whether a word that nothing knows names the rows."""
        before, behind = self._kind(place - 1), [part.kind for part in self.parts[place + 1 :]]
        if before == "which" and behind[:1] == ["column"]:
            return True  # which sales rep
        if self._of("noun") or behind[:1] in (["column"], ["unknown"], ["about"]):
            return False
        if behind[:1] in (["op"], ["rows"]) and before != "given":
            return False  # the third highest, the other rows
        if before == "op":
            return self.parts[place - 1].data == "count" and behind[:1] != ["given"]
        if before == "given" and place > 1:  # tennis players, but not sofas that were returned
            last, own = self.parts[place - 1 : place + 1]
            beside = last.begin + len(last.text) + 1 == own.begin and own.text.endswith("s")
            return beside and self.parts[place - 2].kind in (*terms.NOUNS, "before", "op")
        asker = before == "which" and self.parts[place - 1].text.casefold() in ("who", "whose")
        apart = before in ("flag", "used") and self.parts[place - 1].kind == "before"
        return before in terms.NOUNS and not asker and not apart

    def _located(self, phrase: str) -> tuple[Condition, ...]:
        """Return the condition of a column and a value: ``region south`` or ``south region``."""
        value, _, last = phrase.rpartition(" ")
        for words in (phrase, f"{last} {value}"):
            with suppress(AmbiguousError):
                if value and (found := self._condition(words, "for")) and not found.stated:
                    return (found,)
        return ()

    def _conditions(self, text: str, link: str) -> tuple[Condition, ...] | None:
        """Return the conditions in words; None if they are none."""
        if re.search(r"\bor\b", text) and not re.search(r"[\"'].*\bor\b.*[\"']|than or", text):
            return None
        whole = self._condition(text, link)
        pieces = re.split(r",? and (?:whose |where |with |the )?", text)
        if len(pieces) > 1 and (whole is None or whole.relation != "between"):
            found = [self._condition(piece, link) for piece in pieces]
            if all(found):
                return tuple(each for each in found if each is not None)
        return None if whole is None else (whole,)

    def _condition(self, text: str, link: str) -> Condition | None:
        empty = re.match(r"(?:an? )?(?:empty|missing|blank|no) (.+)", text, re.IGNORECASE)
        if empty or link.casefold() == "without":
            column = self._column(empty[1] if empty else text)
            zero = column in self.sample.numeric and " no " in f" {text}".lower()
            zero = zero or column in self.sample.flags
            return None if zero or column is None else Condition(column, "empty")
        words = text.split()
        for count in range(len(words) - 1, 0, -1):
            phrase, rest = " ".join(words[:count]), " ".join(words[count:])
            if not words[count - 1][-1:].isalnum() and words[count - 1][-1:] not in "\"'”’)%":
                continue  # a sign of the relation
            if (column := self._column(phrase)) is None:
                continue
            for relation, pattern in terms.RELATIONS:
                if found := pattern_of(pattern).fullmatch(rest):
                    parts = found.groupdict()
                    stated = relation != "=" or found.start("value") > 0
                    value, end = (self._bare(parts.get(key), column) for key in ("value", "end"))
                    if relation in ("=", "!=") and not self._fits(value, column, link, stated):
                        continue
                    ordered = relation in (*terms.AMOUNTS, "between") and self.sample.values
                    dated = re.match(r"\d{4}-\d\d-\d\d", value) is not None
                    if ordered and not dated and column not in self.sample.numeric:
                        continue
                    return Condition(column, relation, value, end, stated)
        return None

    def _bare(self, value: str | None, column: int) -> str:
        """Return a value without quotation marks, a number without the unit of its column."""
        found = re.fullmatch(rf"({terms.NUMBER}) (\w+)", value or "")
        unit = found is not None and {*words_of(found[2])} <= {*self.names[column]}
        return found[1] if found and unit else _unquoted(value or "")

    def _fits(self, value: str, column: int, link: str, stated: bool) -> bool:
        """Return whether a column may equal a value; if no word states it, rows must have it."""
        if column in self.sample.values.get(loose(value), {}):
            return True
        words = value.casefold().split()
        if {*words} & terms.OPERATION.keys() or {*words[:1]} & terms.COMPARES:
            return False
        return stated or not (self.sample.complete or link.casefold() in terms.UNSURE)

    def _column(self, phrase: str, *, figures: bool = False) -> int | None:
        """Return the one column with these words; with `figures`, LABELS must be among them."""
        asked = words_of(_unquoted(phrase.strip()))
        if not asked:
            return None
        found = [i for i, name in enumerate(self.names) if name == asked]
        if not found:
            parts = [set(name) - set(asked) for name in self.names]
            found = [i for i in self._columns(phrase) if not (figures and parts[i] & terms.LABELS)]
        if len(found) > 1:
            raise AmbiguousError(several(phrase.strip(), found, self.header))
        return found[0] if found else None

    def _columns(self, phrase: str, *, any_word: bool = False) -> list[int]:
        """Return the columns that have all words of a phrase, or any of them."""
        asked = {*words_of(_unquoted(phrase.strip()))}
        fits = asked.intersection if any_word else asked.issubset
        return [column for column, name in enumerate(self.names) if asked and fits(name)]


def several(phrase: str, columns: Iterable[int], header: Sequence[str]) -> str:
    """Return the message about words of several columns."""
    fitting = ", ".join(header[i] or f"column {i + 1}" for i in sorted(columns))
    return f'"{phrase}" fits several columns: {fitting}. Name one of them.'


def of_several(value: str, columns: Iterable[int], header: Sequence[str]) -> str:
    """Return the message about a value that several columns have."""
    names, told = [header[column] for column in columns], f'"{value}" is a value of several columns'
    return f'{told}: {", ".join(names)}. Name one, as in "where {names[0]} is {value}".'


def _amount(text: str) -> tuple[str, str, str] | None:
    """Return relation and numbers of words such as ``more than 80``, or None."""
    if found := re.fullmatch(rf"between ({terms.NUMBER}) and ({terms.NUMBER})", text):
        return "between", found[1], found[2]
    for relation, words in terms.AMOUNTS.items():
        if found := pattern_of(rf"(?:{words}) ?({terms.NUMBER})").fullmatch(text):
            return relation, found[1], ""
    return None


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'“”‘’`")


def core(question: str) -> str:
    """Return a question without polite words and final signs."""
    text = " ".join(question.split()).rstrip("?!. ")
    return re.sub(f"^{terms.POLITE}|{terms.TAIL}", "", text, flags=re.IGNORECASE)
