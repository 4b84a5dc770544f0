"""The equations of the paper against values worked out by hand, and schedules against them."""

from __future__ import annotations

import math

import pytest
from imdc_equations import decremental_chunks, mean_memory, memory_sizes, time_ratio
from models import bounded, tokens

from kvstream.engine.budget import BudgetSplit
from kvstream.engine.reader import Chunk, Reader
from kvstream.engine.schedule import Schedule
from kvstream.errors import BudgetError
from kvstream.methods.snapkv import SnapKV
from kvstream.settings import RunSettings


def follow(schedule: Schedule, length: int) -> tuple[list[int], list[int]]:
    """Return the chunks of a source of this length, and the fullest memory after each chunk."""
    chunks, sizes, seen = [], [], 0
    while seen < length:
        chunks.append(min(schedule.chunk(), length - seen))
        seen += chunks[-1]
        sizes.append(max(schedule.memory(chunks[-1], last=seen == length)))
    return chunks, sizes


def test_memory_by_hand() -> None:
    # Eq. 1: (1000-200) i/4 + 200; eq. 7: 800 i²/16 + 200; eq. 8: 800 sqrt(i)/2 + 200.
    assert memory_sizes("linear", 5, 200, 1000) == [200, 400, 600, 800, 1000]
    assert memory_sizes("square", 5, 200, 1000) == [200, 250, 400, 650, 1000]
    assert memory_sizes("sqrt", 5, 200, 1000) == [200, 600, 765, 892, 1000]
    assert memory_sizes("fixed", 3, 200, 1000) == [1000, 1000, 1000]
    assert memory_sizes("linear", 1, 200, 1000) == [1000]
    with pytest.raises(ValueError, match="adaptive"):
        memory_sizes("adaptive", 5, 200, 1000)


def test_square_sqrt_and_linear_hold_about_the_same() -> None:
    # Appendix A.1: the integrals of (square + sqrt) / 2 and linear agree.
    n = 2000
    both = [sum(memory_sizes(g, n, 0, 10**6)) for g in ("square", "sqrt")]
    assert sum(both) / 2 == pytest.approx(sum(memory_sizes("linear", n, 0, 10**6)), rel=2e-3)


def test_chunks_by_hand() -> None:
    # m-hat = (200+400+600+800)/4 = 500; c_i = 1000 + 500 - m_{i-1}.
    memory = memory_sizes("linear", 5, 200, 1000)
    assert mean_memory(memory) == 500
    chunks = decremental_chunks(1000, memory)
    assert chunks == [1000, 1300, 1100, 900, 700]
    assert sum(chunks) / 5 == 1000  # eq. 4
    assert {c + m for c, m in zip(chunks[1:], memory, strict=False)} == {1500}  # eq. 5
    assert decremental_chunks(300, [100]) == [300]
    # With m_max above 2c the last chunk would be negative.
    assert decremental_chunks(100, memory_sizes("linear", 100, 4, 400))[-1] < 0


def test_time_ratio_by_hand() -> None:
    memory = memory_sizes("linear", 5, 200, 1000)  # m-hat 500
    assert time_ratio(0.5, 1000, memory) == pytest.approx(0.5 * (2000 / 1500 - 1) + 1)
    assert time_ratio(1.0, 0, memory) == pytest.approx(2.0)  # ideal: m_max / m-hat
    assert time_ratio(0.5, 1000, memory_sizes("fixed", 5, 0, 1000)) == 1.0


