"""Extract the visible text of HTML, and the heading above it, from a stream of markup.

lxml calls back for every tag, and no tree is built. With thousands of open tags, the time of its
parser grows with the square of the depth. So all open tags are closed from time to time.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping

from lxml import etree

from kvstream.input.blocks import Heading
from kvstream.input.document_lines import INDENT, Lines, Losses, Piece, Read, texts_of
from kvstream.input.numbering import numeral
from kvstream.input.table_rows import Cell, count_of

DEEPEST = 1000
"""Maximum open tags at the end of a block. If there are more, all are closed."""
LONGEST_HELD = 1 << 20
"""Maximum characters of a CDATA section that are held until it ends."""
LONGEST_HEADING = 200
"""Maximum characters of a heading. Longer text is not a heading."""
_DROPPED = frozenset([
    "script", "style", "template", "noscript", "head", "svg", "annotation", "annotation-xml",
    "audio", "canvas", "video", "datalist",
])  # fmt: skip
_SHOWN = frozenset(["text", "foreignobject"])
"""What of a drawing (SVG) is text. Its other elements are dropped."""
_STRUCK = frozenset(["del", "s", "strike"])
_READINGS = frozenset(["rt", "rp"])
"""How the characters of a `ruby` are pronounced. They would divide its word."""
_HEADINGS = frozenset(["h1", "h2", "h3", "h4", "h5", "h6"])
_APART = _HEADINGS | {"p"}
_BLOCKS = frozenset([
    "address", "article", "aside", "blockquote", "caption", "center", "dd", "details", "dialog",
    "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4",
    "h5", "h6", "header", "hgroup", "hr", "iframe", "legend", "li", "main", "menu", "nav", "ol",
    "option", "p", "pre", "section", "shown", "summary", "table", "td", "th", "tr", "ul",
])  # fmt: skip
_SPACED = frozenset(["button", "input", "select", "textarea"])
"""What stands apart from the words around it, in the same line."""
_GROUPS = frozenset(["thead", "tbody", "tfoot"])
_TABLES = frozenset(["table", "tr", "td", "th", *_GROUPS])
_HIDDEN = re.compile(r"(?:^|;)\s*display\s*:\s*none\b", re.IGNORECASE)
_ROLES = {
    "table": "table", "grid": "table", "treegrid": "table", "rowgroup": "tbody", "row": "tr",
    "cell": "td", "gridcell": "td", "columnheader": "th", "rowheader": "th", "listitem": "li",
}  # fmt: skip
"""The tags that other tags stand for if they have these roles (ARIA)."""
_SIGNS = {
    "msup": ["", "^"], "msub": ["", "_"], "msubsup": ["", "_", "^"], "munder": ["", "_"],
    "munderover": ["", "_", "^"], "mfrac": [" ", "/"], "msqrt": ["\u221a"],
    "mtr": ["", *" " * 30], "mtable": ["", *" " * 30],
}  # fmt: skip
"""Signs before the parts of an element of MathML, which are markup."""
EXPONENT = re.compile(r"\s*[-+\u2212]?\d")
_INDENTED = re.compile(r"(?:\A|(?<=\n))[ \t]+")
_INDENTED_LATER = re.compile(r"(?<=\n)[ \t]+")
"""The space at the beginning of a line, not of the first one."""
_SPACE = re.compile(r"[ \t\n\r\f\v]+")
_XML = re.compile(r"\A\ufeff?\s*<\?xml|<html[^>]*\sxmlns=", re.IGNORECASE)
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
"""Text that the parser drops, because it is none in HTML that is no XML."""
_OPEN = re.compile(r"<!\[CDATA\[.*\Z|<!?(?:\[C?D?A?T?A?)?\Z", re.DOTALL)


def html_parts(
    read: Read,
    heading: str = "",
    losses: Losses | None = None,
    charset: str | None = None,
    *,
    fixed: bool = False,
) -> Iterator[list[Piece] | None]:
    """Yield the pieces of a page's text, block by block; None when ``read`` has no data yet.

    ``heading`` applies until the first heading of the page. ``fixed``: no script shows hidden text.
    The other arguments are those of `texts_of`.
    """
    target = _Page(heading, fixed=fixed)
    parser, tail, begun, of_xml = _parser(target), "", False, False
    for text in texts_of(read, losses or Losses(), charset):
        # The last block is not yielded yet: it may have only the end of the text.
        yield target.lines.take()
        if text is None:
            yield None
            continue
        text, tail = tail + text, ""
        begun, of_xml = begun or bool(text), of_xml or (not begun and _XML.search(text) is not None)
        if of_xml:
            head, end, rest = text.rpartition("]]>")
            text = _CDATA.sub(lambda match: html.escape(match[1]), head + end) + rest
            if (open := _OPEN.search(text)) and len(open[0]) < LONGEST_HELD:
                text, tail = text[: open.start()], open[0]
        close = len(target.open) > DEEPEST
        if close and (tag := text.rfind("<")) > 0:  # do not split a tag
            text, tail = text[:tag], text[tag:] + tail
        parser.feed(_parsable(text))
        if close:
            parser.close()
            parser = _parser(target)
    parser.feed(_parsable(tail))
    parser.close()
    yield target.lines.take(final=True)


def _parsable(text: str) -> bytes:
    """Return text for lxml, which refuses NUL and the surrogates of damaged UTF-16."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace")


