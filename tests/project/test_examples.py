"""Run every example of the help and the docs as printed.

The examples are the commands that begin with ``kvstream`` (also after a pipe or ``&&``) in the help
pages, and in fenced blocks with the name ``sh`` or none in README, CONTRIBUTING and docs/. Commands
that read get small files with the names in the example, and the embedded model. Some commands are
only parsed: those that measure or train, those with another model, whose budgets may be larger,
those that wait for more text, those that start workers, and examples with a comment
``# not run: REASON``.
"""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest
from help_pages import commands

from kvstream.cli.app import cli as program
from kvstream.methods.names import method_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PARSED = ("bench", "models", "serve")
STORY = "Ada hid the letter under the third stone of the garden wall. Nobody saw her do it.\n" * 12


def joined(text: str) -> Iterator[str]:
    """Yield the lines of a script. A line that ends with a backslash is joined with the next."""
    yield from re.sub(r"\\\s*\n\s*", " ", text).splitlines()


def of_help() -> Iterator[tuple[str, str]]:
    for name, command in commands().items():
        for block in re.findall(r"\x08\n(.*?)(?:\n\s*\n|\Z)", command.help or "", re.DOTALL):
            for line in joined(block):
                yield f"kvstream {name} --help".replace("  ", " "), line.strip()
        for line in re.findall(r"kvstream \w.*", command.epilog or ""):
            yield "epilog", line


def of_docs() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if page.name == "help.md":  # `of_help` has these examples
            continue
        # Match fences of every name. Otherwise the end of one would match as the start of another.
        for name, block in re.findall(
            r"^```(\S*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            for line in joined(block if name in ("", "sh") else ""):
                yield str(page.relative_to(ROOT)), line.strip().removeprefix("$ ")


def stages(line: str) -> list[list[list[str]]]:
    """Split a line into pipelines, these into commands, and these into words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found: list[list[list[str]]] = [[[]]]
    for word in lexer:
        if word in ("&&", ";", "&"):
            found.append([[]])
        elif word == "|":
            found[-1].append([])
        else:
            found[-1][-1].append(word)
    return found


EXAMPLES = [
    (where, line)
    for where, line in dict.fromkeys([*of_help(), *of_docs()])
    if re.search(r"(?:^|[|&;] *)kvstream \w", line)
]


def test_there_are_examples_of_every_command() -> None:
    names = {word for _, line in EXAMPLES for word in re.findall(r"kvstream (\w+)", line)}
    assert names >= {
        "ask",
        "summarize",
        "remember",
        "inspect",
        "chat",
        "compare",
        "sample",
        "bench",
        "methods",
    }
    assert len(EXAMPLES) > 40


def test_no_example_asks_the_embedded_model_about_a_log() -> None:
    """The model misreads log lines, as the README says. Only docs/research/ shows its answers."""
    asked = [
        (where, line)
        for where, line in EXAMPLES
        if re.search(r"\bkvstream (?:ask|chat|remember|compare)\b", line)
        and re.search(r"\.log\b|journalctl", line)
        and not re.search(r" (?:-m|--model) ", line)
        and not where.startswith("docs/research/")
    ]
    assert asked == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


CHAPTERS = "".join(f"CHAPTER {number}\n\n{STORY}\n\n" for number in (1, 2, 3))
CONTENTS = {
    ".csv": "item,price\nlamp,12\nchair,40\n",
    ".log": "".join(f"2026-11-22 03:15:{n:02} ERROR disk: {n} errors\n" for n in range(20)),
}


def provide(folder: Path, words: list[str], cli) -> None:
    """Create small files with the names that a command reads."""
    pairs = list(pairwise(words))
    written = {word for option, word in pairs if option in ("-o", "--questions", "--checkpoint")}
    for word in words:
        path = folder / word
        if word in written or path.exists() or "*" in word:
            continue
        if word.endswith("/"):
            path.mkdir(parents=True)
            (path / "story.txt").write_text(STORY)
            if words[0] == "inspect":
                provide(folder, [f"{word}story.kvs"], cli)
        elif word.endswith(".gz"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(STORY.encode()))
        elif word.endswith((".txt", ".log", ".md", ".csv")):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(CONTENTS.get(path.suffix, CHAPTERS if "--only" in words else STORY))
        elif word.endswith(".kvs"):
            text = path.with_suffix(".txt")  # a different text, as equal memories cannot be joined
            text.write_text(f"{STORY}It is called {path.stem}.\n")
            assert cli("remember", str(text), "-o", word, "--budget", "300", "-q").code == 0


@pytest.mark.parametrize(("where", "line"), EXAMPLES, ids=[f"{w}: {e}"[:70] for w, e in EXAMPLES])
def test_an_example_works(where, line, folder, cli, session, monkeypatch) -> None:
    monkeypatch.setattr("kvstream.session.session.Session.open", lambda settings: session)
    monkeypatch.setenv("KVSTREAM_MAX_TOKENS", "8")
    for pipeline in stages(line):
        text = b""
        for words in pipeline:
            if words[:1] != ["kvstream"]:
                text = STORY.encode()  # output of zcat, curl, journalctl, tail ...
                continue
            arguments = words[1:]
            if ">" in arguments:
                del arguments[arguments.index(">") :]
            if "everyother" in arguments and "everyother" not in method_names():
                continue  # readers of write-a-method.md write this method
            elsewhere = {"-m", "--model", "--follow", "--workers", "--ray"} & set(arguments)
            if arguments[0] in PARSED or elsewhere or "# not run:" in line:
                for option, name in pairwise(arguments):
                    if option in ("-m", "--model") and not {":", "/"} & set(name):
                        (folder / name).touch()  # the options check that the file exists
                parse(arguments)
                continue
            if arguments[0] == "sample":  # as printed, except for its length
                arguments = [re.sub(r"^\d+[kM]$", "2k", a) for a in arguments]
            provide(folder, arguments, cli)
            ran = cli(*arguments, stdin=text)
            assert ran.code in ((0, 1) if arguments[0] == "doctor" else (0,)), ran.stderr
            text = ran.stdout.encode()


def parse(arguments: list[str]) -> None:
    """Parse a command line without running it. Raise what a wrong one raises."""
    arguments = [a for a in arguments if a not in ("...", "[...]")]
    with program.make_context("kvstream", list(arguments), resilient_parsing=False) as context:
        command: click.Command = program
        while isinstance(command, click.Group) and arguments:
            name, found, arguments = command.resolve_command(context, arguments)
            assert found is not None
            command = found
            if not isinstance(command, click.Group):
                command.make_context(name, list(arguments), parent=context)
