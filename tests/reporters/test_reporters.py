"""The output of reporters for events: lines, the panel, charts made of characters."""

from __future__ import annotations

import io
import json
import re
import time
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeSession
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import kvstream
from kvstream.events import Answered, AnswerStarted, Notice, Started, StepDone
from kvstream.reporters import format as f
from kvstream.reporters.format import json_line, json_text
from kvstream.reporters.live import History, Live, PanelView, Speed
from kvstream.reporters.plain import Plain, Teller, step_line, summary
from kvstream.run.request import Request
from kvstream.settings import ModelSettings


def events(tokens: int | None = 8192, **attributes):
    session = FakeSession(ModelSettings())
    session.tokens = tokens
    for name, value in attributes.items():
        setattr(session, name, value)
    return list(session.ask(None, Request(("Q?",))))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (6291456, "6.0 MiB"),
        (999 * 1024, "999 KiB"),
        (2**30, "1.0 GiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_sizes(count, text) -> None:
    assert f.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1:00"), (3599.7, "1:00:00"), (7384, "2:03:04")],
)
def test_durations(seconds, text) -> None:
    assert f.duration(seconds) == text


def test_shares_never_round_to_nothing_or_to_all() -> None:
    assert f.share(1, 10**6) == "<0.1%"
    assert f.share(0, 10) == "0.0%"
    assert f.share(99.4, 100) == "99%"
    assert f.share(996, 1000) == "99.6%"
    assert f.share(99_999, 10**5) == "99.9%"
    assert f.share(10, 10) == "100%"
    assert f.share(1, 0) == "0%"


@given(st.lists(st.floats(0, 1), max_size=300), st.integers(1, 100))
def test_pictures_have_the_width_that_was_asked_for(values, width) -> None:
    fitted = f.fit(values, width)
    assert len(fitted) == (width if values else 0)
    if values:
        assert min(values) - 1e-9 <= min(fitted) <= max(fitted) <= max(values) + 1e-9
    assert len(f.sparkline(fitted, 1.0)) == len(fitted)
    assert len(f.strip(values)) == len(values)
    assert all((c == " ") == (v == 0) for c, v in zip(f.strip(values), values, strict=True))


HOSTILE = "a\x1b[31m\x07\x9b2J\x85\u202eb\u2066ce" + "\u0301\u0335\u0488" * 20 + "\ud800\x7f"


def test_what_is_hostile_to_a_terminal_becomes_visible() -> None:
    shown = f.visible(HOSTILE)
    assert shown.startswith("a␛[31m␇�2J��b�ce")
    assert max(map(len, re.findall("[\u0300-\u036f\u0488]+", shown))) == 4
    assert f.visible("one\r\ntwo\rthree\tfour") == "one\ntwo␍three\tfour"
    for text in ("Việt Nam", "ไม่มีที่สิ้นสุด", "שָׁלוֹם", "👩‍👩‍👧‍👦 é ñ", "naïve—“quoted”…"):
        assert f.visible(unicodedata.normalize("NFD", text)) == unicodedata.normalize("NFD", text)


@given(st.text() | st.text("ab\u0301\u0e31\u20dd\U0001d165\U000e0100 "))
def test_json_is_lossless_and_safe(text) -> None:
    for record in (text + HOSTILE, {text: [HOSTILE + text]}):
        line = json_text(record, ascii=False)
        assert json.loads(line) == json.loads(json.dumps(record))
        assert f.visible(line) == line


@given(st.text())
def test_text_for_a_terminal_has_no_control_characters(text) -> None:
    shown = f.visible(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in shown)
    if text.isprintable() and not f._PILED.search(text):  # which may have too many marks
        assert shown == text


