"""The guarantees of a schedule, over growths, budgets, lengths and wrong length estimates."""

from __future__ import annotations

import runpy
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from kvstream.engine.schedule import ADAPTIVE_CHUNK, Schedule
from kvstream.errors import BudgetError
from kvstream.settings import CHUNKS, SCHEDULES


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    free = draw(st.integers(96, 40_000))
    final = draw(st.integers(1, free + 300))
    return {
        "name": draw(st.sampled_from(SCHEDULES)),
        "chunk": draw(st.sampled_from(CHUNKS)),
        "layers": draw(st.integers(1, 7)),
        "free": free,
        "final": final,
        "keep": draw(st.none() | st.integers(1, free)),
        "start": draw(st.none() | st.none() | st.integers(1, free)),
        "chunk_size": draw(st.none() | st.integers(1, free)),
    }


def run(schedule: Schedule, length: int, draw: Any, corrections: bool = False) -> list[int]:
    """Feed a source of ``length`` tokens, check every guarantee, and return the chunks."""
    chunks: list[int] = []
    seen = 0
    adaptive = schedule.name == "adaptive"
    while seen < length and len(chunks) < 300:
        before = schedule.held
        asked = schedule.chunk()
        # A text that is expected to fit and comes in pieces may leave room for less than a chunk.
        least = 1 if min(before) == seen > 0 else schedule.smallest
        assert asked >= min(least, schedule.free)
        assert asked + max(before) <= schedule.free
        read = min(asked, length - seen)
        chunks.append(read)
        seen += read
        if corrections and draw(st.booleans()):
            schedule.revise(int(length * draw(st.floats(0.5, 1.6))))
        ratios = None
        if adaptive and draw(st.booleans()):
            ratios = [draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])) for _ in before]
        stays = schedule.whole and seen < (schedule.length or 0) and min(before) + read == seen
        after = schedule.memory(read, ratios, last=seen == length)
        assert len(after) == schedule.layers
        assert all(0 <= a <= b + read for a, b in zip(after, before, strict=True))
        ceiling = max(schedule.m_max, schedule.final if seen == length else 0)
        if stays:
            assert after == tuple(b + read for b in before)
            assert max(after) <= schedule.final
        elif adaptive:
            assert max(after) <= schedule.final
            assert sum(after) <= max(ceiling * schedule.layers, 0)
        else:
            assert max(after) <= ceiling
            # Memory shrinks only if a text was expected to fit and does not, so that it held more.
            assert all(a >= min(b, ceiling) for a, b in zip(after, before, strict=True))
        if schedule.steps is not None:
            assert schedule.steps >= schedule.done == len(chunks)
    if seen == length:
        assert sum(chunks) == length
        assert max(schedule.held) <= schedule.final
        assert schedule.steps == len(chunks)
    return chunks


def made(**wish: Any) -> Schedule:
    try:
        return Schedule(**wish)
    except BudgetError as error:
        event(str(error)[:20])
        assume(False)
        raise


@settings(max_examples=60, deadline=None)
@given(wishes(), st.integers(1, 400_000), st.data())
def test_every_promise_when_the_length_is_known(
    wish: dict[str, Any], length: int, data: st.DataObject
) -> None:
    schedule = made(**wish, length=length)
    expected, whole = schedule.steps, schedule.whole
    chunks = run(schedule, length, data.draw)
    if whole:
        assert chunks == [length]
        assert schedule.held == (length,) * wish["layers"]
    if sum(chunks) < length or wish["name"] == "adaptive":
        return
    assert expected is not None
    # Never more steps than planned. There can be fewer: n steps may hold more tokens than the
    # length, and the rest is left out at the end, where chunks are small.
    assert len(chunks) <= expected
    if wish["chunk_size"] is None or wish["chunk"] == "fixed":
        assert len(chunks) >= 0.8 * expected - 2
        if not whole and length >= wish["free"]:
            # The last pot stays whole if it fits beside question and answer.
            assert schedule.m_max <= max(schedule.held) <= max(schedule.m_max, wish["final"])
    assert all(c >= min(schedule.smallest, length) for c in chunks[:-1])


@settings(max_examples=60, deadline=None)
@given(wishes(), st.integers(1, 400_000), st.floats(0.3, 3), st.booleans(), st.data())
def test_every_promise_when_the_estimate_is_wrong(
    wish: dict[str, Any], length: int, wrong: float, corrections: bool, data: st.DataObject
) -> None:
    schedule = made(**wish, length=max(1, int(length * wrong)))
    run(schedule, length, data.draw, corrections)


