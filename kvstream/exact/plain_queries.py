"""Write the query for a plain question about a table, without a model.

A question is read word by word: an operation, a column, a value of the first rows, a comparison,
or a word that changes nothing. The order of these kinds is that of a form of question, and a word
that is none of them leaves the question to a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kvstream.exact import table_words as terms
from kvstream.exact.routing import iso_dates, pattern_of
from kvstream.exact.table_words import singular, words_of
from kvstream.exact.tables import MOST_DIGITS, Columns, Numbers
from kvstream.input.table_reader import NAMED

LONGEST = 6
"""Words of a value or a column."""
MOST_WORDS = 40
"""Words of a question that may be one about a table."""
_KINDS = {"count": "#", "distinct": "D", "max": "M", "min": "M", "sum": "F", "mean": "F",
          "median": "F"}  # fmt: skip
_FUNCTIONS = {"max": "MAX", "min": "MIN", "sum": "SUM", "mean": "AVG", "median": "MEDIAN"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d$")
_UNSURE = re.compile(r"\d[.,]\d{3}(?!\d)")
"""What may separate thousands or decimals."""
_ISO = re.compile(r"(0000(?:-00){0,2})(?: \1)?$")  # or two dates of the same length
_FRONT = terms.FRONT | terms.LISTS
"""Words that change nothing before what is asked for."""


class _Part(NamedTuple):
    """A stretch of a question: ``#`` a count, ``D`` different, ``M`` the largest or smallest, ``F``
    another figure, ``C`` a column, ``V`` a value, ``A`` a comparison, ``G`` each, ``R`` rows, ``N``
    not, ``W`` which, ``X`` unknown.
    """

    kind: str
    text: str
    data: Any = None


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


def core(question: str) -> str:
    """Return a question without polite words and final signs."""
    text = " ".join(question.split()).rstrip("?!. ")
    text = re.sub(r"(?i)\bno\. of\b", "number of", text)
    return re.sub(f"^{terms.POLITE}|{terms.TAIL}", "", text, flags=re.IGNORECASE)


def plain_query(question: str, columns: Columns) -> str | None:
    """Return the query of a plain question; None if it is none."""
    text = iso_dates(core(question))
    asks = len(text.split()) <= MOST_WORDS and not pattern_of(terms.NO_FIGURE).match(text)
    return _Reading(text, columns).query() if asks else None


class _Reading:
    """Reads one question."""

    def __init__(self, text: str, columns: Columns) -> None:
        self.text, self.columns = text, columns
        self.where: list[str] = []
        """The conditions in SQL."""
        self.begun = False
        """Whether a part says what is asked for."""
        self.done = False
        """Whether a word says what happened, perhaps not in all rows."""

    def query(self) -> str | None:
        """Return the query, or None."""
        for link in re.finditer(rf"(?i) (?:{terms.CLAUSE}) ", self.text):
            rest = "no " * (link[0] == " without ") + self.text[link.end() :]
            every = re.split(r",? and (?:whose |where |with |the )?", rest)
            whole = self._clause(rest)
            clauses = [whole] if whole else [*map(self._clause, every)]
            if all(clauses):
                self.where = [clause for clause in clauses if clause]
                self.text = self.text[: link.start()]
                break
        last = re.search(r" (?:is|are|=) (?!there|here)(\w+)$", self.text, re.IGNORECASE)
        if last and last[1].casefold() in terms.SKIPPED:
            return None  # where the country is us
        parts = self._without_conditions([*self._parts()])
        kinds = "".join(part.kind for part in parts)
        at = [part.data for part in parts if part.kind == "C"]
        operations = [part.data for part in parts if part.kind in "MF"]
        if set(kinds) & {"X", "N", "V", "A"} or (
            "#" in kinds and self.done and not re.search("[<>]", "".join(self.where))
        ):
            return None
        if not operations and not all(map(self._can_name, at)):
            return None  # who discovered helium, if a column has the years of discovery
        words = {word for column in at for word in words_of(self.columns.header[column])}
        if words & terms.LESS_IS_MORE and any(part.text in terms.JUDGED for part in parts):
            return None  # the best time is the shortest
        if re.fullmatch("#R?", kinds) and ("R" in kinds or self.where):
            if self._names_row() and terms.ROW_WORDS.isdisjoint(words_of(parts[-1].text)):
                return None  # how many of a product were sold, which one row says
            return self._select("COUNT(*)")
        if re.fullmatch("#CR?", kinds) and not self.columns.numbers[at[0]]:
            shared = at[0] in self.columns.repeats
            above = any(re.search("[<>]|BETWEEN|NULL", each) for each in self.where)
            if (shared and above) or (kinds == "#CR" and parts[2].text not in terms.WHOLE):
                return None  # a city with more than 3 rows, or rows of a column called failed
            return self._select(f"COUNT(DISTINCT {self._name(at[0])})" if shared else "COUNT(*)")
        if re.fullmatch("W?#?DC", kinds):
            name = self._name(at[0])
            return self._select(f"COUNT(DISTINCT {name})" if "#" in kinds else f"DISTINCT {name}")
        both = re.fullmatch("W?FCC", kinds) and not self.columns.numbers[at[1]]
        if both and at[1] not in self.columns.repeats:
            at, kinds = at[:1], "FC"  # the mean depth of the rivers, which are the rows
        if re.fullmatch("W?FCR?|W?CF", kinds):
            figure = self._function(operations[0], at[0])
            return self._select(figure) if figure else None
        if re.fullmatch("W?FCGC|#R?GC", kinds):
            figure = "COUNT(*)" if kinds[0] == "#" else self._function(operations[0], at[0])
            return self._groups(at[-1], figure)
        if re.fullmatch("W?CMFC", kinds):
            return self._groups(at[0], self._function(operations[1], at[1]), operations[0])
        if re.fullmatch("W?R?MCR?", kinds):
            texts = {*range(len(self.columns.names))} - self.columns.numeric - self.columns.dates
            summed = any(p.text in terms.QUANTITY for p in parts)
            if summed and parts[0].text == "who" and min(texts, default=-1) in self.columns.repeats:
                return None  # one may have several rows, whose sum is asked for
            return self._best(operations[0], at[0])
        if match := re.fullmatch("W?C(?:MC|CM)|(MCW?C)", kinds):
            show, of = at[::-1] if match[1] else at
            word = next(part.text for part in parts if part.kind == "M")
            if show in self.columns.flags:
                return None  # who sold most, if a column is called sold
            if word in terms.QUANTITY and show in self.columns.repeats:
                return self._groups(show, self._function("sum", of), operations[0])
            return self._best(operations[0], of, show)
        if re.fullmatch("W?C", kinds) and self.where:
            return self._select(self._name(at[0]))
        if re.fullmatch("W?R", kinds) and self.where and pattern_of(terms.LIST).match(self.text):
            return self._select("*")
        return None

    def _can_name(self, column: int) -> bool:
        """Return whether a column may have what a question asks for: a person, place or time."""
        asks = re.match(r"(?:\w+ )?(who|whose|where|when)\b", self.text, re.IGNORECASE)
        dated = column in self.columns.dates and asks and asks[1].casefold() != "when"
        return not asks or not (self.columns.numbers[column] or dated)

    def _names_row(self) -> bool:
        """Return whether a condition has a value that only one row has."""
        return any(
            f"{self._name(column)} = " in each and column not in self.columns.repeats
            for column in range(len(self.columns.names))
            for each in self.where
        )

    def _name(self, column: int) -> str:
        return self.columns.names[column]

    def _select(self, what: str, *more: str) -> str:
        where = " AND ".join([*more, *self.where])
        return f"SELECT {what} FROM t{' WHERE ' * bool(where)}{where}"

    def _function(self, operation: str, column: int) -> str | None:
        """Return a figure of a column; None if it has no numbers, or names such as years."""
        labels = operation in ("sum", "mean") and terms.LABELS.intersection(
            words_of(self.columns.header[column])
        )
        known = self.columns.numbers[column] and not labels
        return f"{_FUNCTIONS[operation]}({self._name(column)})" if known else None

    def _groups(self, by: int, figure: str | None, best: str = "") -> str | None:
        """Return the figures of groups: the largest first, or only the `best` of those named."""
        if figure is None or self.columns.numbers[by]:
            return None
        name, order = self._name(by), " DESC" if best != "min" else " NULLS LAST"
        self.where += [f"{name} IS NOT NULL"] * bool(best)
        group = f" GROUP BY {name}"
        first = f"{self._select(figure)}{group} ORDER BY {figure}{order} LIMIT 1"
        having = f" HAVING {figure} = ({first})" if best else f" ORDER BY {figure}{order}"
        return f"{self._select(f'{name}, {figure}')}{group}{having}"

    def _best(self, operation: str, of: int, show: int | None = None) -> str | None:
        """Return the rows with the largest or smallest figure."""
        if not self.columns.numbers[of] and of not in self.columns.dates:
            return None
        name = self._name(of)
        best = self._select(f"{_FUNCTIONS[operation]}({name})")
        names = name if show is None else f"{self._name(show)}, {name}"
        return self._select(names, f"{name} = ({best})")

    def _parts(self) -> Iterator[_Part]:
        """Yield the longest stretches that are known, without words that change nothing."""
        tokens = [*terms.TOKEN.finditer(self.text)]
        at = 0
        while at < len(tokens):
            for end in range(min(len(tokens), at + LONGEST), at, -1):
                phrase = self.text[tokens[at].start() : tokens[end - 1].end()]
                quote = (tokens[at]["quoted"] or "").strip() if end - at == 1 else ""
                part = self._part(quote or phrase, single=end - at == 1, quoted=bool(quote))
                if part is not None:
                    self.done |= part.kind == "-" and part.text in terms.DEEDS
                    if part.kind != "-":
                        self.begun |= part.kind != "W"
                        yield part
                    at = end
                    break

    def _part(self, phrase: str, *, single: bool, quoted: bool) -> _Part | None:
        """Return a part; ``-`` for words that change nothing, None for words that belong apart."""
        low = phrase.casefold()
        word = low if single and not quoted else ""
        operation = terms.PHRASES.get(low) or terms.OPERATION.get(word)
        bounded = terms.FILLERS.isdisjoint((low.split()[0], low.split()[-1]))
        spellings = self.columns.spellings(re.sub("['’]s$", "", phrase))
        named = (bounded or single) and not re.search("[<>=!]", phrase)
        near = self.columns.by_name(phrase) if named else []
        exact = [c for c in near if words_of(self.columns.header[c]) == words_of(phrase)]
        if quoted and spellings:
            return _Part("V", phrase, spellings)
        if operation:
            return _Part(_KINDS[operation], low, operation)
        if (amount := _amount(low)) is not None:
            return _Part("A", low, amount)
        if terms.NOT.match(low):
            return _Part("N", low)
        if low in terms.GROUPS:
            return _Part("G", low)
        if len(exact) == 1:
            return _Part("C", low, exact[0])
        if word in terms.WHICH or re.fullmatch("how (?:much|high|low|large|big)", low):
            return _Part("W", low)
        if word and terms.ROW_WORDS.intersection(words_of(word)):
            return _Part("X" if spellings else "R", low)
        if word in terms.SKIPPED or (word in _FRONT and not self.begun):
            return _Part(self._kind_of(phrase, spellings), low, spellings)
        if spellings:
            return _Part("X" if terms.NOT.match(low.split()[0]) else "V", phrase, spellings)
        if len(near) == 1:  # orders are rows, if the column is order_id
            labels = terms.LABELS.intersection(words_of(self.columns.header[near[0]]))
            return _Part("R" if labels else "C", low, near[0])
        if word and singular(word) in self.columns.about:
            return _Part("R", low)
        return _Part("X", low) if single else None

    def _kind_of(self, phrase: str, spellings: Mapping[int, str]) -> str:
        """Return the kind of a word that changes nothing, unless it is a value: the US, not us."""
        capitals = phrase.isupper() and not self.text.isupper()
        if capitals and phrase not in ("I", self.text.split()[0]):
            return "V" if spellings else "X-"[len(phrase) > 2]
        if not spellings or phrase == "I" or phrase.casefold() in terms.LITTLE:
            return "-"
        code = rf"^{phrase}\b|\b(?:in|of|for|from)(?: the)? {phrase}\b"
        if all(map(str.isupper, spellings.values())):
            return "X" if pattern_of(code).search(self.text) else "-"
        return "V"

    def _without_conditions(self, parts: list[_Part]) -> list[_Part]:
        """Return the parts without those of conditions, which `where` gets."""
        ahead = [*(part.kind for part in parts[1:]), ""]
        parts = [p for p, kind in zip(parts, ahead, strict=False) if p.kind != "G" or kind == "C"]
        for place, part in reversed([*enumerate(parts)]):
            if part.kind == "V":
                begin, end = place, place + 1
                if place and parts[place - 1].kind == "C" and parts[place - 1].data in part.data:
                    begin -= 1
                elif parts[end:] and parts[end].kind == "C" and parts[end].data in part.data:
                    end += 1
                own = parts[begin].data if begin < place else parts[end - 1].data
                column = own if end - begin > 1 else next(iter(part.data))
                if end - begin == 1 and len(part.data) > 1:
                    return [_Part("X", part.text)]
                sign = "="
                if begin and parts[begin - 1].text in _DENIES:
                    begin, sign = begin - 1, "!="
                clause = self._condition(column, sign, part.data[column])
                says = self._says([p.text for p in parts[begin:end]], column)
                counts = begin < place and parts[end:] and parts[end].kind in "CR"
                if column in self.columns.numeric and (counts or not says):
                    clause = None  # the 3 largest prices, or the price of 3 orders
            elif part.kind == "A":
                near = [p for p in (place + 1, place - 1) if 0 <= p < len(parts)]
                some = [(p, self._condition(parts[p].data, *part.data)) for p in near
                        if parts[p].kind == "C"]  # fmt: skip
                if len(self.columns.dates) == 1 and _DAY.match(part.data[1]):
                    [date] = self.columns.dates
                    some.append((place, self._condition(date, *part.data)))
                beside, clause = next((each for each in some if each[1]), (place, None))
                begin, end = min(place, beside), max(place, beside) + 1
            else:
                continue
            columns = [each.split()[0] for each in self.where]
            if clause is None or clause.split()[0] in columns:
                return [_Part("X", part.text)]
            self.where.append(clause)
            parts[begin:end] = []
        return parts

    def _says(self, parts: list[str], column: int) -> bool:
        """Return whether a number is a value: it has its column beside it, or is a year."""
        if len(parts) < 2:
            return "year" in words_of(self.columns.header[column])
        beside = r"[\"“‘'` ](?:(?:is|are|was|were|of|==?) )*[\"“‘'`]?".join(map(re.escape, parts))
        return re.search(beside, self.text, re.IGNORECASE) is not None

    def _clause(self, text: str) -> str | None:
        """Return the condition in words such as ``the price is above 3``; None if it is none."""
        empty = re.match(r"(?:an? )?(empty|missing|blank|no) (.+)", text, re.IGNORECASE)
        if empty:
            columns = self.columns.by_name(empty[2])
            known = len(columns) == 1 and columns[0] not in self.columns.spellings(empty[1])
            return f"{self._name(columns[0])} IS NULL" if known else None
        words = text.split()
        for count in range(len(words) - 1, 0, -1):
            columns = self.columns.by_name(" ".join(words[:count]))
            if len(columns) != 1 or not words[count - 1][-1:].isalnum():
                continue
            rest = re.sub(f"^{terms.BE}", "", " ".join(words[count:]), flags=re.IGNORECASE)
            whole = columns[0] in self.columns.spellings(rest)  # such as `not paid` and `missing`
            for relation, pattern in terms.RELATIONS[-1:] if whole else terms.RELATIONS:
                if match := pattern_of(pattern).fullmatch(" ".join(words[count:])):
                    texts = (match.groupdict().get(key) or "" for key in ("value", "end"))
                    return self._condition(
                        columns[0], relation, *(_QUOTED.sub(r"\1", v.strip()) for v in texts)
                    )
        return None

    def _has_unit(self, column: int, value: str) -> bool:
        """Return whether a column may have a number with this unit, and no other one is meant."""
        own, other = Numbers(self.columns.styles[column].point), Numbers()
        if len(value) > MOST_DIGITS or (own.point == "," and _UNSURE.search(value)):
            return False
        other.parse(value)
        for text in self.columns.cells[column]:
            own.parse(text)  # notes its unit
        [unit], header = other.units, self.columns.header[column].casefold()
        free = re.search("%|percent|pct", header) if unit == "%" else {*own.units} == {""}
        return unit in ("", *own.units) or bool(free)

    def _condition(self, column: int, relation: str, value: str, end: str = "") -> str | None:
        """Return a condition in SQL; None if the column cannot have the value."""
        name, number = self._name(column), self.columns.numbers[column]
        values, words = [value, end] if end else [value], {*value.casefold().split()}
        if relation == "empty":
            return f"{name} IS NULL"
        if number and relation not in ("contains", "starts"):
            figures = [Numbers().parse(each) for each in values]
            literals = [f"{each:f}" for each in figures if each is not None]
            if len(literals) < len(values) or not all(self._has_unit(column, v) for v in values):
                return None
        elif column in self.columns.dates and _ISO.match(re.sub(r"\d", "0", " ".join(values))):
            literals, name = [f"'{each}'" for each in values], f"substr({name}, 1, {len(value)})"
        elif relation in ("=", "!="):
            spelling = self.columns.spellings(value).get(column)
            odd = _ODD if spelling else _ODD | terms.SKIPPED | terms.GROUPS | terms.WHICH
            if (spelling is None and self.columns.complete) or words & odd:
                return None
            literals = ["'" + (spelling or value).replace("'", "''") + "'"]
        elif relation in ("contains", "starts") and not (words & _ODD or re.search("[%_]", value)):
            pattern = f"%{value}%" if relation == "contains" else f"{value}%"
            return f"{name} LIKE '{pattern.replace(chr(39), chr(39) * 2)}'"
        else:
            return None
        if relation == "between":
            return f"{name} BETWEEN {literals[0]} AND {literals[1]}"
        return f"{name} {'IS NOT' if relation == '!=' else relation} {literals[0]}"


_QUOTED = re.compile(r"^[\"'“”‘’`](.+)[\"'“”‘’`]$")
_DENIES = ("not", "except", "excluding", "isn't", "aren't", "wasn't")
_ODD = terms.COMPARES | {*terms.OPERATION, "or", "and"}
"""Words of a value that may say something else."""


def _amount(text: str) -> tuple[str, str, str] | None:
    """Return relation and numbers of words such as ``more than 80``, or None."""
    if match := re.fullmatch(rf"between ({terms.NUMBER}) and ({terms.NUMBER})", text):
        return "between", match[1], match[2]
    for relation, words in terms.AMOUNTS.items():
        if match := pattern_of(rf"(?:{words}) ?({terms.NUMBER})").fullmatch(text):
            return relation, match[1], ""
    return None
