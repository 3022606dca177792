"""The figures of the demo's views on the screen. Pure; `watershed.demo.view_watch` reads them."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

SHOWN: Final = 3  # corrected hours


class Hour(NamedTuple):
    """An hour of the view of revenue, as it is and as it was before."""

    hour: datetime
    revenue: Decimal | None  # None: the row has disappeared
    before: Decimal | None  # None: it is new, or it was not seen before


class ViewsNow(NamedTuple):
    """The views at one moment."""

    document: Mapping[str, Any] | None  # of the order that the screen follows; None: it is not there
    hours: tuple[Hour, ...]  # the last one, and those that were corrected last
    alerts: int
    changed_alerts: tuple[str, ...]  # those that started or stopped last
    waiting: int  # changes that are noted, and rows that are to be computed


class Revenue:
    """The revenue of hours over time."""

    def __init__(self) -> None:
        self._known: dict[datetime, Decimal] | None = None
        self._before: dict[datetime, Decimal | None] = {}  # of corrected hours, the one corrected last at the end

    def take(self, hours: Mapping[datetime, Decimal]) -> None:
        """Takes the rows as they are now. The first time nothing was corrected."""
        known, self._known = self._known, dict(hours)
        if known is None:
            return
        for hour in sorted(known.keys() | hours.keys()):
            if known.get(hour) != hours.get(hour):
                self._before.pop(hour, None)
                self._before[hour] = known.get(hour)
        last = max(hours, default=None)
        for hour in [hour for hour in self._before if hour != last][:-SHOWN]:
            del self._before[hour]

    def shown(self) -> tuple[Hour, ...]:
        """Returns the last hour, and then those that were corrected last."""
        known = self._known or {}
        last = max(known, default=None)
        corrected = [hour for hour in reversed(self._before) if hour != last][:SHOWN]
        return tuple(
            Hour(hour, known.get(hour), self._before.get(hour)) for hour in ([last] if last else []) + corrected
        )
