"""The config file: values are checked against the types of their options; errors say where."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from kvstream.cli.commands import ask
from kvstream.errors import SourceError
from kvstream.evaluation.datasets import lines
from kvstream.store.small_files import small_text

WRONG = (
    "[1]", "[]", "[[1]]", "{a = 1}", "1979-05-27", "07:32:00", "true", "5", "-1", "1.5", "nan",
    "inf", "1e400", '"x"', '""', '"~nouser"', r'"\u0000"', f'"{"n" * 5000}"', "9" * 10_000,
    f"0x{'f' * 6000}", "99999999999999999999",
)  # fmt: skip
OPTIONS = [p for p in ask.command.params if isinstance(p, click.Option) and p.expose_value]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that writes the config file, and move to an empty folder."""

    def to_file(text: str) -> Path:
        path.write_text(text)
        return path

    path = tmp_path / "config.toml"
    monkeypatch.setenv("KVSTREAM_CONFIG", str(path))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return to_file


@pytest.mark.parametrize("key", [max(o.opts, key=len)[2:] for o in OPTIONS])
def test_no_value_is_an_unexpected_error(cli, fake_session, write, tmp_path, key) -> None:
    book = tmp_path / "book.txt"
    book.write_text("A key lies under a stone.\n")
    for value in WRONG:
        write(f"\n{key} = {value}\n")
        ran = cli("ask", str(book), "Q?", "-q", "--skim", "none")
        assert ran.code in (0, 2, 3, 4, 5), (value[:40], ran.stderr[:400])
        assert "Unexpected" not in ran.stderr
        assert "Traceback" not in ran.stderr


def test_what_is_typed_replaces_a_wrong_value(cli, fake_session, write, tmp_path) -> None:
    (tmp_path / "book.txt").write_text("A key.")
    write("model = 'nope'\nbudget = 'lots'\n")
    ran = cli("ask", f"{tmp_path}/book.txt", "Q?", "-q", "-m", "pocket", "--budget", "1k")
    assert ran.code == 0, ran.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = 1\ntemp = [1]", "line 2: temp: This is one value, not [1]."),
        ("top-k = 1979-05-27", "line 1: top-k: This is one value, not datetime.date"),
        ("seed = 99999999999999999999", "line 1: seed: This is a number beyond 64 bits"),
        ("[ask]\n\n# a comment\nthreads = {}", "line 4: threads: This is one value, not {}."),
        ("passages = true", "line 1: passages: This is one value, not true."),
        ("json = 1", "line 1: json: This is true or false, not 1."),
        ("strict = 'yes'", "line 1: strict: This is true or false, not 'yes'."),
        ("set = 'a.b=1'", "line 1: set: This is a list of texts"),
        ("device = 3", "line 1: device: This is text in quotes, not 3."),
        ("max-unpacked = 5", "line 1: max-unpacked: '5' is not a size"),
        ("method = 'nonsense'", "line 1: method: Unknown method 'nonsense'."),
        ("temp = inf", "line 1: temp: inf is not a finite number."),
        ("every = '5'", "line 1: every: An answer every 5 tokens takes far longer"),
        ("model = '" + "n" * 5000 + "'", "line 1: model: The model name has 5000 characters"),
        ("[models]\na = 'b'\nc = 5", "line 3: c in [models] must be a hub id or a path"),
        ("model = 'nope'", "line 1: model: There is no folder 'nope'"),
        ("seed = 1\nbugdet = 1", "line 2: 'bugdet' is not an option of any command."),
        ("max-tokens = 3\nmax_tokens = 4", "line 2: max_tokens and max-tokens are the same"),
        ("[ask]\ntop_k = 3\ntop-k = 4", "line 3: top-k and top_k are the same option"),
        ("seed = 1\n[tell]\nseed = 1", "line 2: [tell] is not a command."),
        (f"temp = {'[' * 5000}", "nests tables or lists too deeply"),
        (f"seed = {'9' * 10_000}", "is not valid TOML"),
    ],
)
def test_an_error_names_file_line_and_key(cli, fake_session, write, text, says) -> None:
    path = write(text)
    ran = cli("ask", "book.txt", "Q?")
    assert ran.code == (4 if "nope" in text else 2), ran.stderr
    assert str(path) in ran.stderr
    assert says in ran.stderr


def test_a_setting_of_an_unknown_method_is_an_error(cli, fake_session, write) -> None:
    write('set = ["infinipto.alpha=0.25"]')
    ran = cli("ask", "book.txt", "Q?")
    assert ran.code == 2
    assert "'infinipto'" in ran.stderr
    assert "Did you mean infinipot?" in ran.stderr


