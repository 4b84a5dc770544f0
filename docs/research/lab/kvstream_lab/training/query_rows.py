"""Rows of tables with questions, and the SQLite query of each.

A file has tables, each with its questions: ``QUERY | QUESTION``, where the query is NONE for a
question that the table does not answer. Several questions of a table share its columns.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kvstream.exact.tables import Columns
from kvstream.exact.written_queries import SYSTEM, QueryWriter
from kvstream.input.blocks import TextBlock
from kvstream.input.table_reader import tables_of
from kvstream_lab.training.reader_rows import Row

QUESTIONS = 9
"""Questions of a row."""


class QueryRows:
    """Makes rows of the files of a folder for the tokenizer and the chat template of a model."""

    def __init__(self, folder: Path, tokenizer: Any, seed: int) -> None:
        self.rng, self.folder, self._tokenizer = random.Random(seed), folder, tokenizer
        self._left: list[tuple[QueryWriter, list[tuple[str, str]]]] = []
        self._stop = tokenizer.eos_token_id

    def row(self) -> Row:
        """Return the next row; all questions come once before one comes again."""
        if not self._left:
            for file in sorted(self.folder.glob("*.txt")):
                for writer, asked in tables(file):
                    self.rng.shuffle(asked)
                    count = -(-len(asked) // QUESTIONS)
                    self._left += [(writer, asked[part::count]) for part in range(count)]
            self.rng.shuffle(self._left)
        writer, asked = self._left.pop()
        # Some are typed carelessly.
        wordings = [q.lower() if self.rng.random() < 0.15 else q for _, q in asked]
        values = {value for each in wordings for value in writer.named(each)}
        head, tails = self._prompts([writer.prompt(each, values) for each in wordings])
        answers = [[*self._encode(query), self._stop] for query, _ in asked]
        return Row(head, list(zip(tails, answers, strict=True)))

    def _prompts(self, texts: Sequence[str]) -> tuple[list[int], list[list[int]]]:
        """Return the ids that all prompts begin with, and the rest of each."""
        ids = [self._rendered(text) for text in texts]
        same = next(
            (at for at, some in enumerate(zip(*ids, strict=False)) if len({*some}) > 1),
            min(map(len, ids)) - 1,
        )
        return ids[0][:same], [each[same:] for each in ids]

    def _rendered(self, text: str) -> list[int]:
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        return self._encode(
            self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        )

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def tables(file: Path) -> list[tuple[QueryWriter, list[tuple[str, str]]]]:
    """Return the tables of a file, each with its queries and questions."""
    found = []
    for name, text, asked in labeled(file):
        (table,) = tables_of([TextBlock(text, 0, 0)], [name])
        writer = QueryWriter(Columns.of(table, whole=True), lambda *_: ("", 0.0))
        found.append((writer, asked))
    return found


def labeled(file: Path) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Yield the name and the text of each table, and its labels with their questions."""
    for part in re.split(r"(?m)^# ", file.read_text("utf-8"))[1:]:
        name, rest = part.split("\n", 1)
        text, _, lines = rest.partition("\n\n")
        pairs = (line.partition(" | ") for line in filter(None, lines.split("\n")))
        yield name, f"{text}\n", [(label, question) for label, _, question in pairs]
