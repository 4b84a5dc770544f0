"""Many memory files: found by question, asked, joined."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from kvstream.api.answer import Answer
from kvstream.api.files import MemoryFile, inspect
from kvstream.api.memory import Memory, QuestionOptions
from kvstream.collection.rank import Ranked, rank
from kvstream.collection.rank import memory_files as memory_files
from kvstream.errors import UsageError
from kvstream.memory.base import Memory as HeldMemory
from kvstream.memory.joining import join
from kvstream.memory.saving import look
from kvstream.settings import Budget, RunSettings

if TYPE_CHECKING:
    from kvstream.session.session import Session

BEST = 3
"""Memories that answer a question, where nothing else was said."""


class Memories:
    """The memory files of a folder; made by `Model.memories`. One is loaded at a time."""

    def __init__(self, session: Session, folder: str | os.PathLike[str]) -> None:
        self._session, self.folder = session, Path(folder)
        self.files: list[Path] = memory_files(self.folder)
        """The files, by name."""
        self.problems: list[str] = []
        """What was found wrong with files of the last ranking, which were left out."""

    def rank(self, question: str) -> list[Ranked]:
        """The files, the one that the question is most likely about first."""
        ranked, self.problems = rank(question, self.files, self._recall)
        return ranked

    def answers(
        self, question: str, best: int = BEST, **options: Unpack[QuestionOptions]
    ) -> list[tuple[Ranked, Answer]]:
        """What the `best` memories answer, the answer to rely on first.

        An answer comes before those that say that the text does not tell; of several the one that
        is likeliest to be right, else the one of the memory that ranks first. Raises UsageError
        where no memory can be asked.
        """
        found = []
        for place, each in enumerate(self.rank(question)[:best]):
            file = inspect(each.path)
            memory = Memory(self._session, self._session.recall(file.kind, RunSettings()), file)
            answer = memory.ask(question, **options)
            memory.release()
            found.append((_preference(answer, place), each, answer))
        if not found:
            raise UsageError(f"None of the {len(self.files)} files can be used: {self.problems[0]}")
        found.sort(key=lambda row: row[0])
        return [(each, answer) for _, each, answer in found]

    def _recall(self, path: Path) -> HeldMemory:
        return self._session.recall(look(path), RunSettings())


def _preference(answer: Answer, place: int) -> tuple[bool, float, int]:
    support = answer.support or {}
    return answer.abstained, -support.get("probability", 0.0), place


def merge(
    session: Session,
    paths: Sequence[str | os.PathLike[str] | MemoryFile],
    budget: int | str | None = None,
) -> Memory:
    """One memory of several files; see `Model.merge`."""
    if len(paths) < 2:
        raise UsageError("Name at least two memory files to merge.")
    kinds = [(path if isinstance(path, MemoryFile) else inspect(path)).kind for path in paths]
    entries = max(kind.content.state["sizes"]["budget"] for kind in kinds)
    if budget is not None:
        wanted = Budget.parse(str(budget))
        if wanted.tokens is None:
            raise UsageError("merge takes a budget in tokens, such as 4k.")
        entries = wanted.tokens
    merged = session.recall(kinds[0], RunSettings())
    for kind in kinds[1:]:
        merged = join(merged, session.recall(kind, RunSettings()), entries)
    merged.prefill_s = merged.reader.select_seconds = 0.0  # nothing was read now
    return Memory(session, merged)
