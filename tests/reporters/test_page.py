"""Pages in Chromium: clicks, numbers compared with the result, and no network request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import executable, opened
from test_html import ATTACKS, page_of

import kvstream
from kvstream.api.model import Model
from kvstream.memory.snapshot.page_text import document_of
from kvstream.reporters.format import visible
from kvstream.reporters.html.render import render

TEXT = "".join(
    f"{ATTACKS[n % 12]} Line {n}: Mrs. Ålund 🙂 walked {n * 7} miles to the sea.\n"
    for n in range(48)
)
QUESTION = "How far did <b>Mrs. Ålund</b> walk {{ 7 * 7 }} \u202egnp?"
METHODS = ("infinipot", "streaming")


@pytest.fixture(scope="module")
def run(session, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Write a page per method and one of both. Return what the events reported, and the folder."""
    executable()
    folder = tmp_path_factory.mktemp("<i>pages")
    source = folder / "<img src=x onerror=alert(1)>.txt"
    source.write_text(TEXT, encoding="utf-8")
    model, told = Model(session), {}
    both = kvstream.Report(command=f"kvstream compare {QUESTION}")
    for method in METHODS:
        one = kvstream.Report(command="kvstream ask")
        both.begin(method)
        for event in model.stream(source, question=QUESTION, method=method, budget=300):
            one.show(event)
            both.show(event)
            if isinstance(event, kvstream.AnswerStarted):
                assert event.kept is not None
                told[method] = event.kept()
            elif isinstance(event, kvstream.Answered):
                told[f"{method} result"] = event.result
        one.write(folder / f"{method}.html")
    both.write(folder / "both.html")
    return {**told, "folder": folder}


@pytest.fixture(scope="module")
def page(run: dict[str, Any]) -> Iterator[Any]:
    with opened(run["folder"] / "infinipot.html", viewport={"width": 1100, "height": 800}) as found:
        yield found


@pytest.fixture(scope="module")
def both(run: dict[str, Any]) -> Iterator[Any]:
    with opened(run["folder"] / "both.html", viewport={"width": 1100, "height": 800}) as found:
        yield found


def draw_all(page: Any) -> None:
    """Scroll through the whole text, as only visible text is shaded."""
    page.evaluate(
        """async () => {
          for (const section of document.querySelectorAll("#text section")) {
            section.scrollIntoView();
            await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)));
          }
        }"""
    )


def shaded(page: Any, column: str = ".t") -> dict[int, float]:
    """Return the number of heads that hold each shaded token, as shown on the page."""
    draw_all(page)
    found = page.eval_on_selector_all(
        f"{column} .k", "all => all.map(one => [one.dataset.token, one.title])"
    )
    return {int(token): int(title.split(" of ")[0]) for token, title in found}


def color(page: Any, of: str) -> str:
    return page.eval_on_selector(of, "one => getComputedStyle(one).backgroundColor")


def status(page: Any) -> str:
    return page.inner_text("#status")


def test_the_shading_is_what_the_result_tells(page: Any, run: dict[str, Any]) -> None:
    kept, result = run["infinipot"], run["infinipot result"]
    assert f"{result.retained:,} of {result.read:,} tokens" in status(page)
    found = shaded(page)
    counts = kept.counts()
    assert all(counts[token] == heads for token, heads in found.items())
    # A character of several tokens is shaded once, for the first of them.
    document, expected, reached = document_of({"one": kept}, []), set(), (0, 0)
    for token, (text, start, length) in enumerate(document.spans.tolist()):
        if (text, start + length) > reached:
            expected.add(token)
            reached = text, start + length
    assert set(found) == expected


def test_one_layer_and_one_head(page: Any, run: dict[str, Any]) -> None:
    kept = run["infinipot"]
    layer = kept.heads[1]
    page.select_option("#layer", "1")
    union = np.unique(np.concatenate(layer))
    assert status(page).startswith(f"{len(union):,} of")
    page.select_option("#head", "0")
    assert status(page).startswith(f"{len(layer[0]):,} of")
    assert set(shaded(page)) <= set(layer[0].tolist())
    page.select_option("#layer", "")
    assert page.is_disabled("#head")


def test_a_click_on_a_citation_goes_to_its_passage(page: Any, run: dict[str, Any]) -> None:
    result = run["infinipot result"]
    assert result.citations
    for number, citation in enumerate(result.citations):
        page.click(f"a[data-cite='{number}']")
        page.wait_for_timeout(150)
        mark = page.locator("mark.here")
        assert visible(citation["text"]).startswith(mark.inner_text().rstrip("\n"))
        assert page.evaluate("document.activeElement.matches('mark.here')")
        box = mark.bounding_box()
        assert box is not None
        assert 0 <= box["y"] <= 800


