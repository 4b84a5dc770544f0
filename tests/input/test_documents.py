"""PDF, EPUB, DOCX and HTML: their text, its places, its size, and documents that never end."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import pytest
from make_documents import chapter, docx, drawn, epub, nested_forms, pdf

from kvstream.errors import SourceError
from kvstream.input import documents, limits
from kvstream.input.documents import LIBRARIES, estimate, parts_of
from kvstream.input.sources import SourceSet, open_sources
from kvstream.tokenization.loading import load_tokenizer
from kvstream.tokenization.passages import Passages
from kvstream.tokenization.stream import TokenStream

pytest.importorskip("lxml")
pytest.importorskip("pypdfium2")

MEGABYTE = 10**6
SECONDS = 8
"""Limit in seconds for documents that once took minutes or forever. Measured: 0.1 to 6."""


def opened(folder: Path, name: str, data: bytes) -> SourceSet:
    (folder / name).write_bytes(data)
    return open_sources([str(folder / name)])


def text_of(sources: SourceSet) -> str:
    return "".join(block.text for block in sources)


@pytest.mark.parametrize(
    "unit",
    ["<", "<!--", "<![CDATA[", "<a ", '<a href="', "</", "<?", "<![if", "<a <", "<b></i>", "&#"],
)
def test_a_page_of_one_broken_tag_takes_no_time(tmp_path: Path, unit: str) -> None:
    began = time.perf_counter()
    page = f"<html><body>It rained.{unit * (MEGABYTE // 4 // len(unit))}".encode()
    assert text_of(opened(tmp_path, "a.html", page)).startswith("It rained.")
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize(
    "page",
    [
        b"<p>x" * 80_000,
        b"<b>" * 80_000 + b"</i>" * 80_000,
        b"<div>" * 60_000 + b"</p>" * 60_000,
    ],
    ids=["paragraphs", "deep", "unmatched"],
)
def test_pages_as_wide_or_deep_as_they_like(tmp_path: Path, page: bytes) -> None:
    began = time.perf_counter()
    text = text_of(opened(tmp_path, "a.html", b"<html>It rained." + page))
    assert set(text) <= set("It rained.\nx")
    assert text.count("x") == page.count(b"x")
    assert time.perf_counter() - began < SECONDS


@pytest.mark.parametrize("size", [9, 15_900, 15_910, 40_000])
def test_text_of_cdata_sections_is_read(tmp_path: Path, size: int) -> None:
    page = f"<pre><![CDATA[{'x' * size} a < b ]] <p>c]]></pre><p>It <![CDATA[rained.]]></p>"
    told = f"{'x' * size} a < b ]] <p>c\n\nIt rained.\n"
    head = '<html xmlns="http://www.w3.org/1999/xhtml">'
    assert text_of(opened(tmp_path, "a.epub", epub([f"{head}{page}".encode()]))) == told
    assert text_of(opened(tmp_path, "a.xhtml", f"<?xml version='1.0'?>{page}".encode())) == told
    began = time.perf_counter()
    text_of(opened(tmp_path, "a.html", b"<?xml version='1.0'?>x" + b"<![CDATA[" * 30_000))
    assert time.perf_counter() - began < SECONDS


def test_a_chapter_of_open_tags(tmp_path: Path) -> None:
    began = time.perf_counter()
    book = epub([b"<p>It rained.</p>" + b"<b>" * (2 * MEGABYTE // 3)])
    assert text_of(opened(tmp_path, "a.epub", book)).startswith("It rained.")
    assert time.perf_counter() - began < SECONDS


def test_a_member_that_is_named_often_is_read_once(tmp_path: Path) -> None:
    book = epub([chapter("One", ["It rained."])], repeat=300)
    assert text_of(opened(tmp_path, "a.epub", book)) == "One\n\nIt rained.\n"


def renamed(book: bytes, members: dict[str, str], package: dict[str, str] | None = None) -> bytes:
    """Return a book with members renamed (an empty name removes one) and package words replaced."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(book)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "p.opf":
                for before, after in (package or {}).items():
                    data = data.replace(before.encode(), after.encode())
            if members.get(name, name):
                new.writestr(members.get(name, name), data)
    return out.getvalue()


@pytest.mark.parametrize("left", [5, 0.1, 0.99])
def test_a_truncated_document_is_damaged_and_not_binary(tmp_path: Path, left: float) -> None:
    packed = [docx([("", "It rained.")]), epub([chapter("One", ["It rained."])])]
    for number, data in enumerate(packed):
        cut = data[: int(left if left > 1 else left * len(data))]
        with pytest.raises(SourceError, match=r"is damaged: it begins as a ZIP file .* fetch it"):
            opened(tmp_path, f"{number}", cut)
    (tmp_path / "2").write_text("It rained.")
    sources = open_sources([str(tmp_path)])
    assert sources.warnings == [f"Skipped in {tmp_path}: 2 × damaged file (0, 1)."]
    assert text_of(open_sources([str(tmp_path / "0")], plain=True)) != ""


NUMBERS = ["One", "Two", "Three"]
BOOK = epub([chapter(n, [f"It rained in {n}."]) for n in NUMBERS])


@pytest.mark.parametrize(
    ("member", "href"),
    [
        ("C1.XHTML", "c1.xhtml"),
        ("c1.xhtml", "C1.xhtml#start"),
        ("a b#c.xhtml", "a%20b%23c.xhtml#part%20two"),
        ("a%20b.xhtml", "a%20b.xhtml"),
        ("a%20b.xhtml", "a b.xhtml"),
        ("Te\u0301.xhtml", "T%C3%A9.xhtml"),
    ],
)
def test_chapters_whose_names_are_spelled_otherwise_are_found(
    tmp_path: Path, member: str, href: str
) -> None:
    book = renamed(BOOK, {"c1.xhtml": member}, {"c1.xhtml": href})
    sources = opened(tmp_path, "a.epub", book)
    assert [word for word in text_of(sources).split() if word in NUMBERS] == NUMBERS
    assert sources.warnings == []


def test_the_spelling_that_is_right_comes_first(tmp_path: Path) -> None:
    book = renamed(BOOK, {"c0.xhtml": "X.xhtml", "c1.xhtml": "x.xhtml"}, {"c1.xhtml": "x.xhtml"})
    sources = opened(tmp_path, "a.epub", book)
    assert [word for word in text_of(sources).split() if word in NUMBERS] == NUMBERS[1:]
    assert sources.warnings == [
        f"1 of 3 chapters is missing in {tmp_path}/a.epub (the first: c0.xhtml)."
    ]


