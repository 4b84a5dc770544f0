"""Answer questions about tables: a plain one with a query of its words, others with one that a
model writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvstream.exact.plain_queries import plain_query
from kvstream.exact.row_database import RowDatabase
from kvstream.exact.tables import Columns
from kvstream.exact.written_queries import QueryWriter, Writer
from kvstream.input.blocks import TextBlock
from kvstream.input.table_reader import NotReadError, Table, tables_of


class TableQuestions:
    """The questions about the tables of a text that have a query."""

    def __init__(
        self, blocks: Iterable[TextBlock], names: Sequence[str], questions: Sequence[str], *,
        whole: bool = True, write: Writer | None = None, old: TableQuestions | None = None,
    ) -> None:  # fmt: skip
        """`whole`: the blocks are all of the text. `write`: writes queries for a text that is one
        table. `old` has queries that need not be written again.

        Raises NotReadError for a text without a table, and what `write` raises.
        """
        self.queries: dict[str, str] = {}
        """The query of each question that fits one table. If it fits two, no row answers it."""
        self.by_model: set[str] = old.by_model if old else set()
        """Questions whose query a model wrote."""
        self.header: Sequence[str] | None = None
        """Columns, if all of the text is one table."""
        self._tables: dict[str, list[tuple[Table, Columns]]] = {}
        self._unread: list[NotReadError] = []
        """Why rows of the text cannot be told apart."""
        queries = old.queries if old else {}
        for table in tables_of(blocks, names):
            self.header = table.header if table.whole else ()
            columns = Columns.of(table, whole=whole)
            self._unread += [table.failure] if table.failure else []
            writer = QueryWriter(columns, write) if write and table.whole else None
            for question in (q for q in questions if len(self._tables.get(q, ())) < 2):
                query = queries.get(question) or plain_query(question, columns)
                if query is None and writer is not None:
                    query = writer.query_of(question)
                    self.by_model |= {question} if query else set()
                if query is not None:
                    self.queries[question] = query
                    self._tables.setdefault(question, []).append((table, columns))
            if all(len(self._tables.get(question, ())) > 1 for question in questions):
                break  # no other table makes it one
        if self.header is None:
            raise NotReadError("The text has no table.")
        for question, fitting in self._tables.items():
            if len(fitting) > 1:
                del self.queries[question]

    def answers(self) -> dict[str, dict[str, Any]]:
        """Read the rows; return the answers by question. Raises NotReadError, SourceError."""
        if self._unread and self.header:
            raise self._unread[0]
        records: dict[str, dict[str, Any] | None] = {}
        fitting = {question: self._tables[question][0] for question in self.queries}
        for table, columns in {id(table): (table, c) for table, c in fitting.values()}.values():
            with RowDatabase.of(table, columns) as rows:
                for question in (q for q, (own, _) in fitting.items() if own is table):
                    zero = question not in self.by_model
                    records[question] = rows.answer(self.queries[question], zero=zero)
        return {question: record for question, record in records.items() if record is not None}