def test_the_keyboard_moves_through_the_text_and_the_chart(page: Any) -> None:
    page.focus("#place")
    page.keyboard.press("End")
    page.wait_for_timeout(100)
    assert page.evaluate("document.querySelector('.t:last-of-type') !== null")
    end = page.evaluate("scrollY")
    page.keyboard.press("Home")
    page.wait_for_timeout(100)
    assert page.evaluate("scrollY") < end
    assert "token 0 of" in page.get_attribute("#place", "aria-valuetext")
    page.focus(".plot")
    last = page.get_attribute(".plot", "aria-valuetext")
    page.keyboard.press("Home")
    first = page.get_attribute(".plot", "aria-valuetext")
    assert first != last
    assert first.startswith("tokens read ")


def test_what_can_be_used_has_a_name(both: Any) -> None:
    nameless = both.evaluate(
        """() => [...document.querySelectorAll("a, button, input, select, [role], [tabindex='0']")]
          .filter((e) => !(e.innerText || "").trim() && !e.getAttribute("aria-label")
            && !(e.labels && e.labels.length && e.labels[0].innerText.trim())
            && !e.hasAttribute("data-cite") && !e.closest(".uplot"))
          .map((e) => e.outerHTML.slice(0, 100))"""
    )
    assert nameless == []


def test_hostile_text_stays_text(page: Any, both: Any, run: dict[str, Any]) -> None:
    for one in (page, both):
        draw_all(one)
        assert one.evaluate("window.pwned") is None
        assert one.locator("#text img, #text script, #text b, h1 b, .mast img").count() == 0
        assert "{{ 7 * 7 }}" in one.inner_text("h1")
        assert "\u202e" not in one.evaluate("document.body.innerText")
        assert len(one.asked) == 1
        assert one.asked[0].startswith("file://")
        assert one.wrong == []


def test_an_attack_in_every_place(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(render(page_of("plain")), encoding="utf-8")
    with opened(path) as page:
        for attack in ATTACKS:
            path.write_text(render(page_of(attack)), encoding="utf-8")
            page.goto(path.as_uri())
            page.wait_for_timeout(50)
            assert page.evaluate("window.pwned") is None
            assert page.wrong == []
            assert page.inner_text("#command").strip()
        assert {url.split(":")[0] for url in page.asked} == {"file"}


def test_kept_by_one_and_not_by_the_other(both: Any, run: dict[str, Any]) -> None:
    starts = {name: set(run[name].starts.tolist()) for name in METHODS}
    union = sorted(starts["infinipot"] | starts["streaming"])
    for mode, (own, other) in {
        "only": METHODS, "other": METHODS[::-1],
    }.items():  # fmt: skip
        both.check(f"input[value={mode}]", force=True)
        expected = starts[own] - starts[other]
        assert status(both) == (
            f"{len(expected):,} of {run[own].read:,} tokens "
            f"({status(both).split('(')[1].split(')')[0]}) kept by {own}, not by {other}"
        )
        assert {union[token] for token in shaded(both)} <= expected
        assert (both.locator("#text .k.only").count() > 0) == bool(expected)
        # The legend has the colors of the text, and the map's label begins with the choice.
        for level in range(1, 9):
            legend, text = f".scale .k{level}", f"#text .k{level}.only"
            if both.locator(text).count():
                assert color(both, legend) == color(both, text)
        assert "only" in both.get_attribute(".scale .k1", "class")
        assert both.inner_text("#rows").startswith(f"rows: kept by {own}, not by {other}, ")
    both.check("input[value=both]", force=True)
    assert both.locator(".scale .only").count() == 0


def test_side_by_side(both: Any, run: dict[str, Any]) -> None:
    both.check("input[value=both]", force=True)
    left, right = shaded(both), shaded(both, ".t2")
    starts = {name: set(run[name].starts.tolist()) for name in METHODS}
    union = sorted(starts["infinipot"] | starts["streaming"])
    assert {union[t] for t in left} <= starts["infinipot"]
    assert {union[t] for t in right} <= starts["streaming"]
    assert left != right
    same = both.eval_on_selector_all(
        ".t2", "all => all.every(p => p.textContent === p.previousElementSibling.textContent)"
    )
    assert same


def test_a_page_without_scripts_has_the_text_and_the_answer(run: dict[str, Any]) -> None:
    with opened(run["folder"] / "infinipot.html", java_script_enabled=False) as page:
        assert visible(run["infinipot result"].answer) in page.inner_text("#answers")
        assert "Line 47" in page.text_content("#text")
        assert "JavaScript" in page.inner_text("noscript")


def test_paper(run: dict[str, Any], tmp_path: Path) -> None:
    with opened(run["folder"] / "infinipot.html", color_scheme="dark") as page:
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == (
            "rgb(252, 251, 248)"
        )
        assert page.is_visible("#status")
        assert not page.is_visible("#layer")
        assert page.pdf(path=str(tmp_path / "page.pdf"))[:4] == b"%PDF"
        assert page.wrong == []