def test_missing_chapters_are_told(tmp_path: Path) -> None:
    book = renamed(BOOK, {"c0.xhtml": ""}, {'idref="c2"': 'idref="c9"'})
    sources = opened(tmp_path, "a.epub", book)
    assert text_of(sources) == "Two\n\nIt rained in Two.\n"
    assert sources.warnings == [
        f"2 of 3 chapters are missing in {tmp_path}/a.epub (the first: c0.xhtml)."
    ]
    gone = renamed(BOOK, {f"c{i}.xhtml": "" for i in range(3)})
    with pytest.raises(SourceError, match=r"a\.epub cannot be read as EPUB: all of its 3 chapters"):
        opened(tmp_path, "a.epub", gone).check()


def test_chapters_without_text_are_noted(tmp_path: Path) -> None:
    (tmp_path / "a.epub").write_bytes(epub([chapter("", [""]), chapter("One", ["Text."]), b""]))
    sources = open_sources([str(tmp_path / "a.epub")])
    assert "Text." in "".join(block.text for block in sources)
    assert sources.notes == [
        f"{tmp_path}/a.epub: 2 of 3 chapters have no text (the first: c0.xhtml)."
    ]


def test_a_picture_among_the_chapters_is_not_missed(tmp_path: Path) -> None:
    book = renamed(BOOK, {"c0.xhtml": ""}, {"application/xhtml+xml": "image/svg+xml"})
    sources = opened(tmp_path, "a.epub", book)
    with pytest.raises(SourceError, match="no text"):
        text_of(sources)
    assert sources.warnings == []


def test_what_an_index_says_of_a_book_is_read_with_patience(tmp_path: Path) -> None:
    old = {"application/xhtml+xml": "text/x-oeb1-document"}
    assert "in One." in text_of(opened(tmp_path, "a.epub", renamed(BOOK, {}, old)))
    path = {'href="c0.xhtml"': 'href="\\c0.xhtml"'}
    assert "in One." in text_of(opened(tmp_path, "a.epub", renamed(BOOK, {}, path)))


def test_pages_beside_the_reading_order_are_noted(tmp_path: Path) -> None:
    book = epub([chapter("One", ["It rained."]), chapter("Notes", ["1 Often."])])
    sources = opened(tmp_path, "a.epub", renamed(book, {}, {'<itemref idref="c1"/>': ""}))
    text_of(sources)
    assert sources.notes[0].endswith("is not in the reading order (the first: c1.xhtml).")


def test_members_that_unpack_to_too_much_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstream.input.zipped.MAX_BYTES", 100_000)
    book = epub([chapter("One", ["It rained. " * 4000]), chapter("Two", ["It rained. " * 6000])])
    with pytest.raises(SourceError, match=r"unpacks to 110,\d+ bytes or more.*at most 100,000"):
        text_of(opened(tmp_path, "a.epub", book))


def test_a_page_that_comes_often_and_one_of_many_words(tmp_path: Path) -> None:
    began = time.perf_counter()
    often = opened(tmp_path, "a.pdf", pdf([drawn(["It rained."])], repeat=5_000))
    assert text_of(often).count("It rained.") == 5_000
    words = b"BT /F1 12 Tf 72 700 Td " + b"(Hello) Tj " * 25_000 + b" ET"
    assert "Hello" in text_of(opened(tmp_path, "b.pdf", pdf([words])))
    assert time.perf_counter() - began < SECONDS


def test_a_pdf_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 1.0)
    endless = opened(tmp_path, "a.pdf", pdf([b"/X0 Do"], nested_forms(12, 5)))
    began = time.perf_counter()
    with pytest.raises(SourceError, match=r"a\.pdf takes more than 1 seconds to convert"):
        text_of(endless)
    assert time.perf_counter() - began < 10
    after = opened(tmp_path, "b.pdf", pdf([drawn(["It rained."])]))
    assert text_of(after).strip() == "It rained."


def test_html_that_takes_too_long_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.0)
    monkeypatch.setattr(limits, "SECONDS_PER_BYTE", 1e-12)
    with pytest.raises(SourceError, match=r"takes more than .* convert it with another program"):
        text_of(opened(tmp_path, "a.html", b"<html>" + b"<p>It rained.</p>" * 1000))


def pages_of(lines: list[str], height: int = 40) -> list[list[str]]:
    return [lines[i : i + height] for i in range(0, len(lines), height)]


def printed(lines: list[str]) -> bytes:
    """Return a PDF with page numbers and two alternating running headers."""
    headers = ["THE RAIN", "A NOVEL"]
    return pdf(
        [drawn([headers[n % 2], *page, str(n + 1)]) for n, page in enumerate(pages_of(lines))]
    )


def test_running_lines_are_left_out_and_pages_are_cited(tmp_path: Path) -> None:
    lines = [f"Line {i} says {'that it rained' if i % 3 else str(i * 17)}." for i in range(400)]
    lines[40] = lines[0]  # a line may come again at the top of a page without being a header
    sources = opened(tmp_path, "a.pdf", printed(lines))
    passages = Passages("lines")
    text = ""
    for block in sources:
        passages.feed(block)
        text += block.text
    assert text == "\n".join(lines) + "\n"
    assert sources.warnings == [], "no reason to doubt an answer"
    assert sources.notes == [
        f"{tmp_path / 'a.pdf'}: 20 running headers, footers and page numbers were left out."
    ]
    [cited] = [p for p in passages.take(final=True) if p.text == lines[95]]
    assert cited.where() == {
        "line_start": None,
        "line_end": None,
        "page": 3,
        "page_end": 3,
        "chapter": None,
    }
    assert text.encode()[cited.start : cited.end].decode() == lines[95]


def test_numbers_that_do_not_grow_with_the_pages_are_text(tmp_path: Path) -> None:
    numbers = [417, 23, 3005, 88, 1204]
    page = [drawn([f"Page {i + 7} of 20", f"Invoice {n}", "For oil", f"{i}", "end"])
            for i, n in enumerate(numbers)]  # fmt: skip
    text = text_of(opened(tmp_path, "a.pdf", pdf(page)))
    assert re.findall(r"Invoice (\d+)", text) == [str(n) for n in numbers]
    assert "of 20" not in text