@pytest.mark.parametrize("name", ["linear", "sqrt", "square", "fixed"])
def test_average_chunk_is_the_papers(name: str) -> None:
    n, c, m_max = 32, 1024, 1024
    schedule = Schedule(
        name=name, chunk="decremental", layers=1, free=4096, final=2048, keep=m_max,
        chunk_size=c, length=n * c,
    )  # fmt: skip
    assert schedule.steps == n
    chunks, sizes = follow(schedule, n * c)
    memory = memory_sizes(name, n, m_max // n, m_max)
    assert sizes[:-1] == memory[:-1]
    assert m_max <= sizes[-1] <= 2048  # the last pot is not distilled if it fits
    for got, want in zip(chunks[:-1], decremental_chunks(c, memory), strict=False):
        assert got == pytest.approx(want, abs=2)


@pytest.mark.parametrize("name", ["linear", "sqrt", "square", "fixed"])
def test_solved_for_a_budget_is_eq_5_with_all_that_is_free(name: str) -> None:
    schedule = Schedule(
        name=name, chunk="decremental", layers=1, free=1000, final=700, length=32_768
    )
    n = schedule.steps
    assert n is not None
    chunks, sizes = follow(schedule, 32_768)
    assert chunks[0] == 1000
    assert {c + m for c, m in zip(chunks[1:-1], sizes, strict=False)} == {1000}
    assert sizes[: len(sizes) - 2] == memory_sizes(name, n, 700 // n, 700)[: len(sizes) - 2]
    assert sizes[-1] == 700
    # n is the fewest steps: with one less, the chunks of the equations do not reach the length.
    fewer = memory_sizes(name, n - 1, max(1, 700 // (n - 1)), 700)
    assert sum(1000 - m for m in [0, *fewer[:-1]]) < 32_768 + n
    assert len(chunks) in (n - 1, n)


def test_fixed_chunks() -> None:
    schedule = Schedule(name="linear", chunk="fixed", layers=2, free=1000, final=600, length=9000)
    chunks, sizes = follow(schedule, 9000)
    assert chunks == [400] * 22 + [200]
    assert schedule.steps == math.ceil(9000 / 400)
    assert sizes == memory_sizes("linear", 23, 600 // 23, 600)


def test_peak_falls_as_the_paper_says() -> None:
    # Linear growth at m_max = c needs 25% less than c + m_max.
    c = 1024
    schedule = Schedule(
        name="linear", chunk="decremental", layers=1, free=8192, final=4096, keep=c,
        chunk_size=c, length=64 * c,
    )  # fmt: skip
    chunks, sizes = follow(schedule, 64 * c)
    peak = max(a + m for a, m in zip(chunks[1:], sizes, strict=False))
    assert peak == c + c // 2


def refused(message: str, **changes: object) -> None:
    settings: dict[str, object] = {
        "name": "linear", "chunk": "decremental", "layers": 2, "free": 1000, "final": 800,
        "length": 50_000,
    }  # fmt: skip
    settings.update(changes)
    with pytest.raises(BudgetError, match=message):
        Schedule(**settings)  # type: ignore[arg-type]


def test_what_cannot_be_had_is_refused_with_the_number() -> None:
    refused("cannot keep 2,048 entries.* at most 800", keep=2048)
    refused("cannot keep 850 .* at most 800", keep=850)
    refused("cannot keep 990 .* at most 875", keep=990, final=995)
    refused("800: question and answer leave 800 entries. For more, raise the budget.$", keep=2048)
    refused("875: 1,000 entries are free, and a chunk takes at least 125. For", keep=990, final=995)
    refused("a chunk takes at least 125.$", keep=990, final=995, widest=True)
    refused("at most 750", keep=760, length=None)
    refused("60 entries are free", free=60)
    refused("chunk size of 1,000 leaves no memory", chunk="fixed", chunk_size=1000)
    refused("chunk size of 1,000 leaves no memory; use one below 1,000", chunk_size=1000)
    refused("leaves -3 entries", final=-3)
    refused("take 1,050, and 1,000 entries are free", chunk_size=800, keep=500)
    refused(r"eq\. 6.*keep at most 400,", chunk_size=200, keep=500)
    refused("cannot keep 300 .* at most 200", chunk="fixed", chunk_size=800, keep=300)


@pytest.mark.parametrize("schedule", ["linear", "sqrt", "square"])
def test_peaks_in_the_engine_differ_by_what_the_equations_say(schedule: str) -> None:
    """Check the most entries of a head, with the chunk in flight and without the prompt.

    Fixed memory: c + m_max. Growing memory with a fixed chunk: c + m_(n-2), because the last chunk
    meets the memory of the step before. With a decremental chunk as well: c + m-hat (eq. 5).
    """
    n, c, m_max, prompt = 24, 64, 64, 4
    start = m_max // n
    peaks = {}
    for name, settings in {
        "FM": {"schedule": "fixed", "chunk": "fixed"},
        "IM": {"schedule": schedule, "chunk": "fixed"},
        "IMDC": {"schedule": schedule, "chunk": "decremental"},
    }.items():
        run = RunSettings(**settings, keep=m_max, chunk_size=c, start=start)
        sizes = BudgetSplit(300, prompt, 0, 4, 4)
        reader = Reader(bounded("llama"), SnapKV(), run, sizes, tokens(prompt), (), n * c)
        text = tokens(n * c, seed=1)
        while reader.seen < n * c:
            piece = Chunk(text[reader.seen :][: reader.schedule.chunk()], reader.seen)
            reader.step(piece, last=reader.seen + len(piece.ids) == n * c)
        peaks[name] = reader.cache.peak.tokens - prompt
    power = {"linear": 1, "sqrt": 0.5, "square": 2}[schedule]
    met = [start + (m_max - start) * (i / (n - 1)) ** power for i in range(n - 1)]
    m_hat = sum(met) / len(met)
    assert peaks == {"FM": c + m_max, "IM": c + int(met[-1]), "IMDC": math.ceil(c + m_hat)}
