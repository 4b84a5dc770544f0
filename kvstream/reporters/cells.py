"""Texts in columns of a terminal: a Chinese, Japanese or Korean character takes two cells."""

from __future__ import annotations

from itertools import accumulate


def cells(text: str) -> int:
    """Return the number of cells that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # slow to import

    return cell_len(text)


def beginning(text: str, width: int, least: int = 0) -> str:
    """Return the beginning of `text` in at most `width` cells, but at least `least` characters."""
    if text.isascii():
        return text[: max(width, least)]
    ends = accumulate(map(cells, text))
    fitting = next((i for i, end in enumerate(ends) if end > width), len(text))
    return text[: max(fitting, least)]


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` cells; dots mark that it goes on."""
    return text if cells(text) <= width else beginning(text, width - 3).rstrip() + "..."


def end_of(text: str, width: int) -> str:
    """Return the end of a path in at most `width` cells. It says more than the beginning."""
    if cells(text) <= width:
        return text
    return "..." + beginning(text[::-1], width - 3)[::-1]


def padded(text: str, width: int) -> str:
    """Return `text` with blanks behind it, in at least `width` cells."""
    return text + " " * (width - cells(text))
