"""Ray's workers on two simulated machines: lost workers and machines change no result.

Most readers are stand-ins whose results depend only on the text. The tests with a `session` read
with pocket.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import standin
from digests import digest_of

from kvstream.api.memory import inspect
from kvstream.collection.cluster import Need, NoRoomError, room
from kvstream.collection.document_list import documents_in
from kvstream.collection.job import Job
from kvstream.collection.sharding import read_shards
from kvstream.collection.spread import run
from kvstream.collection.worker import Workers
from kvstream.errors import KvstreamError
from kvstream.events import DocumentDone, DocumentFailed, DocumentStarted, Outcome, returned
from kvstream.input.sources import open_sources
from kvstream.run.request import Request
from kvstream.sample.document import generate
from kvstream.session import sharding
from kvstream.session.session import Session
from kvstream.settings import Budget, ModelSettings, RunSettings

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'kvstream[ray]'")
MACHINES = 1
"""Number of machines besides the head, which is never lost."""
HEARTBEAT = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
             "health_check_failure_threshold": 3}  # fmt: skip
NO_SPARE = {"prestart_worker_first_driver": False, "enable_worker_prestart": False}
"""Settings that stop Ray from starting processes before a task needs them."""


class Machines:
    """A cluster of two nodes on this machine, each with room for one worker."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ.setdefault("RAY_worker_niceness", "0")

        each = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={**each, "_system_config": {**HEARTBEAT, **NO_SPARE}},
        )
        del each["include_dashboard"]
        self.each = each
        self.others = [self.cluster.add_node(**each) for _ in range(MACHINES)]
        ray.init(address=self.cluster.address, logging_level="ERROR", log_to_driver=False)
        ray.cloudpickle.register_pickle_by_value(standin)

    def lose(self) -> None:
        """Stop one of the other nodes at once, as in a power failure."""
        if self.others:
            self.cluster.remove_node(self.others.pop(), allow_graceful=False)

    def mend(self) -> None:
        """Start the lost nodes again."""
        while len(self.others) < MACHINES:
            self.others.append(self.cluster.add_node(**self.each))

    def close(self) -> None:
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    found = Machines()
    yield found
    found.close()


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(24):
        (folder / f"{number:02}.txt").write_text(f"Text {number}. " * (1 + 7 * number % 23))
    return folder


def job(into: Path | None = None, command: Any = "ask") -> Job:
    questions = ("Who?",) if command == "ask" else ()
    run = RunSettings(budget=Budget(tokens=256), max_tokens=8)
    request = Request(questions, run=run, command=command)
    return Job(ModelSettings(dtype="float32", threads=1), (request,), into)


def read(
    what: Job,
    folder: Path,
    tell: Callable[[Any], None] = lambda event: None,
    reader: Any = standin.StandIn,
    workers: int = 3,
    address: str | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    documents, _ = documents_in([str(folder)])
    place = Workers(workers, address, open_reader=reader)
    return list(run(what, documents, workers=place, tell=tell, interrupted=interrupted))


def expected(folder: Path) -> dict[str, str]:
    return {
        str(path): standin.record_of(str(path), path.read_bytes())["answer"]
        for path in folder.iterdir()
    }


def answers(outcomes: list[Outcome]) -> dict[str, str]:
    done = [outcome for outcome in outcomes if isinstance(outcome, DocumentDone)]
    assert len({outcome.name for outcome in done}) == len(done)
    return {outcome.name: outcome.records[0]["answer"] for outcome in done}


class Killer:
    """Kill workers and machines during the reading, but the worker of a document only once."""

    def __init__(self, machines: Machines, seed: int) -> None:
        self.machines, self.random = machines, random.Random(seed)
        self.struck: set[str] = set()
        self.killed, self.lost = 0, 0
        self.threads: list[threading.Thread] = []

    def __call__(self, event: Any) -> None:
        if not isinstance(event, DocumentStarted) or event.name in self.struck:
            return
        draw = self.random.random()
        if draw < 0.2 and self.killed < 2:
            self.struck.add(event.name)
            self.killed += 1
            self._later(lambda: _end(event.process))
        elif draw < 0.3 and not self.lost:
            self.lost += 1
            self._later(self.machines.lose)

    def _later(self, what: Callable[[], None]) -> None:
        pause = self.random.uniform(0, 0.03)
        thread = threading.Thread(target=lambda: (time.sleep(pause), what()))
        self.threads.append(thread)
        thread.start()

    def close(self) -> None:
        for thread in self.threads:
            thread.join()
        self.machines.mend()


def _end(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


RUNS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(50) if seed != 1)]


@pytest.mark.parametrize("seed", RUNS)
def test_what_is_lost_on_the_way_changes_no_result(
    seed: int, machines: Machines, texts: Path, tmp_path: Path
) -> None:
    killer = Killer(machines, seed)
    memories = bool(seed % 2)
    into = tmp_path / "results"
    try:
        outcomes = read(job(into, "remember" if memories else "ask"), texts, killer)
    finally:
        killer.close()
    assert not [o for o in outcomes if isinstance(o, DocumentFailed)]
    assert answers(outcomes) == expected(texts)
    files = sorted(path for path in into.iterdir())
    assert len(files) == len(outcomes)
    assert all(path.suffix == (".kvs" if memories else ".json") for path in files)
    if memories:
        assert sorted(path.read_text() for path in files) == sorted(expected(texts).values())
    assert killer.killed + killer.lost > 0, "nothing was killed: another seed"


