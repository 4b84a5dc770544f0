"""Thinned logs: which lines pass, their places, and the count of every line."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kvstream.api.source_objects import Source, open_sources
from kvstream.input.blocks import TextBlock
from kvstream.input.parts import PartOfText, Stretch
from kvstream.logs import thinning
from kvstream.logs.containers import LONGEST_LINE
from kvstream.logs.thinning import FIRST, ThinnedSource, Thinner
from kvstream.logs.traces import EXAMPLE
from kvstream.tokenization.passages import Passages


def log_lines(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    lines = []
    for n in range(count):
        text = rng.choice(["order {} served", "queue holds {} letters", "user {} logged in"])
        lines.append(f"2024-05-01 12:{n // 60 % 60:02d}:{n % 60:02d} INFO shop: {text.format(n)}")
    return lines


def thinned(text: str, whole: int = 0, questions: tuple[str, ...] = ()) -> ThinnedSource:
    return ThinnedSource(open_sources(text=text), whole, questions)


def test_lines_that_repeat_pass_once_in_a_while() -> None:
    thinner = Thinner()
    passed = [n for n in range(1, 1001) if thinner.passes(f"2024-05-01 12:00:00 INFO a: beat {n}")]
    assert passed == [*range(1, FIRST + 1), 16, 32, 64, 128, 256, 512]


def beats(thinner: Thinner, count: int) -> list[int]:
    """Return which of `count` equal lines pass, counted from 1."""
    return [n for n in range(1, count + 1) if thinner.passes("2024-05-01 12:00:00 INFO a: beat 12")]


def test_of_very_many_lines_one_in_so_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "SELDOM", 64)
    assert beats(Thinner(), 400)[-7:] == [32, *range(64, 400, 64)]


def test_lines_with_a_word_of_a_question_pass_eight_times_as_often() -> None:
    passed = beats(Thinner(("When did it beat?",)), 255)
    assert [n for n in passed if n >= 64] == [*range(64, 128, 8), *range(128, 256, 16)]


@pytest.mark.parametrize("question", ["What of 12?", "What about eat?", "What was the INF of it?"])
def test_short_numbers_common_words_and_parts_of_words_let_nothing_pass(question: str) -> None:
    thinner = Thinner((question,))
    assert beats(thinner, 300) == beats(Thinner(), 300)
    assert thinner.matches() == []


def test_the_rarest_words_of_a_question_are_told_with_a_few_short_lines() -> None:
    thinner = Thinner(("Did the disk or the kernel fail?",))
    lines = [f"2024-05-01 12:00:00 INFO a: disk {n} is well" for n in range(50)]
    lines[20:20] = [f"2024-05-01 12:00:00 INFO a: kernel {n} is up {'x' * 900}" for n in range(2)]
    lines[40:40] = [f"2024-05-01 12:00:00 INFO a: kernel and disk {n} meet" for n in range(9)]
    for number, line in enumerate(lines, 1):
        thinner.passes(line, 7, number)
    assert thinner.matches() == [(7, n + 1, lines[n]) for n in (40, 41, 42)]
    apart = Thinner(("Did the disk fail?", "Or the kernel?"))
    for number, line in enumerate(lines[:30], 1):
        apart.passes(line, 7, number)
    assert apart.matches() == [(7, n + 1, lines[n][:EXAMPLE]) for n in (20, 21, 0)]


def test_no_more_than_a_few_lines_are_held_for_the_questions() -> None:
    words = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "klmnprst"]
    thinner = Thinner((" ".join(words),))
    for number, word in enumerate(words * 5):
        thinner.passes(f"2024-05-01 12:00:00 INFO a: {word}", 0, number)
    held = thinner._lines
    assert len(held) == 64 < len(words)
    assert all(len(lines) == 3 for lines in held.values())


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("ended", [True, False])
def test_what_passes_is_where_it_was(newline: str, ended: bool) -> None:
    lines = log_lines(3000)
    lines[1500] = "2024-05-01 12:25:00 ERROR shop: Grüße, the disk is full \ufffd"
    text = newline.join(lines) + (newline if ended else "")
    raw = text.encode()
    source, passages, found = thinned(text), Passages("lines"), 0
    for block in source:
        offsets = block.offsets()
        assert raw[offsets[0] : offsets[-1]].decode() == block.text
        assert raw[: offsets[0]].count(b"\n") == block.left_out + found
        found += block.text.count("\n")
        passages.feed(block)
    counts = source.line_counts
    assert counts is not None
    assert counts.lines == 3000
    assert 2900 < counts.thinned < 3000 - 3 * FIRST
    for passage in passages.all():
        assert lines[passage.line_start - 1] == passage.text.rstrip("\r")
        assert passage.line_end == passage.line_start
    assert any("disk is full" in passage.text for passage in passages.all())


def test_the_beginning_passes_whole_and_counts() -> None:
    lines = log_lines(3000)
    text = "".join(f"{line}\n" for line in lines)
    (first, *_) = thinned(text, whole=len(text) + 1)
    assert text.startswith(first.text)
    source = thinned(text, whole=len(text) + 1)
    assert "".join(block.text for block in source) == text
    assert source.line_counts is not None
    assert source.line_counts.thinned == 0


def test_only_the_beginning_passes_whole() -> None:
    text = "".join(f"{line}\n" for line in log_lines(3000))
    source = thinned(text, whole=60_000)
    read = "".join(block.text for block in source)
    assert text[:60_000] == read[:60_000]
    assert source.line_counts is not None
    assert source.line_counts.thinned > 100
    assert read.count("\n") == 3000 - source.line_counts.thinned


def test_nobody_knows_how_much_of_a_log_is_read() -> None:
    assert thinned("".join(f"{line}\n" for line in log_lines(3000))).size_hint() is None


def test_a_document_with_pages_is_no_log() -> None:
    class Pages:
        names, bases, records, warnings = ("a.pdf",), (0,), (), ()
        ended_line, bytes_read = True, 0

        def size_hint(self) -> int:
            return 9

        def __iter__(self) -> Iterator[TextBlock]:
            start = 0
            for page in range(1, 9):
                text = "".join(f"{line}\n" for line in log_lines(300))
                yield TextBlock(text, start, 0, place=page)
                start += len(text)

    source = ThinnedSource(Pages(), 0)  # type: ignore[arg-type]
    assert source.size_hint() == 9
    assert sum(block.text.count("\n") for block in source) == 8 * 300
    assert source.line_counts is None


def test_other_texts_pass_as_they_are() -> None:
    text = "She said nothing.\n\nIt was late.\n" * 9000
    source = thinned(text)
    assert source.size_hint() is not None
    assert "".join(block.text for block in source) == text
    assert source.line_counts is None


def test_each_source_is_judged_by_itself() -> None:
    log = "".join(f"{line}\n" for line in log_lines(2000))
    prose = "She said nothing.\n" * 500
    both = open_sources(
        [Source(iter([log]), "a.log"), Source(iter([prose]), "b.txt"), Source(iter([log]), "c.log")]
    )
    source = ThinnedSource(both, 0)
    texts = ["", "", ""]
    for block in source:
        texts[block.source] += block.text
    assert texts[1].lstrip("\n") == prose
    assert len(texts[0]) < len(log) / 10
    assert source.line_counts is not None
    assert source.line_counts.lines == 4000


def test_traces_go_with_their_line() -> None:
    thinner = Thinner()
    head, trace = "2024-05-01 12:00:00 ERROR a: it broke", ["Traceback (most recent):", "  File x"]
    kept = [[thinner.passes(line) for line in (head, *trace)] for _ in range(40)]
    assert all(len(set(each)) == 1 for each in kept)
    assert [each[0] for each in kept].count(True) == FIRST + 2


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_with_words_of_a_question_pass_and_are_told(newline: str) -> None:
    lines = [f"2024-05-01 12:00:00 INFO a: beat {n}" for n in range(1, 3001)]
    lines[2221] = "2024-05-01 12:00:00 INFO a: beat 77.1.2.3"
    source = thinned(newline.join(lines), questions=("Did 77.1.2.3 beat?",))
    assert "77.1.2.3" in "".join(block.text for block in source)
    counts = source.line_counts
    assert counts is not None
    assert counts.matches[0] == ("text", 2222, lines[2221])


def test_a_line_without_end_is_held_in_part() -> None:
    class Endless:
        names, bases, records, warnings = ("a",), (0,), (), ()
        ended_line, bytes_read = True, 0

        def size_hint(self) -> None:
            return None

        def __iter__(self) -> Iterator[TextBlock]:
            start = 0
            head = "".join(f"{line}\n" for line in log_lines(800))
            for text in (head, *["x" * 65536] * 60, "\n", head):
                yield TextBlock(text, start, 0)
                start += len(text)

    given = 0
    for block in ThinnedSource(Endless(), 0):  # type: ignore[arg-type]
        assert len(block.text) <= 3 * LONGEST_LINE
        given += len(block.text)
    assert given > 60 * 65536


def test_a_stream_of_which_nothing_passes_pauses() -> None:
    def pieces() -> Iterator[str]:
        while True:
            yield "2024-05-01 12:00:00 INFO a: beat\n" * 2000

    source = iter(ThinnedSource(open_sources(text=pieces()), 0))
    assert sum(not next(source).text for _ in range(25)) > 3


@pytest.mark.parametrize("end", ["\n", ""])
def test_the_last_line_of_a_log_that_fits_passes_whole(end: str) -> None:
    text = "\n".join(log_lines(100)) + end
    source = thinned(text, whole=len(text) + 1)
    assert "".join(block.text for block in source) == text
    assert source.line_counts is not None
    assert source.line_counts.thinned == 0


def test_lines_keep_their_numbers_behind_a_part_that_is_not_read() -> None:
    lines = log_lines(1000)
    lines[700] = "2024-05-01 12:11:40 ERROR shop: order 4711 was refused"
    text = "".join(f"{line}\n" for line in lines)
    begin = len("".join(f"{line}\n" for line in lines[:500]))
    sources = open_sources(text=text)
    part = PartOfText(sources, Stretch(2, 2, begin, None, 0, 500))
    source = ThinnedSource(part, 0, ("Which order was refused?",))
    passed = ""
    for block in source:
        passed += block.text
        if "4711" in passed:
            break
    assert passed[: passed.index("4711")].count("\n") + block.left_out + 1 == 701
    assert source.line_counts is not None
    assert source.line_counts.matches[0][1] == 701
