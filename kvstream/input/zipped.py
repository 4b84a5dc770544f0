"""Extract the text of EPUB and DOCX: markup in a ZIP file, read member by member."""

from __future__ import annotations

import io
import posixpath
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lxml import etree

from kvstream.errors import SourceError
from kvstream.input.blocks import Heading, Part
from kvstream.input.document_lines import Lines, Losses, Piece, bytes_in, parts
from kvstream.input.formats import DOCX_BODY
from kvstream.input.limits import Patience, unreadable
from kvstream.input.markup import EXPONENT, html_parts, may_be_raised
from kvstream.input.numbering import Numbering
from kvstream.input.table_rows import Cell, count_of

MAX_BYTES = 256 * 1024**2
"""Maximum total of unpacked bytes of the members that are read."""
LARGEST_INDEX = 16 * 1024**2
"""Maximum bytes of a list of members."""
LARGEST_SAMPLE = 4 * 1024**2
"""Bytes of markup at the beginning of a DOCX from which the size of its text is estimated."""
BLOCK = 64 * 1024
SAMPLES = 8
"""Number of places of an EPUB from which the size of its text is estimated."""
SAMPLE = 64 * 1024
"""Maximum bytes of markup at each of these places."""
STYLES = "word/styles.xml"
LISTS = "word/numbering.xml"
DEEPEST = 20
"""Maximum styles that derive from each other."""
NOTES = {
    "footnoteReference": ("footnotes", "Footnote"),
    "endnoteReference": ("endnotes", "Endnote"),
    "commentReference": ("comments", "Comment"),
}
"""For each mark in the text, the kind of the member with the notes, and their name."""
_NAMES = {
    "c": "urn:oasis:names:tc:opendocument:xmlns:container",
    "o": "http://www.idpf.org/2007/opf",
    "w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
}
_WORD = f"{{{_NAMES['w']}}}"
_LEFT_OUT = {
    "altChunk": "inserted document", "subDoc": "inserted document", "chart": "chart",
    "relIds": "diagram", "OLEObject": "inserted object",
}  # fmt: skip
"""Elements that stand for text in other members, which are not read."""
_EITHER = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_DELETIONS = (f"{_WORD}del", f"{_WORD}moveFrom")
_NOT_READ = frozenset([
    *_DELETIONS, f"{_WORD}pPrChange", f"{_WORD}trPrChange",
    f"{_WORD}tcPrChange", f"{_WORD}rPrChange", f"{_WORD}rt", f"{_EITHER}Fallback",
])  # fmt: skip
"""Deletions not yet accepted, the old place of moved text, the earlier style of a text, how
characters are pronounced, and the fallback of a choice."""
_STRICT = {
    b"http://purl.oclc.org/ooxml/wordprocessingml/main": _NAMES["w"].encode(),
    b"http://purl.oclc.org/ooxml/officeDocument/math": (
        b"http://schemas.openxmlformats.org/officeDocument/2006/math"
    ),
}
"""The namespaces of the variant "Strict Open XML", with the usual ones."""
_SYMBOLS = {
    "symbol": dict(zip(
        [*range(0x41, 0x5B), *range(0x61, 0x7B), 0xA3, 0xB0, 0xB1, 0xB3, 0xB4, 0xB9, 0xBB],
        "ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖαβχδεφγηιϕκλμνοπθρστυϖωξψζ≤°±≥×≠≈", strict=True,
    )),
    "wingdings": dict(zip([0x6F, 0xA8, 0xFB, 0xFC, 0xFD, 0xFE], "☐☐✗✓☒☑", strict=True)),
}  # fmt: skip
"""Characters of fonts that have signs in place of letters."""
_TRUE = ("", "1", "true", "on")
MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_BEFORE = {"num": " ", "den": "/", "sup": "^", "sub": "_", "lim": "_", "nary": "∫"}
"""Sign before each part of an equation. An operator without a name is an integral."""
_BEFORE_OPERAND = {"rad": "√", "nary": " ", "func": " ", "mr": " ", "eqArr": " "}
"""Sign before the operands of each element, such as cells of a matrix or rows."""