def test_a_hyphen_that_divides_no_word_stays(tmp_path: Path) -> None:
    lines = ["It went to Austria-", "Hungary, an INTER-", "NATIONAL light-", "house in UTF-", "8."]
    text = text_of(opened(tmp_path, "a.pdf", pdf([drawn(lines)])))
    whole = "It went to Austria-Hungary, an INTERNATIONAL lighthouse in UTF-8."
    assert " ".join(text.split()) == whole


def test_what_cannot_be_read_is_found_without_reading(tmp_path: Path) -> None:
    good = opened(tmp_path, "a.pdf", printed([f"Line {i}." for i in range(100)]))
    assert good.check() == {str(tmp_path / "a.pdf"): 3}
    assert "Line 99." in text_of(good), "it can still be read"
    with pytest.raises(SourceError, match=r"as PDF: Failed .*error\)\. Fetch it again"):
        opened(tmp_path, "b.pdf", b"%PDF-1.4 nothing").check()
    with pytest.raises(SourceError, match="0 bytes of text; name another file"):
        opened(tmp_path, "empty.txt", b"").check()
    broken = tmp_path / "folder"
    broken.mkdir()
    (broken / "b.pdf").write_bytes(b"%PDF-1.4 nothing")
    assert open_sources([str(broken)]).check() == {}, "one of a folder is skipped later"


def test_a_short_pdf_keeps_every_line(tmp_path: Path) -> None:
    sources = opened(tmp_path, "a.pdf", pdf([drawn(["Rain", "It rained.", "1"])]))
    assert text_of(sources).split() == ["Rain", "It", "rained.", "1"]
    assert sources.warnings == []


def test_what_was_written_on_a_pdf_is_read(tmp_path: Path) -> None:
    marks = [
        b"/Subtype /Widget /FT /Tx /T (keeper) /V (Berta Olm)",
        b"/Subtype /Widget /T (x) /Parent << /FT /Tx /T (row) /TU (Age in years) /V (42) >>",
        b"/Subtype /Widget /FT /Btn /T (box) /V /Off",
        b"/Subtype /FreeText /Contents (The lamp\\nis new.)",
        b"/Subtype /Text /Contents (Who says so?)",
        b"/Subtype /Popup /Contents (Who says so?)",
        b"/Subtype /Highlight /Contents (He left in May.)",
        b"/Subtype /Highlight /Contents (Keeper)",  # the marked words
        b"/Subtype /Ink /Contents (Wrong)",
        b"/Subtype /Link /Contents (to page 2)",
    ]
    annots = b" ".join(b"<< /Type /Annot %s /Rect [0 0 9 9] >>" % mark for mark in marks)
    form = pdf([drawn(["Keeper:"]), drawn(["Page 2"])])
    form = form.replace(b"/Type /Catalog", b"/Type /Catalog /AcroForm << /Fields [] >>")
    form = form.replace(b"/Type /Page ", b"/Type /Page /Annots [%s] " % annots, 1)
    text = text_of(opened(tmp_path, "a.pdf", form))
    assert text.splitlines() == [
        "Keeper:", "keeper: Berta Olm", "Age in years: 42", "The lamp is new.",
        "[Comment: Who says so?]", "[Comment: He left in May.]", "[Comment: Wrong]", "Page 2",
    ]  # fmt: skip


def test_a_damaged_page_of_a_pdf_leaves_the_others(tmp_path: Path) -> None:
    whole = pdf([drawn(["It rained."]), drawn(["It froze."]), drawn(["It thawed."])])
    one = whole.replace(b"5 0 obj\n<< /Type /Page ", b"5 0 obj\n[[ /Type /Page ")
    sources = opened(tmp_path, "a.pdf", one)
    assert text_of(sources).split() == ["It", "rained.", "It", "thawed."]
    assert sources.warnings == [f"{tmp_path / 'a.pdf'}: page 2 is damaged, and missing."]
    every = opened(tmp_path, "b.pdf", whole.replace(b"<< /Type /Page ", b"[[ /Type /Page "))
    with pytest.raises(SourceError, match="no page can be loaded"):
        text_of(every)


def test_raised_digits_of_a_pdf_are_no_part_of_a_word(tmp_path: Path) -> None:
    small, usual = b"/F1 7 Tf 5 Ts (%d) Tj", b" /F1 12 Tf 0 Ts (%s) Tj "
    words = [usual % b"H2O of a word", small % 12, usual % b" of 10", small % 6, usual % b" tons."]
    words += [small % 3, usual % b" 106"]
    page = b"BT 50 700 Td" + usual % b"106 with " + b"".join(words) + b" ET"
    found = text_of(opened(tmp_path, "a.pdf", pdf([page])))
    assert " ".join(found.split()) == "106 with H2O of a word^12 of 10^6 tons.^3 106"


def test_many_pdfs_together_may_take_longer_than_one() -> None:
    code = (
        "import json, time\nfrom kvstream.input import pdf_worker\n"
        "def loads(text, **more):\n"
        "    until = time.process_time() + 0.8\n"
        "    while time.process_time() < until: pass\n"
        "    return own(text, **more)\n"
        "own, json.loads, pdf_worker.PROCESSOR = json.loads, loads, 3\n"
        "pdf_worker.main()"
    )
    request = b'["no.pdf", [], 0, 1]\n'
    done = subprocess.run([sys.executable, "-c", code], input=5 * request, capture_output=True)
    assert len(done.stdout.splitlines()) == 5, "the limit is that of a request"


def test_pages_of_a_pdf_without_text_are_counted(tmp_path: Path) -> None:
    mixed = pdf([drawn(["It rained."]), b"", drawn(["It froze."]), b""])
    sources = opened(tmp_path, "a.pdf", mixed)
    assert text_of(sources).split() == ["It", "rained.", "It", "froze."]
    assert sources.notes == [
        f"{tmp_path / 'a.pdf'}: 2 of 4 pages without text; if these are scans, run OCR first."
    ]
    assert sources.warnings == []


