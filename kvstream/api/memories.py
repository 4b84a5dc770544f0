"""Many memory files: rank them by a question, ask them, join them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from kvstream.api.answer import Answer
from kvstream.api.checks import path_of, positive_of, question_of, several_of
from kvstream.api.memory import Memory, MemoryFile, QuestionOptions, inspect, with_entries
from kvstream.collection.rank import Ranked, rank
from kvstream.collection.rank import memory_files as memory_files
from kvstream.errors import BudgetError, ModelError, SourceError, UsageError
from kvstream.memory.contents import Memory as HeldMemory
from kvstream.memory.glance import state_in
from kvstream.memory.merging import join
from kvstream.passages.memory import KeptPart, joined
from kvstream.session.session import Session
from kvstream.settings import Budget, RunSettings

BEST = 3
"""Default number of memories that answer a question."""


def models_of(files: Sequence[Path]) -> tuple[str, str | None] | None:
    """Return the most frequent models of files: what made them, and what else answers from their
    passages, or None. Files of two models come first: files of either can then be asked.
    """
    counts: Counter[tuple[str, str | None]] = Counter()
    for path in files:
        try:
            state = state_in(path)
        except SourceError:  # reported when the file is asked
            continue
        counts[state.model.name, state.answering.name if state.answering else None] += 1
    # If two are equally frequent, max() takes the first.
    return max(counts, key=lambda pair: (pair[1] is not None, counts[pair]), default=None)


class Memories:
    """The memory files of a folder. `Model.memories` creates it. One file is loaded at a time.

    With two models, files of either one can be asked too; that model then answers alone.
    """

    def __init__(self, recall: Callable[[Path], Memory], folder: str | os.PathLike[str]) -> None:
        self._recall = recall
        self.folder = Path(path_of("folder", folder))
        self.files: list[Path] = memory_files(self.folder)
        """The files, sorted by name."""
        self.problems: list[str] = []
        """Problems of files that were left out of the last ranking or could not be asked."""

    def rank(self, question: str) -> list[Ranked]:
        """Return the files, with the one that the question is most likely about first."""
        question_of(question)
        ranking, self.problems = rank(question, self.files, lambda path: self._recall(path)._engine)
        return ranking

    def answers(
        self, question: str, best: int = BEST, **options: Unpack[QuestionOptions]
    ) -> list[tuple[Ranked, Answer]]:
        """Ask the `best` memories, and return their answers, the most reliable first.

        Refusals come last. Other answers are sorted by their probability to be right, then by the
        rank of their memory. Raises SourceError if no memory can be asked.
        """
        best = positive_of("best", best)
        pairs = []
        for each in self.rank(question)[:best]:
            try:
                answer = self._answer(each.path, question, options)
            except (BudgetError, ModelError, SourceError) as error:  # ranking did not load the file
                self.problems.append(f"{each.path}: {error}")
                continue
            pairs.append((each, answer))
        if not pairs:
            raise SourceError(f"No memory file here can be used. The first: {self.problems[0]}")
        pairs.sort(key=lambda pair: _doubt(pair[1]))  # equal ones stay in the order of the ranking
        return pairs

    def _answer(self, path: Path, question: str, options: QuestionOptions) -> Answer:
        memory = self._recall(path)
        try:
            return memory.ask(question, **options)
        finally:
            memory.release()


def _doubt(answer: Answer) -> tuple[bool, float]:
    return answer.abstained, -(answer.support or {}).get("probability", 0.0)


def merge(
    session: Session,
    paths: Sequence[str | os.PathLike[str] | MemoryFile],
    budget: int | str | None = None,
) -> HeldMemory:
    """Join several files that the model of this session made; see `Model.merge`."""
    paths = several_of("paths", "memory files", paths)
    if len(paths) < 2:
        raise UsageError("Name at least two memory files to merge.")
    # RAM holds the entries of one file at a time.
    files = [p if isinstance(p, MemoryFile) else inspect(p).without_entries for p in paths]
    refuse_repeats(files)
    tokens = None
    if budget is not None:
        tokens = Budget.parse(str(budget)).tokens
        if tokens is None:
            raise UsageError("merge takes a budget in entries per head, such as 4k.")
    entries = tokens or max(file.content.state["sizes"]["budget"] for file in files)
    answering = _answering_budget(files, tokens)
    result, parts = None, []
    for file in files:
        memory = session.recall(with_entries(file), RunSettings())
        if answering is not None:
            parts.append(KeptPart.of(memory))
        names = str(files[0].path), str(file.path)
        result = memory if result is None else join(result, memory, entries, names=names)
    assert result is not None
    if answering is not None:
        result.beside = joined(parts, answering)
    result.prefill_s = result.reader.select_seconds = 0.0  # nothing was read now
    if (warning := _shared_sources(files)) is not None:
        result.warnings.append(warning)
    return result


def refuse_repeats(files: Sequence[MemoryFile]) -> None:
    """Raise UsageError if two files hold the same memory, which would only waste room."""
    for number, file in enumerate(files):
        for earlier in files[:number]:
            if earlier.path.resolve() == file.path.resolve():
                raise UsageError(
                    f"{file.path} was named twice, and a memory cannot be joined with itself; name "
                    "each file once."
                )
            if earlier.digest == file.digest:
                raise UsageError(
                    f"{earlier.path} and {file.path} hold the same memory; leave one of them out."
                )


def _shared_sources(files: Sequence[MemoryFile]) -> str | None:
    """Return a warning about sources (name and content) that several files have, or None."""
    counts = Counter(
        source
        for file in files
        for source in {(each["name"], each["sha256"]) for each in file.sources}
    )
    names = [name for (name, _), times in counts.items() if times > 1]
    if not names:
        return None
    what = f"1 source ({names[0]}) is" if len(names) == 1 else f"{len(names):,} sources are"
    return (
        f"{what} in more than one of the joined files, and memory holds entries of each reading. "
        "Read every source into one of the files only."
    )


def _answering_budget(files: Sequence[MemoryFile], tokens: int | None) -> int | None:
    """Return the budget of the model that answers from joined files; None if one model does all.

    Raises UsageError if the files were not read for the same answering model.
    """
    models = [file.content.state.get("answering") for file in files]
    first, one = models[0], files[0]
    for file, model in zip(files, models, strict=True):
        if (first is None) != (model is None):
            raise UsageError(
                f"{one.path} was read by {_readers(one)} and {file.path} by {_readers(file)}, so "
                "they cannot be joined. Read all sources again with one model (-m pocket), or read "
                "the text of one into the memory of two models: kvstream remember --memory FILE "
                "SOURCE."
            )
        if first is None or model is None:
            continue
        for key, what in (
            ("name", "answering models"), ("fingerprint", "weights of the answering model")
        ):  # fmt: skip
            if model[key] != first[key]:
                raise UsageError(
                    f"{one.path} and {file.path} have different {what} ({first[key]}, "
                    f"{model[key]}), so they cannot be joined; read both sources with the same."
                )
        if tokens is None and model["budget"] != first["budget"]:
            raise UsageError(
                f"{first['name']} has a budget of {first['budget']:,} in {one.path}, and of "
                f"{model['budget']:,} in {file.path}; name one for both models with --budget."
            )
    return None if first is None else tokens or int(first["budget"])


def _readers(file: MemoryFile) -> str:
    answering = file.content.state.get("answering")
    return f"{file.model['name']} {'for ' + answering['name'] if answering else 'alone'}"