class Package:
    """Members of a ZIP file, read in turn. Raises SourceError for more than MAX_BYTES."""

    kind = ""

    def __init__(self, path: Path, notes: list[str], warnings: list[str]) -> None:
        """`notes` and `warnings` get what is missing, as in `documents.parts_of`."""
        self.path, self.notes, self.warnings = path, notes, warnings
        self.losses = Losses()
        self.archive = zipfile.ZipFile(path)
        try:
            self.members = [self.archive.getinfo(name) for name in self.texts()]
            self.size = sum(member.file_size for member in self.members)
            if self.size > MAX_BYTES:
                raise self._too_large(self.size)
        except BaseException:
            self.archive.close()
            raise

    def texts(self) -> list[str]:
        """Return the names of the members that contain text, each once, in reading order."""
        raise NotImplementedError

    def pieces(self, read: Callable[[int], bytes], heading: str) -> Iterator[list[Piece]]:
        """Yield the text of one member with the headings above it, block by block."""
        raise NotImplementedError

    def estimate(self) -> int:
        """Estimate the bytes of the text."""
        raise NotImplementedError

    def parts(self) -> Iterator[Part]:
        """Yield the text of all members."""
        patience = Patience(str(self.path), self.size)
        count, heading = 0, ""
        empty: list[str] = []
        with self.archive as archive:
            for member in self.members:
                has_text = False
                with archive.open(member) as file:

                    def read(size: int, file: Any = file) -> bytes:
                        nonlocal count
                        data: bytes = file.read(size)
                        count += len(data)
                        if count > MAX_BYTES:
                            raise self._too_large(count)
                        return data

                    share = count / max(self.size, 1)
                    for block in patience.over(self.pieces(read, heading)):
                        before, share = share, min(1.0, count / max(self.size, 1))
                        yield from parts(block, before, share)
                        heading = block[-1][1] if block else heading
                        has_text = has_text or bool(block)
                empty += [] if has_text else [member.filename]
        if 0 < len(empty) < len(self.members):
            have = f"{len(empty):,} of {len(self.members):,} chapters have no text"
            self.notes.append(f"{self.path}: {have} (the first: {empty[0]}).")
        self.warnings += self.losses.warnings(str(self.path))

    def check(self) -> int | None:
        """Close the file, which could be opened, and has no pages."""
        self.archive.close()
        return None

    def read(self, name: str) -> bytes:
        """Read a small member completely. Raises SourceError if it is too large."""
        with self.archive.open(name) as file:
            data = file.read(LARGEST_INDEX + 1)
        if len(data) > LARGEST_INDEX:
            raise self._too_large(len(data))
        return data

    def _too_large(self, size: int) -> SourceError:
        return SourceError(
            f"{self.path} unpacks to {size:,} bytes or more; at most {MAX_BYTES:,} bytes of "
            f"{self.kind} are read: convert it to text first."
        )


