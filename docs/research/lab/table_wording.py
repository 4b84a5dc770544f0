"""Train what reads the wording of questions about tables, from ``questions/tables/*.txt``.

    python docs/research/lab/table_wording.py
    python docs/research/lab/table_wording.py --check FILE

Writes ``kvstream/exact/table_wording.int8``. README.md says what the labels mean. With `--check`,
prints how many questions of a file get the right query, and writes nothing.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import torch
from torch import nn

from kvstream.exact.routing import iso_dates
from kvstream.exact.table_marks import Marks, computed_query, read_marks
from kvstream.exact.table_questions import AmbiguousError, Query
from kvstream.exact.table_wording import (
    MARKS,
    OPERATIONS,
    VALUES,
    VOCABULARY,
    WEIGHTS,
    Columns,
    Question,
    Span,
    words_of,
)  # fmt: skip
from kvstream.exact.tables import sample_of
from kvstream.exact.wording import Tokens
from kvstream.input.table_reader import Row
from table_templates import questions_of
from wording import (
    BATCH,
    DECAY,
    EPOCHS,
    KIND_RATE,
    summed,
    train_classes,
    train_marker,
    use,
    zeros,
)

QUESTIONS = Path(__file__).parent / "questions" / "tables"
_MARK = re.compile(r"\{([fsgrcyne])(?:=([^:{}]*))?:([^{}]*)\}|\{([=!><GL~])([^:{}]*):([^{}]*)\}")
MORE_ROWS = 20
PLAIN = 10
"""Plain questions about a table."""
FOLDS = 2
"""Parts of the tables; operations are learned from marks of models that did not see them, too."""


@dataclass(frozen=True)
class Labeled:
    table: int
    operation: str
    text: str
    spans: tuple[tuple[str, str | None, int, int], ...]
    """Mark, column, begin and end of each."""


@dataclass
class Known:
    """A question as the models see it."""

    labeled: Labeled
    question: Question
    marks: list[int]
    spans: list[Span]
    columns: list[int | None]

    @classmethod
    def of(cls, labeled: Labeled, table: Columns) -> Known:
        own = Question(labeled.text, table)
        marks, columns = [0] * len(own.spans), []
        for mark, _, begin, end in labeled.spans:
            for at, (a, b) in enumerate(own.spans):
                if a < end and b > begin:
                    marks[at] = MARKS.index(mark)
        spans = own.spans_of(marks, negated=False)
        for span in spans:
            end = span.begin + len(span.text)
            named = next(c for _, c, a, b in labeled.spans if a < end and b > span.begin)
            columns.append(None if named is None or span.mark == "r" else table.header.index(named))
        return cls(labeled, own, marks, spans, columns)


def read(files: Sequence[Path], plain: int = 0) -> tuple[list[Columns], list[Labeled]]:
    """Return the tables of files, and the questions about them.

    `plain`: plain questions that are added about each table, and about one of few of its columns.
    """
    tables: list[Columns] = []
    questions: list[Labeled] = []
    names: list[str] = []
    for file in files:
        for part in re.split(r"(?m)^# ", file.read_text())[1:]:
            name, header, rest = part.split("\n", 2)
            lines = rest.split("\n")
            rows = [line.split(";") for line in lines[: lines.index("")]]
            tables.append(columns_of(name.strip(), [h.strip() for h in header.split(";")], rows))
            for line in filter(None, lines[lines.index("") :]):
                questions.append(labeled(line, len(tables) - 1, tables[-1]))
            header, draw = tables[-1].header, random.Random(len(tables))
            few = sorted(draw.sample(range(len(header)), min(len(header), draw.randint(2, 4))))
            for some in (range(len(header)), few) if plain and names else ():
                cells = [[row[c] for c in some] for row in rows]
                tables.append(columns_of(name.strip(), [header[c] for c in some], cells))
                made = questions_of(tables[-1], cells, names, plain, len(tables))
                questions += [labeled(line, len(tables) - 1, tables[-1]) for line in made]
            names += header
    return tables, questions


def columns_of(name: str, header: list[str], cells: list[list[str]]) -> Columns:
    """Return the columns of a table; rows like the first are made up, so that numbers are seen."""
    pick = random.Random(1)
    columns = [[cell.strip() for cell in column] for column in zip(*cells, strict=True)]
    for number in range(MORE_ROWS):
        for column in columns:
            whole = column[: len(cells)]
            if all(re.fullmatch(r"\d+", cell) for cell in whole) and len({*whole}) == len(whole):
                steps = {int(b) - int(a) for a, b in pairwise(whole)}
                top = int(column[-1]) + 1 if steps == {1} else pick.randint(*_ends(whole))
                column.append(str(top))
            elif len({*whole}) == len(whole) and not re.search(r"\d", whole[0]):
                column.append(f"{pick.choice(whole)} {number}")
            else:
                column.append(pick.choice(whole))
    rows = [Row(each, 0, 0, 0) for each in zip(*columns, strict=True)]
    return Columns(header, sample_of(rows, len(header), [name], complete=False))


def _ends(whole: Sequence[str]) -> tuple[int, int]:
    numbers = [*map(int, whole)]
    return min(numbers), max(numbers) * 2


def labeled(line: str, table: int, columns: Columns) -> Labeled:
    operation, _, rest = (part.strip() for part in line.partition("|"))
    text, at, spans = "", 0, []
    for found in _MARK.finditer(rest):
        text += rest[at : found.start()]
        mark, column, words = found.group(1, 2, 3) if found[1] else found.group(4, 5, 6)
        if not column and mark != "r":
            exact, having = columns.named(words)
            column = columns.header[(exact or having)[0]]
        spans.append((mark, column or None, len(text), len(text) + len(words)))
        text, at = text + words, found.end()
    assert operation in OPERATIONS, line
    text += rest[at:]
    if operation[-1] in "<>":
        spans = [("s" if each[0] == "g" else each[0], *each[1:]) for each in spans]
    return dated(Labeled(table, operation, text, tuple(spans)))


def dated(each: Labeled) -> Labeled:
    """Return a question whose dates and spans are as the program sees them."""
    text, edges = each.text, [edge for *_, a, b in each.spans for edge in (a, b)]
    signs = {edge: chr(0xE000 + at) for at, edge in enumerate(sorted({*edges}))}
    whole = "".join(signs.get(at, "") + char for at, char in enumerate(text + " ")).rstrip(" ")
    whole, places = iso_dates(whole), {}
    plain = ""
    for char in whole:
        if 0xE000 <= ord(char) < 0xF000:
            places[char] = len(plain)
        else:
            plain += char
    spans = tuple((m, c, places[signs[a]], places[signs[b]]) for m, c, a, b in each.spans)
    return Labeled(each.table, each.operation, plain, spans)


def vocabulary(questions: Sequence[Labeled], tables: Sequence[Columns]) -> bytes:
    """Return bits for the words of questions about several tables, and of several headers."""
    seen: defaultdict[str, set[int]] = defaultdict(set)
    for each in questions:
        values = [(a, b) for mark, _, a, b in each.spans if mark in VALUES]
        tokens = Tokens(each.text)
        for (begin, _), word in zip(tokens.spans, tokens.plain, strict=True):
            if not any(a <= begin < b for a, b in values):
                seen[word].add(each.table)
    for at, table in enumerate(tables):
        for name in table.header:
            for word in words_of(name):
                seen[word].add(at)
    bits = bytearray(VOCABULARY // 8)
    for word in (word for word, some in seen.items() if len(some) > 1):
        for salt in (0, 1):
            place = crc32(word.encode(), salt) % VOCABULARY
            bits[place // 8] |= 1 << place % 8
    return bytes(bits)


def train_columns(some: Sequence[Known], seed: int) -> nn.EmbeddingBag:
    """Return the weights that find the column of a mark."""
    torch.manual_seed(seed)
    rows = []
    for each in some:
        for span, right in zip(each.spans, each.columns, strict=True):
            if right is not None:
                columns = each.question.column_features(span, each.spans)
                rows.append(([*map(torch.tensor, columns)], right))
    table, order = zeros(1, WEIGHTS.rows), random.Random(seed)
    optimizer = torch.optim.Adagrad(table.parameters(), KIND_RATE * 2)
    for _ in range(EPOCHS):
        order.shuffle(rows)
        for at in range(0, len(rows), BATCH):
            optimizer.zero_grad()
            batch = rows[at : at + BATCH]
            sums = summed(table, [each for features, _ in batch for each in features])[:, 0]
            loss, begin = torch.zeros(()), 0
            for features, right in batch:
                own = sums[begin : begin + len(features)]
                loss = loss + torch.logsumexp(own, 0) - own[right] + DECAY * (own**2).sum()
                begin += len(features)
            loss.backward()
            optimizer.step()
    return table


def train(tables: Sequence[Columns], questions: Sequence[Labeled], seed: int = 3) -> bytes:
    """Return the weights of the three models."""
    words = vocabulary(questions, tables)
    WEIGHTS.data = memoryview(bytes(WEIGHTS.size) + words).cast("b")
    every = [Known.of(each, tables[each.table]) for each in questions]
    random.Random(seed).shuffle(every)
    rows = [(each.question.features(), each.marks) for each in every]
    operations = [
        (each.question.operation_features(each.spans, each.columns),
         OPERATIONS.index(each.labeled.operation)) for each in every if each.spans
    ]  # fmt: skip
    fold_of = [each.labeled.table % FOLDS for each in every]
    for fold in range(FOLDS):
        inside = [at for at in range(len(every)) if fold_of[at] != fold]
        marker = train_marker([rows[at] for at in inside], WEIGHTS, seed)
        found = train_columns([every[at] for at in inside], seed)
        use(WEIGHTS, marker, found, more=words)
        for at in range(len(every)):
            if fold_of[at] == fold:
                own = every[at].question
                marks, _ = own.read()
                right = OPERATIONS.index(every[at].labeled.operation)
                features = own.operation_features([s for s, *_ in marks], [c for _, c, _ in marks])
                operations.append((features, right))
    marker = train_marker(rows, WEIGHTS, seed)
    found = train_columns(every, seed)
    classes = train_classes(operations, len(OPERATIONS), WEIGHTS, seed)
    return use(WEIGHTS, marker, found, classes, more=words)


def query_right(each: Labeled, table: Columns) -> bool | None:
    """Return whether a question gets its query; None: a model answers it."""
    known = Known.of(each, table)
    marks = [(*pair, 1.0) for pair in zip(known.spans, known.columns, strict=True)]
    with suppress(AmbiguousError):
        query = computed_query(each.text, table.header, table.sample)
        other = each.operation == "other"
        right = None if other else Marks(table, marks).query(each.operation)
        return None if query is None else _same(query) == _same(right)
    return None


def _same(query: Query | None) -> Query | None:
    """Return a query without what changes no figure."""
    if query is None:
        return None
    where = tuple(sorted((replace(each, stated=True) for each in query.where), key=repr))
    return replace(query, where=where, show=None if query.operation == "count" else query.show)


def check(file: Path) -> None:
    """Print how many questions of a file get the right query, and those that do not."""
    tables, questions = read([file])
    found = [(each, query_right(each, tables[each.table])) for each in questions]
    computable = [right for each, right in found if each.operation != "other"]
    others = [right for each, right in found if each.operation == "other"]
    wrong = computable.count(False)
    print(f"computable: {computable.count(True)} of {len(computable)}, {wrong} with another query")
    print(f"others, left to the model: {others.count(None)} of {len(others)}")
    for each, right in found:
        if right is not True and (each.operation != "other" or right is not None):
            print(f"  {each.operation}: {each.text} -> {read_marks(each.text, tables[each.table])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=Path)
    options = parser.parse_args()
    if options.check is not None:
        check(options.check)
        return
    files = sorted(QUESTIONS.glob("?.txt"))
    tables, questions = read([*files, QUESTIONS / "z.txt", QUESTIONS / "z.txt"], PLAIN)
    print(len(questions), "questions", dict(Counter(each.operation for each in questions)))
    WEIGHTS.file.write_bytes(train(tables, questions))


if __name__ == "__main__":
    main()
