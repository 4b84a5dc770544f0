"""Code of a user with type hints. Nothing runs it: mypy checks it (see pyproject.toml)."""

from __future__ import annotations

from pathlib import Path

import kvstream


def use(names: list[str], paths: list[Path], texts: tuple[kvstream.Text, ...]) -> str:
    """Give sources of every type that has its own variable, which mypy treats as invariant."""
    model = kvstream.load("pocket", threads=1)
    answers = [model.ask(names, "Who?"), model.ask(paths, "Who?"), model.ask(texts, "Who?")]
    memory = model.read(Path("book.txt"), questions=["Who?"])
    answers.append(memory.ask("Who?", max_tokens=8))
    folder: kvstream.Memories = model.memories("folder")
    answers += [answer for _, answer in folder.answers("Who?")]
    return "".join(answer.text for answer in answers)