class Epub(Package):
    """An e-book: XHTML pages in the order of its spine."""

    kind = "EPUB"

    def texts(self) -> list[str]:
        container = _xml(self.read("META-INF/container.xml"))
        [package] = container.xpath("//c:rootfile[1]/@full-path", namespaces=_NAMES)[:1] or [None]
        if package is None:
            raise SourceError(f"{self.path} cannot be read as EPUB: its container names no book.")
        book = _xml(self.read(package))
        base = posixpath.dirname(package)
        items = {item.get("id"): item for item in book.iterfind("o:manifest/o:item", _NAMES)}
        members = self.archive.NameToInfo
        alike = {_fold(name): name for name in reversed(members)}

        def name_of(item: Any) -> str:
            href = unquote(item.get("href", item.get("idref", "")).partition("#")[0])
            place = posixpath.normpath(posixpath.join(base, href.replace("\\", "/"))).lstrip("/")
            return place if place in members else alike.get(_fold(place), place)

        refs = book.iterfind("o:spine/o:itemref", _NAMES)
        spine = [items.get(ref.get("idref"), ref) for ref in refs]  # the ref if no item has the id
        others = ("image/", "audio/", "video/")
        texts = (item for item in spine if not item.get("media-type", "").startswith(others))
        chapters = dict.fromkeys(map(name_of, texts))
        names = [name for name in chapters if name in members]
        missing = [name for name in chapters if name not in members]
        extras = [
            name
            for item in items.values()
            if "html" in item.get("media-type", "") and "nav" not in item.get("properties", "")
            if (name := name_of(item)) in members and name not in chapters
        ]
        if extras:
            self.notes.append(
                f"{self.path}: left out {len(extras):,} × page that is not in the reading order "
                f"(the first: {extras[0]})."
            )
        if missing and not names:
            problem = f"all of its {len(missing):,} chapters are missing"
            raise unreadable(self.path, self.kind, problem)
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            self.warnings.append(
                f"{len(missing):,} of {len(chapters):,} chapters {verb} missing in {self.path} "
                f"(the first: {missing[0]})."
            )
        if (locks := "META-INF/encryption.xml") in members:
            xml = _fold(self.read(locks).decode("utf-8", "replace"))
            if any(f'uri="{_fold(name)}"' in xml for name in names):
                raise SourceError(f"{self.path} is encrypted (DRM): kvstream cannot read it.")
        return names

    def pieces(self, read: Callable[[int], bytes], heading: str) -> Iterator[list[Piece]]:
        return (piece or [] for piece in html_parts(read, heading, self.losses))

    def estimate(self) -> int:
        with self.archive as archive:
            step = max(self.size, 1) / SAMPLES
            target, samples, place = step / 2, [], 0
            for member in self.members:
                place += member.file_size
                if place > target or self.size <= SAMPLES * SAMPLE:
                    samples.append(member)
                    target = max(target + step, place)
            markup = text = 0
            for member in samples:
                with archive.open(member) as file:
                    sample = file.read(SAMPLE)
                markup += len(sample)
                text += bytes_in(html_parts(io.BytesIO(sample).read))
        return round(self.size * text / max(markup, 1))


class Docx(Package):
    """A Word document: its paragraphs, tables and notes, without headers and footers."""

    kind = "DOCX"

    def texts(self) -> list[str]:
        return [name for name in self.archive.NameToInfo if DOCX_BODY.fullmatch(name)][:1]

    def read(self, name: str) -> bytes:
        return _usual(super().read(name))

    def pieces(self, read: Callable[[int], bytes], heading: str) -> Iterator[list[Piece]]:
        target = _Document(heading, self._heading_styles(), self._notes(), self._numbering())
        parser = _parser(target)
        while data := read(BLOCK):
            parser.feed(_usual(data))
            yield target.body.take()
        parser.close()
        yield target.body.take(final=True)
        self.notes += (f"{self.path}: left out {n:,} × {w}." for w, n in target.left_out.items())

    def _heading_styles(self) -> dict[str, int]:
        """Return ids and levels of the styles for headings; ids depend on the language of Word."""
        levels: dict[str, int] = {}
        with suppress(Exception):  # the text can be read without its styles
            styles = {
                style.get(f"{_WORD}styleId"): [
                    "" if (each := style.find(path, _NAMES)) is None else each.get(f"{_WORD}val")
                    for path in ("w:name", "w:pPr/w:outlineLvl", "w:basedOn")
                ]
                for style in _xml(self.read(STYLES)).iterfind("w:style", _NAMES)
            }
            for style in styles:
                base = style
                for _ in range(DEEPEST):
                    name, outline, parent = styles.get(base, ("", "", ""))
                    level = _level(name) or _outline(outline)
                    if level or outline or not parent:
                        break
                    base = parent
                levels[style] = level
        return levels

    def _numbering(self) -> Numbering:
        with suppress(Exception):  # the text can be read without its numbers
            styles = _xml(self.read(STYLES)) if STYLES in self.archive.NameToInfo else None
            return Numbering(_xml(self.read(LISTS)), styles)
        return Numbering()

    def _notes(self) -> dict[tuple[str, str], str]:
        """Return the text of notes by mark and id; comments first, as other notes may have one."""
        notes: dict[tuple[str, str], str] = {}
        members = {kind: f"word/{kind}.xml" for kind, _ in NOTES.values()}
        folder, body = posixpath.split(self.texts()[0])
        with suppress(Exception):  # most files have these names
            for relation in _xml(self.read(f"{folder}/_rels/{body}.rels")):
                kind = posixpath.basename(relation.get("Type", ""))
                if kind in members:
                    member = posixpath.join("/word", relation.get("Target", ""))
                    members[kind] = posixpath.normpath(member).lstrip("/")
        for mark, (kind, label) in reversed(NOTES.items()):
            name = members[kind]
            if name in self.archive.NameToInfo:
                target = _Notes(mark, label, notes)
                try:
                    etree.parse(io.BytesIO(self.read(name)), _parser(target))
                except (SourceError, etree.XMLSyntaxError, zipfile.BadZipFile) as error:
                    self.warnings.append(f"Notes of {self.path} are missing ({name}): {error}")
        return notes

    def estimate(self) -> int:
        text, last = 0, 0.0
        for part in self.parts():
            text += len(part.text.encode("utf-8", "replace"))
            last = part.share
            if last * self.size >= LARGEST_SAMPLE:
                break
        return round(text / last) if last else 0