def by_rename(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    os.replace(new, path)


def in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def written(word: str, pages: int = 1) -> bytes:
    return pdf([drawn([f"{word}{n}"]) for n in range(pages)])


def first_pages(path: Path, wanted: int) -> None:
    """Begin a reading that ends early, so that the worker keeps the document open."""
    pages = parts_of("pdf", path, [], [])
    assert len(list(islice(pages, wanted))) == wanted


@pytest.mark.parametrize("replace", [by_rename, in_place])
@pytest.mark.parametrize("pages", [1, 200])
def test_a_pdf_that_was_replaced_gives_its_new_text(
    tmp_path: Path, replace: Callable[[Path, bytes], None], pages: int
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(written("cat", pages))
    first_pages(path, 1)
    assert documents.check("pdf", path) == pages
    replace(path, written("dog", pages + 1))
    assert documents.check("pdf", path) == pages + 1
    words = text_of(open_sources([str(path)])).split()
    assert words == [f"dog{n}" for n in range(pages + 1)]
    replace(path, written("owl", pages + 1))
    assert text_of(open_sources([str(path)])).split()[-1] == f"owl{pages}"


def test_a_pdf_that_was_read_to_its_end_is_closed(tmp_path: Path) -> None:
    """The new file is read even if nothing distinguishes it from the old one."""
    path = tmp_path / "a.pdf"
    for word in ("cat", "dog"):
        in_place(path, written(word, 3))
        os.utime(path, (0, 0))
        assert text_of(open_sources([str(path)])).split() == [f"{word}{n}" for n in range(3)]


def test_a_pdf_that_is_replaced_during_its_reading_is_not_mixed_with_the_new_one(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "a.pdf", tmp_path / "b.pdf"
    other.write_bytes(written("owl", 200))

    def read_on(meanwhile: Callable[[], object]) -> Iterable[str]:
        path.write_bytes(written("cat", 200))
        pages = parts_of("pdf", path, [], [])
        yield next(pages).text
        by_rename(path, written("dog", 200))
        meanwhile()
        yield from (page.text for page in pages)

    text = "".join(read_on(lambda: None))
    assert text.split() == [f"cat{n}" for n in range(200)], "the old file is open still"
    with pytest.raises(SourceError, match=r"a\.pdf changed while it was read; read it again"):
        list(read_on(lambda: first_pages(other, 1)))
    assert documents.check("pdf", path) == 200


@pytest.mark.parametrize("kind", ["epub", "docx", "html"])
def test_chapters_are_cited(tmp_path: Path, kind: str) -> None:
    told = {"The Gate": "Anna closed the gate.", "The River": "The river rose & fell."}
    chapters = [chapter(heading, [text] * 3) for heading, text in told.items()]
    data = {
        "epub": epub(chapters),
        "docx": docx(
            [
                (style, text)
                for heading, line in told.items()
                for style, text in [("Heading1", heading), *[("Normal", line)] * 3]
            ]
        ),
        "html": b"<!doctype html>" + b"".join(chapters),
    }[kind]
    passages = Passages()
    for block in opened(tmp_path, f"a.{kind}", data):
        passages.feed(block)
    where = {p.text: p.where()["chapter"] for p in passages.take(final=True)}
    assert where["Anna closed the gate."] == "The Gate"
    assert where["The river rose & fell."] == "The River"


def test_blocks_of_html_stand_apart(tmp_path: Path) -> None:
    page = (
        "<details><summary>Doors</summary>They are shut.</details>"
        "<fieldset><legend>Keys</legend>Two</fieldset><select><option>Red<option>Blue</select><menu><li>Open</menu>"
    )
    text = text_of(opened(tmp_path, "a.html", f"<html>{page}".encode()))
    assert text.split() == ["Doors", "They", "are", "shut.", "Keys", "Two", "Red", "Blue", "Open"]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<ruby>灯台<rp>(</rp><rt>とう</rt><rp>)</rp></ruby>守の", "灯台守の"),
        ("<ruby>手<rt>て</rt>紙<rt>がみ</rt></ruby>", "手紙"),
        ("<ruby>灯<rb>台<rt>とう<rt>だい</ruby>守", "灯台守"),
        ("<ruby><rb>灯<rt>とう<rb>台<rt>だい</ruby>守", "灯台守"),
        (
            "Anna<sup><a>1</a></sup> has 10<sup>−6</sup> m<sup><i>2</i></sup>",
            "Anna^1 has 10^−6 m^2",
        ),
        ("1<sup>st</sup>, it<sup>.1</sup>.<sup>2</sup><br><sup>1</sup>Note", "1st, it.1.^2\n1Note"),
        ('A mill<a epub:type="noteref">2</a> by <a>3</a>', "A mill^2 by 3"),
        (
            "<math><msup><mn>10</mn><mn>6</mn></msup><mo>+</mo><mn>2</mn><mfrac><mrow><mn>1</mn></mrow><mrow><mn>3</mn></mrow>"
            "</mfrac><annotation>x</annotation></math>",
            "10^6+2 1/3",
        ),
        (
            "</p><pre>def f():\n  \n    <b>x</b>  = 1\n\ty\n</pre><p>  z",
            "def f():\n\n    x  = 1\n    y\n\nz",
        ),
        ('</p><h2><img alt="Part  I"></h2><h2>Two<img alt="x"></h2>', "Part I\n\nTwo"),
        ("<x:b>light</x:b><x:b>house</x:b></p><x:p>dark</x:p>", "lighthouse\n\ndark"),
        (
            "Ann<input>Ben<button>Save</button><button>Undo</button> <select><option>1</select>x",
            "Ann Ben Save Undo\n1\nx",
        ),
        (
            "A<video>No video.<p>x</p></video><audio>No audio.</audio><canvas>No</canvas>"
            "<input><datalist><option>x</datalist>B<video src='x'/> C",
            "A B C",
        ),
        ("light&shy;house, Leucht\u00adturm", "lighthouse, Leuchtturm"),
        (
            "<del>$100</del><ins>$90</ins> <s>7</s>, <strike><b>5</b></strike><i>6</i>",
            "$100 $90 7, 5 6",
        ),
        (
            "A <svg><style>x</style><title>x</title><g><text>Gull</text><text><tspan x=0>to</tspan>"
            "<tspan x=0>sea</tspan></text><foreignObject><div>ship</div></foreignObject></g></svg>B"
            " <svg><path/></svg>C<template><svg><text>x</text></svg></template>",
            "A\nGull\nto sea\nship\nB C",
        ),
        (
            "A <iframe srcdoc='&lt;title&gt;x&lt;/title&gt;&lt;p&gt;Gull &amp;amp; &lt;b&gt;Tern'>x"
            "</iframe>B<template shadowrootmode=open><b>ship</b></template><template>x</template>",
            "A\n\nGull & Tern\nx\nB\nship",
        ),
    ],
)
def test_words_of_a_page_are_whole(tmp_path: Path, markup: str, text: str) -> None:
    page = f"<!doctype html><meta charset=utf-8><p>{markup}</p>"
    assert text_of(opened(tmp_path, "a.html", page.encode())) == f"{text}\n"


@pytest.mark.parametrize("between", ["<br/>", "<div>The Gate</div>"])
def test_a_heading_of_two_lines_is_cited_as_two_words(tmp_path: Path, between: str) -> None:
    rest = "" if "Gate" in between else "The Gate"
    page = f"<!doctype html><h2>I.{between}{rest}</h2><p>It rained.</p>"
    [block] = opened(tmp_path, "a.html", page.encode())
    assert (block.text, block.place) == ("I.\nThe Gate\n\nIt rained.\n", "I. The Gate")


def test_a_docx_with_a_table_and_deleted_words(tmp_path: Path) -> None:
    def altered(data: bytes) -> bytes:
        cells = b"<w:tr><w:tc><w:p><w:r><w:t>left</w:t></w:r></w:p></w:tc></w:tr>"
        gone = b"<w:del><w:r><w:t>gone</w:t></w:r></w:del>"
        end = b"</w:body>"
        return data.replace(end, b"<w:tbl>%s</w:tbl><w:p>%s</w:p>%s" % (cells, gone, end))

    data = docx([("Title", "Rain"), ("", "It rained.")], altered)
    assert text_of(opened(tmp_path, "a.docx", data)) == "Rain\nIt rained.\nleft\n"


WORD_SPACES = " ".join(
    f'xmlns:{prefix}="http://schemas.openxmlformats.org/{space}"'
    for prefix, space in {
        "n": "officeDocument/2006/math",
        "alt": "markup-compatibility/2006",
    }.items()
)
"""Prefixes that Word does not use: only the namespace counts."""


def docx_text(folder: Path, body: str) -> str:
    """Return the text of a DOCX with this body."""

    def altered(data: bytes) -> bytes:
        data = data.replace(b"<w:document ", b"<w:document %s " % WORD_SPACES.encode())
        return data.replace(b"</w:body>", body.encode() + b"</w:body>")

    return text_of(opened(folder, "a.docx", docx([], altered)))


def run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


def raised(text: str) -> str:
    return run(text).replace("<w:t>", '<w:rPr><w:vertAlign w:val="superscript"/></w:rPr><w:t>')


def test_hyphens_of_a_docx(tmp_path: Path) -> None:
    body = (
        "<w:p><w:r><w:t>2020</w:t><w:noBreakHyphen/><w:t>2021, </w:t>"
        "<w:t>rain</w:t><w:softHyphen/><w:t>coat</w:t></w:r></w:p>"
    )
    assert docx_text(tmp_path, body) == "2020-2021, raincoat\n"


def test_what_a_docx_has_in_other_members_is_told(tmp_path: Path) -> None:
    diagram = '<dgm:relIds xmlns:dgm="d"/>'
    sheet = '<w:object><o:OLEObject xmlns:o="o" ProgID="Excel.Sheet.12"/></w:object>'
    body = f"<w:altChunk/><w:p>{run('a')}<w:r><w:ptab/>{diagram}</w:r>{run('b')}{diagram}</w:p>"
    body += f"<w:subDoc/><w:p><w:r>{sheet}</w:r></w:p>"
    assert docx_text(tmp_path, body) == "a b\n"
    sources = open_sources([str(tmp_path / "a.docx")])
    text_of(sources)
    told = ["2 × inserted document.", "2 × diagram.", "1 × inserted object."]
    told = [f"left out {what}" for what in told]
    assert [note.split(": ")[1] for note in sources.notes] == told


def test_what_was_moved_in_a_docx_is_read_at_its_new_place(tmp_path: Path) -> None:
    deleted = "<w:del><w:r><w:delText>gone</w:delText><w:noBreakHyphen/></w:r></w:del>"
    body = (
        "<w:p><w:pPr><w:rPr><w:moveFrom/></w:rPr></w:pPr>"
        f'<w:moveFromRangeStart w:name="m"/><w:moveFrom>{run("moved")}</w:moveFrom>'
        "<w:moveFromRangeEnd/></w:p>"
        f"<w:p>{run('kept')}{deleted}<w:ins>{run(' added')}</w:ins></w:p>"
        f'<w:p><w:moveToRangeStart w:name="m"/><w:moveTo>{run("moved")}</w:moveTo></w:p>'
    )
    assert docx_text(tmp_path, body) == "kept added\nmoved\n"
    body = f"<w:p><w:pPr><w:rPr><w:del/></w:rPr></w:pPr>{run('The bo')}</w:p><w:p>{run('at')}</w:p>"
    assert docx_text(tmp_path, body) == "The boat\n"


def test_the_style_of_a_docx_is_the_present_one(tmp_path: Path) -> None:
    def styled(text: str, now: str, before: str) -> str:
        now, before = (f'<w:pStyle w:val="{style}"/>' for style in (now, before))
        changed = f"<w:pPrChange><w:pPr>{before}</w:pPr></w:pPrChange>"
        return f"<w:p><w:pPr>{now}{changed}</w:pPr>{run(text)}</w:p>"

    body = styled("Rain", "Heading1", "BodyText") + styled("It rained.", "BodyText", "Heading1")
    assert docx_text(tmp_path, body) == "Rain\nIt rained.\n"
    assert {p.place for p in parts_of("docx", tmp_path / "a.docx", [], [])} == {"Rain"}


def test_a_heading_of_word_in_another_language(tmp_path: Path) -> None:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    styles = f"""<w:styles xmlns:w="{space}">
        <w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>
        <w:style w:styleId="Standard"><w:name w:val="Normal"/></w:style><w:style/></w:styles>"""
    path = tmp_path / "a.docx"
    path.write_bytes(docx([("berschrift1", "Regen"), ("Standard", "Es regnete.")]))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("word/styles.xml", styles)
    assert {part.place for part in parts_of("docx", path, [], [])} == {"Regen"}


def test_other_styles_of_headings(tmp_path: Path) -> None:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    styles = f"""<w:styles xmlns:w="{space}"><w:style w:styleId="h1"><w:name w:val="heading 1"/>
        </w:style><w:style w:styleId="My"><w:name w:val="My"/><w:basedOn w:val="h1"/></w:style>
        <w:style w:styleId="Own"><w:pPr><w:outlineLvl w:val="1"/></w:pPr></w:style>
        <w:style w:styleId="List"><w:basedOn w:val="h1"/><w:pPr><w:outlineLvl w:val="9"/></w:pPr>
        </w:style></w:styles>"""
    path = tmp_path / "a.docx"
    direct = (
        b'<w:p><w:pPr><w:outlineLvl w:val="0"/></w:pPr><w:r><w:t>Snow</w:t></w:r></w:p></w:body>'
    )
    texts = [("My", "Rain"), ("N", "a"), ("Own", "Wind"), ("N", "b"), ("List", "c")]
    path.write_bytes(docx(texts, lambda data: data.replace(b"</w:body>", direct)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("word/styles.xml", styles)
    headings = {part.place for part in parts_of("docx", path, [], [])}
    assert headings == {"Rain", "Wind", "Snow"}


def test_other_forms_of_a_docx(tmp_path: Path) -> None:
    made = docx([("Heading1", "Gate"), ("N", "It rained.")])
    usual = b"http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    other = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(made)) as old, zipfile.ZipFile(other, "w") as new:
        strict = b"http://purl.oclc.org/ooxml/wordprocessingml/main"
        body = old.read("word/document.xml").replace(usual, strict)
        new.writestr("word/document2.xml", body)
    assert text_of(opened(tmp_path, "a.docx", other.getvalue())) == "Gate\nIt rained.\n"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (f"<w:p>{run('10')}{raised('6')}{run(' m')}{raised('2')}{raised('st')}</w:p>",
         "10^6 m^2st\n"),
        ('<w:p><w:pPr><w:framePr w:dropCap="drop"/></w:pPr>'
         f"{run('O')}</w:p><w:p>{run('nce.')}</w:p><w:p>{run('b')}</w:p>", "Once.\nb\n"),
        ('<w:p><w:r><w:t>5</w:t><w:sym w:font="Symbol" w:char="F0B0"/><w:t>C</w:t></w:r>'
         '<w:r><w:sym w:font="Wingdings" w:char="F0FE"/></w:r></w:p>', "5°C☑\n"),
        (f"<w:p><w:r><w:ruby><w:rt>{run('x')}</w:rt><w:rubyBase>{run('橋')}</w:rubyBase></w:ruby>"
         f"</w:r>{run('inter&#173;national')}</w:p>", "橋international\n"),
    ],
)  # fmt: skip
def test_words_of_a_docx_are_whole(tmp_path: Path, body: str, text: str) -> None:
    assert docx_text(tmp_path, body) == text


def test_numbers_of_lists_of_a_docx(tmp_path: Path) -> None:
    space = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    forms = [("decimal", "%1.", ""), ("decimal", "%1.%2", '<w:pStyle w:val="Heading2"/>'),
             ("lowerRoman", "(%3)", ""), ("bullet", "o", "")]  # fmt: skip
    levels = "".join(
        f'<w:lvl w:ilvl="{at}"><w:start w:val="{3 - 2 * (at > 0)}"/><w:numFmt w:val="{form}"/>'
        f'{style}<w:lvlText w:val="{text}"/></w:lvl>'
        for at, (form, text, style) in enumerate(forms)
    )
    kind = '<w:abstractNumId w:val="5"/>'
    again = '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/></w:lvlOverride>'
    lists = (
        f'<w:numbering xmlns:w="{space}"><w:abstractNum w:abstractNumId="5">{levels}'
        f'</w:abstractNum><w:num w:numId="1">{kind}</w:num>'
        f'<w:num w:numId="2">{kind}{again}</w:num></w:numbering>'
    )
    styles = (
        f'<w:styles xmlns:w="{space}"><w:style w:styleId="Heading2"><w:pPr><w:numPr>'
        '<w:numId w:val="1"/></w:numPr></w:pPr></w:style></w:styles>'
    )

    def item(text: str, level: int, name: int = 1, mark: str = "") -> str:
        numbered = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{name}"/></w:numPr>{mark}'
        return f"<w:p><w:pPr>{numbered}</w:pPr>{run(text)}</w:p>"

    heading = f'<w:p><w:pPr><w:pStyle w:val="Heading2"/></w:pPr>{run("Rain")}</w:p>'
    gone = item("", 0, mark="<w:rPr><w:del/></w:rPr>")
    body = [item("a", 0), heading, gone, item("c", 2), item("d", 2), item("e", 3), item("f", 0),
            item("g", 1), item("h", 0, 2), item("i", 0), item("j", 0, 0)]  # fmt: skip
    data = docx(
        [], lambda whole: whole.replace(b"</w:body>", "".join(body).encode() + b"</w:body>")
    )
    path = tmp_path / "a.docx"
    path.write_bytes(data)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("word/numbering.xml", lists)
        archive.writestr("word/styles.xml", styles)
    found = list(parts_of("docx", path, [], []))
    assert "".join(part.text for part in found).split("\n") == [
        "3. a", "", "3.1 Rain", "(i) c", "(ii) d", "e", "4. f", "4.1 g", "1. h", "2. i", "j", "",
    ]  # fmt: skip
    assert found[-1].place == "3.1 Rain"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<ol start=9><li>a<li><p>b</p><ul><li>c</ul><li>d</ol>e", "9. a\n\n10. b\nc\n11. d\ne"),
        ("<ol type=I><li>a<li value=4>b</ol><ol type=a><li>c</ol>", "I. a\nIV. b\na. c"),
        ("<nav><ol><li>a</ol></nav><ol><li>1. b<li>2. c</ol>", "a\n1. b\n2. c"),
        ("<ol><li>&shy;<li>&shy;<b>b</b></ol>", "2. b"),
    ],
)
def test_numbers_of_lists_of_a_page(tmp_path: Path, markup: str, text: str) -> None:
    assert text_of(opened(tmp_path, "a.html", f"<html>{markup}".encode())) == f"{text}\n"


