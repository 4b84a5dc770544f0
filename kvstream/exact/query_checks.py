"""Check that a query which a model wrote does what a question about a table asks for.

The question must name what the query compares with, and the query must have what the question
names. It must deny, compare, add up and sort as the question says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence, Set

from kvstream.exact import table_words as terms
from kvstream.exact.routing import iso_dates
from kvstream.exact.table_words import loose, words_of
from kvstream.exact.tables import Columns

STEM, SHORTEST = 4, 3
"""Letters with which a column and a word of the same meaning begin; those of an abbreviation."""
_NUMBER_WORDS = "zero one two three four five six seven eight nine ten".split()  # noqa: SIM905
_FIGURES = {w for w, name in terms.OPERATION.items() if name not in ("count", "distinct")}
_FIGURES -= terms.QUANTITY
_FIGURE_OF = re.compile(
    rf"(?<!\d )\b(?:{'|'.join(_FIGURES)})(?: of)?(?: the| our| all)? ([^\W\d_]+)(?: ([^\W\d_]+))?"
)
"""A word for a figure, and the words for what it is of."""
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_WHICH = re.compile(r"\b(?:which|what) (\w+)")
_NTH = re.compile(r"(?i)\b(?:second|third|fourth|fifth|2nd|3rd|[4-9]th)\b")
_COMPARISON = re.compile(r"(?:(\w+) (?:=|!=|<>) )?'((?:[^']|'')*)'")
"""A column, or nothing, and the text that it is compared with."""
_EMPTY = re.compile(r"(?i)\b(\w+) IS (NOT )?NULL\b")
_FORMAT = re.compile(r"(?i)strftime\('[^']*'")
_NUMBER = re.compile(r"(?<![\w.])\.?\d[\w.]*")
_OTHER_FORM = re.compile(
    r"(?i)--|/\*|'' FROM t\b|\b(?:GROUP|ORDER) BY .*''"
    r"|\bFROM (?!t(?: (?:WHERE|GROUP|ORDER|HAVING|LIMIT)\b| ?\)|$))"
    r"|\b(?:UNION|EXCEPT|INTERSECT|WITH|CASE|rowid|oid|_rowid_)\b"
)
"""What no query of the rows needs, without its texts: other tables, joins, comments."""
_AGGREGATE = re.compile(r"(?i)\b(?:SUM|TOTAL|AVG|MEDIAN|MIN|MAX|COUNT)\(")
_TWO_FIGURES = re.compile(rf"(?i)\b(?:{'|'.join(_FIGURES)})\b.* and .*\b(?:{'|'.join(_FIGURES)})\b")
_SUMS = re.compile(r"(?i)\b(?:SUM|TOTAL|AVG|MEDIAN)\((?:DISTINCT )?(\w+)")
_SORTS = re.compile(
    r"(?i)\bM(?:IN|AX)\((\w+)\)|\b(\w+) ?(?:[<>]=?(?!>)|BETWEEN\b)|ORDER BY (\w+)(?=.* LIMIT )"
)
"""Columns that must have the order of numbers or of time."""
_TWO = re.compile(r"(\w+) ?(?:[<>!]?=|<>|[<>*/+-]) ?(\w+)")
_SIGNS = {
    sign: re.compile(rf"(?i)\b(?:{words}) (?=\S?\d)|\d[^\s\d]*(?: \w+)? (?:or|and) (?:{behind})\b")
    for sign, words, behind in (
        (">", r"(?<!no )(?:great|larg|bigg|high|mor|long|heavi|tall|lat)e?r? than|above|over"
              r"|after", "$"),
        ("<", r"(?<!no )(?:less|fewer|(?:low|small|short|light|earli|cheap)e?r) than|below|under"
              r"|before", "$"),
        (">=", "at least|no (?:less|fewer) than|since",
               "more|above|over|up|after|(?:lat|great|larg|high|long|heavi|old)e?r"),
        ("<=", "at most|no more than|up to|until",
               "less|fewer|below|under|before|(?:earli|low|small|short|light|young|cheap)e?r"),
    )
}  # fmt: skip
"""Words for comparisons with a number."""
_LOOK_UP = re.compile(r"(?i)SELECT (\*|\w+(?:, \w+)*) FROM t WHERE (?!.* (?:ORDER|GROUP) BY )")
_IS = re.compile(r"(?i)\b(\w+) (?:=|LIKE) '")
_PLACES = "address city country location place region town"
"""Words of columns that tell where."""
_OF_AGE = "age born birth dob"
"""Words of columns that tell how old."""
_ORDER = re.compile(r"(?i) ORDER BY (\w+)(?=.* LIMIT \d+$)")
_BUT = re.compile(
    r"(?i)\b(?:but|others?|besides|exclud\w*|ignor\w*|apart|outside|lack\w*|miss\w*|un\w+|non|rest)\b"
)
_NOT = re.compile(
    r"(?i)\b(?:not|no(?! (?:more|less|fewer) than)|never|without|except|neither|nor|leav\w* out)\b"
    r"|n['’]t\b"
)
_EACH = re.compile(r"(?i)\b(?:per|by|each|every)\b")
_EXCLUDES = re.compile(r"(?i)\b(?:except|leav\w* out|exclud\w*|ignor\w*|besides|apart from)\b")
_ENDS = {
    name: {*terms.OPERATIONS[name].split()}.union(*(each[least] for each in terms.SUPERLATIVES))
    for least, name in enumerate(("max", "min"))
}
"""Words for the largest and the smallest."""
_SENSES = {word: words for most, least, words in terms.SUPERLATIVES for word in most | least}
_FRONT = terms.FRONT | terms.LISTS
_AGES = frozenset().union(*terms.AGES.values())
_SORT_WORDS = {"oldest", *terms.OPERATION}
_FREE = {"per", "or", "each"} | terms.SKIPPED | terms.ROW_WORDS | terms.OPERATION.keys()
_USUAL = {*map(loose, terms.SKIPPED | _FRONT | terms.WHICH | terms.ROW_WORDS)}
SURE = -0.03
"""Least mean log-probability of a query whose column the question need not name."""


class QueryChecks:
    """The columns of a table, against which its queries are checked."""

    def __init__(self, columns: Columns) -> None:
        self.columns, self.header = columns, columns.header

    def fits(self, sql: str, question: str, likely: float) -> bool:
        """Return whether the question has the values of the query, and the query those of it.

        `likely`: the mean log-probability of the query.
        """
        wording = loose(plain(question))
        literals = [text.replace("''", "'").strip("%") for text in _LITERAL.findall(sql)]
        bare = re.sub(r"(?i) LIMIT 1$", "", _LITERAL.sub("", sql))
        query = loose(" ".join([*literals, re.sub(r"(?i) AS \w+", "", bare)]))
        words = {*re.findall(r"\w+", question.casefold())}
        words -= {word for name in self.header for word in words_of(name)}
        by = {self.columns.place(name) for name in _ORDER.findall(sql)} - {None}
        words -= {"youngest", "longest"} if by & self.columns.times else set()
        return (
            all(map(self._has_figure, _FIGURE_OF.findall(wording)))
            and _OTHER_FORM.search(_LITERAL.sub("''", _FORMAT.sub("", sql))) is None
            and all(self._shows(bare, word) for word in _WHICH.findall(wording))
            and self._orders(_LITERAL.sub("", sql), wording)
            and self._compares(sql, bare, wording)
            and self._tells(sql, wording, likely)
            and self._sorts(by, wording)
            and _agrees(bare, literals, question, words)
            and all(f" {value} " in f" {query} " for value in self.values(question))
        )

    def values(self, question: str) -> list[str]:
        """Return the values of texts of the table that a question names, as `loose` writes them."""
        words = loose(plain(question)).split()
        names = {word for name in self.columns.names for word in re.findall(r"\w+", loose(name))}
        values = []
        for begin in range(len(words)):
            for end in range(begin + 1, min(len(words), begin + 6) + 1):
                value = " ".join(words[begin:end]).strip(".,:")
                columns = self.columns.values.get(value, {}).keys() - self.columns.numeric
                if columns - self.columns.flags.keys() and value not in names and len(value) > 2:
                    values.append(value)
        return values

    def _has_figure(self, words: tuple[str, str]) -> bool:
        """Return whether a column may hold a figure that a question names: its mean race time."""
        columns = {each for name in self.header for each in words_of(name)}
        columns |= {each for group in terms.SAME if group & columns for each in group}
        if words[0] in _FREE:
            return True
        return any(_has(each, words) for each in columns)

    def _shows(self, bare: str, word: str) -> bool:
        """Return whether a query has the column that a question asks for: which club."""
        names = zip(self.columns.names, self.header, strict=True)
        own = {name.casefold() for name, title in names if word in words_of(title)}
        return not own or not own.isdisjoint(re.findall(r"\w+", bare.casefold()))

    def _tells(self, sql: str, question: str, likely: float) -> bool:
        """Return whether a query for the row of a name shows a column that the question names, or
        all words of the question are known: Thor's favorite food is not his breed.
        """
        look = _LOOK_UP.match(sql)
        keys = {self.columns.place(name) for name in _IS.findall(sql)} - {None}
        if look is None or not keys - self.columns.repeats - self.columns.dates:
            return True
        columns = [self.columns.place(name) for name in look[1].split(", ")]
        if look[1] != "*" and None in columns:
            return False  # the table lacks what the model would show
        words = {*re.findall(r"[^\W\d_]+", question)}
        same = words.union(*(group for group in terms.SAME if group & words))
        hits = self.akin(" ".join(same)) - keys
        hits |= {
            column for column in columns for word, senses in _SENSES.items()
            if column is not None and _has(word[:STEM], words)
            and not senses.isdisjoint(words_of(self.header[column]))
        }  # fmt: skip
        hits |= self.akin(_PLACES) if question.startswith("where ") else set()
        if hits.intersection(columns) or (likely >= SURE and look[1] != "*"):
            return True
        every = {*re.findall(r"\w+", loose(" ".join(_LITERAL.findall(sql))))}
        every |= {word for name in self.header for word in words_of(name)}
        return words <= every | _USUAL

    def _sorts(self, by: Set[int | None], question: str) -> bool:
        """Return whether a query sorts `by` a column that the question names, or that a known word
        may mean: the heaviest, but not the cutest.
        """
        columns = self.akin(_OF_AGE)
        if by and columns and re.search(r"\b(?:old|young)est\b", question):
            return by <= columns
        ages = by <= self.columns.times and not _AGES.isdisjoint(question.split())
        if not by or ages or by & self.akin(question):
            return True
        names = {w for c in by if c is not None for w in words_of(self.header[c])}
        odd = {*re.findall(r"[^\W\d_]{2,}est\b|(?<=\bmost )[^\W\d_]+", question)} - _SORT_WORDS
        return all(names & _SENSES.get(word, frozenset()) for word in odd)

    def akin(self, question: str) -> set[int]:
        """Return the columns that share a stem with a word of the question."""
        words = {*re.findall(r"\w+", question)}
        return {
            column for column, name in enumerate(self.header)
            if any(_has(part, words) for part in words_of(name))
        }  # fmt: skip

    def _orders(self, bare: str, question: str) -> bool:
        """Return whether a query adds up numbers, sorts numbers and dates, and its question names
        the columns that it compares with each other or with nothing, or computes with.
        """
        place = self.columns.place
        sums = {*map(place, _SUMS.findall(bare))} - {None}
        sorts = {place(name) for names in _SORTS.findall(bare) for name in names} - {None}
        numbers = {column for column, number in enumerate(self.columns.numbers) if number}
        hits = self.akin(question)
        pairs = [{*map(place, names)} for names in _TWO.findall(bare)]
        words = {name.casefold() for name in re.findall(r"\w+", _EMPTY.sub("", bare))}
        pairs += [
            {place(name)} for name, some in _EMPTY.findall(bare)
            if not (some and name.casefold() in words)
        ]  # fmt: skip
        return (
            sums <= numbers
            and sorts <= numbers | self.columns.dates
            and all(None in pair or pair <= hits for pair in pairs)
        )

    def _compares(self, sql: str, bare: str, question: str) -> bool:
        """Return whether a question has all that a query compares with."""
        words = {*re.findall(r"\w+", question)}
        numbers = {each.replace(",", "") for each in re.findall(r"\d[\d,]*(?:\.\d+)?", question)}
        numbers |= {each.lstrip("0") for each in numbers}
        numbers |= {str(n) for n, word in enumerate(_NUMBER_WORDS) if word in words}
        flags = self.columns.flags.keys() & self.akin(question)
        for name, text in _COMPARISON.findall(_FORMAT.sub("", sql)):
            own, column = {*re.findall(r"\w+", loose(text))}, self.columns.place(name)
            if text.casefold() in terms.FLAGS:
                if column not in flags:
                    return False
                continue
            own -= words | numbers
            if column in self.columns.repeats:  # English: England, but no other person's name
                own -= {each for each in own if each.isalpha() and _has(each, words)}
            if own or not re.search(r"\w", text):
                return False
        return {*_NUMBER.findall(bare)} <= numbers


def _agrees(bare: str, literals: Sequence[str], question: str, words: Collection[str]) -> bool:
    """Return whether a query denies, compares, adds up, and takes the largest or smallest as its
    question. `words`: those of the question that are in no name of a column.
    """
    denies = re.search(r"(?i)\bNOT\b(?! NULL)|!=|<>|\bIS NULL\b", bare) or any(
        terms.FLAGS.get(text.casefold()) is False for text in literals
    )
    inverts = re.findall(r"(?i)!=|<>|\bNOT\b(?! NULL)", bare)
    either = re.search(r"(?i)(\w+) (?:=|LIKE) +OR \1\b", bare) or {"or", "either"} & {*words}
    compares = {sign for sign, some in _SIGNS.items() if some.search(plain(question))}
    compares -= {*re.findall(r"<>|!=|[<>]=?", bare)}
    figures, groups = len(_AGGREGATE.findall(bare)), re.search(r"(?i) GROUP BY ", bare)
    counts = re.match(r"(?i)how many ", question) and not _EACH.search(question)
    totals = any(phrase in question.casefold() for phrase in terms.TOTALLY)
    aims = {name for name, some in _ENDS.items() if some & {*words}}
    ends = {"max": r"(?i)\bMAX\(|\bDESC\b", "min": r"(?i)\bMIN\(|\bORDER BY (?!.*\bDESC\b)"}
    hits = {name for name, end in ends.items() if re.search(end, bare)}
    return not any((
        _NOT.search(question) and not denies,
        re.search(r"(?i)\b(?:share|percentage|proportion)\b", question) and "/" not in bare,
        inverts and not (_NOT.search(question) or _BUT.search(question)),
        len(_EXCLUDES.findall(question)) > max(1, len(inverts)),  # all but those left out
        re.search(r"(?i)\bOR\b", bare) and not either,
        compares and not inverts and "BETWEEN" not in bare.upper(),
        not _numbers(plain(question)) <= _numbers(" ".join([bare, *literals])),
        _TWO_FIGURES.search(question) and figures < 2,
        figures > 1 and not groups and re.match(r"(?i)SELECT \w+,", bare),  # of which row
        counts and groups and not re.search(r"(?i) ORDER BY ", bare),
        {"average", "mean"} & {*words} and not re.search(r"(?i)\b(?:AVG|MEDIAN)\(|/", bare),
        _NTH.search(question) and "OFFSET" not in bare.upper(),
        totals and not re.search(r"(?i)\b(?:SUM|COUNT)\(", bare),
        hits and not aims <= hits,
    ))  # fmt: skip


def _has(word: str, words: Collection[str]) -> bool:
    """Return whether some words have a word, another form of it, or what it abbreviates: mag."""
    return word in words or (
        len(word) >= SHORTEST and any(word[:STEM] == each[: len(word)][:STEM] for each in words)
    )


def _numbers(text: str) -> set[str]:
    """Return the numbers of a text, without separators of thousands and zeros before them."""
    numbers = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![^\W_])", text.replace("_", " "))
    return {each.replace(",", "").lstrip("0") for each in numbers}


def plain(question: str) -> str:
    """Return the words of a question, with its dates as in ISO 8601."""
    return re.sub(r"['’]s\b|[^\w\s.,:%-]|[.,:]+(?=\s|$)", " ", iso_dates(question))
