"""Write each row of a table as one line, with the heading of each column before its value."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST_ROW = 2000
"""Maximum characters of a row that is written as one line. A longer one is layout, not data."""
LONGEST_HEADING = 60
"""Maximum characters of the heading of a column that is not marked as heading."""
MOST_COLUMNS = 1000
MOST_HEADING_ROWS = 4
_DIGITS = frozenset("0123456789")


@dataclass
class Cell:
    """A cell of the row that is being read."""

    text: str = ""
    columns: int = 1
    rows: int = 1
    """Number of rows with this cell; 0: all rows that follow."""
    heading: bool = False
    above: bool | None = None
    """Whether it continues the cell above; None: it is not merged with it or the one below."""


class Table:
    """Keeps the row that is being read, its merged cells and the headings of the columns."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self._open = False
        self.loose = False
        """Whether the text of this row was given on cell by cell."""
        self.heads = False
        """Whether this row is marked as heading."""
        self.begins_with_headings = False
        """Whether the file says that the first row has headings."""
        self._spans: dict[int, tuple[str, int]] = {}
        """Text of the merged cells above, and the number of rows that still have it."""
        self._above: list[str] = []
        self._names: list[str] = []
        self._heading_rows = 0
        """Number of heading rows directly above."""
        self._rows = 0

    def begin(self, *, heads: bool) -> None:
        """Begin a row; `heads`: it is marked as heading."""
        self.cells, self.loose, self.heads, self._open = [], False, heads, True

    @property
    def has_row(self) -> bool:
        """Whether a row has begun that has cells, or merged cells from above."""
        return bool(self.cells or (self._open and self._spans and not self.loose))

    def divide(self) -> None:
        """Begin a group of rows, which no merged cell of the group before reaches."""
        self._spans.clear()

    def row(self) -> str:
        """End the row, and return it as a line; a row of one cell keeps its lines."""
        cells, self.cells, self._open = self.cells, [], False
        if len(cells) == 1 and not self._spans and not self._is_merged(cells[0]):
            return cells[0].text
        grid = self._grid(cells)
        if not any(grid):
            return ""
        corner = len(cells) > 1 and not cells[0].text.strip()  # above the names of the rows
        heads = all(cell.heading for cell in (cells[1:] if corner else cells))
        marked = bool(cells) and (self.heads or heads)
        if self._rows == 1 and not marked and self._heading_rows == 0 and self._are_names(grid):
            self._names = self._above
        self._rows += 1
        self._above = grid
        if marked:
            self._heading_rows += 1
            above = self._names if 1 < self._heading_rows <= MOST_HEADING_ROWS else []
            above = [*above, *[""] * (len(grid) - len(above))]
            self._names = [_heading(*pair) for pair in zip(above, grid, strict=False)]
            if self._heading_rows > MOST_HEADING_ROWS:
                self._names = []
        else:
            self._heading_rows = 0
            names = [] if grid == self._names else self._names
            names = [*names, *[""] * (len(grid) - len(names))]
            grid = [f"{n}: {v}".strip() if n else v for n, v in zip(names, grid, strict=False)]
        return " |".join(f" {value}" if value else "" for value in grid).strip(" ")

    def _is_merged(self, cell: Cell) -> bool:
        """Return whether a cell of fewer columns than the table has is merged with others below."""
        return (cell.rows != 1 or cell.above is not None) and cell.columns < len(self._above)

    def _grid(self, cells: list[Cell]) -> list[str]:
        """Return the text of each column, with merged cells repeated."""
        grid: list[str] = []
        width = len(self._above) or MOST_COLUMNS
        for cell in cells:
            self._repeat(grid)
            place = len(grid)
            text = _flat(cell.text)
            if cell.above and place < len(self._above):
                text = self._above[place]
            count = max(1, min(cell.columns, width - place))
            if cell.rows != 1:
                rest = cell.rows - 1 if cell.rows else MOST_COLUMNS
                self._spans |= {place + i: (text, rest) for i in range(count)}
            grid += [text] * (count if len(text) * count <= LONGEST_ROW else 1)
            grid += [""] * (place + count - len(grid))
        self._repeat(grid)
        for place in range(len(grid), max(self._spans, default=0) + 1):
            if place == len(grid):  # the row ends before the last merged cell
                grid.append("")
                self._repeat(grid)
        return grid

    def _repeat(self, grid: list[str]) -> None:
        """Add the merged cells from above that are next."""
        while (span := self._spans.pop(len(grid), None)) is not None:
            text, rest = span
            if rest > 1:
                self._spans[len(grid)] = text, rest - 1
            grid.append(text)

    def _are_names(self, second: list[str]) -> bool:
        """Return whether the unmarked first row has headings. Two columns may be a list."""
        first = self._above
        labels = all(
            len(name) <= LONGEST_HEADING and _DIGITS.isdisjoint(name) and (name or i == 0)
            for i, name in enumerate(first)
        )
        if not labels or len(first) < 3 or len(set(first)) < len(first):
            return False
        return self.begins_with_headings or not _DIGITS.isdisjoint("".join(second))


def count_of(value: str | None) -> int:
    """Return the number of columns or rows of a cell."""
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,5}", value) else 1


def _heading(above: str, name: str) -> str:
    return name if not above or above == name else f"{above} {name}".strip()


def _flat(text: str) -> str:
    """Return the text of a cell as one line. Rows of a table in it are separated by semicolons."""
    lines = [line for row in text.split("\n") if (line := " ".join(row.split()))]
    between = "; " if " | " in text else " "
    return between.join(line.replace("|", ",").replace(" ,", ",") for line in lines)
