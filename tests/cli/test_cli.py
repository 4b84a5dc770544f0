"""Arguments, options, where their values come from, and usage errors."""

from __future__ import annotations

import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstream.api.doctor import Finding, _extras, _pocket, _reader
from kvstream.api.methods import method_info
from kvstream.cli.commands.methods import _page
from kvstream.cli.options.table import Options
from kvstream.cli.shared.running import show_plan
from kvstream.engine.budget import share_out
from kvstream.errors import BudgetError, ModelError
from kvstream.run.request import Request
from kvstream.settings import Budget, ModelSettings, RunSettings


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.txt"
    path.write_text("A short story about a key under a stone.\n" * 20)
    return str(path)


def test_the_last_argument_is_the_question(cli, fake_session, book) -> None:
    ran = cli("ask", book, "Where is the key?", "-q")
    assert ran.code == 0
    assert ran.stdout == "It is 51234.\n"
    assert fake_session.last.questions == ("Where is the key?",)
    for question in ("他/她是谁？", "and/or?", "3.5"):  # no names of files
        assert cli("ask", book, question, "-q").code == 0


def test_a_file_has_no_counted_answers_beside_those_of_a_model(cli, fake_session, book) -> None:
    into = Path(book).with_name("answers.txt")
    questions = ("-Q", "How many lines are there?", "-Q", "Where is the key?")
    ran = cli("ask", str(book), *questions, "-q", "-o", str(into))
    assert f"Warning: The counted answers are not in {into}" in ran.stderr
    assert ("lines" in ran.stdout, "lines" in into.read_text()) == (True, False)


def test_with_q_every_argument_is_a_source(cli, fake_session, book) -> None:
    ran = cli("ask", book, "-Q", "Where?", "-Q", "Who?", "-q", "--json")
    assert ran.code == 0
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [a["question"] for a in answers] == ["Where?", "Who?"]


def test_standard_input_is_the_source_when_none_is_named(cli, fake_session) -> None:
    assert cli("ask", "Where?", "-q", stdin=b"some text").code == 0
    assert cli("summarize", "-q", stdin=b"some text").stdout == "It is 51234.\n"


def test_every_option_reaches_its_setting(cli, fake_session, book) -> None:
    ran = cli(
        "ask", book, "Q?", "-q", "--budget", "512MB", "--method", "streaming", "--keep", "1k",
        "--schedule", "fixed", "--chunk", "fixed", "--chunk-size", "128", "-n", "7", "--temp",
        "0.5", "--top-p", "0.9", "--top-k", "40", "--seed", "3", "-s", "Be brief.",
        "--set", "streaming.sinks=8",
    )  # fmt: skip
    assert ran.code == 0, ran.stderr
    run = fake_session.last.run
    assert run.budget == Budget(bytes=512_000_000)
    assert (run.method, run.set) == ("streaming", {"sinks": "8"})
    assert (run.keep, run.schedule, run.chunk, run.chunk_size) == (1024, "fixed", "fixed", 128)
    assert (run.max_tokens, run.temp, run.top_p, run.top_k) == (7, 0.5, 0.9, 40)
    assert run.seed == 3
    assert fake_session.last.system == "Be brief."


@pytest.mark.parametrize("command", [["ask"], ["compare", "--method", "window,full"]])
def test_strict_ends_with_6_where_an_answer_was_withheld(cli, fake_session, book, command) -> None:
    asked = [*command, book, "Who?"]
    fake_session.withheld = "A guess."
    assert cli(*asked).code == 0
    assert cli(*asked, "--strict").code == 6
    fake_session.withheld = None
    assert cli(*asked, "--strict").code == 0


