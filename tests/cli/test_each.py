"""--each on the command line: output, errors and how a run ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from kvstream.api.collection import ask_each
from kvstream.cli.shared.each import _not_read
from kvstream.collection.document_list import documents_in
from kvstream.events import (
    CollectionEvent,
    CollectionStarted,
    DocumentDone,
    DocumentFailed,
    DocumentStarted,
    DocumentStep,
)
from kvstream.reporters.document_progress import (
    LISTED,
    RANKED,
    Collected,
    CollectedLive,
    Tally,
    last_lines,
    panel_lines,
    table,
)

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--budget", "256", "-n", "8")
WHO = "Who hid the letter?"


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    folder = tmp_path / "letters"
    folder.mkdir()
    for name in ("Ada", "Berta"):
        (folder / f"{name}.txt").write_text(f"{name} hid the letter under the wall.\n" * 5)
    return folder


@pytest.mark.whole_pocket
def test_answers_as_they_are_done(letters: Path, cli: Callable[..., Any]) -> None:
    done = cli("ask", str(letters), WHO, "--each", *SMALL)
    assert done.code == 0
    blocks = [block.split("\n") for block in done.stdout.strip().split("\n\n")]
    assert [b[0] for b in blocks] == [f"==> {letters}/{n}.txt <==" for n in ("Ada", "Berta")]
    assert [b[1].split()[0] for b in blocks] == ["Ada", "Berta"]
    assert "2 of 2 documents done" in done.stderr
    assert "kept all of it" in done.stderr


def test_a_count_of_each_names_what_is_skipped_and_reads_a_file_named_dash(
    tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "-").write_text("Ada hid the letter.")
    (tmp_path / "moved").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path)
    ran = cli("count", ".", "Ada", "--each", stdin=b"Ada, Ada and Ada")
    assert ran.stdout == "./-:1\n"
    assert ran.stderr == "Warning: Skipped: 1 × broken link (the first: moved).\n"
    assert [d.name for d in documents_in(["."])[0]] == ["./-"]


def test_figures_of_a_folder_name_what_is_skipped_and_what_fails(
    tmp_path: Path, cli: Callable[..., Any]
) -> None:
    (tmp_path / "a.csv").write_text("name,price\nlamp,3\nsail,9\n")
    (tmp_path / "moved.csv").symlink_to("nowhere")
    told = f"1 × broken link (the first: {tmp_path}/moved.csv)."
    ran = cli("ask", str(tmp_path), "Which row has the largest price?", "--json")
    assert json.loads(ran.stdout)["warnings"] == [f"Skipped in {tmp_path}: {told}"]
    (tmp_path / "empty.csv").write_text("")
    ran = cli("ask", str(tmp_path), "How many times is lamp mentioned?", "--each", "--json")
    assert [json.loads(line)["document"][-5:] for line in ran.stdout.splitlines()] == [
        "a.csv", "y.csv",
    ]  # fmt: skip
    assert "Nothing to read" in json.loads(ran.stdout.splitlines()[1])["error"]
    assert (ran.code, told in ran.stderr) == (7, True)
    into = ("-o", str(tmp_path / "results"))
    ran = cli("ask", str(tmp_path), "Which row has the largest price?", "--each", *into)
    assert (ran.code, ran.stdout.count("price: 9")) == (7, 1)
    assert f"The counted answers are not in {into[1]}" in ran.stderr


def test_a_line_of_json_for_each_document(letters: Path, cli: Callable[..., Any]) -> None:
    (letters / "empty.txt").write_text("")
    done = cli("ask", str(letters), "-Q", WHO, "-Q", "Where?", "--each", "--json", *SMALL)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.code == 7
    assert [Path(line["document"]).name for line in lines] == ["Ada.txt", "Berta.txt", "empty.txt"]
    assert [[a["question"] for a in line["answers"]] for line in lines[:2]] == [[WHO, "Where?"]] * 2
    assert lines[2]["error"] == f"{letters}/empty.txt is empty."
    assert f"Failed: {letters}/empty.txt is empty.\n" in done.stderr
    assert f"Failed: 1 document\n  {letters}/empty.txt\n" in done.stderr
    assert done.stderr.count("is empty") == 1


@pytest.mark.whole_pocket
def test_files_of_results_and_of_memories(
    letters: Path, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    into = tmp_path / "answers"
    done = cli("ask", str(letters), WHO, "--each", "-o", str(into), "-q", *SMALL)
    assert (done.code, done.stdout) == (0, "")
    assert len(list(into.glob("*.json"))) == 2
    memories = tmp_path / "memories"
    for present in (False, True):
        done = cli("remember", str(letters), "--each", "-o", str(memories), "--budget", "256",
                   "--json")  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [line["present"] for line in lines] == [present] * 2
    file = lines[0]["file"]
    asked = cli("ask", "--memory", file, WHO, "-n", "8")
    assert asked.stdout.startswith("Ada")


@pytest.mark.parametrize("command", ["compare", "ask"])
def test_methods_side_by_side(letters: Path, cli: Callable[..., Any], command: str) -> None:
    done = cli(command, str(letters), WHO, "--each", "--method", "infinipot,window", *SMALL)
    assert [line.split(":")[0] for line in done.stdout.splitlines() if ": " in line] == [
        "infinipot", "window",
    ] * 2  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--memory", "x.kvs"), "--memory asks one memory"),
        (("--follow",), "--follow waits"),
        (("--every", "1k"), "--every answers"),
        (("--checkpoint", "x.kvs"), "--checkpoint saves"),
        (("--stats", "x.json"), "--stats records"),
        (("--dry-run",), "--dry-run shows"),
        (("--workers", "0"), "0 is not in the range"),
        (("--ray", "nonsense"), "'nonsense' is not the address"),
        (("--ray", "ray://host:10001"), "Ray Client"),
        (("--worker-memory", "much"), "is not a size"),
    ],
)
def test_what_goes_with_one_text_is_refused(
    letters: Path, cli: Callable[..., Any], arguments: tuple[str, ...], said: str
) -> None:
    done = cli("ask", str(letters), WHO, "--each", *arguments)
    assert done.code == 2
    assert said in done.stderr


def test_the_memory_of_workers_needs_workers(letters: Path, cli: Callable[..., Any]) -> None:
    done = cli("ask", str(letters), WHO, "--each", "--worker-memory", "1GB")
    assert done.code == 2
    assert "--worker-memory has no effect without --workers or --ray" in done.stderr


def test_options_of_many_documents_need_each(letters: Path, cli: Callable[..., Any]) -> None:
    for option in (("--workers", "2"), ("--ray", "auto"), ("--worker-memory", "1GB")):
        done = cli("ask", str(letters), WHO, *option)
        assert (done.code, "no effect without --each" in done.stderr) == (2, True)
    assert (
        "without --each or --shards; add one"
        in cli("ask", str(letters), WHO, "--workers", "2").stderr
    )
    assert "without --each; add it" in cli("ask", str(letters), WHO, "--ray", "auto").stderr
    done = cli("ask", str(letters), WHO, "-o", str(letters))
    assert (done.code, "is a folder" in done.stderr) == (2, True)
    done = cli("remember", str(letters), "--each")
    assert (done.code, "name the folder" in done.stderr) == (2, True)
    done = cli("remember", str(letters), "--each", "-Q", " ", "-o", str(letters / "out"))
    assert (done.code, "A question is empty" in done.stderr) == (2, True)
    done = cli("ask", "-", WHO, "--each")
    assert (done.code, "Standard input is one text" in done.stderr) == (2, True)
    done = cli("summarize", str(letters), "--each", "--as", "log")
    assert done.code == 2


def test_an_empty_folder(tmp_path: Path, cli: Callable[..., Any]) -> None:
    done = cli("ask", str(tmp_path), WHO, "--each")
    assert done.code == 3
    assert "no text files" in done.stderr


def test_without_ray_it_is_said_at_once_what_to_install(letters: Path, tmp_path: Path) -> None:
    """The error comes within a second of CPU time, without loading torch or Ray."""
    code = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'ray' else find(name, *a)\n"
        "from kvstream.cli.app import run\n"
        f"code = run(['ask', {str(letters)!r}, 'Who?', '--each', '--workers', '2'])\n"
        "import time\n"
        "print(code, time.process_time() < 1, *({'torch', 'ray'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "2 True\n", done.stderr
    assert "pip install 'kvstream[ray]'" in done.stderr


def test_help_and_single_runs_import_nothing_of_ray(
    letters: Path, tmp_path: Path, warm: list[str]
) -> None:
    alone = ["ask", str(letters), WHO, *SMALL]
    runs = [["ask", "--help"], alone, [*alone, "--each"], [*alone, "--shards", "2"]]
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom kvstream.cli.app import run\n"
        f"codes = [run(arguments) for arguments in {runs!r}]\n"
        "sys.exit(any(codes) or any(name.split('.')[0] == 'ray' for name in sys.modules))"
    )
    done = subprocess.run([*warm, str(script)], capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()


class TestAddresses:
    """An address where no Ray runs: a clear error, long before ten seconds."""

    @pytest.fixture(autouse=True)
    def _ray(self) -> None:
        pytest.importorskip("ray", reason="needs Ray: pip install 'kvstream[ray]'")

    def refused(self, letters: Path, address: str, cli: Callable[..., Any]) -> str:
        began = time.monotonic()
        done = cli("ask", str(letters), WHO, "--each", "--ray", address)
        assert time.monotonic() - began < 10
        assert done.code == 1
        return str(done.stderr)

    def test_nothing_listens(self, letters: Path, cli: Callable[..., Any]) -> None:
        assert "Connection refused" in self.refused(letters, "127.0.0.1:1", cli)

    def test_something_else_listens(
        self, letters: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kvstream.collection.cluster.ANSWERS_IN", 1.0)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            assert "says nothing for 1 seconds" in self.refused(letters, f"127.0.0.1:{port}", cli)

    def test_no_cluster_here(
        self, letters: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:  # fmt: skip
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        assert "ray start --head" in self.refused(letters, "auto", cli)

    @pytest.mark.skipif(sys.platform != "linux", reason="Ray obeys TMPDIR on Linux alone")
    def test_the_cluster_is_found_where_ray_notes_it(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        from kvstream.collection.cluster import _of_this_machine

        for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        (tmp_path / "ray").mkdir()
        assert _of_this_machine() is None
        (tmp_path / "ray" / "ray_current_cluster").write_text("host:6379")
        assert _of_this_machine() == "host:6379"

    def test_another_version_of_ray(self) -> None:
        """The error of Ray becomes a message that says what to do."""
        from kvstream.collection.cluster import _refusal

        told = _refusal(
            "host:6379",
            RuntimeError(
                "Version mismatch: The cluster was started with:\n    Ray: 2.48.0\n    Python: "
                "3.11.7\nThis process on node 10.0.0.1 was started with:\n    Ray: "
                f"{metadata.version('ray')}"
            ),
        )
        assert "Install the same version on both" in str(told)
        assert told.exit_code == 1


def test_ctrl_c_finishes_the_document(letters: Path, tmp_path: Path, warm: list[str]) -> None:
    for number in range(30):
        (letters / f"more{number}.txt").write_text("Nobody hid the letter.\n" * 200)
    into = tmp_path / "answers"
    command = [*warm, "-mkvstream", "ask", str(letters), WHO, "--each", *SMALL,
               "-o", str(into), "--progress", "plain"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not (into.exists() and list(into.glob("*.json"))):
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "finishing the documents that are being read; later the same command continues" in err
    assert 1 <= len(os.listdir(into)) < 32
    left = 32 - len(os.listdir(into))
    documents = "document" if left == 1 else "documents"
    assert f"Interrupted: {left} {documents} not read. The same command continues with the" in err
    assert not [name for name in os.listdir(into) if name.endswith(".part")]


def test_what_ctrl_c_leaves_without_a_folder_names_the_option_that_resumes() -> None:
    told = "Interrupted: 2 documents not read. With -o FOLDER, the same command continues with the "
    assert _not_read(2, None) == f"{told}rest."
    assert _not_read(1, Path("out")).startswith("Interrupted: 1 document not read. The same")


def done(name: str, support: float, answer: str = "an answer") -> DocumentDone:
    record = {
        "command": "ask", "method": "infinipot", "question": WHO, "answer": answer,
        "budget": {"tokens": 64, "bytes": 640}, "peak": {"kv_tokens": 60, "kv_bytes": 600},
        "tokens": {"read": 100, "retained": 40, "evicted": 60},
        "support": {"focus": 0.1, "probability": support}, "warnings": [],
    }  # fmt: skip
    return DocumentDone(name, (record,), None)


def test_the_table_ranks_by_support() -> None:
    tally = Tally()
    for number in range(3 * RANKED):
        tally.add(
            done(f"d{number}.txt", (7 * number % 60) / 60, f"answer {number} " + "long " * 50)
        )
    lines = list(table(tally, 80))
    shares = [float(line.split("%")[0].replace("<", "")) for line in lines[1 : RANKED + 1]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 98
    assert all(len(line) <= 80 for line in lines)
    assert f"({2 * RANKED} more" in lines[-1]


def test_the_table_fits_with_characters_of_two_columns() -> None:
    tally = Tally()
    tally.add(done("a.txt", 0.5))
    tally.add(done("文" * 30 + ".txt", 0.4, "答" * 60))
    head, first, second = list(table(tally, 80))
    assert {cell_len(line) <= 80 for line in (head, first, second)} == {True}
    assert (
        cell_len(second[: second.index("答")]) == first.index("an answer") == head.index("answer")
    )


def test_a_warning_names_its_document_once() -> None:
    stream = StringIO()
    reporter = Collected(stream)
    read_as = "a.txt is not UTF-8; it was read as cp1252."
    for warning in ("a.txt: 1 bytes are not UTF-8.", read_as, "Low confidence."):
        record = {**done("a.txt", 0.5).records[0], "warnings": [warning]}
        reporter.note(DocumentDone("a.txt", (record, record), None))  # of two methods
    assert stream.getvalue().splitlines() == [
        "Warning: a.txt: 1 bytes are not UTF-8.", f"Warning: {read_as}",
        "Warning: a.txt: Low confidence.",
    ]  # fmt: skip


def test_what_was_skipped_is_told_of_every_document(
    tmp_path: Path, cli: Callable[..., Any]
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("Ada hid\0 it.\nBerta saw it.\n" * 9)
    ran = cli("summarize", str(tmp_path), "--each", "--extract", *SMALL[:2])
    for name in "ab":
        path = tmp_path / f"{name}.txt"
        assert f"\n{path}: Repeats of passages that were left out: 1" in ran.stderr
        assert f"\n{path}: 9 NULs skipped" in ran.stderr
    assert "left out" not in cli("summarize", str(tmp_path), "--each", "--extract", "-q").stderr


def test_a_signal_during_a_write_of_the_panel_loses_no_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(StringIO):
        busy = False

        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            if self.busy and threading.current_thread() is threading.main_thread():
                raise RuntimeError("reentrant call inside <_io.BufferedWriter>")
            return super().write(text)

    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    reporter = CollectedLive(stream)
    for busy in (False, True):
        reporter.note(DocumentStarted(f"{busy}.txt", 100, "", 0))
        stream.busy = busy
    reporter.tell("Interrupted.")  # as Ctrl-C does
    stream.busy = False
    assert "Interrupted." not in stream.getvalue()
    reporter.close()
    assert "Interrupted.\n" in stream.getvalue()


def test_no_answer_ranks_behind_every_answer() -> None:
    tally = Tally()
    nothing = done("nothing.txt", 0.9, "not in the text")
    tally.add(DocumentDone("nothing.txt", ({**nothing.records[0], "abstains": True},), None))
    tally.add(done("some.txt", 0.2, "Ada"))
    assert [row.name for row in sorted(tally.best, reverse=True)] == ["some.txt", "nothing.txt"]
    first, second = list(table(tally, 80))[1:3]
    assert first.split()[:2] == ["20%", "some.txt"]
    assert second.split()[:2] == ["-", "nothing.txt"]


def test_the_panel_counts_and_fits() -> None:
    now = [0.0]
    tally = Tally(lambda: now[0])
    tally.add(CollectionStarted(12, 1200, 8))
    for number in range(7):
        tally.add(DocumentStarted(f"folder/{'x' * 90}{number}.txt", 100, "machine", 7))
    now[0] = 10.0
    tally.add(done(f"folder/{'x' * 90}0.txt", 0.5))
    tally.add(DocumentFailed(f"folder/{'x' * 90}1.txt", "It is damaged."))
    for width in (30, 76):
        lines = panel_lines(tally, width)
        assert max(map(len, lines)) <= width
        assert lines[1].startswith("1 of 12 documents done · 5 being read · 1 failed"[:width])
        assert lines[2].startswith("10 tokens/s · 10.0 s")
    assert "about 50.0 s left" in panel_lines(tally, 76)[2]


def test_the_panel_grows_within_a_document() -> None:
    """It also shows how long the first document takes. The bar never passes its end."""
    now = [0.0]
    tally = Tally(lambda: now[0])
    tally.add(CollectionStarted(2, 400, 1))
    tally.add(DocumentStarted("a.txt", 300, "", 0))
    assert panel_lines(tally, 40)[0] == "─" * 40
    now[0] = 10.0
    tally.add(DocumentStep("a.txt", 100, 0.5))
    bar, counts, times, _ = panel_lines(tally, 60)
    assert bar == "━" * 15 + "─" * 45
    assert counts == "0 of 2 documents done · 1 being read"
    assert times == "10 tokens/s · 10.0 s · about 16.7 s left"
    tally.add(done("a.txt", 0.5))
    assert panel_lines(tally, 40)[0] == "━" * 20 + "─" * 20
    tally.add(done("b.txt", 0.5))
    tally.add(DocumentStep("b.txt", 100, 1.0))
    assert panel_lines(tally, 40)[0] == "━" * 40


def test_steps_tell_how_much_of_a_document_was_read(letters: Path) -> None:
    steps: list[DocumentStep] = []

    def note(event: CollectionEvent) -> None:
        if isinstance(event, DocumentStep):
            steps.append(event)

    (letters / "Ada.txt").write_text("Ada hid the letter under the wall.\n" * 200)
    (letters / "Berta.txt").unlink()
    methods = ["streaming", "window"]
    outcomes = ask_each([str(letters)], WHO, methods=methods, budget=256, max_tokens=2,
                        progress=note)  # fmt: skip
    assert len(list(outcomes)) == 1
    shares = [step.share for step in steps]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5 < shares[-2] < shares[-1] == 1


def test_failures_are_all_told_and_some_are_held() -> None:
    tally = Tally()
    for number in range(3 * LISTED):
        tally.add(DocumentFailed(f"d{number}", f"d{number} is damaged."))
    lines = list(last_lines(tally, None))
    assert lines[0] == f"Failed: {3 * LISTED} documents"
    assert lines[1 : LISTED + 1] == [f"  d{number}" for number in range(LISTED)]
    assert f"and {2 * LISTED} more" in lines[LISTED + 1]