@pytest.mark.parametrize("styles", [b"", b"no XML", b"<a>" + b" " * 17 * 1024**2 + b"</a>"])
def test_a_docx_is_read_without_its_styles(tmp_path: Path, styles: bytes) -> None:
    path = tmp_path / "a.docx"
    path.write_bytes(docx([("Heading1", "Rain"), ("Normal", "It rained.")]))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/styles.xml", styles)
    assert "".join(p.text for p in parts_of("docx", path, [], [])).split() == [
        "Rain",
        "It",
        "rained.",
    ]


def test_a_text_box_of_a_docx_is_read_once(tmp_path: Path) -> None:
    box = f"<w:txbxContent><w:p>{run('inside')}</w:p></w:txbxContent>"
    body = (
        '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><alt:AlternateContent>'
        '<alt:Choice Requires="wps"><w:drawing/></alt:Choice>'
        f"<alt:Fallback><w:pict>{box}</w:pict></alt:Fallback></alt:AlternateContent></w:r>"
        f"{run('Title')}</w:p>"
        f"<w:p>{run('before ')}<w:r><alt:AlternateContent>"
        f'<alt:Choice Requires="wps"><w:drawing>{box}</w:drawing></alt:Choice>'
        f'<alt:Choice Requires="wpg"><w:drawing>{box}</w:drawing></alt:Choice>'
        f"<alt:Fallback><w:pict>{box}</w:pict></alt:Fallback></alt:AlternateContent></w:r>"
        f"{run('after')}</w:p>"
    )
    path = tmp_path / "a.docx"
    assert docx_text(tmp_path, body) == "Title\nbefore after\ninside\n", "behind its paragraph"
    places = {part.place for part in parts_of("docx", path, [], []) if "before" in part.text}
    assert places == {"Title"}, "what is dropped does not end the heading around it"


