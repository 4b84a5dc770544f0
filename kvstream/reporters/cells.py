"""Texts in columns of a terminal: a Chinese, Japanese or Korean character takes two cells."""

from __future__ import annotations


def beginning(text: str, width: int) -> str:
    """Return the beginning of `text` that takes at most `width` cells, at least a character."""
    from rich.cells import cell_len

    end, taken = 0, 0
    for char in text:
        taken += cell_len(char)
        if end and taken > width:
            break
        end += 1
    return text[:end]


def cut(text: str, width: int) -> str:
    """Return `text` in at most `width` cells; dots mark that it goes on."""
    from rich.cells import cell_len

    return text if cell_len(text) <= width else beginning(text, width - 3).rstrip() + "..."


def end_of(text: str, width: int) -> str:
    """Return the end of a path in at most `width` cells. It says more than the beginning."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    return "..." + beginning(text[::-1], width - 3)[::-1]


def padded(text: str, width: int) -> str:
    """Return `text` with blanks behind it, in at least `width` cells."""
    from rich.cells import cell_len

    return text + " " * (width - cell_len(text))