def test_summarize_extracts_by_default_only_where_the_model_should(cli, fake_session, book) -> None:
    assert cli("summarize", book, "-q").code == 0
    assert (fake_session.last.extract, fake_session.last.passages) == (True, 10)
    assert cli("summarize", book, "-q", "--no-extract").code == 0
    assert not fake_session.last.extract
    fake_session.default_extract = False
    assert cli("summarize", book, "-q").code == 0
    assert not fake_session.last.extract
    assert cli("ask", book, "Q?", "-q").code == 0
    assert not fake_session.last.extract


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ask"], "No question"),
        (["ask", "BOOK"], "is a file, so there is no question"),
        (["ask", "BOOK", "BOOK"], "is a file, so there is no question"),
        (["ask", "BOOK", "/"], "'/' is a folder, so there is no question"),
        (["compare", "BOOK", "BOOK"], "is a file, so there is no question"),
        (["ask", "BOOK", ""], "question is empty"),
        (["ask", "BOOK", "Q?", "--budget", "lots"], "'lots' is not a budget"),
        (["ask", "BOOK", "Q?", "--budget", "4096.5"], "4096.5 is not a whole number"),
        (["ask", "BOOK", "Q?", "--budget", "4k 5"], "write whole entries per head as 4096 or 4k"),
        (["ask", "BOOK", "Q?", "--budget", "0"], "A budget of 0 is too small for any model; 256"),
        (["ask", "BOOK", "Q?", "--budget", "-1"], "A budget of -1 is too small for any model"),
        (["ask", "BOOK", "Q?", "--budget", "0MB"], "A budget of 0MB is too small for any model"),
        (["ask", "BOOK", "Q?", "--budget", "1T"], "'1T' is not a budget: there is no unit 'T'."),
        (["ask", "BOOK", "Q?", "--budget", "4kk"], "there is no unit 'kk'. Units are k, M and G"),
        (["ask", "BOOK", "Q?", "--budget", "9000000.5B"], "9000000.5 is not a whole number"),
        (["ask", "BOOK", "Q?", "-n", "8.5"], "8.5 is not a whole number"),
        (["ask", "BOOK", "Q?", "--extract", "--strict"], "--strict checks written answers"),
        (["ask", "BOOK", "Q?", "--extract", "--temp", "0.5"], "--extract writes no answer"),
        (["ask", "BOOK", "Q?", "--extract", "--brief"], "--brief is for written answers"),
        (["count", "BOOK", "w", "--only", "line 1", "--only", "line 2"], "--only names one part"),
        (["sample", "--into", "BOOK", "--into", "BOOK"], "--into names one text"),
        (["ask", "BOOK", "b.tx"], "'b.tx' looks like the name of a file, but there is none"),
        (["ask", "BOOK", "BOOK/b"], "/b' looks like the name of a file"),
        (["ask", "BOOK", "Q?", "--keep", "-1"], "'-1' is not a whole number above 0"),
        (["ask", "BOOK", "Q?", "--schedule", "exponential"], "linear"),
        (["ask", "BOOK", "Q?", "--set", "sinks=8"], "METHOD.NAME=VALUE"),
        (["ask", "BOOK", "Q?", "--set", "snapkv.pool=8"], "add --method snapkv"),
        (["ask", "BOOK", "Q?", "--nonsense"], "--nonsense"),
        (["ask", "BOOK", "-who did it?"], "'-who did it?' begins with a dash, like an option"),
        (["ask", "BOOK", "--budgett", "1k"], "'--budgett'. Did you mean --budget?\n"),
        (["ask", "BOOK", "--csv"], "'--csv'. It is an option of kvstream compare.\n"),
        (
            ["bench", "qa", "--needles", "3"],
            "'--needles'. It is an option of kvstream bench needle",
        ),
        (["ask", "BOOK", "--xyzzy"], "No such option '--xyzzy'.\n"),
        (["ask", "BOOK", "-x"], "No such option '-x'"),
        (["ask", "BOOK", "Q?", "--seed", "9" * 30], "beyond 64 bits"),
        (["ask", "BOOK", "Q?", "--seed", "x"], "'x' is not a whole number"),
        (["sample", "--seed", str(2**63)], "beyond 64 bits"),
        (["sample", "--facts", "100000"], "choose a number from 1 to 10000"),
        (["sample", "--questions", "/dev/stdout"], "would both go to standard output"),
        (["summarize", "BOOK", "--as", "log", "--no-extract"], "--no-extract has no effect with"),
        (["ask", "BOOK", "Q?", "--threads", "100000"], "100000 threads are out of range for"),
        (["ask", "BOOK", "Q?", "--threads", "9" * 30], "threads are out of range for"),
        (["ask", "BOOK", "Q?", "--threads", "0"], "0 threads are out of range for"),
        (["ask", "BOOK", "Q?", "--temp", "nan"], "nan is not a finite number"),
        (["ask", "BOOK", "Q?", "--temp", "x"], "'x' is not a valid number."),
        (["ask", "BOOK", "Q?", "--every", "5"], "An answer every 5 tokens takes far longer"),
        (["ask", "Who hid it?", "BOOK"], "The question comes last: kvstream ask /"),
        (["ask", "Who hid it?", "no.txt"], "comes last: kvstream ask no.txt 'Who hid it?'"),
        (["ask", "--memory", "a", "Who?", "BOOK"], "no sources: kvstream ask --memory a 'Who?'\n"),
        (["ask", "BOOK", "Who hid it?", "Where?"], "too, give each question with -Q"),
        (["ask", "Who hid it?", "-Q", "Q?"], "If it is a question, give it with -Q, too"),
        (["remember", "BOOK", "Who?", "-o", "b.kvs"], "If it is a question, give it with -Q."),
        (["remember", "BOOK", "Who?", "--each", "-o", "b"], "a question, give it with -Q."),
        (["chat", "BOOK", "Who hid it"], "a question, ask it on standard input, where a chat"),
        (["summarize", "BOOK", "Who?"], "If it is a question, ask it with kvstream ask."),
        (["ask", "--memory", "a", "--memory", "b", "Q?"], "use kvstream ask --memory FOLDER"),
        (["chat", "--memory", "a", "--memory=b"], "Join several with kvstream merge"),
        (["remember", "--memory", "a", "--memory", "b", "BOOK"], "names one memory file"),
        (["remember", "BOOK", "-o", "b.kvs", "--temp", "1"], "--temp has no effect in kvstream"),
        (["remember", "BOOK", "-o", "b.kvs", "--extract"], "it does not answer"),
        (["remember", "BOOK", "-o", "b.kvs", "--strict"], "it does not answer"),
        (["chat", "BOOK", "--checkpoint", "c"], "kvstream remember --checkpoint, then chat"),
        (["compare", "BOOK", "Q?", "--checkpoint", "c"], "a checkpoint is of one method"),
        (["ask", "BOOK", "Q?", "--top-p", "0.5"], "no effect at temperature 0"),
        (["ask", "BOOK", "Q?", "--top-k", "5"], "no effect at temperature 0"),
        (["summarize", "BOOK", "--as", "log", "--temp", "1"], "--temp has no effect with --as log"),
        (["summarize", "BOOK", "--temp", "1"], "leave it out, or add --no-extract."),
        (["ask", "BOOK", "Q?", "--passages", "5"], "no effect without --extract"),
        (["ask", "BOOK", "Q?", "--checkpoint-every", "5"], "without --checkpoint FILE"),
        (["ask", "BOOK", "Q?", "--progress", "live", "-q"], "--progress live has no effect with"),
        (["ask", "BOOK", "Q?", "--revision", "x", "-m", "pocket"], "and pocket is none; leave"),
        (["ask", "BOOK", "Q?", "--offline", "--revision", "x"], "--revision is for models of the"),
        (["ask", "BOOK", "-Q", "Q?", "--each", "--revision", "x"], "--revision is for models of"),
        (["ask", "BOOK", "Q?", "-m", "/", "--revision", "x"], "and / is none"),
        (["bench", "perplexity", "BOOK", "--revision", "x"], "and pocket is none"),
        (["ask", "BOOK", "Q?", "--method", "h2o,h2o"], "--method names h2o twice; name each"),
        (["compare", "BOOK", "Q?", "--method", "tova, h2o,tova"], "--method names tova twice"),
        (["ask", "BOOK", "Q?", "--method", "snapkw"], "Did you mean snapkv?"),
        (["ask", "BOOK", "Q?", "--method", "nonsense"], "There are: auto, infinipot"),
        (["ask", "BOOK", "Q?", "--method", "atuo"], "Did you mean auto?"),
        (["bench", "needle", "--method", "auto"], "auto is not a method: it chooses one"),
        (["tell", "BOOK"], "No such command 'tell'. There are ask, count"),
        (["aks", "BOOK", "Q?"], "No such command 'aks'. Did you mean ask? There are ask, "),
        (["methods", "nonsense"], "There are: auto, infinipot"),
    ],
)
def test_usage_errors_are_code_2_and_say_what_would_be_right(
    cli, fake_session, book, arguments, says
) -> None:
    ran = cli(*[book if a == "BOOK" else a for a in arguments])
    assert ran.code == 2
    assert ran.stdout == ""
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_budget_for_no_model_names_one_that_is_enough(cli, fake_session, book) -> None:
    """The error must not call every smaller budget too small: that depends on the model."""
    for budget in ("10", "64"):
        ran = cli("ask", book, "Q?", "--budget", budget)
        assert ran.code == BudgetError.exit_code
        assert f"A budget of {budget} is too small for any model" in ran.stderr
        assert "--budget 256 is enough for a short question" in ran.stderr
        assert "or more" not in ran.stderr