def test_what_is_right_arrives(cli, fake_session, write, tmp_path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("A key lies under a stone.\n")
    write(
        'temp = 0.5\ntop_k = 3\nseed = -4\nbudget = 2048\nkeep = "1k"\nextract = true\n'
        'set = ["infinipot.alpha=0.25"]\nsystem = ""\nquiet = true\n'
    )
    ran = cli("ask", str(book), "Q?")
    assert ran.code == 0, ran.stderr
    run = fake_session.last.run
    assert (run.temp, run.top_k, run.seed, run.budget.tokens) == (0.5, 3, -4, 2048)
    assert (run.keep, run.set) == (1024, {"alpha": "0.25"})
    assert (fake_session.last.extract, fake_session.last.passages) == (True, 10)
    assert ran.stderr == ""


def test_a_byte_order_mark_is_no_text(cli, fake_session, write, tmp_path) -> None:
    write("\ufeffmax-tokens = 0")
    assert "line 1: max-tokens: " in cli("ask", str(tmp_path), "Q?").stderr


def test_a_file_that_cannot_be_read_is_named_once(cli, write, tmp_path) -> None:
    path = write("")
    path.write_bytes(b"\xff\xfem\0")
    told = cli("ask", str(tmp_path), "Q?").stderr
    assert told == f"Error: The config file {path} is not UTF-8; save it as UTF-8.\n"
    path.unlink()
    path.mkdir()
    told = cli("ask", str(tmp_path), "Q?").stderr
    assert told == f"Error: The config file {path} cannot be read: it is not a regular file.\n"


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="a file of Linux, for root alone")
def test_a_file_of_the_kernel_that_has_no_data_is_not_waited_for(tmp_path: Path) -> None:
    with open(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        file.read()
    with pytest.raises(OSError, match="it has no data"):
        small_text(Path("/proc/kmsg"))
    with pytest.raises(SourceError, match="a file of the kernel"):
        next(lines("/proc/kmsg"))


@pytest.mark.parametrize("kind", ["endless", "fifo", "large"])
def test_a_file_without_end_is_not_read(cli, monkeypatch, tmp_path: Path, kind: str) -> None:
    path = Path("/dev/zero") if kind == "endless" else tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    if kind == "large":
        path.write_bytes(b"# \n" * 400_000)
    monkeypatch.setenv("KVSTREAM_CONFIG", str(path))
    ran = cli("models")
    assert ran.code == 2, ran.stderr
    assert str(path) in ran.stderr
    assert ("1,000,000 bytes" if kind == "large" else "not a regular file") in ran.stderr


def test_a_home_that_nobody_has_is_a_model_that_is_not_there(cli, write) -> None:
    write("model = '~nouser'\n")
    Path("book.txt").write_text("Ada hid the letter.\n")
    ran = cli("ask", "book.txt", "Q?", "-q")
    assert ran.code == 4
    assert "no model folder ~nouser" in ran.stderr


@pytest.mark.parametrize(
    ("text", "typed", "says"),
    [
        ("json = true", ["compare", "book.txt", "Q?", "--csv"], "use one. {} sets --json."),
        ("budget = 10", ["ask", "book.txt", "Q?"], "with most models. {} sets --budget."),
        (
            'only = "line 1"',
            ["ask", "book.txt", "Q?", "--follow"],
            "use one of them. {} sets --only.",
        ),
        (
            "question = ['Q?']",
            ["ask", "book.txt", "Who is it?"],
            "are sources. {} sets --question.",
        ),
        (
            'only = "chapter 3"',
            ["count", "book.txt", "letter"],
            "lines 100-200, too. {} sets --only.",
        ),
        ("set = ['h2o.foo=1']", ["ask", "book.txt", "Q?", "--method", "h2o"], "{} sets --set."),
    ],
)
def test_an_error_of_an_option_that_nobody_typed_says_who_sets_it(
    cli, fake_session, write, text, typed, says
) -> None:
    path = write(text)
    Path("book.txt").write_text("Ada hid the letter.\n")
    ran = cli(*typed)
    assert ran.code in (2, 3, 4, 5), ran.stderr
    assert ran.stderr.endswith(f"{says.format(path)}\n"), ran.stderr


def test_an_option_has_one_name_everywhere(cli, fake_session, write, monkeypatch) -> None:
    """Also one whose name is a word of Python, and one of another command's values."""
    write('[summarize]\nas = "log"\n[compare]\ncsv = true\n')
    Path("book.txt").write_text("Ada hid the letter.\n")
    assert "1 line; 1 template" in cli("summarize", "book.txt").stdout
    assert cli("compare", "book.txt", "Q?", "-q").stdout.startswith("question,method,")
    monkeypatch.setenv("KVSTREAM_AS", "prose")
    monkeypatch.setenv("KVSTREAM_KIND", "fact")  # of bench needle
    assert "1 template" not in cli("summarize", "book.txt", "-q").stdout


@pytest.mark.parametrize("each", [[], ["--each"]])
def test_options_of_sampling_may_wait_for_a_temperature(cli, write, tmp_path, each) -> None:
    """top-p and top-k from the config file are not an error at temperature 0."""
    write("top-p = 0.5\ntop-k = 3\n")
    book = tmp_path / "book.txt"
    book.write_text("Ada hid the letter.\n")
    ran = cli(
        "ask", *each, str(book), *(["-Q"] if each else []), "Who?", "--budget", "300", "-n", "2"
    )
    assert ran.code == 0, ran.stderr
    memory = tmp_path / "book.kvs"
    assert cli("remember", str(book), "-o", str(memory), "--budget", "300").code == 0
    ran = cli("ask", "-m", "pocket", "--memory", str(memory), "Who?", "-n", "2")
    assert ran.code == 0, ran.stderr


@pytest.mark.parametrize("default", ["temp = 0.7", "brief = true", "strict = true"])
def test_defaults_of_written_answers_do_not_concern_an_extract(
    cli, write, tmp_path: Path, default: str
) -> None:
    text, memory = tmp_path / "text.txt", str(tmp_path / "text.kvs")
    text.write_text("Ada hid the letter. Bea found it.\n")
    write(default)
    assert cli("remember", str(text), "-o", memory, "-m", "pocket").code == 0
    done = cli("ask", "--memory", memory, "Who found it?", "--extract")
    assert (done.code, "Bea found it." in done.stdout) == (0, True), done.stderr
