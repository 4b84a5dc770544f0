"""Count the paragraphs of numbered lists, whose numbers are no text: 3., b), IV., 2.1."""

from __future__ import annotations

import re
from typing import Any

MOST = 9
"""Levels of a list."""
_ROMAN = {1000: "m", 900: "cm", 500: "d", 400: "cd", 100: "c", 90: "xc", 50: "l", 40: "xl",
          10: "x", 9: "ix", 5: "v", 4: "iv", 1: "i"}  # fmt: skip
_NAMES = {"w": "http://schemas.openxmlformats.org/wordprocessingml/2006/main"}
_WORD = f"{{{_NAMES['w']}}}"


def numeral(number: int, form: str) -> str:
    """Return a number in a form of DOCX, or of HTML: 1, a, A, i, I. Others are digits."""
    if form in ("i", "I", "lowerRoman", "upperRoman") and 0 < number < 4000:
        text = ""
        for value, sign in _ROMAN.items():
            text += sign * (number // value)
            number %= value
    elif form in ("a", "A", "lowerLetter", "upperLetter") and 0 < number < 26 * 27:
        times, place = divmod(number - 1, 26)
        letter = chr(ord("a") + place)
        # Behind z, HTML counts aa, ab, and DOCX aa, bb.
        text = letter * (times + 1) if len(form) > 1 or not times else chr(96 + times) + letter
    else:
        return "" if form == "none" else f"{number:02}" if form == "decimalZero" else str(number)
    return text.upper() if form[0] in "IAu" else text


class Numbering:
    """The lists of a DOCX, with how far each is counted."""

    def __init__(self, lists: Any = None, styles: Any = None) -> None:
        """Both are roots of XML: ``numbering.xml`` and ``styles.xml``."""
        kinds = {
            _id(kind, "abstractNumId"): {_id(level, "ilvl"): level for level in _all(kind, "lvl")}
            for kind in _all(lists, "abstractNum")
        }
        self._kinds: dict[str, str] = {}
        self._levels: dict[str, dict[str, Any]] = {}
        self._starts: dict[tuple[str, str], int] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self.styles: dict[str, tuple[str, str]] = {}
        """List and level of the paragraphs of a style; empty: it has none."""
        for one in _all(lists, "num"):
            name, kind = _id(one, "numId"), _value(one, "abstractNumId")
            self._kinds[name], self._levels[name] = kind, dict(kinds.get(kind, {}))
            for other in _all(one, "lvlOverride"):
                at = _id(other, "ilvl")
                for level in _all(other, "lvl"):
                    self._levels[name][at] = level
                if start := _value(other, "startOverride"):
                    self._starts[name, at] = _whole(start)
        for style in _all(styles, "style"):
            own, name = _id(style, "styleId"), _value(style, "pPr/w:numPr/w:numId")
            levels = self._levels.get(name, {})
            places = (at for at, level in levels.items() if _value(level, "pStyle") == own)
            self.styles[own] = name, next(places, _value(style, "pPr/w:numPr/w:ilvl") or "0")

    def next(self, name: str, at: str) -> str:
        """Count one more paragraph of a list, and return its number; empty for a bullet."""
        levels = self._levels.get(name, {})
        level = levels.get(at)
        if level is None or not re.fullmatch(f"[0-{MOST - 1}]", at):
            return ""
        counts, own = self._counts.setdefault(self._kinds[name], {}), int(at)
        begins = self._starts.pop((name, at), None)
        for upper in range(own):
            counts.setdefault(upper, _start(levels.get(str(upper))))
        counts[own] = begins if begins is not None else counts.get(own, _start(level) - 1) + 1
        for deeper in range(own + 1, MOST):
            counts.pop(deeper, None)
        if _value(level, "numFmt") == "bullet":
            return ""
        forms = {str(k + 1): _value(levels.get(str(k)), "numFmt") for k in range(own + 1)}

        def number(match: re.Match[str]) -> str:
            return numeral(counts.get(int(match[1]) - 1, 0), forms.get(match[1], ""))

        return re.sub(r"%(\d)", number, _value(level, "lvlText")).strip()


def _all(element: Any, name: str) -> Any:
    return () if element is None else element.iterfind(f"w:{name}", _NAMES)


def _id(element: Any, name: str) -> str:
    return element.get(_WORD + name) or ""


def _value(element: Any, path: str) -> str:
    child = None if element is None else element.find(f"w:{path}", _NAMES)
    return "" if child is None else child.get(f"{_WORD}val") or ""


def _whole(text: str) -> int:
    return int(text) if re.fullmatch(r"\d{1,6}", text) else 1


def _start(level: Any) -> int:
    return _whole(_value(level, "start"))