def test_an_unknown_model_is_answered_with_those_that_need_no_hub(cli, book) -> None:
    ran = cli("ask", book, "Q?", "-m", "nosuch")
    assert ran.code == 4
    assert "Give --model pocket, reader or another model of `kvstream models get`" in ran.stderr
    ran = cli("ask", book, "Q?", "--skim", "nosuch")
    assert ran.code == 4
    assert "Give --skim pocket, reader or another model of `kvstream models get`" in ran.stderr
    assert "--skim also takes auto, self, words and none." in ran.stderr


def test_the_config_file_may_have_strict_beside_extract(
    cli, fake_session, book, tmp_path, monkeypatch
) -> None:
    settings = tmp_path / "config.toml"
    settings.write_text("strict = true\n")
    monkeypatch.setenv("KVSTREAM_CONFIG", str(settings))
    assert cli("ask", book, "Q?", "--extract", "-q").code == 0


def test_environment_and_config_file_and_their_order(
    cli, fake_session, book, tmp_path, monkeypatch
):
    config = tmp_path / "config.toml"
    config.write_text(
        'budget = "2k"\nmax-tokens = 99\nseed = 5\nset = ["streaming.sinks=2"]\n'
        "[ask]\nseed = 6\n[summarize]\nseed = 7\n"
    )
    monkeypatch.setenv("KVSTREAM_CONFIG", str(config))
    monkeypatch.setenv("KVSTREAM_BUDGET", "3k")
    assert cli("ask", book, "Q?", "-q").code == 0
    run = fake_session.last.run
    assert run.budget == Budget(tokens=3072)
    assert (run.max_tokens, run.seed) == (99, 6)
    assert run.set == {}, "a setting for another method is no error in the file"
    assert cli("ask", book, "Q?", "-q", "--budget", "1k").code == 0
    assert fake_session.last.run.budget == Budget(tokens=1024)
    assert cli("summarize", book, "-q").code == 0
    assert fake_session.last.run.seed == 7