class _Document:
    """The parser target that lxml calls for the body of a DOCX."""

    def __init__(
        self,
        heading: str,
        heading_styles: dict[str, int],
        notes: dict[tuple[str, str], str],
        numbering: Numbering,
    ) -> None:
        self.lines = self.body = Lines(heading)
        self._outside: list[tuple[Lines, int, list[str]]] = []
        """The state around each open text box."""
        self._boxes: list[str] = []
        """Texts of the boxes of a paragraph, which come after it."""
        self._raised = self._raised_before = False
        """Whether this run, and the run before, is superscript."""
        self._last = ""
        """The last character of the paragraph."""
        self._initial = False
        """Whether the paragraph is only the first letter of the next, or its end is deleted."""
        self._properties = False
        """Whether the properties of the paragraph are open."""
        self._numbering = numbering
        self._list = self._list_level = ""
        """The list of the paragraph."""
        self._number = ""
        """The number of the paragraph, until its text begins."""
        self._notes = notes
        self._heading_styles = heading_styles
        self._text = False
        self._level = 0
        """Level of the heading that the paragraph is; 0: it is none."""
        self._heading: list[str] = []
        self._drops = 0
        """Number of open tags within content that is not read."""
        self._chosen: list[bool] = []
        """Whether a choice was already read, for each open set of alternatives."""
        self._equation = _Equation()
        self.left_out: Counter[str] = Counter()

    def start(self, tag: str, attributes: Any) -> None:
        if self._drops or tag in _NOT_READ or self._was_chosen(tag):
            if self._properties and not self._drops and tag in _DELETIONS:
                self._initial, self._list = True, ""
            self._drops += 1
            return
        name = tag.removeprefix(_WORD)
        value = str(attributes.get(f"{_WORD}val", ""))
        if name == "p":
            if not self._initial:
                self.lines.end_line()
            self._level, self._heading, self._last = 0, [], ""
            self._raised = self._initial = False
            self._list = self._list_level = self._number = ""
        elif name == "txbxContent":
            self._outside.append((self.lines, self._level, self._heading))
            self.lines = Lines()
        elif name == "ilvl":
            self._list_level = value
        elif name == "numId":
            self._list, self._list_level = value, self._list_level or "0"
        elif name == "pStyle":
            self._list, self._list_level = self._numbering.styles.get(value, ("", ""))
            self._begin_heading(self._heading_styles.get(value) or _level(value))
        elif name == "outlineLvl" and not self._level:
            self._begin_heading(_outline(value))
        elif name == "pPr":
            self._properties = True
        elif name == "framePr":
            self._initial = attributes.get(f"{_WORD}dropCap") in ("drop", "margin")
        elif name == "r":
            self._raised_before, self._raised = self._raised, False
        elif name == "vertAlign":
            self._raised = value == "superscript"
        elif name == "sym":
            self._data(_symbol(*(str(attributes.get(_WORD + key)) for key in ("font", "char"))))
        elif name in ("br", "cr"):
            self._data("\n")
        elif name in ("tab", "ptab"):
            self._data(" ")
        elif (what := _LEFT_OUT.get(tag.rpartition("}")[2])) is not None:
            self.left_out[what] += 1
        elif name == "noBreakHyphen":
            self._data("-")
        elif name in NOTES:
            # Each note is read once, because marks may repeat.
            self.lines.add(self._notes.pop((name, str(attributes.get(f"{_WORD}id"))), ""))
        elif tag.startswith(MATH):
            value = str(attributes.get(f"{MATH}val", ""))
            self._equation.start(tag.removeprefix(MATH), value)
        else:
            self._table(name, attributes, value)
        self._text = name == "t" or tag == f"{MATH}t"

    def _begin_heading(self, level: int) -> None:
        self._level = level
        if level:
            self.lines.loosen()
            self.lines.add("\n\n")

    def _table(self, name: str, attributes: Any, value: str) -> None:
        table = self.lines.table
        if name == "tbl":
            self.lines.begin_table()
        elif name == "tr":
            self.lines.begin_row()
        elif name == "tc":
            self.lines.begin_cell(Cell())
        elif table is None:
            return
        elif name == "tblLook":
            first = attributes.get(f"{_WORD}firstRow")
            bits = int(value, 16) if re.fullmatch("[0-9A-Fa-f]{1,8}", value) else 0
            table.begins_with_headings = bits & 0x20 > 0 if first is None else first in _TRUE
        elif name == "tblHeader":
            table.heads = value in _TRUE
        elif name == "gridBefore":
            self.lines.begin_cell(Cell(columns=count_of(value)))
        elif table.cells and name == "gridSpan":
            table.cells[-1].columns = count_of(value)
        elif name == "hMerge" and value != "restart" and len(table.cells) > 1:
            table.cells.pop()
            table.cells[-1].columns += 1
        elif table.cells and name == "vMerge":
            table.cells[-1].above = value != "restart"

    def _was_chosen(self, tag: str) -> bool:
        """Return whether this is an alternative to content that was already read."""
        if tag == f"{_EITHER}AlternateContent":
            self._chosen.append(False)
        elif tag == f"{_EITHER}Choice" and self._chosen:
            before, self._chosen[-1] = self._chosen[-1], True
            return before
        return False

    def end(self, tag: str) -> None:
        self._text = False
        if self._drops:
            self._drops -= 1
            return
        name = tag.removeprefix(_WORD)
        if tag == f"{_EITHER}AlternateContent":
            self._chosen.pop()
        elif tag.startswith(MATH):
            self._data(self._equation.end(tag.removeprefix(MATH)))
        elif name == "p":
            if self._number and self.lines.table is not None:  # a column of numbers
                self.lines.add(self._number)
            words = " ".join("".join(self._heading).split())
            if self._level and words:
                self.lines.name(Heading(words, self._level))
            if not self._initial:
                self.lines.end_line()
                boxes, self._boxes = self._boxes, []
                for box in boxes:
                    self.lines.add(box)
                    self.lines.end_line()
        elif name == "txbxContent":
            self._boxes += [text for text, _ in self.lines.take(final=True)]
            self.lines, self._level, self._heading = self._outside.pop()
        elif name == "pPr":
            self._properties = False
            if self._list:
                self._number = self._numbering.next(self._list, self._list_level)
        elif name == "tr":
            self.lines.end_row()
        elif name == "tbl":
            self.lines.end_table()

    def data(self, text: str) -> None:
        if self._text:
            text = text.replace("\u00ad", "")
            starts = self._raised and not self._raised_before and may_be_raised(self._last)
            if starts and EXPONENT.match(text):
                text = f"^{text.lstrip()}"
            self._raised_before = self._raised
            self._data(self._equation.take() + text)

    def _data(self, text: str) -> None:
        if self._number and not text.isspace():
            text, self._number = f"{self._number} {text.lstrip()}", ""
        self._last = text[-1:] or self._last
        self.lines.add(text)
        if self._level and sum(map(len, self._heading)) < 200:
            self._heading.append(text)

    def close(self) -> None:
        """Return nothing: `lines` gives the text while it is parsed."""