def test_a_document_that_ends_two_workers_is_put_aside(machines: Machines, texts: Path) -> None:
    (texts / "bad.txt").write_text(standin.POISON)
    outcomes = read(job(), texts, workers=1)
    failed = [o for o in outcomes if isinstance(o, DocumentFailed)]
    assert [Path(o.name).name for o in failed] == ["bad.txt"]
    assert "2 workers ended while they read it" in failed[0].reason
    left = expected(texts)
    del left[str(texts / "bad.txt")]
    assert answers(outcomes) == left


@pytest.mark.long
def test_a_killed_reading_of_pocket_gives_the_memories_of_one_process(
    machines: Machines, texts: Path, tmp_path: Path, session: Session
) -> None:
    """The content digests are equal; only the times of reading and writing differ.

    The tests above kill readers without a model, and the next one compares digests of pocket.
    """
    for number, path in enumerate(sorted(texts.iterdir())):
        path.unlink()
        if number < 3:
            path.write_text("".join(generate(tokens=800, seed=number)))
    documents, _ = documents_in([str(texts)])
    begun: list[str] = []

    def kill(event: Any) -> None:
        if isinstance(event, DocumentStarted):
            begun.append(event.name)
            if len(begun) == 2:
                _end(event.process)

    def digests(into: Path, **how: Any) -> dict[str, str]:
        what = job(into, "remember")
        outcomes = list(run(what, documents, interrupted=lambda: False, **how))
        assert all(isinstance(o, DocumentDone) for o in outcomes), outcomes
        return {path.name: inspect(path).digest for path in into.iterdir()}

    alone = digests(tmp_path / "alone", session=session, tell=lambda event: None)
    assert digests(tmp_path / "spread", workers=Workers(1), tell=kill) == alone
    assert len(alone) == 3
    assert len(begun) == 4, "the killed document begins twice"


@pytest.mark.long
def test_parts_of_a_text_on_workers_give_the_memory_of_one_process(
    machines: Machines, tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paths are relative, and the workers run in another folder."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(generate(tokens=1200, seed=1)))
    what = job(tmp_path)
    asked, settings = what.parts[0], what.model
    alone = returned(sharding.read_shards(session, open_sources(["text.txt"]), asked, 2))
    spread = returned(
        read_shards(session, settings, open_sources(["text.txt"]), asked, 2, Workers(1))
    )
    assert digest_of(spread) == digest_of(alone)
    assert spread.shards is not None
    assert spread.shards.count == 2


@pytest.fixture
def auto(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address ``auto``, which finds these machines whatever other clusters are running."""
    monkeypatch.setenv("RAY_ADDRESS", machines.cluster.address)
    return "auto"


def test_documents_travel_to_machines_that_have_not_the_files(
    auto: str, texts: Path, tmp_path: Path
) -> None:
    """The path leads to another text there. The digest shows it, and the bytes are sent."""
    outcomes = read(job(), texts, reader=standin.Elsewhere, workers=1, address=auto)
    assert answers(outcomes) == expected(texts)


def test_workers_know_the_folder_of_the_results(
    auto: str, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "results"
    found = read(job(into, "remember"), texts, workers=1, address=auto)
    assert len(found) == len(list(into.iterdir())) == 24
    monkeypatch.setattr("kvstream.collection.spread.Spread._mark", lambda spread: setattr(
        spread, "marker", tmp_path / "nowhere"))  # fmt: skip
    with pytest.raises(KvstreamError, match="does not see the folder"):
        read(job(tmp_path / "others", "remember"), texts, workers=1, address=auto)


def test_workers_without_a_task_are_told() -> None:
    told: list[Any] = []
    assert Workers(4000).count(3, told.append) == 3
    assert [(each.message[:22], each.note) for each in told] == [("3 of 4,000 workers sta", True)]


def test_too_little_memory_for_a_worker(machines: Machines) -> None:
    with pytest.raises(NoRoomError, match=r"needs 1 CPU, 1024.0 GiB of memory.*--worker-memory"):
        room(ray, Need(memory=2**40))
    assert room(ray, Need()) == 1 + MACHINES
    assert room(ray, Need(cpus=1, memory=2**20)) == 1 + MACHINES


def test_an_interrupted_run_finishes_what_is_being_read(machines: Machines, texts: Path) -> None:
    done: list[str] = []
    outcomes = read(job(), texts, done.append, workers=1, interrupted=lambda: len(done) > 6)
    assert 1 <= len(outcomes) < 24
    assert all(isinstance(o, DocumentDone) for o in outcomes)


def test_what_every_worker_refuses_ends_the_run(machines: Machines, texts: Path) -> None:
    with pytest.raises(KvstreamError, match="no such model") as found:
        read(job(), texts, reader=standin.Refuses, workers=1)
    assert found.value.exit_code == 4


def test_workers_that_end_while_they_load(machines: Machines, texts: Path) -> None:
    with pytest.raises(KvstreamError, match="3 workers in a row ended"):
        read(job(), texts, reader=standin.Ends, workers=1)


@pytest.mark.parametrize("count", [100, pytest.param(9_997, marks=pytest.mark.long)])
def test_three_broken_documents_of_many(count: int, machines: Machines, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"Text {number}.")
    for name in ("a", "b", "c"):
        (folder / f"{name}.gz").write_bytes(b"\x1f\x8b\x08\0" + bytes(30))
    outcomes = read(job(), folder, reader=standin.Instant, workers=2)
    failed = sorted(Path(o.name).name for o in outcomes if isinstance(o, DocumentFailed))
    assert failed == ["a.gz", "b.gz", "c.gz"]
    assert len(answers(outcomes)) == count
