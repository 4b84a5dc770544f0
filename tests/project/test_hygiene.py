"""Facts written in two places must agree, and the repository must hold no debris."""

from __future__ import annotations

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from help_pages import commands, pages

from kvstream import __version__
from kvstream.sample import document

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "docs/research/lab/README.md"  # no page of the site
DOCS = sorted({*(ROOT / "docs").rglob("*.md")} - {LAB})
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")), LAB, *DOCS]


def tracked() -> list[Path]:
    """Return the files under version control. Skip the test in an unpacked archive."""
    try:
        done = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


def test_the_newest_changelog_heading_is_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == __version__


def test_help_pages_are_those_of_the_program() -> None:
    written = (ROOT / "docs" / "reference" / "help.md").read_text(encoding="utf-8")
    assert written == pages(), "run `make docs`"


def test_help_pages_fit_80_columns() -> None:
    assert [line for line in pages().split("```text\n", 1)[1].splitlines() if len(line) > 80] == []


def test_every_option_is_told_in_the_docs() -> None:
    written = {page.name: page.read_text(encoding="utf-8") for page in DOCS}
    del written["help.md"]
    for name, command in commands().items():
        text = "".join(written.values()) if name.startswith("bench") else written["cli.md"]
        for param in command.params:
            for option in (o for o in param.opts if o.startswith("--")):
                told = re.search(rf"{option}(?![\w-])", text)
                assert told, f"docs/ lack {option} of {name}"


def test_every_method_is_told_in_the_readme() -> None:
    from kvstream.methods.names import NAMES

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"`{name}`" in text


def prose(page: Path) -> str:
    """Return the text of a page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as on GitHub and the documentation site."""
    titles = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", prose(page)):
        if "://" in target:
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.name} links to {target}#{anchor}"


def test_every_page_of_the_docs_is_in_the_index_of_the_site_and_of_the_readme() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in DOCS:
        name = page.relative_to(ROOT / "docs").with_suffix("").as_posix()
        assert name == "index" or f"\n{name}\n" in index, f"docs/index.md lacks {name}"
        if name.startswith(("guide/", "reference/")):
            assert f"(docs/{name}.md)" in readme, f"README.md lacks {name}"


def test_a_page_with_measured_figures_in_a_table_links_to_where_they_were_measured() -> None:
    for page in DOCS:
        shelf = page.relative_to(ROOT / "docs").parts[0]
        rows = re.findall(r"^ *\|.*(?:\d%|\d of \d).*$", prose(page), re.MULTILINE)
        if rows and shelf in ("guide", "reference"):
            assert "](../research/" in prose(page), f"{page.name}: {rows[0]}"


@cache
def words_of_the_code() -> set[str]:
    files = (ROOT / "kvstream").rglob("*.py")
    return {word for path in files for word in re.findall(r"\w+", path.read_text("utf-8"))}


def test_the_glossary_has_the_names_of_the_code() -> None:
    rows = re.findall(
        r"^\| .*\| (.*) \|$", prose(ROOT / "docs/reference/glossary.md"), re.MULTILINE
    )
    names = [name for cell in rows for name in re.findall(r"`([A-Za-z_][\w.]*)`", cell)]
    assert len(names) > 20
    for name in names:
        assert name.rpartition(".")[2] in words_of_the_code(), f"no {name} in the code"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/reference/architecture.md"])
def test_files_and_names_of_the_pages_for_contributors_are_in_the_code(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    homes = (ROOT, ROOT / "kvstream", ROOT / "kvstream/cli")
    paths = re.findall(r"(?<![\w/.])(?:[a-z_]+/)+(?:[\w.]+\.(?:py|md|json))?(?![\w/])", text)
    assert len(paths) > 10
    for path in (path for path in paths if "NAME" not in path):
        assert any((home / path).exists() for home in homes), f"no {path}"
    names = re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)`", prose(ROOT / page))
    assert len(names) > 10
    for name in names:
        assert name.rpartition(".")[2] in words_of_the_code(), f"no {name}"


BRITISH = re.compile(
    r"(?i)\b\w*(?:(?:summar|normal|recogn|optim|initial|serial|token|quant|vector)is(?:e|ing|ation)"
    r"|neighbour|colour|behaviour|licence|labelled|cancelled|centred)\w*"
)
OF_OTHERS = {
    "recognised", "recognised_interval",  # keys of --json
    "CancelledError",  # of asyncio
    "optimiser",  # a key of the checkpoints of a training
    "preemptive_behaviour",  # of charset_normalizer
}  # fmt: skip


def test_the_pages_are_in_american_spelling() -> None:
    for page in PAGES:
        if page.name != "help.md":
            found = BRITISH.search(re.sub(r"`[^`]*`", "", prose(page)))
            assert not found, f"{page.name}: {found and found[0]}"


def test_the_code_is_in_american_spelling() -> None:
    made_up = {*(ROOT / "kvstream/sample").iterdir()}
    for path in set((ROOT / "kvstream").rglob("*.py")) - made_up:
        found = set(BRITISH.findall(path.read_text("utf-8"))) - OF_OTHERS
        assert not found, f"{path}: {found}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


def test_ci_runs_the_readmes_second_command() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_no_debris_and_nothing_too_large() -> None:
    for path in tracked():
        assert path.suffix not in {".orig", ".rej", ".pyc", ".log", ".tmp"}, path
        assert path.stat().st_size <= 40 * 1024 * 1024, path


def test_text_files_end_with_one_newline_and_have_no_trailing_spaces() -> None:
    for path in tracked():
        if path.suffix in {".py", ".md", ".toml", ".txt"} or path.name in {"Makefile", "run"}:
            text = path.read_text(encoding="utf-8")
            assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), path
            assert not re.search(r"[ \t]+$", text, re.MULTILINE), path


def test_the_question_of_make_try_is_planted_in_every_reference() -> None:
    """References of Python versions differ in length, so the number of facts must be fixed."""
    made = (ROOT / "Makefile").read_text(encoding="utf-8")
    planted = re.search(r"^PLANT := --facts (\d+) --seed (\d+)$", made, re.MULTILINE)
    asked = re.search(r"^ASK := (.+)$", made, re.MULTILINE)
    assert planted is not None
    assert asked is not None
    assert "$(PLANT)" in made
    facts = document.questions(facts=int(planted[1]), seed=int(planted[2]))
    assert asked[1] in {fact["question"] for fact in facts}