class _Equation:
    """Gives the signs of an equation, which are markup: 1/2, 10^6, √2, f(x)."""

    def __init__(self) -> None:
        self._signs = ""
        """Signs before the next text."""
        self._open: list[str] = []
        self._brackets: list[dict[str, str]] = []

    def start(self, tag: str, value: str) -> None:
        """Begin an element, with the value of its attribute."""
        inside = self._open[-1] if self._open else ""
        self._open.append(tag)
        self._signs += _BEFORE.get(tag, "")
        if tag == "d":
            self._brackets.append({"begChr": "(", "sepChr": "|", "endChr": ")"})
        elif inside == "dPr" and self._brackets and tag in self._brackets[-1]:
            self._brackets[-1][tag] = value
        elif inside == "naryPr" and tag == "chr":
            self._signs = self._signs.removesuffix(_BEFORE["nary"]) + value
        elif inside == "d" and tag == "e":
            brackets = self._brackets[-1]
            self._signs += brackets["begChr"]
            brackets["begChr"] = brackets["sepChr"]  # before the next operand
        elif tag == "e":
            self._signs += _BEFORE_OPERAND.get(inside, "")

    def end(self, tag: str) -> str:
        """End an element; return the sign after it."""
        self._open.pop()
        if tag == "d":
            return self.take() + self._brackets.pop()["endChr"]
        if tag in ("sub", "sup"):  # it may be empty
            self._signs = self._signs.removesuffix(_BEFORE[tag])
        elif tag == "oMath":
            self._signs = ""
        return ""

    def take(self) -> str:
        """Return and clear the signs before the next text."""
        signs, self._signs = self._signs, ""
        return signs