def test_an_error_names_the_variable_that_a_value_is_from(cli, fake_session, book, monkeypatch):
    monkeypatch.setenv("KVSTREAM_BUDGET", "lots")
    found = "'--budget' (environment variable KVSTREAM_BUDGET): 'lots' is not a budget"
    assert found in cli("ask", book, "Q?").stderr
    assert "'--budget': 'more'" in cli("ask", book, "Q?", "--budget", "more").stderr


def test_a_variable_that_nothing_reads(cli, fake_session, book, monkeypatch) -> None:
    monkeypatch.setenv("KVSTREAM_BUGDET", "3k")
    monkeypatch.setenv("KVSTREAM_PURPOSE", "of its own")
    monkeypatch.setenv("KVSTREAM_SEED", "5")
    ran = cli("ask", book, "Q?", "-q")
    assert ran.code == 0
    told = "Warning: KVSTREAM_BUGDET is not read. Did you mean KVSTREAM_BUDGET?\n"
    assert ran.stderr.count("Warning") == ran.stderr.count(told) == 1


def test_a_variable_of_an_option_that_has_none(cli, fake_session, book, monkeypatch) -> None:
    monkeypatch.setenv("KVSTREAM_QUESTION", "Who?")  # sample --questions has KVSTREAM_QUESTIONS
    monkeypatch.setenv("KVSTREAM_CACHE", "/tmp")  # not that of serve --cache
    monkeypatch.setenv("KVSTREAM_VERSION", "2")  # of a container, perhaps
    ran = cli("ask", book, "Q?", "-q")
    told = "Warning: KVSTREAM_QUESTION is not read: --question has no variable.\n"
    assert ran.stderr.count("Warning") == ran.stderr.count(told) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("budget = ", "not valid TOML"),
        ('bugdet = "4k"', "'bugdet' is not an option of any command. Did you mean budget?"),
        ("[tell]\nseed = 1", "[tell] is not a command. There are ask, "),
        ("[ask]\nmax_token = 1", "not an option of kvstream ask. Did you mean max-tokens?"),
        ("[ask]\ninto = 1", "'into' is not an option of kvstream ask"),
        ('budget = "lots"', "'lots' is not a budget"),
    ],
)
def test_a_wrong_config_file_is_told(cli, fake_session, book, tmp_path, monkeypatch, text, says):
    config = tmp_path / "config.toml"
    config.write_text(text)
    monkeypatch.setenv("KVSTREAM_CONFIG", str(config))
    ran = cli("ask", book, "Q?")
    assert ran.code == 2
    assert says in ran.stderr