@settings(max_examples=60, deadline=None)
@given(wishes(), st.integers(1, 400_000), st.booleans(), st.data())
def test_every_promise_of_an_open_ended_stream(
    wish: dict[str, Any], length: int, corrections: bool, data: st.DataObject
) -> None:
    schedule = made(**wish, length=None)
    assert schedule.steps is None
    assert not schedule.whole
    if wish["chunk_size"] is None:
        assert schedule.smallest >= wish["free"] / 4
    run(schedule, length, data.draw, corrections)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_stream_settles(schedule: str, chunk: str) -> None:
    schedule = Schedule(
        name=schedule, chunk=chunk, layers=4, free=1000, final=990, length=None
    )  # fmt: skip
    sizes = []
    for _ in range(5000):
        assert schedule.chunk() >= 250
        sizes.append(schedule.memory(schedule.chunk()))
    assert sizes == sorted(sizes)
    assert sizes[-1][-1] >= 745
    assert sizes[20][-1] >= 500  # memory grows early, because a stream may end at any time
    assert schedule.memory(10, last=True)[-1] == 750


@pytest.mark.parametrize("wrong", [0.7, 1.3])
def test_a_corrected_estimate_ends_full_and_reads_no_more_steps(wrong: float) -> None:
    length, results = 100_000, []
    for estimate in (length, int(length * wrong)):
        schedule = Schedule(
            name="linear", chunk="decremental", layers=1, free=1000, final=700, length=estimate
        )
        seen = 0
        while seen < length:
            read = min(schedule.chunk(), length - seen)
            seen += read
            if seen > length / 3:
                schedule.revise(length)
            schedule.memory(read, last=seen == length)
        assert schedule.held == (700,)
        results.append(schedule.done)
    assert results[1] == pytest.approx(results[0], rel=0.1)


def test_a_file_that_is_shorter_than_thought_stays_whole_where_it_fits() -> None:
    schedule = Schedule(
        name="linear", chunk="decremental", layers=2, free=1000, final=800, length=5000
    )
    assert schedule.chunk() == 1000
    assert schedule.memory(800, last=True) == (800, 800)


def ending(length: int, schedule: str = "fixed") -> Schedule:
    """Read a text of this length with a small memory in a pot of 1,000, of which 800 may be used
    when the question comes."""
    read = Schedule(
        name=schedule, chunk="decremental", layers=2, free=1000, final=800, keep=100, length=length
    )
    while read.seen < length:
        size = min(read.chunk(), length - read.seen)
        read.memory(size, last=read.seen + size == length)
    return read


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(length=st.integers(1, 6000))
@settings(max_examples=25, deadline=None)
def test_a_last_pot_with_room_is_not_distilled(schedule: str, length: int) -> None:
    """InfiniPot, section 3.2: distillation comes right before the pot overflows, not at the end."""
    read = ending(length, schedule)
    assert max(read.held) <= 800
    if length <= 800:
        assert read.held == (length, length)
    if schedule == "fixed":
        pot = length if length <= 1000 else 100 + ((length - 1000 - 1) % 900 + 1)
        assert read.held == ((pot, pot) if pot <= 800 else (100, 100))


def test_a_pot_with_room_is_distilled_when_reading_goes_on() -> None:
    read = ending(1300)
    assert read.held == (400, 400)
    read.reopen(5000)
    assert read.chunk() == 600
    assert read.memory(600) == (100, 100)


def test_square_sqrt_gives_the_upper_half_more() -> None:
    schedule = Schedule(
        name="square-sqrt", chunk="decremental", layers=5, free=1000, final=600, length=50_000
    )
    for _ in range(12):
        held = schedule.memory(schedule.chunk())
    assert held[0] == held[1] < held[2] == held[3] == held[4]
    assert schedule.chunk() == 1000 - held[4]


def test_adaptive_follows_eq_3_and_keeps_the_mean() -> None:
    schedule = Schedule(
        name="adaptive", chunk="decremental", layers=3, free=4000, final=3000, keep=600,
        length=100_000,
    )  # fmt: skip
    linear = Schedule(
        name="linear", chunk="decremental", layers=3, free=4000, final=3000, keep=600,
        length=100_000,
    )  # fmt: skip
    first = schedule.memory(schedule.chunk(), [0.9, 0.1, 0.1][:0] or None)
    assert first == linear.memory(linear.chunk())  # b_0 in every layer
    held = schedule.memory(schedule.chunk(), [0.2, 0.4, 0.6])
    base = sum(held) / 3
    assert held == pytest.approx((base / 2, base, base * 3 / 2), abs=2)
    assert schedule.chunk() == 4000 - held[2]
    # A layer that retained nothing still gets some entries, so that it can recover.
    assert min(schedule.memory(schedule.chunk(), [0.0, 0.5, 0.5])) > 0