def _parser(target: _Page) -> etree.HTMLParser:
    return etree.HTMLParser(target=target, encoding="utf-8", huge_tree=True)


def may_be_raised(last: str) -> bool:
    """Return whether a number behind this character can be a note or an exponent."""
    return bool(last.strip()) and last not in "([{"


class _Page:
    """The parser target that lxml calls; it collects the text."""

    def __init__(self, heading: str, *, fixed: bool) -> None:
        self.open: list[str] = []
        """The open tags."""
        self.lines = Lines(heading)
        self._fixed = fixed
        self._drops = 0
        self._pre = 0
        self._reading = False
        self._raised = False
        """Whether a superscript begins behind other text."""
        self._last = ""
        """The last character of the line."""
        self._heading: list[str] | None = None
        self._alt = ""
        """What the pictures of the heading show."""
        self._math: list[list[str]] = []
        """The signs before the next parts of each open element of MathML."""
        self._sign = ""
        self._struck = False
        """Whether struck text is just before."""
        self._in_head = False
        self._navigation = 0
        """Number of open lists of links."""
        self._lists: list[tuple[str, int]] = []
        """Form and next number of each open list; an empty form: it has no numbers."""
        self._number = ""
        """The number of an item, until its text begins."""

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        tag = tag.rpartition(":")[2]
        if tag not in _TABLES and (role := attributes.get("role")):
            level = count_of(attributes.get("aria-level", "2"))
            tag = f"h{level}" if role == "heading" else _ROLES.get(role, tag)
        if self._drops and tag in _SHOWN and "svg" in self.open:
            self._drops, tag = self._drops - 1, "shown"
        elif tag == "template" and "shadowrootmode" in attributes:  # it is shown in its parent
            tag = "div"
        elif self._is_hidden(tag, attributes):
            tag = "template"
        inner = attributes.get("srcdoc", "") if tag == "iframe" and tag not in self.open else ""
        self.open.append(tag)
        if tag in _DROPPED:
            self._drops += 1
        if self._drops:
            return
        if tag in _READINGS or tag == "rb":
            self._reading = tag != "rb"
        if tag in _BLOCKS or tag == "br":
            self._last = ""
        elif tag == "sup" or (
            tag == "a" and "noteref" in attributes.get("epub:type", attributes.get("role", ""))
        ):
            self._raised = may_be_raised(self._last)
        if tag == "math" or self._math:
            self._sign += self._math[-1].pop(0) if self._math and self._math[-1] else ""
            self._math.append(_SIGNS.get(tag, [])[:])
        # A low heading in a table stands for bold text.
        is_heading = tag in _HEADINGS and (tag < "h4" or self.lines.table is None)
        if is_heading or tag == "pre":
            self.lines.loosen()
        if tag in _TABLES:
            self._table(tag, attributes)
        elif tag in _APART:
            self.lines.add("\n\n")
        elif tag in ("ol", "ul", "li"):
            self._begin_list(tag, attributes)
        elif tag in _BLOCKS:
            self.lines.end_line()
        elif tag == "br":
            self.lines.add("\n")
        elif tag in _SPACED or (tag == "tspan" and "x" in attributes):  # another line of a label
            self._set_apart()
        if is_heading:
            self._heading, self._alt = [], ""
        elif tag == "img":
            self._alt = self._alt or " ".join(attributes.get("alt", "").split())
        elif self._heading is not None and (tag == "br" or tag in _BLOCKS):
            self._heading.append(" ")  # a new line, not the same word
        self._pre += tag == "pre"
        self._navigation += tag == "nav"
        if inner:
            parser = _parser(self)
            parser.feed(_parsable(inner))
            parser.close()

    def _is_hidden(self, tag: str, attributes: Mapping[str, str]) -> bool:
        """Return whether an element is not shown, or draws the formula (of KaTeX or MathJax) whose
        MathML is beside it."""
        if attributes.get("aria-hidden") == "true" and (
            tag == "nobr" or "katex-html" in attributes.get("class", "").split()
        ):
            return True
        return self._fixed and _HIDDEN.search(attributes.get("style", "")) is not None

    def end(self, _: str) -> None:
        tag = self.open.pop()
        if self._drops:
            self._drops += (tag == "shown") - (tag in _DROPPED)
            return
        self._drops += tag == "shown"
        self._struck = self._struck or tag in _STRUCK
        if tag in _READINGS or tag == "ruby":
            self._reading = False
        elif tag in ("sup", "a"):
            self._raised = False
        if self._math:
            self._math.pop()
            self._sign = self._sign if self._math else ""
        if tag in _HEADINGS:
            self._name(int(tag[1]))
        if tag == "table":
            self.lines.end_table()
        elif tag == "tr":
            self.lines.end_row()
        elif tag in _GROUPS:
            self._in_head = False
        if tag in _BLOCKS:
            self.lines.end_line()
        elif tag in _SPACED:
            self._set_apart()
        if tag in ("ol", "ul") and self._lists:
            self._lists.pop()
        self._navigation -= tag == "nav"
        self._pre -= tag == "pre"

    def _set_apart(self) -> None:
        if self._last.strip():
            self.lines.add(" ")
            self._last = " "

    def _begin_list(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin a list or an item of it. Lists of links, and those without numbers, have none."""
        self.lines.end_line()
        if tag == "li":
            if self._lists and self._lists[-1][0]:
                form, number = self._lists[-1]
                number = count_of(attributes.get("value")) if "value" in attributes else number
                self._number = f"{numeral(number, form)}. "
                self._lists[-1] = form, number + 1
            return
        hidden = (
            self._navigation or "reversed" in attributes or "none" in attributes.get("style", "")
        )
        form = "" if hidden or tag == "ul" else attributes.get("type", "") or "1"
        self._lists.append((form, count_of(attributes.get("start"))))

    def _table(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "table":
            self.lines.begin_table()
        elif tag == "tr":
            self.lines.begin_row(heads=self._in_head)
        elif tag in _GROUPS:
            self._in_head = tag == "thead"
            self.lines.divide()
        else:
            names = ("colspan", "rowspan")
            spans = (attributes.get(n) or attributes.get(f"aria-{n}") for n in names)
            columns, rows = map(count_of, spans)
            self.lines.begin_cell(Cell("", columns, rows, heading=tag == "th"))

    def data(self, text: str) -> None:
        text = text.replace("\u00ad", "")
        if self._drops or self._reading or not text:
            return
        if self._pre:
            begins = _INDENTED if self._last in ("", "\n") else _INDENTED_LATER
            text = begins.sub(lambda match: INDENT * len(match[0].expandtabs(4)), text)
        else:
            text = _SPACE.sub(" ", text)
        if self._struck and text[:1] not in " .,;:!?)":  # the text in its place: two values
            text = f" {text}"
        self._struck = False
        if self._raised and EXPONENT.match(text):  # of a note or a power, and not of 1st
            text = f"^{text.lstrip()}"
        if self._sign and not text.isspace():
            text, self._sign = f"{self._sign}{text.lstrip()}", ""
        self._raised = self._raised and text.isspace()
        self._last = text[-1:] or self._last
        if self._number and not text.isspace():
            if not text.lstrip()[0].isdigit():  # it would have two numbers
                self.lines.add(self._number)
            self._number = ""
        if self._heading is not None:
            self._heading.append(text)
            if sum(map(len, self._heading)) > LONGEST_HEADING:
                self._heading = None
        self.lines.add(text)

    def close(self) -> None:
        """Return nothing: `lines` gives the text while it is parsed."""

    def _name(self, level: int) -> None:
        words = " ".join("".join(self._heading or ()).split()).removesuffix("¶").rstrip()
        if self._heading is not None and not words and self._alt:
            words = self._alt[:LONGEST_HEADING]
            self.lines.add(words)
        if words:
            self.lines.name(Heading(words, level))
        self._heading = None