def test_a_config_file_that_is_named_must_exist(cli, fake_session, book, monkeypatch) -> None:
    monkeypatch.setenv("KVSTREAM_CONFIG", "/nowhere/config.toml")
    assert cli("ask", book, "Q?").code == 2
    assert cli("ask", "--help").code == 0, "help is there whatever the file says"


def test_dry_run_tells_sizes_and_answers_nothing(cli, fake_session, book) -> None:
    ran = cli("ask", book, "Q?", "--dry-run", "--budget", "1k")
    assert ran.code == 0
    assert "1,024 entries (4.5 MiB)" in ran.stdout
    assert "16 steps" in ran.stdout
    assert "prompt 12 entries, " in ran.stdout
    ran = cli("ask", book, "Q?", "--dry-run", "--json")
    assert json.loads(ran.stdout)["budget_tokens"] == 1024


def test_a_plan_of_two_models_has_the_sizes_of_both(fake_session) -> None:
    session, written = fake_session(ModelSettings("reader")), io.StringIO()
    request = Request(run=RunSettings(budget=Budget(tokens=500)))
    small = replace(session.plan((), request), model="pocket for reader")
    large = replace(session.plan((), request), estimated_tokens=256, precision="float32")
    show_plan(replace(small, answering=large), SimpleNamespace(json=False), written)
    lines = written.getvalue().splitlines()
    assert lines[0].startswith("pocket for reader · ")
    assert lines[2] == (
        "reader answers from passages of about 256 tokens · budget 500 entries (2.2 MiB) · float32"
    )
    assert lines[3] == lines[1]


def test_doctor_wraps_at_words_and_lists_the_extras(cli, monkeypatch) -> None:
    told, advice = "float32, which is told at length " * 4, "Install it, or leave it out. " * 5
    found = [*_extras(), Finding("precision", told, False, advice)]
    monkeypatch.setattr("kvstream.cli.commands.doctor.diagnose", lambda: iter(found))
    monkeypatch.setattr("kvstream.cli.commands.doctor._config", lambda: iter(()))  # a long path
    lines = cli("doctor").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    extras = {line.split()[2] for line in lines if line.startswith("ok  extra")}
    assert extras >= {"zstd", "documents", "serve", "ray", "report", "quantize"}
    assert sum(line.startswith(" " * 22) for line in lines) >= 2
    monkeypatch.setattr("kvstream.cli.commands.doctor.columns", lambda: 44)
    assert max(map(len, cli("doctor").stdout.splitlines())) <= 44


def test_doctor_loads_pocket_and_a_fetched_reader(cli, monkeypatch) -> None:
    """Nothing is loaded here: check which models are tried, and the report of a failed load."""

    def load(settings: ModelSettings) -> None:
        if settings.model == "reader":
            raise ModelError("Its adapter is damaged.")

    monkeypatch.setattr("kvstream.session.session.Session.open", load)
    monkeypatch.setattr("kvstream.api.doctor.cosines_of_keys", lambda session: [0.25, 0.75])
    monkeypatch.setattr("kvstream.api.doctor.reader_is_ready", lambda: False)
    assert [finding.name for finding in (*_pocket(), *_reader())] == ["pocket"]
    monkeypatch.setattr("kvstream.api.doctor.reader_is_ready", lambda: True)
    found = [*_pocket(), *_reader()]
    assert "mean cosine 0.50, up to 0.75" in found[0].value
    assert {finding.name: finding.ok for finding in found} == {"pocket": True, "reader": False}
    monkeypatch.setattr("kvstream.cli.commands.doctor.diagnose", lambda: iter(found))
    ran = cli("doctor")
    assert ran.code == 1
    assert "!!  reader" in ran.stdout
    assert "does not load: Its adapter is damaged." in ran.stdout
    assert "kvstream models get reader" in ran.stdout