def term(text: str) -> str:
    return f"<n:r><n:t>{text}</n:t></n:r>" if text else ""


def in_math(name: str, text: str) -> str:
    return f"<n:{name}>{text}</n:{name}>"


def scripted(base: str, **scripts: str) -> str:
    return in_math("e", term(base)) + "".join(in_math(k, term(v)) for k, v in scripts.items())


def bracketed(*texts: str, **properties: str) -> str:
    given = "".join(f'<n:{name} n:val="{value}"/>' for name, value in properties.items())
    return in_math("d", in_math("dPr", given) + "".join(in_math("e", text) for text in texts))


def fraction(above: str, below: str) -> str:
    return in_math("f", in_math("num", term(above)) + in_math("den", term(below)))


def operator(properties: str, below: str, above: str) -> str:
    limits = in_math("sub", term(below)) + in_math("sup", term(above))
    return in_math("nary", in_math("naryPr", properties) + limits + scripted("x"))


def matrix(*rows: str) -> str:
    cells = ["".join(in_math("e", term(cell)) for cell in row) for row in rows]
    return in_math("m", "".join(in_math("mr", row) for row in cells))


@pytest.mark.parametrize(
    ("equation", "text"),
    [
        (term("E=mc"), "E=mc"),
        (in_math("sSup", scripted("10", sup="6")) + term("+1"), "10^6+1"),
        (in_math("sSubSup", scripted("x", sub="i", sup="2")), "x_i^2"),
        (term("2") + fraction("1", "3"), "2 1/3"),
        (in_math("rad", in_math("deg", "") + scripted("2")) + term("=1.41"), "√2=1.41"),
        (in_math("rad", in_math("deg", term("3")) + scripted("8")), "3√8"),
        (operator("", "", ""), "∫ x"),
        (operator('<n:chr n:val="∑"/>', "i=1", "n"), "∑_i=1^n x"),
        (term("2") + bracketed(term("3+4")), "2(3+4)"),
        (term("P") + bracketed(term("A"), term("B")), "P(A|B)"),
        (bracketed(term("x"), begChr="|", endChr="|"), "|x|"),
        (bracketed(bracketed(term("x"), endChr="]")), "((x])"),
        (bracketed(operator("", "", "")), "(∫ x)"),
        (bracketed(""), "()"),
        (bracketed(matrix("12", "34"), begChr="[", endChr="]"), "[ 1 2 3 4]"),
        (term("x") + in_math("rad", ""), "x"),
    ],
)
def test_equations_of_a_docx(tmp_path: Path, equation: str, text: str) -> None:
    body = f"<w:p>{run('So ')}<n:oMath>{equation}</n:oMath>{run('.')}</w:p>"
    assert docx_text(tmp_path, body) == f"So {text}.\n"