def test_lines_for_a_terminal_end_between_words(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    told = "Error: no such file as /a/path/that/is/longer/than/the/line.txt; name another.\n\nEnd"
    lines = f.in_lines(told).split("\n")
    assert " ".join(lines).split() == told.split()
    assert all(len(line) <= 30 or " " not in line for line in lines)
    assert len(lines) > 4


@given(st.lists(st.integers(0, 1000), max_size=500))
def test_history_is_bounded_and_spreads_over_all_steps(values) -> None:
    history = History(most=16)
    for value in values:
        history.add(value)
    kept = len(history.values)
    assert kept < 16
    strides = [s for s in (1, 2, 4, 8, 16, 32, 64) if values[::s] == history.values]
    assert strides
    assert kept > 6 or strides[0] == 1


def test_speed_follows_what_happens_now() -> None:
    speed = Speed(window=2.0)
    for second in range(1, 11):
        speed.add(float(second), second * 1000)
    for second in range(11, 15):
        now = speed.add(float(second), 10_000 + (second - 10) * 10)
    assert now == pytest.approx(10)


def test_plain_lines_are_sparse() -> None:
    now = [0.0]
    stream = io.StringIO()
    reporter = Plain(stream, clock=lambda: now[0])
    asked = 0

    for event in events(tokens=512 * 2000):
        if isinstance(event, StepDone):
            now[0] += 1.0
        reporter.show(event)
        asked += 1
    lines = stream.getvalue().splitlines()
    assert asked > 2000
    assert 30 < len(lines) < 50, "doubling from 5 s to a minute over 2,000 s"
    assert "left" in lines[3]
    assert lines[-1].startswith("read 1,024,000 tokens")


@pytest.mark.parametrize("terminal", [False, True])
def test_each_answer_has_its_warnings(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer shows its own warning, even an equal one. A warning of the reading shows once."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    teller = Teller(stream)
    [made] = [event.result for event in events(tokens=5000) if isinstance(event, Answered)]
    teller.show(Notice("3 bytes are damaged."))
    for number, question in enumerate(("Who came?", "And when?", "And why?")):
        teller.show(AnswerStarted(question, number))
        own = () if question == "And when?" else ("Low confidence.",)
        result = replace(
            made,
            question=question,
            warnings=("3 bytes are damaged.", *own),
            of_reading=("3 bytes are damaged.",),
        )
        teller.show(Answered(result))
    lines = stream.getvalue().splitlines()
    expected = ["Warning: 3 bytes are damaged.", "Warning: Low confidence."]
    expected += [] if terminal else ["Question: And why?"]
    assert lines == [*expected, "Warning: Low confidence."]


def test_the_numbers_behind_each_warning_are_told() -> None:
    stream = io.StringIO()
    plain = Plain(stream)
    plain.verbose = True
    [made] = [event.result for event in events(tokens=5000) if isinstance(event, Answered)]
    for number in range(3):
        plain.show(AnswerStarted("Q?", number))
        plain.show(Answered(replace(made, support={"confidence": 0.25, "probability": 0.5})))
    lines = stream.getvalue().splitlines()
    behind = "probability that the answer is right 50% · mean probability of its tokens 25%"
    assert lines.count(behind) == 3
    assert sum(line.startswith("answered in ") for line in lines) == 2


def test_plain_lines_without_a_known_length() -> None:
    now = [0.0]
    stream = io.StringIO()
    reporter = Plain(stream, clock=lambda: now[0])
    for event in events(tokens=None):
        now[0] += 10
        reporter.show(event)
    assert "length unknown" in stream.getvalue()
    assert " s left" not in stream.getvalue()


def drawn(width: int, height: int, upto: int, **attributes) -> str:
    """Return the panel after some events as text."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    reporter = Live(stream, stays=False, clock=lambda: 12.3)
    reporter._start = lambda: None  # only draw, without the thread
    reporter.console = Console(file=stream, width=width, height=height, force_terminal=False)
    for event in events(**attributes)[:upto]:
        reporter.show(event)
    reporter.console.print(reporter._draw())
    stream.flush()
    return raw.getvalue().decode()


@pytest.mark.parametrize("width", [80, 60, 132])
@pytest.mark.parametrize("upto", [1, 2, 9, 17])
def test_the_panel_fits(width, upto) -> None:
    lines = drawn(width, 24, upto).splitlines()
    assert len(lines) <= 16
    assert all(len(line) <= width - len("^C") for line in lines)
    if upto > 2 and width >= 80:
        text = "\n".join(lines)
        for word in ("budget", "memory", "chunk", "kept", "read", "held", "free", "tokens/s"):
            assert word in text
        assert "entries a head and 12 of the prompt after step" in text


def test_the_panel_of_a_word_search_shows_only_the_reading() -> None:
    started, step, *_ = (e for e in events() if isinstance(e, Started | StepDone))
    for schedule, told in (("linear", True), ("", False)):
        for seen in (None, step):
            out = io.StringIO()
            view = PanelView(replace(started, schedule=schedule), seen, 1.0)
            Console(file=out, width=100).print(view)
            assert "read " in out.getvalue()
            assert ("░" in out.getvalue()) is told
            assert ("of the prompt" in out.getvalue()) is (told and seen is not None)


def test_the_panel_says_that_passages_are_read_after_a_word_search() -> None:
    started, *steps = (e for e in events() if isinstance(e, Started | StepDone))
    for step, schedule, says in ((steps[-1], "", 1), (steps[0], "", 0), (steps[-1], "linear", 0)):
        out = io.StringIO()
        Console(file=out, width=100).print(PanelView(replace(started, schedule=schedule), step))
        assert out.getvalue().count("reading passages") == says


def test_a_narrow_panel_leaves_out_what_does_not_fit_and_cuts_no_figure() -> None:
    text = drawn(60, 24, 9)
    assert "…" not in text
    for word in ("held", "chunk", "free", "(50%)", " left", " stay", "entries"):
        assert word in text


def test_the_steps_of_a_finished_reading_are_not_estimated() -> None:
    """A text can take one step less than estimated."""
    started = next(event for event in events() if isinstance(event, Started))
    started = replace(started, estimated_steps=42)
    steps = [event for event in events() if isinstance(event, StepDone)]
    early, last = (PanelView(started, step, 1.0) for step in (steps[0], steps[-1]))
    assert f"step {steps[0].step} of ~42" in early._chunk_words(started, steps[0])
    assert last._chunk_words(started, steps[-1]).endswith(f"step {steps[-1].step}")


def test_the_speed_is_of_the_tokens_that_were_read_now() -> None:
    """Tokens of a memory file took none of the time."""
    step = StepDone(
        step=3, chunk=100, memory=(40,), seen=9000, estimated_tokens=9600, kv_tokens=50,
        in_flight_tokens=90, peak_tokens=90, budget_tokens=100, kv_bytes=1000, seconds=2.0,
        coverage=lambda bins: [0.5] * bins, retained=lambda: 40, loaded=8800,
    )  # fmt: skip
    line = step_line(step)
    assert line.endswith(" · 100 tokens/s · 6.0 s left"), line
    assert "read 9,000 of ~9,600 tokens (94%)" in line


def test_the_panel_tells_what_is_known() -> None:
    text = drawn(80, 24, 9)
    assert "step 8 of ~16" in text
    assert "4,096 of ~8,192 (50%)" in text
    assert "left" in text
    unknown = drawn(80, 24, 9, tokens=None)
    assert "step 8" in unknown
    assert "length unknown" in unknown
    assert "left" not in unknown


def test_the_title_of_two_models_fits() -> None:
    started = replace(
        events()[0], model="pocket for reader", budget_tokens=4096, budget_bytes=12 * 2**20
    )
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    console.print(PanelView(started, elapsed=1.0))
    shown = console.file.getvalue()
    assert "pocket for reader · infinipot · budget 4,096 entries, 12.0 MiB" in shown


def test_wide_names_are_measured_in_cells() -> None:
    started = replace(events()[0], model="大きな模型" * 3)
    shown = io.StringIO()
    Console(file=shown, width=80).print(PanelView(started, elapsed=1.0))
    assert "budget 1,024 entries" in shown.getvalue(), "the program's name makes room"
    stream = io.StringIO()
    live = Live(stream, stays=False)
    live.console = Console(file=stream, width=80)
    live.wait_for(f"Reading {'京都駅' * 20}.pdf (3 pages) ...")  # a line that can be erased
    assert cell_len(stream.getvalue()) < 80


def test_of_two_models_the_last_line_says_whose_the_peaks_are() -> None:
    result = events()[-1].result
    assert "peak 932 of 1,024 entries (4.1 MiB of 4.5 MiB)" in summary(result)
    peaks = {
        "skim": {"kv_tokens": 932, "kv_bytes": 10},
        "answer": {"kv_tokens": 300, "kv_bytes": result.peak_kv_bytes},
    }
    skim = {"model": "pocket", "peak": peaks, "pieces": [{}] * 3, "tokens": 99}
    skim["kept"] = {"dropped_bytes": 1200}
    both = replace(result, model="reader", skim=skim)
    told = "peak 932 of 1,024 entries (pocket), 4.1 MiB of 4.5 MiB (reader)"
    assert told in summary(both)
    told = "answered from 3 passages (99 tokens) · left out 1,200 bytes of passages: no room"
    assert told in summary(both)
    both = replace(both, peak_kv_bytes=result.peak_kv_bytes + 10)
    assert "4.5 MiB (both)" in summary(both)


def test_a_note_is_no_warning_and_not_told_where_only_warnings_are() -> None:
    for reporter, told in ((Plain, "a.pdf: 3 lines.\n"), (Teller, "")):
        stream = io.StringIO()
        shows = reporter(stream)
        for _ in range(2):  # two methods of a comparison
            shows.show(Notice("a.pdf: 3 lines.", note=True))
        assert stream.getvalue() == told


def test_what_is_not_saved_is_told_where_only_warnings_are() -> None:
    for reporter in (Plain, Teller):
        stream = io.StringIO()
        reporter(stream).show(Notice("The disk is full.", note=True, loss=True))
        assert stream.getvalue() == "Warning: The disk is full.\n"


def test_plain_lines_without_unicode() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    reporter = Plain(stream)
    for event in events():
        reporter.show(event)


def test_a_model_name_cannot_forge_markup_or_escapes() -> None:
    name = "\x1b[31m[bold]x"
    out = io.StringIO()
    started = replace(events()[0], model=name)
    Console(file=out, width=80, markup=False).print(PanelView(started))
    assert "\x1b" not in out.getvalue()
    assert "[bold]x" in out.getvalue()


def test_the_panel_asks_the_engine_only_when_it_is_drawn() -> None:
    asked = [0]

    def coverage(bins: int) -> list[float]:
        asked[0] += 1
        return [1.0] * bins

    reporter = Live(io.StringIO(), stays=False)
    reporter._start = lambda: None
    began = time.monotonic()
    for event in events(tokens=512 * 3000):
        if isinstance(event, StepDone):
            event = StepDone(**{**vars(event), "coverage": coverage})
        reporter.show(event)
    elapsed = time.monotonic() - began
    assert asked[0] <= 2 + 4 * elapsed
    assert elapsed / 3000 < 0.001, "a step costs the panel less than a millisecond"


def test_json_has_no_nan_and_no_infinity() -> None:
    record = {"a": float("nan"), "b": [1.5, (float("inf"), {"c": -float("inf")})], "d": "ä"}
    text = json_text(record)
    assert json.loads(text) == {"a": None, "b": [1.5, [None, {"c": None}]], "d": "ä"}
    assert text.isascii()
    assert json_text({"d": "ä"}, ascii=False) == '{"d": "ä"}'


def test_json_is_json_in_any_encoding() -> None:
    """The replacements of a stream for characters outside its encoding can be invalid JSON."""
    for encoding in ("ascii", "latin-1", "utf-8"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
        stream.write(json_line({"d": "ä\U0001f600\x9b\x7f"}, stream))
        stream.seek(0)
        assert json.loads(stream.read()) == {"d": "ä\U0001f600\x9b\x7f"}
    assert json_line({"d": "ä\x9b"}, io.StringIO()) == '{"d": "ä\\u009b"}\n'


def test_all_json_that_is_printed_is_made_in_one_place() -> None:
    package = Path(kvstream.__file__).parent
    files = [*package.glob("cli/**/*.py"), *package.glob("reporters/**/*.py")]
    makes = [str(p.relative_to(package)) for p in files if "dumps(" in p.read_text("utf-8")]
    assert makes == ["reporters/format.py"]


def test_a_signal_in_the_middle_of_a_line_loses_no_message() -> None:
    """A stream refuses a write from a signal handler during another write."""

    class Stream(io.StringIO):
        busy = False

        def write(self, text: str) -> int:
            if self.busy:
                raise RuntimeError("reentrant call inside <_io.BufferedWriter>")
            self.busy = True
            if "step" in text:
                teller.tell("Interrupted.")  # as Ctrl-C does
            self.busy = False
            return super().write(text)

    stream = Stream()
    teller = Teller(stream)
    teller.write("step 1")
    assert stream.getvalue() == "step 1\nInterrupted.\n"


def test_a_signal_that_ends_the_run_in_the_middle_of_a_line_is_told_at_the_end() -> None:
    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if "step" not in text and ended:
                return super().write(text)
            if "step" in text:
                teller.tell("Terminated.")
                raise SystemExit(143)
            raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

    ended: list[bool] = []
    stream = Stream()
    teller = Teller(stream)
    with pytest.raises(SystemExit):
        teller.write("step 1")
    ended.append(True)
    teller.close()
    assert stream.getvalue() == "Terminated.\n"


def test_each_part_of_a_text_begins_with_an_empty_memory() -> None:
    """In --stats, the retention of a step refers to memory and chunk of the same part."""
    from kvstream.events import PartRead
    from kvstream.reporters.stats import Stats

    steps = [event for event in events() if isinstance(event, StepDone)]
    stats = Stats(io.StringIO())
    alone = stats.record(steps[0])["retention"]
    stats.record(steps[-1])
    stats.record(PartRead(1, 2, 1000, 1.0))
    assert stats.record(steps[0])["retention"] == alone


def test_a_citation_over_two_pages_names_both_in_a_report() -> None:
    pytest.importorskip("jinja2", reason="needs the extra report")
    from kvstream.reporters.html.render import place

    assert place({"page": 212, "page_end": 213}) == "pages 212 to 213"
    assert place({"page": 212, "page_end": 212}) == place({"page": 212}) == "page 212"
