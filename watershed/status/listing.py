"""The one form of tables on terminals: no lines, two blanks between columns, and nothing is ever cut.

A table that is too wide for the terminal gets its sentences below each row; if that is not enough, each row becomes the
name of its first column, with the other values and their names on the lines below.
"""

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

WIDTH_PLAIN: Final = 160  # if standard output is a file or a pipe, which have no width
GAP: Final = 2
INDENT: Final = "  "
_NUMBER: Final = re.compile(r"-?[\d,]+")


def wide_console() -> Console:
    """Returns the console of standard output."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_PLAIN)


class Listing:
    """Rows of plain text under named columns. A Rich renderable."""

    def __init__(self, *columns: str, texts: Sequence[str] = ()) -> None:
        """`texts`: columns that follow the others, with sentences, which may stand below a row."""
        self._columns = (*columns, *texts)
        self._texts = len(texts)
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: object) -> None:
        row = tuple(str(cell) for cell in cells)
        assert len(row) == len(self._columns), f"{len(row)} cells for {len(self._columns)} columns"
        self.rows.append(row)

    def lines(self, width: int) -> Iterator[tuple[str, bool]]:
        """Yields lines for a terminal of this width, and whether each is a heading."""
        short = len(self._columns) - self._texts
        # An empty column of sentences takes no room, and its heading would say nothing.
        used = [n for n in range(len(self._columns)) if n < short or any(row[n] for row in self.rows)]
        if self._fits(used, width) and not any("\n" in cell for row in self.rows for cell in row):
            yield from self._grid(used)
        elif self._texts and self._fits(range(short), width):
            head, *rows = self._grid(range(short))
            yield head
            for line, row in zip(rows, self.rows, strict=True):
                yield line
                for name, text in zip(self._columns[short:], row[short:], strict=True):
                    yield from self._below(name, text, width)
        else:
            yield from self._turned(width)

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        for line, is_heading in self.lines(options.max_width):
            yield Text(line, style="bold" if is_heading else "", no_wrap=True, overflow="ignore")

    def _widths(self, columns: Sequence[int]) -> list[int]:
        return [max(cell_len(row[n]) for row in (self._columns, *self.rows)) for n in columns]

    def _fits(self, columns: Sequence[int], width: int) -> bool:
        return sum(self._widths(columns)) + GAP * (len(columns) - 1) <= width

    def _grid(self, columns: Sequence[int]) -> Iterator[tuple[str, bool]]:
        widths = self._widths(columns)
        right = [all(_NUMBER.fullmatch(row[n]) for row in self.rows if row[n]) for n in columns]
        for row in (self._columns, *self.rows):
            cells = zip([row[n] for n in columns], widths, right, strict=True)
            line = (" " * GAP).join(_padded(*cell) for cell in cells)
            yield line.rstrip(), row is self._columns

    def _turned(self, width: int) -> Iterator[tuple[str, bool]]:
        short = len(self._columns) - self._texts
        for row in self.rows:
            yield from ((part, True) for part in _wrapped(row[0], width))
            values = [f"{name} {cell}".strip() for name, cell in zip(self._columns[1:short], row[1:short], strict=True)
                      if cell]  # fmt: skip
            yield from self._below("", ", ".join(values), width)
            for name, text in zip(self._columns[short:], row[short:], strict=True):
                yield from self._below(name, text, width)

    def _below(self, name: str, text: str, width: int) -> Iterator[tuple[str, bool]]:
        label = f"{name}: " if name else ""
        for line in text.split("\n") if text else ():
            yield from ((INDENT + part, False) for part in _wrapped(label + line, max(8, width - len(INDENT))))
            label = ""


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, width, break_on_hyphens=False) or [""]


def _padded(text: str, width: int, is_right: bool = False) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if is_right else text + blanks
