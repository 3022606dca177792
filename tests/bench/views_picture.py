"""Draws the figures of `tests.bench.views` as an SVG.

python -m tests.bench.views --json | tail -1 > figures.json
python -m tests.bench.views_picture figures.json docs/pictures/views-figures.svg
"""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any, Final

WIDTH: Final = 720
BAR_X: Final = 200
BAR_WIDTH: Final = 420
LINE: Final = 24
COLORS: Final = {"base": "#5c6bc0", "view": "#26a69a"}


def drawn(found: dict[str, Any]) -> str:
    """Returns the picture: one bar for each percentile of the documents' freshness, and three for each recipe."""
    kinds = found["kinds"]
    groups = (
        (
            "Nested documents: commit to readable, s",
            {name: value / 1000 for name, value in found["documents"]["readable_ms"].items()},
            ".2f",
            COLORS["base"],
        ),
        (
            "Keys computed and written per second",
            {name: one["keys_per_s"] for name, one in kinds.items()},
            ",",
            COLORS["view"],
        ),
        (
            "One change in the base until its view rows are written (p95), ms",
            {name: one["one_change_ms"]["p95"] for name, one in kinds.items()},
            ",",
            COLORS["base"],
        ),
        (
            "State: what the view reads in its base, MB",
            {name: one["state_mb"] for name, one in kinds.items()},
            ".1f",
            COLORS["view"],
        ),
    )
    parts: list[str] = []
    y = 28 - 2 * LINE
    for title, values, form, color in groups:
        y += 2 * LINE
        parts.append(_text(8, y, title, is_bold=True))
        largest = max(values.values())
        for name, value in values.items():
            y += LINE
            parts += _bar(y, name, value / largest, format(value, form), color)
    height = y + LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="14">\n<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _bar(y: int, name: str, share: float, value: str, color: str) -> list[str]:
    width = max(1, round(BAR_WIDTH * share))
    return [
        _text(8, y, name),
        f'<rect x="{BAR_X}" y="{y - 13}" width="{width}" height="16" fill="{color}"/>',
        _text(BAR_X + width + 6, y, value),
    ]


def _text(x: int, y: int, text: str, *, is_bold: bool = False) -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    return f'<text x="{x}" y="{y}" fill="#222222"{weight}>{escape(text)}</text>'


def main() -> int:
    figures, picture = sys.argv[1:]
    Path(picture).write_text(drawn(json.loads(Path(figures).read_text())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