def test_methods_explain_their_terms_and_name_no_file_of_the_project(cli) -> None:
    every = cli("methods", "-v").stdout
    assert "docs/" not in every
    assert "``" not in every  # markup of docstrings
    told = " ".join(cli("methods", "infinipot").stdout.split())
    assert "The catalyst is a text of tokens" in told
    assert "novelty (the paper's NuC, eq. 3)" in told
    assert "(CaP)" not in cli("methods").stdout


def test_methods_lists_one_line_each(cli) -> None:
    ran = cli("methods")
    assert ran.code == 0
    assert {line.split()[0] for line in ran.stdout.splitlines()} >= {
        "auto", "infinipot", "snapkv", "streaming", "window", "random", "truncate", "full",
    }  # fmt: skip
    assert max(map(len, ran.stdout.splitlines())) <= 80
    assert "pool=15, centered=biased" in cli("methods", "auto").stdout
    ran = cli("methods", "snapkv")
    assert "--set snapkv.window=" in ran.stdout
    assert "which always stay (1 or more)" in " ".join(ran.stdout.split())
    assert "belongs to the newest tokens (from 0 to 1)" in cli("methods", "h2o").stdout
    ran = cli("methods", "--json")
    methods = {m["method"]: m for m in map(json.loads, ran.stdout.splitlines())}
    assert all(m["summary"] for m in methods.values())
    settings = methods["infinipot"]["settings"]
    assert [(settings[s]["least"], settings[s]["most"]) for s in ("alpha", "recent")] == [
        (0, 1), (0, None),
    ]  # fmt: skip
    assert settings["catalyst_text"]["least"] is settings["catalyst_text"]["most"] is None


def test_version_and_help(cli) -> None:
    from kvstream import __version__

    assert cli("--version").stdout == f"kvstream {__version__}\n"
    assert cli("ask", "--version").stdout == f"kvstream {__version__}\n"
    ran = cli("-h")
    assert ran.code == 0
    assert "summarize" in ran.stdout
    ran = cli()
    assert ran.code == 2
    assert "Usage: kvstream" in ran.stderr


def test_compare_has_a_plan_for_each_method_and_runs_none(cli, fake_session, book) -> None:
    fake_session.last = None
    ran = cli("compare", book, "Q?", "--method", "streaming,random", "--dry-run", "--json")
    assert ran.code == 0, ran.stderr
    assert [json.loads(line)["method"] for line in ran.stdout.splitlines()] == [
        "streaming",
        "random",
    ]
    assert fake_session.last is None


def test_compare_extracts_where_it_is_asked_to(cli, fake_session, book) -> None:
    assert cli("compare", book, "Q?", "--extract", "--passages", "3", "-q").code == 0
    assert (fake_session.last.extract, fake_session.last.passages) == (True, 3)


def test_what_is_not_read_has_no_plan(cli, fake_session, book, tmp_path) -> None:
    memory = tmp_path / "book.kvs"
    memory.touch()
    assert cli("ask", "--memory", str(memory), "Q?", "--dry-run").code == 2
    assert cli("chat", book, "--dry-run").code == 2
    assert cli("ask", book, "Q?", "--dry-run", "--stats", str(tmp_path / "s.jsonl")).code == 2
    assert cli("remember", "--memory", str(memory), book, "--dry-run").code == 2


def test_remember_tells_its_sizes_and_writes_nothing(cli, fake_session, book, tmp_path) -> None:
    ran = cli("remember", book, "-o", str(tmp_path / "book.kvs"), "--dry-run")
    assert ran.code == 0, ran.stderr
    assert "1,024 entries (4.5 MiB)" in ran.stdout
    assert not (tmp_path / "book.kvs").exists()


def test_the_budget_that_an_error_names_is_the_smallest() -> None:
    for whole_answer in (False, True):
        for catalyst, question, most in itertools.product((0, 40), (4, 30), (1, 8, 20, 300)):
            how = (5, catalyst, question, most)
            with pytest.raises(BudgetError) as refused:
                share_out(20, *how, whole_answer=whole_answer)
            said = str(refused.value)
            need = int(re.search(r"--budget (\d+) or more", said)[1])
            parts = map(int, re.findall(r"(?:the 64|takes|question|least|catalyst) ?(\d+)", said))
            assert need == 64 + sum(parts), said
            share_out(need, *how, whole_answer=whole_answer)
            with pytest.raises(BudgetError):
                share_out(need - 1, *how, whole_answer=whole_answer)


