"""What is gone through: in every run of the tests, whole, and what must be found wrong."""

from dataclasses import dataclass, replace
from typing import Final

from tests.models.states import OURS, Rule, Size

# Each with everything that its number of transactions can do. Seconds on one core: 1 to 4.
SMALL: Final = (
    Size(transactions=1, crashes=2, forgets=1),
    Size(transactions=2, crashes=0),
    Size(transactions=2, crashes=0, ranges=True, ops=("put", "move", "truncate")),
    Size(transactions=2, crashes=1, ops=("put", "delete")),
    Size(transactions=2, crashes=0, forgets=1, ops=("put", "truncate")),
    Size(transactions=2, crashes=0, writing=True, ops=("move", "truncate")),
)

# In order of their time: from seconds to an hour.
WHOLE: Final = (
    *SMALL,
    Size(transactions=2, crashes=1, ranges=True, writing=True),
    Size(transactions=2, crashes=2, forgets=1),
    Size(transactions=3, crashes=1),
    Size(transactions=3, crashes=1, forgets=1, ranges=True),
    Size(transactions=4, crashes=2),
    Size(transactions=4, crashes=2, ranges=True),
    Size(transactions=4, crashes=2, forgets=1),
)

ALL_KEYS: Final = Size(transactions=10, crashes=2, chunks=3, keys=4, forgets=2)
ALL_RANGES: Final = replace(ALL_KEYS, ranges=True)


@dataclass(frozen=True, slots=True)
class Control:
    """A rule that must be found wrong, and the smallest size in which it is."""

    name: str
    rule: Rule
    size: Size


CONTROLS: Final = (
    Control("DBLog as published", replace(OURS, drops="between"), Size(1, 0)),
    Control("no fence", replace(OURS, fences="never"), Size(1, 0)),
    Control("no fence after a crash", replace(OURS, fences="once"), Size(1, 1)),
    Control("floor: the mark's version", replace(OURS, floor="mark"), Size(1, 0)),
    Control("floor: fixed too early", replace(OURS, floor="early"), Size(1, 0)),
    Control("floors that fall", replace(OURS, floors_fall=True), Size(1, 0)),
    Control("TRUNCATE touches nothing", replace(OURS, truncate_touches=False), Size(1, 0)),
    Control("a move touches its new key", replace(OURS, moves_touch_both=False), Size(1, 0)),
    Control("forgotten, and not read again", replace(OURS, reads_again=False), Size(1, 0, forgets=1)),
)
