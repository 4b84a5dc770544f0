"""What memory files and checkpoints record about logs of which only some lines are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstream.api.model import Model
from kvstream.errors import SourceError, UsageError
from kvstream.memory.saving import look
from kvstream.session.session import Session
from kvstream.settings import RunSettings

LINES = 100


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "app.log"
    path.write_text("".join(f"2024-05-01 12:00:00 INFO a: beat {n}\n" for n in range(LINES)))
    return path


@pytest.fixture
def model(session: Session, monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr("kvstream.session.reading.PER_ENTRY", 0)  # thin short logs too
    return Model(session)


def test_what_was_not_read_is_known_to_the_file(model: Model, log: Path, tmp_path: Path) -> None:
    memory = model.read(log, budget=300, method="keydiff")
    assert memory.lines is not None
    assert memory.lines["lines"] == LINES
    left_out = memory.lines["thinned"]
    assert left_out > LINES // 2
    path = tmp_path / "log.kvs"
    memory.save(path)
    recalled = model.recall(path)
    assert recalled.lines == memory.lines
    told = recalled.ask("What beats?", max_tokens=4).result.lines
    assert told is not None
    assert told["thinned"] == left_out
    with pytest.raises(UsageError, match="was named twice"):
        model.merge([path, path])
    other = tmp_path / "other.log"
    other.write_text(log.read_text().replace("a: beat", "a: heartbeat"))
    more = model.read(other, budget=300, method="keydiff")
    assert more.lines is not None
    more.save(tmp_path / "other.kvs")
    joined = model.merge([path, tmp_path / "other.kvs"]).lines
    assert joined is not None
    assert joined["thinned"] == left_out + more.lines["thinned"]
    recalled.read(log)
    assert recalled.lines is not None
    assert recalled.lines["lines"] == 2 * LINES
    assert recalled.lines["thinned"] > 2 * left_out - 20


def test_a_memory_reads_on_as_it_began(model: Model, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.kvs"
    memory = model.read(log, budget=300, method="keydiff", thin="off")
    assert memory.lines is None
    memory.save(path)
    recalled, before = model.recall(path), memory.read_tokens
    recalled.read(log)
    assert recalled.lines is None
    assert recalled.read_tokens > 2 * before - 20


def test_another_thin_than_that_of_the_file_is_refused(
    model: Model, log: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    path = tmp_path / "log.kvs"
    model.read(log, budget=300, method="keydiff").save(path)
    for command in (("ask", "--memory", path, "Who?"), ("remember", "--memory", path, log)):
        refused = cli(*map(str, command), "--thin", "off")
        assert refused.code == 2
        assert "was made with --thin auto, and off was given" in refused.stderr
    checkpoint = tmp_path / "log.ckpt"
    pressed = iter([False] * 4)
    model.read(
        log, budget=300, checkpoint=checkpoint, interrupted=lambda: next(pressed, True), thin="off"
    )
    with pytest.raises(UsageError, match="--thin was off, and is auto here"):
        model.read(log, budget=300, checkpoint=checkpoint)


def test_counts_that_cannot_be_are_refused(model: Model, log: Path, tmp_path: Path) -> None:
    path = tmp_path / "log.kvs"
    model.read(log, budget=300, method="keydiff").save(path)
    file = look(path)
    file.content.state["trace"]["lines"] = [3, 4]
    with pytest.raises(SourceError, match="of 3 lines it left out 4"):
        model.session.recall(file, RunSettings())