def test_a_method_says_where_it_comes_from(cli) -> None:
    """The `source` of a method need not be a paper. Most descriptions name it."""
    told = cli("methods", "-v").stdout
    assert "Source:" not in told
    assert all(f' et al., "{paper}' in told for paper in ("KeyDiff: Key", "InfiniPot: Inf"))
    own = replace(method_info("keydiff"), source="a page of ours")
    assert "\n\n  Source: a page of ours\n\n" in _page(own)


@pytest.mark.parametrize(
    ("typed", "defaults", "skim"),
    [
        (["BOOK"], {"skim": "words"}, "words"),
        (["BOOK", "--no-extract"], {"skim": "words"}, "words"),
        (["BOOK", "--follow"], {"skim": "words"}, "none"),
        (["BOOK", "--shards", "2"], {"skim": "pocket"}, "none"),
        (["BOOK", "-m", "pocket"], {"skim": "pocket"}, "none"),
    ],
)
def test_a_default_gives_way_to_what_was_typed(
    cli, book, monkeypatch, typed, defaults, skim
) -> None:
    seen: list[Options] = []
    taken = lambda paths, options: seen.append(options) or 0  # noqa: E731
    monkeypatch.setattr("kvstream.cli.commands.ask.read", taken)
    for name, value in defaults.items():
        monkeypatch.setenv(f"KVSTREAM_{name.upper()}", value)
    ran = cli("ask", "-Q", "Q?", *(book if a == "BOOK" else a for a in typed))
    assert ran.code == 0, ran.stderr
    assert seen[0].skim == skim


def test_a_default_of_workers_is_for_several_readings(cli, fake_session, book, monkeypatch) -> None:
    monkeypatch.setenv("KVSTREAM_WORKERS", "2")
    for command in ("ask", "compare"):
        ran = cli(command, book, "Q?", "-q")
        assert (ran.code, ran.stderr) == (0, ""), command


@pytest.mark.parametrize("name", ["chat", "compare"])
def test_a_default_without_effect_in_a_command_is_ignored(book, monkeypatch, name) -> None:
    monkeypatch.setenv("KVSTREAM_CHECKPOINT", "default.ck")
    from kvstream.cli.app import cli as program

    # A command keeps the help option of its first context: that of the program, which has -h.
    with program.make_context("kvstream", ["--help"], resilient_parsing=True) as context:
        command = program.get_command(context, name)
        assert command is not None
        assert command.make_context(name, [str(book)], context).params["checkpoint"] is None


def test_it_is_told_why_a_fetched_reader_does_not_answer(
    cli, fake_session, book, monkeypatch
) -> None:
    monkeypatch.setattr("kvstream.api.models.default_model", lambda: "reader-0.5b")
    for options in (["--extract"], ["--checkpoint", "c"], ["--each"], ["--every", "1k"]):
        told = cli("ask", book, "Q?", *options).stderr
        assert f"demonstration, and the default with {options[0]}; for better" in told
        assert "-m reader-0.5b, which then reads all of the text and takes longer." in told
    for arguments in (["ask", book, "Q?", "-m", "pocket"], ["compare", book, "Q?"]):
        told = cli(*arguments).stderr
        assert "choose another with -m, such as -m reader-0.5b.\n" in told


@pytest.mark.parametrize("temperature", ["1e-300", "1e-30", "1e300"])
def test_any_temperature_gives_an_answer(cli, session, monkeypatch, book, temperature) -> None:
    """Logits divided by a tiny temperature are infinite, and their softmax is NaN."""
    monkeypatch.setattr("kvstream.session.session.Session.open", lambda settings: session)
    ran = cli("ask", book, "Where is the key?", "-q", "-n", "2", "--temp", temperature)
    assert ran.code == 0, ran.stderr
    assert ran.stdout.strip()


@pytest.mark.parametrize("command", [[], ["bench"]], ids=["kvstream", "bench"])
def test_every_command_has_its_line_in_the_help(cli, command) -> None:
    from kvstream.cli.app import COMMANDS
    from kvstream.cli.commands.bench import BENCHES

    shown = cli(*command, "--help").stdout
    for name, line in (BENCHES if command else COMMANDS).items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", shown, re.MULTILINE)
        page = cli(*command, name, "--help")
        assert page.code == 0, f"{name} is no command"


