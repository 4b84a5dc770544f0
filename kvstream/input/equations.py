"""Restore the signs of equations that a DOCX has as markup. Without them numbers run together."""

from __future__ import annotations

MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_BEFORE = {"num": " ", "den": "/", "sup": "^", "sub": "_", "lim": "_", "nary": "∫"}
"""Sign before each part of an equation. An operator without a name is an integral."""
_BEFORE_OPERAND = {"rad": "√", "nary": " ", "func": " ", "mr": " ", "eqArr": " "}
"""Sign before the operands of each element, such as cells of a matrix or rows."""


class Equation:
    """Gives the signs between the texts of an equation: 1/2, 10^6, √2, f(x)."""

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
