"""Count how many questions about tables are computed as expected.

    python docs/research/lab/table_queries.py docs/research/lab/questions/held-out-tables.txt

The file has tables, each with its questions: ``EXPECTED | QUESTION``. Several values are separated
by ``;``. ``-`` is a question that the table does not answer, ``~`` begins one that may be left to
the model, but not be computed wrong. `--rules` reads the questions without a model.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kvstream.exact.table_answers import TableQuestions
from kvstream.exact.written_queries import MOST_TOKENS
from kvstream.input.blocks import TextBlock
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings
from kvstream.store import reader
from kvstream_lab.training.query_rows import labeled

_NUMBER = r"-?\d+(?:\.\d+)?"


def questions_of(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name and the text of a table, what is expected, and the question."""
    for name, table, asked in labeled(file):
        for expected, question in asked:
            yield name, table, expected, question


def is_right(expected: str, answer: str) -> bool:
    """Return whether an answer has all expected values; a figure alone must be the first."""
    values = expected.removeprefix("~").split(";")
    numbers = [float(n) for n in re.findall(rf"(?<![\w.]){_NUMBER}", answer.replace(",", ""))]
    if len(values) == 1 and re.fullmatch(_NUMBER, values[0]):
        return bool(numbers) and abs(numbers[0] - float(values[0])) < 1e-4 * max(1, numbers[0])
    return all(
        any(abs(n - float(v)) < 1e-4 * max(1, n) for n in numbers)
        if re.fullmatch(_NUMBER, v)
        else v.casefold() in answer.casefold()
        for v in values
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("-m", "--model", default="qwen-0.5b", choices=reader.QUERIES)
    options = parser.parse_args()
    write = None
    if not options.rules:
        session = Session.open(ModelSettings(str(reader.path(reader.QUERIES[options.model]))))
        write = partial(session.write, RunSettings(Budget(tokens=2048), max_tokens=MOST_TOKENS))
    counts: Counter[str] = Counter()
    for name, table, expected, question in (
        q for file in options.files for q in questions_of(file)
    ):
        asked = TableQuestions([TextBlock(table, 0, 0)], [name], [question], write=write)
        record = asked.answers().get(question)
        query = asked.queries.get(question, "")
        kind = {"-": "no answer", "~": "hard"}.get(expected[0], "plain")
        result = "left"
        if record is not None:
            result = (
                "right" if kind != "no answer" and is_right(expected, record["answer"]) else "wrong"
            )
        counts[f"{kind}: {result}"] += 1
        if result == "wrong" or (result == "left" and kind == "plain"):
            told = record["answer"].split("\n")[0] if record else ""
            print(f"{result}: {question} | expected {expected} | {told} | {query}", flush=True)
    for kind, count in sorted(counts.items()):
        print(kind, count)


if __name__ == "__main__":
    main()