def test_help_shows_what_people_use_and_help_all_the_rest(cli) -> None:
    def options(page: str) -> set[str]:
        return set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", page, re.MULTILINE))

    short, long = (options(cli("ask", how).stdout) for how in ("--help", "--help-all"))
    assert len(short) <= 17
    assert {"--budget", "--method", "--model", "--json", "--help-all"} <= short < long
    assert {"--temp", "--set", "--threads", "--checkpoint"} <= long - short
    assert cli("doctor", "--help-all").code == 0
    assert "--help-all" not in cli("doctor", "--help").stdout


def test_options_for_all_commands_are_ignored_where_they_have_no_effect(
    cli, fake_session, book, monkeypatch, tmp_path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("temp = 0.5\ntop-k = 5\n")
    monkeypatch.setenv("KVSTREAM_CONFIG", str(config))
    monkeypatch.setenv("KVSTREAM_STRICT", "1")
    asked = ("remember", book, "-o", str(tmp_path / "b.kvs"), "--dry-run")
    assert cli(*asked).code == 0
    config.write_text("[remember]\ntemp = 0.5\n")
    ran = cli(*asked)
    assert ran.code == 2
    assert "'temp' is not an option of kvstream remember" in ran.stderr


def test_several_answers_stand_behind_their_questions(cli, fake_session, book) -> None:
    ran = cli("ask", book, "-Q", "Where?", "-Q", "Who?")
    assert ran.stdout == ("Question: Where?\nIt is 51234.\n\nQuestion: Who?\nIt is 51234.\n")
    assert ran.stderr.count(" peak ") == 1, "one reading, whose cost is told once"
    assert "answered in 0.5 s" in ran.stderr
    for each in ((), ("--each",)):
        ran = cli("ask", book, "-Q", "How often is snow mentioned?", "-Q", "Who?", *each)
        assert "\nQuestion: Who?\nIt is 51234.\n" in ran.stdout


def test_a_question_that_is_asked_twice_gets_two_answers(cli, fake_session, book) -> None:
    for count in ("How often is snow mentioned?", "Who?"):
        ran = cli("ask", book, "-Q", count, "-Q", "Where?", "-Q", count, "-Q", "Where?", "--json")
        asked = [json.loads(line)["question"] for line in ran.stdout.splitlines()]
        assert sorted(asked) == sorted([count, count, "Where?", "Where?"])
        twice = cli("ask", book, "-Q", count, "-Q", count).stdout
        assert twice.count(f"Question: {count}\n") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "-", "Q?", "--set", "infinipot.alhpa=1"], "Did you mean alpha?"),
        (["chat", "BOOK", "--set", "infinipot.alhpa=1"], "Did you mean alpha?"),
    ],
)
def test_what_is_missing_is_told_before_anything_is_read(
    cli, fake_session, book, monkeypatch, arguments, says
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for place in ("kvstream.cli.shared.interrupts.InterruptibleInput.readinto", "os.read"):
        monkeypatch.setattr(place, lambda *_: pytest.fail("standard input was read"))
    monkeypatch.setattr(
        "kvstream.session.session.Session.open", lambda settings: pytest.fail("loaded")
    )
    ran = cli(*[book if a == "BOOK" else a for a in arguments])
    assert ran.code == 2, ran.stderr
    assert says in ran.stderr


@pytest.mark.parametrize(
    ("words", "has"),
    [
        (["ask", "book.txt", "--method", "sna"], {"plain,snapkv"}),
        (["compare", "--method", "snapkv,inf"], {"plain,snapkv,infinipot"}),
        (["methods", "t"], {"plain,tova", "plain,truncate"}),
        (["ask", "-m", "poc"], {"plain,pocket"}),
        (["ask", "bo"], {"file,bo"}),
        (["ask", "-o", "bo"], {"file,bo"}),
        (["su"], {"plain,summarize"}),
        (["ask", "--sched"], {"plain,--schedule"}),
    ],
)
def test_words_complete_in_the_shell(monkeypatch, capfd, tmp_path, words, has) -> None:
    """It also works with a wrong config file, because no command runs yet."""
    from kvstream.cli.app import run

    config = tmp_path / "config.toml"
    config.write_text("temp = [1]")
    monkeypatch.setenv("KVSTREAM_CONFIG", str(config))
    monkeypatch.setenv("_KVSTREAM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["kvstream", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        run([])
    assert set(capfd.readouterr().out.split()) >= has