class _Notes(_Document):
    """The parser target for foot notes, end notes or comments."""

    def __init__(self, mark: str, label: str, notes: dict[tuple[str, str], str]) -> None:
        super().__init__("", {}, notes, Numbering())
        self._mark, self._label = mark, label
        self._inside = ""
        """Id of the note that is being read, and the words before its text."""

    def start(self, tag: str, attributes: Any) -> None:
        super().start(tag, attributes)
        if tag == f"{_WORD}{self._label.lower()}":
            self._inside = str(attributes.get(f"{_WORD}id"))
            author = str(attributes.get(f"{_WORD}author", ""))
            self._before = f"{self._label} by {author}" if author else self._label

    def end(self, tag: str) -> None:
        super().end(tag)
        if tag == f"{_WORD}{self._label.lower()}":
            text = " ".join("".join(text for text, _ in self.lines.take(final=True)).split())
            self.lines = Lines()
            if text:
                self._notes[self._mark, self._inside] = f" [{self._before}: {text}]"


def _parser(target: _Document) -> Any:
    return etree.XMLParser(target=target, resolve_entities=False, no_network=True)


def _level(style: str) -> int:
    """Return the level of the headings of a style; 0 if it is for other text."""
    match = re.match(r"(?:heading ?(\d)?|title)", style, re.IGNORECASE)
    return 0 if match is None else int(match[1] or 1)


def _outline(value: str) -> int:
    """Return the level of a heading for an outline level, which counts from 0; 9 is none."""
    return int(value) + 1 if re.fullmatch("[0-8]", value or "") else 0


def _symbol(font: str, code: str) -> str:
    """Return a character by its code in hexadecimal; without one for it, nothing."""
    number = int(code, 16) if re.fullmatch("[0-9A-Fa-f]{1,5}", code) else 0
    sign = _SYMBOLS.get(font.lower(), {}).get(number & 0xFF, "")
    return sign or ("" if number < 32 or 0xD800 <= number < 0xF900 else chr(number))


def _usual(data: bytes) -> bytes:
    """Return XML with the usual namespaces, which it declares in its first bytes."""
    for strict, usual in _STRICT.items():
        data = data.replace(strict, usual)
    return data


def _fold(name: str) -> str:
    """Return the form in which names are compared if no member has exactly this name."""
    return unicodedata.normalize("NFC", unquote(name)).casefold()


def _xml(data: bytes) -> Any:
    parser = etree.XMLParser(recover=True, resolve_entities=False, no_network=True)
    root = etree.fromstring(data, parser)
    if root is None:
        raise ValueError("a list of its members is not XML")
    return root
