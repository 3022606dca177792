"""Draws the figures of `bench.views` as an SVG.

python -m bench.views --json | tail -1 > figures.json
python -m bench.views_picture figures.json docs/pictures/views-figures.svg
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
    parts: list[str] = []
    y = 28
    readable = found["documents"]["readable_ms"]
    parts.append(_text(8, y, "Nested documents: commit to readable, s", is_bold=True))
    longest = max(readable.values())
    for name, value in readable.items():
        y += LINE
        parts += _bar(y, name, value / longest, f"{value / 1000:.2f}", COLORS["base"])
    y += 2 * LINE
    parts.append(_text(8, y, "Keys computed and written per second", is_bold=True))
    fastest = max(one["keys_per_s"] for one in found["kinds"].values())
    for name, one in found["kinds"].items():
        y += LINE
        parts += _bar(y, name, one["keys_per_s"] / fastest, f"{one['keys_per_s']:,}", COLORS["view"])
    y += 2 * LINE
    parts.append(_text(8, y, "One change in the base until its view rows are written (p95), ms", is_bold=True))
    longest = max(one["one_change_ms"]["p95"] for one in found["kinds"].values())
    for name, one in found["kinds"].items():
        y += LINE
        parts += _bar(
            y, name, one["one_change_ms"]["p95"] / longest, f"{one['one_change_ms']['p95']:,}", COLORS["base"]
        )
    y += 2 * LINE
    parts.append(_text(8, y, "State: what the view reads in its base, MB", is_bold=True))
    largest = max(one["state_mb"] for one in found["kinds"].values())
    for name, one in found["kinds"].items():
        y += LINE
        parts += _bar(y, name, one["state_mb"] / largest, f"{one['state_mb']:.1f}", COLORS["view"])
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