@pytest.mark.parametrize(
    ("member", "advice"),
    [("xl/workbook.xml", "CSV"), ("ppt/presentation.xml", "PDF"), ("content.xml", "DOCX")],
)
def test_other_documents_are_named(tmp_path: Path, member: str, advice: str) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, "<x/>")
    with pytest.raises(SourceError, match=f"which is not read; save it as {advice}"):
        opened(tmp_path, "a", file.getvalue())


def test_rtf_is_refused_and_xml_has_the_encoding_that_it_declares(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is RTF, which is not read"):
        opened(tmp_path, "a.rtf", rb"{\rtf1 It rained.}")
    xml = '<?xml version="1.0" encoding="iso-8859-2"?><a>ř</a>'
    assert text_of(opened(tmp_path, "a.xml", xml.encode("iso-8859-2"))) == xml


def test_a_format_without_a_reader_is_not_read_as_docx(tmp_path: Path) -> None:
    path = tmp_path / "notes.docx"
    path.write_bytes(docx([("", "Ada hid the letter.")]))
    assert "Ada" in "".join(part.text for part in parts_of("docx", path, [], []))
    with pytest.raises(SourceError, match="'odt'"):
        list(parts_of("odt", path, [], []))


def test_html_on_standard_input() -> None:
    page = b"<!DOCTYPE html><html><body><p>It &amp; rained.</p><p>Often.</p>"
    assert text_of(open_sources(["-"], stdin=io.BytesIO(page))) == "It & rained.\n\nOften.\n"
    assert "<p>" in text_of(open_sources(["-"], stdin=io.BytesIO(page), plain=True))


@pytest.mark.parametrize("name", ["utf-8", "utf-16", "cp1252", "cp1251"])
def test_html_in_other_encodings(tmp_path: Path, name: str) -> None:
    meta = "" if name == "utf-16" else f'<meta charset="{name}">'
    words = "Дождь" if name == "cp1251" else "Mädchen"
    page = f"<html><head>{meta}</head><p>{words}</p>".encode(name)
    assert text_of(opened(tmp_path, "a.html", page)) == f"{words}\n"


@pytest.mark.parametrize(
    ("declared", "real"),
    [("cp1250", "utf-8-sig"), ("iso-8859-1", "utf-8"), ("utf-8", "cp1252"), ("gb2312", "gb18030"),
     ("euc-kr", "cp949"), ("x-sjis", "cp932"), ("iso-8859-9", "cp1254")],
)  # fmt: skip
def test_a_declared_encoding_that_is_not_the_real_one(
    tmp_path: Path, declared: str, real: str
) -> None:
    text = {"gb18030": "朱镕基", "cp949": "똠방각하", "cp932": "①橋", "cp1254": "“ışık”"}
    words = text.get(real, "Das Mädchen hörte über die Brücke.")
    page = f'<html><meta charset="{declared}"><p>{words}</p>'.encode(real)
    assert text_of(opened(tmp_path, "a.html", page)) == f"{words}\n"


@pytest.mark.parametrize("begin", ["<?xml version='1.0'?>\n<!DOCTYPE html>", "<!-- a --> <html>"])
def test_other_beginnings_of_a_page(tmp_path: Path, begin: str) -> None:
    page = f"{begin}<body><p>It rained.</p></body></html>"
    assert text_of(opened(tmp_path, "a", page.encode())) == "It rained.\n"


@pytest.mark.parametrize("kind", ["html", "epub", "pipe"])
def test_characters_of_a_page_that_are_not_of_its_encoding_are_counted(
    tmp_path: Path, kind: str
) -> None:
    page = '<html><meta charset="utf-8"><p>Caf\xe9 M\xfcller'.encode("cp1252") + "\ufffd".encode()
    if kind == "pipe":
        sources = open_sources(["-"], stdin=io.BytesIO(page))
    else:
        sources = opened(tmp_path, f"a.{kind}", page if kind == "html" else epub([page]))
    assert text_of(sources) == "Caf\ufffd M\ufffdller\ufffd\n"
    [warning] = sources.warnings
    assert warning.endswith(": 2 characters are unreadable as UTF-8 and replaced by \ufffd.")


def test_damaged_documents_in_a_folder_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7\nnothing")
    (tmp_path / "b.txt").write_text("It rained.\n")
    (tmp_path / "c.pdf").write_bytes(pdf([drawn(["Often."])]))
    whole = epub([chapter("One", ["It rained. " * 999])])
    (tmp_path / "d.epub").write_bytes(whole.replace(b"PK\x01\x02", b"PK\x01\x03"))
    (tmp_path / "e.pdf").write_bytes(b"%PDF-1.7\nnothing")
    sources = open_sources([str(tmp_path)])
    assert text_of(sources).split() == ["It", "rained.", "Often."]
    [skipped, damaged] = sources.warnings
    assert skipped == f"Skipped in {tmp_path}: 1 × damaged file (d.epub)."
    assert damaged.startswith(
        f"Skipped in {tmp_path}: 2 × document that cannot be read (the first: {tmp_path}/a.pdf "
    )
    for name in "bcd":
        next(tmp_path.glob(f"{name}.*")).unlink()
    with pytest.raises(
        SourceError, match=r"0 bytes of text; name another file\. Skipped in .*2 × document"
    ):
        text_of(open_sources([str(tmp_path)]))


def test_a_document_in_a_folder_that_was_read_in_part(tmp_path: Path) -> None:
    book = bytearray(epub([chapter(n, [f"It rained in {n}. " * 9999]) for n in NUMBERS]))
    at = book.rindex(b"PK\x03\x04")  # the last chapter
    book[at + 200 : at + 210] = b"x" * 10
    (tmp_path / "a.epub").write_bytes(book)
    (tmp_path / "b.pdf").write_bytes(pdf([b""] * 3))  # blank pages have no text
    sources = open_sources([str(tmp_path)])
    assert "It rained in Two." in text_of(sources)
    read = sources.records[0].bytes
    [partly, skipped] = sources.warnings
    assert partly.startswith(
        f"Only the first {read:,} bytes of text of {tmp_path}/a.epub were read: {tmp_path}/a.epub "
        "cannot be read as EPUB: "
    )
    assert skipped.startswith(
        f"Skipped in {tmp_path}: 1 × document that cannot be read (the first: {tmp_path}/b.pdf has "
        "no text"
    )


@pytest.mark.parametrize("member", ["c0.xhtml", "C0.xhtml"])
def test_a_protected_book_is_refused(tmp_path: Path, member: str) -> None:
    book = epub([chapter("One", ["It rained."])])
    (tmp_path / "a.epub").write_bytes(renamed(book, {"c0.xhtml": member}))
    with zipfile.ZipFile(tmp_path / "a.epub", "a") as archive:
        archive.writestr("META-INF/encryption.xml", '<CipherReference URI="c0.xhtml"/>')
    with pytest.raises(SourceError, match="DRM"):
        text_of(open_sources([str(tmp_path / "a.epub")]))


def novel(data: Path, name: str) -> list[str]:
    text = gzip.decompress((data / "books" / f"{name}.txt.gz").read_bytes()).decode()
    return [" ".join(p.split()) for p in re.split(r"\n\s*\n", text)]


def as_pdf(paragraphs: list[str]) -> bytes:
    lines = [line for p in paragraphs for line in [*textwrap.wrap(p, 80), ""]]
    return printed(lines)


def as_epub(paragraphs: list[str]) -> bytes:
    starts = [i for i, p in enumerate(paragraphs) if re.match("(?i)chapter|part|letter", p)]
    ends = [*starts, len(paragraphs)]
    return epub(
        [
            chapter(paragraphs[a], paragraphs[a + 1 : b])
            for a, b in zip([0, *starts], ends, strict=True)
            if a < b
        ]
    )


@pytest.mark.parametrize("name", ["arthur-conan-doyle-a-study-in-scarlet", "jane-austen-emma"])
@pytest.mark.parametrize("make", [as_pdf, as_epub])
def test_the_first_estimate_is_right(
    data: Path, tmp_path: Path, name: str, make: Callable[[list[str]], bytes]
) -> None:
    """It is within 15% before the first chunk and during the reading. Measured: within 3%."""
    sources = opened(tmp_path, "book", make(novel(data, name)))
    tokens = TokenStream(load_tokenizer("pocket"), sources)
    estimates = [tokens.estimate()]
    while len(tokens.read(8192)):
        estimates.append(tokens.estimate())
    assert tokens.seen > 50_000
    assert estimates == pytest.approx([tokens.seen] * len(estimates), rel=0.15)


def test_answers_cite_the_page(cli, tmp_path: Path) -> None:
    from kvstream.sample.document import generate

    lines = textwrap.wrap(" ".join("".join(generate(tokens=2400)).split()), 80)
    (tmp_path / "rain.pdf").write_bytes(printed(lines))
    few = ("--json", "-n", "8", "--budget", "512")
    ran = cli("ask", str(tmp_path / "rain.pdf"), "Where was the letter?", *few)
    assert ran.code == 0, ran.stderr
    cited = json.loads(ran.stdout)["citations"]
    assert cited
    pages = len(pages_of(lines))
    assert all(1 <= c["page"] <= pages and c["line_start"] is None for c in cited)


def test_a_broken_document_has_the_estimate_0(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_bytes(b"")
    for kind in LIBRARIES:
        assert estimate(kind, path) == 0
