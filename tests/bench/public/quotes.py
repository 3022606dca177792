"""Figures of the benchmark in other documents, each followed by a comment that says which one it is:

2.9<!-- bench:catchup.narrow.ratio --> times
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

MARK: Final = re.compile(r"<!-- bench:([\w.]+) -->")
NUMBER_BEFORE: Final = re.compile(r"(\d[\d,]*(?:\.\d+)?)[^\d<|]*$")
DIGITS_MIN: Final = 2  # a quoted "100" stands for 95 to 105, not for 50 to 150


def wrong_quotes(text: str, figures: Mapping[str, float]) -> Iterator[str]:
    """Yields what is wrong: a mark without a number, of a figure that may not be quoted, or with another value."""
    for mark in MARK.finditer(text):
        number = NUMBER_BEFORE.search(text[: mark.start()].rpartition("\n")[2])
        if number is None:
            yield f"{mark[1]}: no number stands before the mark"
        elif mark[1] not in figures:
            yield f"{mark[1]}: not in the raw data, or not to be quoted"
        elif not is_rounded(number[1], figures[mark[1]]):
            yield f"{mark[1]}: {number[1]} is quoted, {figures[mark[1]]:g} was measured"


def is_rounded(quoted: str, value: float) -> bool:
    """Returns whether the text is the value, rounded to the digits that the text has."""
    number = float(quoted.replace(",", ""))
    if number == 0 or value == 0:
        return number == value
    _, _, decimals = quoted.partition(".")
    digits = quoted.replace(",", "").lstrip("0.")
    if not decimals:
        digits = digits.rstrip("0")
    count = max(DIGITS_MIN, len(digits.replace(".", "")))
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - count + 1)
    return abs(number - value) <= unit / 2 * (1 + 1e-9)