def test_adaptive_hands_on_what_a_full_layer_cannot_take() -> None:
    schedule = Schedule(
        name="adaptive", chunk="decremental", layers=2, free=1000, final=400, length=20_000
    )
    while schedule.seen < 17_000:
        held = schedule.memory(schedule.chunk(), [0.9, 0.3])
    assert held[0] == 400
    assert 400 / 3 + 10 < held[1] < 400  # more than its share of 0.3 to 0.9
    while schedule.seen < 20_000:
        read = min(schedule.chunk(), 20_000 - schedule.seen)
        held = schedule.memory(read, [0.9, 0.3], last=schedule.seen + read == 20_000)
    assert held == (400, 400)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_no_layer_of_adaptive_makes_chunks_much_smaller_than_the_mean_does(
    ratios: list[float],
) -> None:
    schedule = Schedule(
        name="adaptive", chunk="decremental", layers=4, free=1000, final=900, length=20_000
    )
    while schedule.seen < 19_000:
        held = schedule.memory(min(schedule.chunk(), 20_000 - schedule.seen), ratios)
        left = schedule.free - sum(held) / 4
        assert schedule.chunk() >= ADAPTIVE_CHUNK * left - 2


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_chunk_size_beyond_the_budget_is_told_as_it_was_asked(chunk: str) -> None:
    size = {"name": "linear", "chunk": chunk, "layers": 1, "free": 250, "final": 200}
    with pytest.raises(BudgetError, match=r"250 .*chunk size of 5,000 .*use one below 250, or"):
        Schedule(**size, chunk_size=5000, length=9999)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match=r"smallest chunk of 64 leaves no memory; raise"):
        Schedule(**{**size, "free": 64}, length=9999)  # type: ignore[arg-type]


@pytest.mark.parametrize("growth", ["linear", "sqrt", "square-sqrt"])
def test_the_error_for_a_last_chunk_of_no_token_names_the_most_that_may_be_kept(
    growth: str,
) -> None:
    def kept(keep: int) -> Schedule:
        return Schedule(
            name=growth, chunk="decremental", layers=2, free=179, final=150, keep=keep, start=72,
            chunk_size=17, length=600,
        )  # fmt: skip

    with pytest.raises(BudgetError, match="less than one token") as told:
        kept(140)
    most = int(str(told.value).split("keep at most ")[1].split(",")[0])
    assert kept(most).smallest == 1
    with pytest.raises(BudgetError, match=f"Keeping {most + 1} .* keep at most {most}"):
        kept(most + 1)


def test_more_than_fits_is_a_mistake_of_the_caller() -> None:
    schedule = Schedule(name="fixed", chunk="fixed", layers=1, free=1000, final=500, length=9999)
    with pytest.raises(ValueError, match="only 1000 fit"):
        schedule.memory(1001)


@pytest.mark.parametrize("last", [False, True])
def test_a_full_memory_that_is_read_on_makes_room_only_for_what_follows(last: bool) -> None:
    """At the end of a text, memory may be larger than before another whole chunk."""
    schedule = Schedule(
        name="linear", chunk="decremental", layers=2, free=1000, final=950, length=9000
    )
    schedule.take_over((950, 950), seen=5000, done=9)
    schedule.reopen(9000)
    assert schedule.chunk() == 50  # not the smallest chunk, 125, which does not fit
    assert schedule.memory(50, last=last) == ((950, 950) if last else (875, 875))


def test_a_source_that_is_longer_than_thought_is_not_read_in_tiny_chunks() -> None:
    """If memory is large relative to the average chunk, planned chunks become tiny at the end."""
    schedule = Schedule(
        name="linear", chunk="decremental", layers=1, free=1000, final=900, keep=460,
        chunk_size=200, length=2000,
    )  # fmt: skip
    while schedule.seen < 2000:
        schedule.memory(schedule.chunk())
    assert schedule.smallest < 25
    for _ in range(9):
        assert schedule.chunk() >= 25  # an eighth of the average
        schedule.memory(schedule.chunk())


def test_a_text_that_is_all_there_goes_on_as_if_it_had_never_ended() -> None:
    size: dict[str, Any] = {"name": "linear", "chunk": "decremental", "layers": 2, "free": 1000}
    in_two = Schedule(**size, final=900, length=40)
    assert in_two.memory(40, last=True) == (40, 40)
    in_two.reopen(9000)
    at_once = Schedule(**size, final=900, length=9000)
    assert in_two.steps == at_once.steps
    assert in_two.memory(960) == at_once.memory(1000)
    assert in_two.state() == at_once.state()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_hundred_million_tokens_cost_nothing(schedule: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    schedule = Schedule(
        name=schedule, chunk="decremental", layers=32, free=100, final=90, length=10**8
    )
    for _ in range(50):
        schedule.memory(schedule.chunk(), [0.5, 0.1] * 16)
        schedule.revise(10**8 + 5)
    seconds = time.process_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 1
    assert peak < 200_000
    assert schedule.steps is not None
    assert schedule.steps > 10**6


def test_the_page_of_schedules_has_the_table_of_its_script(monkeypatch, capsys) -> None:
    research = Path(__file__).parents[2] / "docs" / "research"
    monkeypatch.setattr("sys.argv", ["schedules.py"])
    runpy.run_path(str(research / "lab" / "schedules.py"))
    rows: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith("m_0"):
            growth, chunk, *sizes = line.split()
            shown = "`--chunk fixed`" if chunk == "fixed" else chunk
            rows.setdefault(f"`{growth}`, {shown}", []).extend(sizes)
    page = (research / "schedules.md").read_text(encoding="utf-8")
    for name, sizes in rows.items():
        assert f"| {name} | {' | '.join(sizes)} |" in page
