"""Plain questions about tables, made from columns and cells, beside those that people wrote.

They teach `table_wording.py` what holds for every table: a column that is named is the one that is
meant, and one that the table does not have is not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from kvstream.exact.table_wording import Columns

WORDS = {
    "MAX": "largest highest biggest maximum greatest max", "AVG": "average mean",
    "MIN": "smallest lowest minimum least min", "ROWS": "rows records entries",
    "ROW": "row record entry", "OVER": "over;above;more than;>", "UNDER": "below;under;less than;<",
    "ALL": "sum of;total;sum of all;sum of the;total of the",
    "MANY": "how many;number of;count the",
    "WHAT": "what is the;what's the;;give me the;show me the;the;calculate the",
}  # fmt: skip
FORMS = """
max | WHAT MAX {f=F:F}
max | which {s=S:S} has the MAX {f=F:F}
max | which {r:ROW} has the MAX {f=F:F}
max | who has the MAX {f=F:F}
min | WHAT MIN {f=F:F}
min | which {s=S:S} has the MIN {f=F:F}
min | show me the {r:ROW} with the MIN {f=F:F}
min | MIN {f=F:F} for {c=C:C} {=C:V}
max | MAX {f=F:F}, and in which {s=S:S}
max | MAX {f=F:F} where {c=D:D} is after {>D:E}
max | WHAT MAX {f=F:F} where {c=D:D} is between {GD:E} and {LD:E}
sum | ALL {f=F:F}
sum | WHAT ALL {f=F:F}
sum | ALL {f=F:F} per {g=C:C}
sum | ALL {f=F:F} in {=C:V}
sum | ALL {f=F:F} before {<D:E}
sum | ALL {f=F:F} for {=C:V}
mean | WHAT AVG {f=F:F}
mean | WHAT AVG {f=F:F} of the {r:ROWS}
mean | AVG {f=F:F} where {c=C:C} is {=C:V}
mean | AVG {f=F:F} for each {g=C:C}
median | WHAT median of the {f=F:F}
median | median {f=F:F}
count | MANY {r:ROWS} are there
count | MANY {r:ROWS} have {c=C:C} {=C:V}
count | MANY {r:ROWS} where {c=C:C} is {=C:V}
count | MANY {r:ROWS} with {c=F:F} OVER {>F:N}
count | MANY {r:ROWS} have {c=F:F} UNDER {<F:N}
count | MANY {r:ROWS} where {c=F:F} is OVER {>F:N} and {c=C:C} is not {!C:V}
count | MANY {r:ROWS} where {c=F:F} is between {GF:N} and {LF:N}
count | MANY {r:ROWS} where {c=D:D} is after {>D:E}
count | MANY {r:ROWS} per {g=C:C}
distinct | how many different {s=C:Cs} are there
distinct | how many {s=C:Cs} are there
list | list all {s=S:Ss} where {c=C:C} is {=C:V}
list | {r:ROWS} with {c=F:F} OVER {>F:N}
list | which {s=S:Ss} have {c=F:F} UNDER {<F:N}
sum> | which {s=C:C} has the MAX total {f=F:F}
mean> | which {s=C:C} has the MAX AVG {f=F:F}
mean< | which {s=C:C} has the MIN AVG {f=F:F}
count> | which {s=C:C} has the most {r:ROWS}
other | WHAT MAX X
other | which S has the MAX X
other | ALL X
other | ALL F in X
other | WHAT AVG X of V
other | MANY ROWS where X is N
other | MANY ROWS where X is V
other | WHAT difference between MAX and MIN F
other | MAX F and MIN F
other | what does F mean
other | why is F so high for V
other | which S has the second MAX F
""".strip().split("\n")


def questions_of(
    table: Columns, cells: Sequence[Sequence[str]], alien: Sequence[str], count: int, seed: int
) -> Iterator[str]:
    """Yield `count` labeled lines. `alien`: names of columns of other tables."""
    draw, kinds = random.Random(seed), table.kinds
    columns = {
        "F": [c for c, kind in enumerate(kinds) if kind == "n"],
        "C": [c for c, kind in enumerate(kinds) if kind == "t"],
        "D": [c for c, kind in enumerate(kinds) if kind == "d"],
        "S": [c for c, kind in enumerate(kinds) if kind in "tui"],
    }
    known = {word for name in table.names for word in name}
    others = [name for name in alien if known.isdisjoint(name.lower().split())]
    while count:
        operation, _, form = draw.choice(FORMS).partition(" | ")
        picked = {key: draw.choice(some) for key, some in columns.items() if some}
        made = _filled(form, table.header, cells, picked, others, draw)
        if made is not None:
            count -= 1
            made = draw.choice((made, made[:1].upper() + made[1:]))
            yield f"{operation} | {made}{draw.choice(('', '?', '.'))}"


def _filled(
    form: str, header: Sequence[str], cells: Sequence[Sequence[str]], picked: dict[str, int],
    others: Sequence[str], draw: random.Random,
) -> str | None:  # fmt: skip
    """Return a form with words in place of its capitals; None if the table lacks a column."""
    found: list[str] = []
    for part in _pieces(form):
        key = part.rstrip("s") if part not in WORDS else part
        if part in WORDS:
            words = WORDS[part]
            found.append(draw.choice(words.split(";") if ";" in words else words.split()))
        elif key in ("F", "C", "D", "S"):
            if key not in picked:
                return None
            name = header[picked[key]]
            inside = found[-1:] == ["{="] or (found and found[-1][-1:] in "=!><GL{")
            plain = name if inside else draw.choice((name, name.replace("_", " ")))
            found.append(plain + part[1:] * (not inside))
        elif part in ("V", "N", "E"):
            column = picked.get({"V": "C", "N": "F", "E": "D"}[part])
            if column is None:
                return None
            found.append(draw.choice(cells)[column].strip())
        elif part == "X":
            found.append(draw.choice(others).replace("_", " "))
        else:
            found.append(part)
    return " ".join("".join(found).split())


def _pieces(form: str) -> Iterator[str]:
    yield from re.findall(r"(?<=\{)[GL]|[A-Z]{2,}|[A-Z]s?(?![a-z])|[^A-Z]+", form)
