"""Words that questions about tables consist of, and words for comparison."""

from __future__ import annotations

import re
from functools import cache, lru_cache


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


OPERATIONS = {
    "max": "largest highest biggest greatest latest maximum maximal max most best",
    "min": "smallest lowest earliest minimum minimal min least fewest poorest worst",
    "sum": "sum total totals", "median": "median", "count": "count",
    "mean": "mean average avg averages averaged", "distinct": "different distinct unique",
}  # fmt: skip
OPERATION = {word: name for name, words in OPERATIONS.items() for word in words.split()}
PHRASES = {
    "how many": "count", "number of": "count", "total number of": "count", "on average": "mean",
    "arithmetic mean": "mean", "sum total": "sum", "total sum": "sum", "sum up": "sum",
    "sum up to": "sum", "add up": "sum", "add up to": "sum", "adds up to": "sum", "come to": "sum",
    "at most": "max", "at least": "min",
}  # fmt: skip
QUANTITY = frozenset(("most", "least", "fewest"))
"""Words that compare sums, if rows share the value that is asked for: who sold the most units."""
TOTALLY = ("in total", "together", "altogether", "combined", "all in all", "all together")
_LASTING = "duration length time hour minute min day night week month since"
SUPERLATIVES = tuple((_set(most), _set(least), _set(columns)) for most, least, columns in (
    ("slowest", "fastest quickest", f"{_LASTING} ms millisecond latency second elapsed speed"),
    ("priciest dearest costliest expensive", "cheapest", "price cost fee rate amount fare rent"),
    ("heaviest", "lightest", "weight mass kg kilo gram"),
    ("longest", "shortest", f"{_LASTING} km mile meter metre distance height page"),
    ("tallest", "", "height"), ("newest", "", "year date"), ("", "youngest", "age year date born"),
    ("hottest warmest", "coldest", "temperature temp"),
))  # fmt: skip
"""Words for the largest and the smallest, and words of the columns that they may mean."""
LESS_IS_MORE = SUPERLATIVES[0][2] | SUPERLATIVES[1][2]
"""Words of columns of times and prices, of which the best is perhaps the smallest."""
JUDGED = frozenset(("best", "worst", "poorest"))
AGES = {" DESC": _set("youngest newest latest last"), "": _set("oldest earliest first longest")}
"""Words for the end of an order by time."""
ROW_WORDS = frozenset(("row", "record", "entry", "line", "item", "one", "data", "table"))
"""Words for the rows themselves, in the singular."""
LABELS = frozenset(("id", "no", "nr", "number", "code", "zip", "key", "index", "phone", "date"))
"""Words of columns whose numbers are names: nobody means their sum by ``total orders``."""
FILLERS = frozenset(("the", "a", "an", "all", "of", "column", "field", "value", "its", "their"))
EMPTY = _set(
    "our my this that these those there here we i you they he she it us me them be been being do "
    "does did having can could would should will whole entire overall exact exactly only just "
    "values amount amounts quantity number numbers figure figures and so then also what's whats "
    "get got made make makes sold sell sells bought went go came come back gets ended end hold "
    "holds see saw listed measured recorded found reached belong belongs year file sheet csv tsv "
    "dataset thanks yet far take takes took score scored scores spend spent i'd much into up out "
    "off placed ran run won sent received how"
)
"""Words that change nothing."""
DEEDS = _set("bought ended found measured ran received scored sent sold spent took won")
"""Those that only some rows may have in common."""
FRONT = _set(
    "ask asked calculate compute determine find give know like need please print report say "
    "says show shows tell want"
)
"""Words that change nothing where a question says what it asks for."""
WHICH = frozenset(("which", "what", "who", "whose"))
LISTS = frozenset(("list", "show", "give", "print", "find", "name", "get", "when"))
LINKS = (
    "for which", "in which", "that have", "which have", "that has", "that are", "which are",
    "where", "whose", "with", "without", "having", "when", "if", "have", "has", "had", "is", "are",
    "was", "were",
)  # fmt: skip
"""Words that may begin conditions."""
LITTLE = FILLERS | {*f"for of from by at on to about {' '.join(LINKS)}".split()}
SKIPPED = EMPTY | LITTLE
"""Words that change nothing anywhere, unless they are values."""
CLAUSE = "|".join(LINKS[: LINKS.index("had")])
"""Those after which a column and its value may follow."""
GROUPS = frozenset(("per", "by", "for each", "in each", "of each", "for every", "grouped by"))
NOT = re.compile(
    r"(?:not|no|never|but|without|or|nor|except|besides|excluding|\w+n['’]t"
    r"|should|could|might|will|(?:do|did|does|is|are|was|were|has|have|had)nt)$"
)
POLITE = (
    r"(?:(?:please|can you|could you|would you|tell me|do you know|so|and"
    r"|(?:i want|i need|i'd like|i would like)(?: to know)?)[, ]+)*"
)
TAIL = (
    r"(?:,? (?:(?:in|of|from|over) (?:the|this|that)(?: whole| entire)? (?:table|file|data|csv|tsv"
    r"|sheet|dataset)|please|pls|overall|in all|exactly|thanks|thank you|if you don['’]?t mind))+$"
)
NO_FIGURE = (
    r"(?:is|are|was|were|do|does|did|has|have|had) (?!the (?:most|least))|what do(?:es)? .+ mean$"
    r"|.*\bhow many (?:did|do|does|i|we|you|they|he|she)\b"
)
"""A question whose answer is yes, no, or a meaning, or that does not say what is counted."""
WHOLE = frozenset(("table", "data"))
"""Words for all rows, which no column describes."""
BE = r"(?:is |are |was |were |of |lies )?"
AT_LEAST = r"at least|since|>=|no less than|greater than or equal to|no fewer than"
AT_MOST = r"at most|<=|no more than|less than or equal to|up to"
MORE = r">|(?:great|larg|bigg|high|mor|long|old|heavi|tall|lat)e?r? than|above|over|exceeding|after"
LESS = r"<(?!>)|(?:less|(?:low|small|few|short|young|light|earli|cheap)er) than|below|under|before"
COMPARES = _set(
    "not before after since until more less fewer above below over under between than within about "
    "around near from neither either negative positive roughly almost"
)
"""How no value begins that a cell must equal."""
RELATIONS = (
    ("empty", r"(?:is|are) (?:empty|missing|blank|not (?:given|set|known))"),
    ("between", rf"{BE}between (?P<value>.+?) and (?P<end>.+)"),
    (">=", rf"{BE}(?:{AT_LEAST}) ?(?P<value>.+)"),
    ("<=", rf"{BE}(?:{AT_MOST}) ?(?P<value>.+)"),
    (">", rf"{BE}(?:{MORE}) ?(?P<value>.+)"),
    ("<", rf"{BE}(?:{LESS}) ?(?P<value>.+)"),
    ("!=", r"(?:is not|isn't|are not|was not|!=|<>|not) ?(?P<value>.+)"),
    ("contains", r"(?:contains?|includes?|containing) (?P<value>.+)"),
    ("starts", r"(?:starts?|begins?) with (?P<value>.+)"),
    ("=", r"(?:(?:is|are|was|were|equals?|==?|of|:)(?: equal to| exactly)? ?)?(?P<value>.+)"),
)
AMOUNTS = {">=": AT_LEAST, "<=": AT_MOST, ">": MORE, "<": LESS}
FLAGS = {"yes": True, "true": True, "y": True, "no": False, "false": False, "n": False}
NUMBER = r"\d{4}-\d\d-\d\d|[-+$€£]?\d[\d.,]*[%€]?"
TOKEN = re.compile(
    r"[\"“‘'`](?P<quoted>[^\"”’'`]+)[\"”’'`](?!\w)|[<>=!]=?|(?!- )[^\s,;?!\"“”()]*[^\s,;?!\"“”().:]"
)
LIST = (
    rf"(?:(?:(?:in|at) )?(?:{'|'.join([*LISTS, *WHICH])})|(?:all |the )*(?:row|record|entrie)s)\b"
)
FIGURE = (
    rf"\b(?:{'|'.join([*OPERATION, *PHRASES, *TOTALLY])}|how much"
    rf"|{'|'.join(word for most, least, _ in SUPERLATIVES for word in most | least)}|oldest)\b"
)
"""What a question for a figure has."""
ASKS = (
    rf"^{LIST}.* (?:{'|'.join(LINKS)}|in|for|from|of|about|by|than|after|before|since) "
    rf"|^who \w+ (?:the )?(?-i:[A-Z])|{FIGURE}"
)
"""What a question about a table has: a word for an operation, or the form of a list."""


@cache
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name for comparison: small, singular, without articles."""
    apart = re.sub(r"(?<=[a-z\d]{2})(?=[A-Z])", " ", name)
    words = tuple(singular(word) for word in re.findall(r"[^\W_]+|%", apart.casefold()))
    return tuple(word for word in words if word not in FILLERS) or words


def singular(word: str) -> str:
    """Return a word without the s of a plural."""
    if len(word) > 4 and word.endswith("ies") and word != "movies":
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 2 and word[-1] == "s" and word[-2] not in "su" else word


@lru_cache(maxsize=4096)
def loose(text: str) -> str:
    """Return a value for comparison: without case, underscores and the s of a plural."""
    return " ".join(singular(word) for word in re.split(r"[\s_-]+", text.casefold().strip()))
