"""The signs of equations that a DOCX has as markup: without them numbers run together."""

from __future__ import annotations

MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_BEFORE = {"num": " ", "den": "/", "sup": "^", "sub": "_", "lim": "_", "nary": "∫"}
"""What stands before parts of an equation. An operator that is not named is an integral."""
_BEFORE_OPERAND = {"rad": "√", "nary": " ", "func": " ", "mr": " ", "eqArr": " "}
"""What stands before the operands of these: cells of a matrix, rows."""


class Equation:
    """Tells the signs between its texts: 1/2, 10^6, √2, f(x)."""

    def __init__(self) -> None:
        self._signs = ""
        """Before the next text."""
        self._open: list[str] = []
        self._brackets: list[dict[str, str]] = []

    def start(self, tag: str, value: str) -> None:
        """An element begins, with the value of its attribute."""
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
            brackets["begChr"] = brackets["sepChr"]  # before the next one
        elif tag == "e":
            self._signs += _BEFORE_OPERAND.get(inside, "")

    def end(self, tag: str) -> str:
        """An element ends; returns what stands behind it."""
        self._open.pop()
        if tag == "d":
            return self.take() + self._brackets.pop()["endChr"]
        if tag in ("sub", "sup"):  # it may be empty
            self._signs = self._signs.removesuffix(_BEFORE[tag])
        elif tag == "oMath":
            self._signs = ""
        return ""

    def take(self) -> str:
        """What stands before the text that comes now."""
        signs, self._signs = self._signs, ""
        return signs
