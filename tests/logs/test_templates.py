"""Templates of log lines: which lines share a template, and the count of every line."""

from __future__ import annotations

import random

import pytest

from kvstream.logs.template_tree import TemplateTree, ValueReader, mask, values_of, words_of


def shapes(lines: list[str], **settings) -> dict[str, int]:
    tree = TemplateTree(**settings)
    for line in lines:
        tree.add(line)
    return {" ".join(template.words): template.count for template in tree}


def test_values_become_wildcards() -> None:
    lines = [f"Found child {n} in slot {n % 7}" for n in range(40)]
    assert shapes(lines) == {"Found child <*> in slot <*>": 40}


@pytest.mark.parametrize(
    "lines",
    [
        ["from 10.0.0.1 () at 5", "from 10.9.9.9 (host-1.example.com) at 5"],
        ["sent 12 bytes ok", "sent 1190 bytes (1.16 KB) ok"],
        ["addr 10.0.0.1 GET", "addr 10.0.0.1,10.0.0.2 GET"],
        ["to cache.example.org:443 open", "to 10.0.0.7:80 open"],
        ["at Fri Jul  1 07:57:30 2005 done", "at Sat Jun 18 02:08:10 2005 done"],
        [
            "id 7e7cc42f-3cb9-4d91-804c-f5aaaaaaaaaa up",
            "id b9000564-fe1a-409b-b8cc-1e88b294cd1d up",
        ],
        ["block blk_-160899 gone", "block blk_3886504 gone"],
    ],
)
def test_values_in_any_form_are_one_template(lines: list[str]) -> None:
    assert len(shapes(lines)) == 1


def test_few_words_in_a_place_stay_apart_and_many_are_a_variable() -> None:
    assert len(shapes([f"service is {w} now" for w in ("started", "stopped", "paused")])) == 3
    names = ("anna", "bert", "carl", "dora", "emil", "fritz", "gerd", "hans")
    assert shapes([f"session of {name} has ended" for name in names]) == {
        "session of <*> has ended": 8
    }


def test_lines_that_differ_in_what_is_kept_apart_are_two() -> None:
    tree = TemplateTree(split=lambda line: (line[0], line[2:]))
    assert tree.add("E same words here") is not tree.add("I same words here")


def test_no_line_is_lost_when_templates_leave_or_join() -> None:
    rng = random.Random(1)
    words = [f"{a}{b}" for a in "abcdefgh" for b in "klmnopq"]
    gone = []
    tree = TemplateTree(capacity=20, on_evict=gone.append)
    for _ in range(3000):
        tree.add(" ".join(rng.choices(words, k=rng.randint(1, 5))))
    assert len(tree) == 20
    assert gone
    assert tree.forgotten == sum(t.count for t in gone)
    assert tree.forgotten + sum(t.count for t in tree) == 3000


def test_a_template_that_left_comes_back_as_a_new_one() -> None:
    tree = TemplateTree(capacity=1)
    first = tree.add("one thing")
    tree.add("quite another matter entirely")
    assert tree.add("one thing") is not first
    assert tree.forgotten == 2


def test_what_a_tree_holds_is_bounded() -> None:
    tree = TemplateTree(capacity=50)
    for n in range(5000):
        letters = "".join(chr(97 + int(digit)) for digit in str(n))
        tree.add(f"{letters} starts {letters} and {letters}x ends " + letters * (n % 3))
    assert len(tree) <= 50
    assert len(tree._cache) <= 400
    assert len(tree._by_mask) <= 400
    assert len({number for groups in tree._groups.values() for number in groups}) <= 50
    assert sum(map(len, tree._groups.values())) < 500


@pytest.mark.parametrize(
    "line",
    [
        "Found child 5517 in slot 6, 10.1.1.1,10.2.2.2 () took 3 ms",
        "uid= euid=0 tty=\0 user-7 <3 sec> {a: 1, b: [2,3]}",
        "/a/b/c https://x.example.org/y?z=1 me@example.org " + "7 " * 400,
        "",
        "\ud800 \x00\x00 \U000f0001 end",
    ],
)
def test_each_word_has_its_value(line: str) -> None:
    assert len(values_of(line)) == len(words_of(mask(line)))


def test_values_are_as_they_were_written() -> None:
    words, values = words_of(mask("took 3 ms for 10.0.0.9")), values_of("took 3 ms for 10.0.0.9")
    assert words == ["took", "<*>", "for", "<*>"]
    assert values == ["took", "3 ms", "for", "10.0.0.9"]


def test_values_in_a_row_are_as_they_were_written() -> None:
    assert values_of("from 10.0.0.9:80, 10.0.0.8 [7]: gone") == [
        "from", "10.0.0.9:80, 10.0.0.8 [7]", "gone",
    ]  # fmt: skip


def reader_of(line: str) -> ValueReader:
    return ValueReader(line, words_of(mask(line)))


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("took 27.5 ms for 10.0.0.7", ["27.5 ms", "10.0.0.7"]),
        ("took 3 ms for 10.0.0.7 ", ["3 ms", "10.0.0.7"]),
        ("took 3 ms of 10.0.0.7", None),
        ("It took 3 ms for 10.0.0.7", None),
        ("", None),
    ],
)
def test_a_reader_finds_values_by_the_text_between_them(
    line: str, values: list[str] | None
) -> None:
    assert reader_of("took 3 ms for 10.0.0.9").read(line) == values


def test_a_reader_has_the_whole_words_of_values_within_words() -> None:
    values = reader_of("uid= host-10.0.0.9 is up 3").read("uid=7 host-10.0.0.8 is up 4")
    assert values == ["7", "host-10.0.0.8", "4"]


@pytest.mark.parametrize("start", ["", "unit 7 same "])
def test_lines_of_random_words_take_no_time_of_each_other(start: str) -> None:
    import random
    import time

    rng = random.Random(3)
    words = ["".join(rng.choices("abcdefgh", k=8)) for _ in range(20_000)]
    tree = TemplateTree(on_join=lambda into, gone: None)
    began = time.process_time()
    for _ in range(4000):
        tree.add(start + " ".join(rng.sample(words, 5)))
    assert time.process_time() - began < 5  # measured: one or two seconds; once it was a minute


@pytest.mark.parametrize(("words", "longest"), [(4, 3), (30, 6), (400, 8)])
def test_the_group_of_a_line_is_that_of_a_search_through_all(
    monkeypatch: pytest.MonkeyPatch, words: int, longest: int
) -> None:
    import random

    from kvstream.logs import template_tree as templates

    def slow(
        self: TemplateTree, path: tuple[str, ...], words: list[str]
    ) -> templates._Group | None:
        of_path = {g for (at, _), held in self._groups.items() if at == path for g in held.values()}
        fitting = [g for g in of_path if g.similarity(words) >= templates.SIMILARITY]
        return max(fitting, key=lambda g: (g.similarity(words), -g.number), default=None)

    rng = random.Random(words)
    known = ["".join(rng.choices("abcdefgh", k=4)) for _ in range(words)]
    lines = [" ".join(rng.choices(known, k=rng.randint(0, longest))) for _ in range(1500)]
    fast = TemplateTree(capacity=300)
    found = [fast.add(line).words for line in lines]
    monkeypatch.setattr(TemplateTree, "_like", slow)
    slowly = TemplateTree(capacity=300)
    assert found == [slowly.add(line).words for line in lines]
    assert fast.forgotten == slowly.forgotten
