"""Bar charts as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
LABEL_X, BAR_X, BAR_WIDTH = 12, 300, 340
CHARACTER: Final = 7.2  # the width of one, in the mean, of a common sans-serif font
LINE: Final = 18
GAP: Final = 10
TOP: Final = 56
COLORS: Final = ("#3949ab", "#ef6c00", "#78909c", "#26a69a")


@dataclass(frozen=True, slots=True)
class Bars:
    """The bars of one case: a value for each series, None where it was not measured."""

    label: str
    values: tuple[float | None, ...]


def chart(title: str, series: Sequence[str], cases: Sequence[Bars], *, decimals: int = 0) -> str:
    """Returns horizontal bars, grouped by case, with one scale that begins at zero."""
    largest = max((value for case in cases for value in case.values if value is not None), default=0.0) or 1.0
    parts = [_text(LABEL_X, 22, title, "bold")]
    x = LABEL_X
    for name, color in zip(series, COLORS, strict=False):
        parts += [_bar(x, 34, 10, color), _text(x + 15, 44, name)]
        x += 30 + 8 * len(name)
    y = TOP
    for case in cases:
        parts.append(_text(LABEL_X, y + 14, case.label))
        for value, color in zip(case.values, COLORS, strict=False):
            if value is not None:
                width = max(1, round(BAR_WIDTH * value / largest))
                parts += [_bar(BAR_X, y + 3, width, color), _text(BAR_X + width + 6, y + 14, f"{value:,.{decimals}f}")]
                y += LINE
        y += GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="{WIDTH}" height="{y}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bar(x: int, y: int, width: int, color: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="13" fill="{color}"/>'


def _text(x: int, y: int, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" fill="#222222" font-weight="{weight}">{escape(text)}</text>'
