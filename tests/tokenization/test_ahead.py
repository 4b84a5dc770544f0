"""Reading ahead in a thread changes only the time of the work, not the results."""

from __future__ import annotations

import gzip
import io
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstream.errors import SourceError
from kvstream.input.sources import open_sources
from kvstream.sample import document as sample
from kvstream.tokenization.loading import TokenStream, load_tokenizer, open_stream
from kvstream.tokenization.prefetch import AHEAD, ReadAhead


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed text of about 120k tokens: several blocks, and an estimate that changes."""
    path = tmp_path_factory.mktemp("ahead") / "book.txt.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(sample.generate(tokens=120_000, seed=4))
    return path


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("pocket")


def history(stream: Any, sizes: list[int], shown: list[Any]) -> list[Any]:
    """Read a stream in steps of `sizes`, repeated until its end. Return all that is visible."""
    found: list[Any] = []
    while True:
        for size in sizes:
            chunk = stream.read(size)
            found.append(
                (chunk.ids.tolist(), chunk.starts.tolist(), chunk.end, stream.estimate(),
                 stream.seen, sum(len(block.text) for block in shown))
            )  # fmt: skip
            if len(chunk) < size:
                return found


@settings(max_examples=12)
@given(sizes=st.lists(st.integers(1, 60_000), min_size=1, max_size=4))
def test_it_is_the_same_stream(book: Path, tokenizer: Any, sizes: list[int]) -> None:
    sizes = [max(sizes), *sizes]  # avoid thousands of steps of one token
    shown: list[Any] = []
    stream = TokenStream(tokenizer, open_sources([str(book)]), shown.append)
    expected = history(stream, sizes, shown)
    also: list[Any] = []
    with closing(ReadAhead(tokenizer, open_sources([str(book)]), also.append)) as ahead:
        assert history(ahead, sizes, also) == expected
        assert len(ahead.read(5)) == 0
        assert ahead.at_end
    assert [b.text for b in also] == [b.text for b in shown]


def test_it_works_while_nobody_asks_and_stops_when_enough_waits(book: Path, tokenizer: Any) -> None:
    sources = open_sources([str(book)])
    with closing(ReadAhead(tokenizer, sources)) as ahead:
        ahead.read(1)
        deadline, before = time.monotonic() + 20, -1
        while sources.bytes_read != before and time.monotonic() < deadline:
            before = sources.bytes_read
            time.sleep(0.5)
        # One block was handed out, AHEAD wait, the thread has one. Each also has a lookahead.
        assert 2 * 65536 < before < (AHEAD + 2) * 2 * 65536
    assert not any(thread.name == "reading" for thread in threading.enumerate())


def test_errors_come_where_the_text_before_them_has_been_read(
    tokenizer: Any, tmp_path: Path
) -> None:
    path = tmp_path / "broken.gz"
    text = "".join(sample.generate(tokens=60_000, seed=1)).encode()
    packed = gzip.compress(text)
    path.write_bytes(packed[: len(packed) // 2] + b"\xff" * 200 + packed[len(packed) // 2 :])
    with closing(ReadAhead(tokenizer, open_sources([str(path)]))) as ahead:
        assert len(ahead.read(1000)) == 1000
        with pytest.raises(SourceError, match="damaged"):
            ahead.read(10**6)
        assert len(ahead.read(10)) <= 10  # a further read does not wait forever


def test_a_source_that_turns_out_empty(tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(b"")
    with (
        closing(ReadAhead(tokenizer, open_sources([str(path)]))) as ahead,
        pytest.raises(SourceError, match="0 bytes"),
    ):
        ahead.read(1)


def test_the_thread_ends_when_nobody_reads_any_more(book: Path, tokenizer: Any) -> None:
    ReadAhead(tokenizer, open_sources([str(book)])).close()
    ahead = ReadAhead(tokenizer, open_sources([str(book)]))
    assert isinstance(ahead.estimate(), int)
    ahead.close()
    assert not ahead._thread.is_alive()
    assert len(ahead.read(10)) == 10  # what the thread had read remains
    ahead = ReadAhead(tokenizer, open_sources([str(book)]))
    ahead.read(1)
    thread = ahead._thread
    assert thread.is_alive()
    del ahead
    thread.join(5)
    assert not thread.is_alive()


def test_only_long_texts_of_known_size_are_read_ahead(
    book: Path, tokenizer: Any, tmp_path: Path
) -> None:
    short = tmp_path / "short.txt"
    short.write_text("A line.\n")
    pipe = io.BytesIO(b"x" * 10**6)
    for sources, kind in (
        (open_sources([str(book)]), ReadAhead),
        (open_sources([str(short)]), TokenStream),
        (open_sources(["-"], stdin=pipe), TokenStream),
        (open_sources([str(book), "-"], stdin=pipe), TokenStream),
    ):
        assert type(open_stream(tokenizer, sources)) is kind


def test_a_long_log_behind_a_book_is_read_to_its_end(tokenizer: Any, tmp_path: Path) -> None:
    """Thinning drops a quarter of a million characters in a row. That is not the end."""
    from kvstream.logs.thinning import ThinnedSource

    prose, log = tmp_path / "prose.txt", tmp_path / "app.log"
    prose.write_text("The miller went down to the river and came home late. " * 1500)
    lines = [
        f"2024-05-01 10:{n // 60 % 60:02d}:{n % 60:02d} INFO web: GET x\n" for n in range(9000)
    ]
    log.write_text("".join(lines) + "2024-05-01 13:00:00 ERROR vault: the code is 48213\n")
    source = ThinnedSource(open_sources([str(prose), str(log)]), 65536, ["Which code?"])
    stream = open_stream(tokenizer, source)
    assert isinstance(stream, ReadAhead)
    with closing(stream):
        ids: list[int] = []
        while len(chunk := stream.read(1000)):
            ids += chunk.ids.tolist()
    assert tokenizer.decode(ids).rstrip().endswith("the code is 48213")
    assert source.line_counts is not None
    assert source.line_counts.lines == 9001
