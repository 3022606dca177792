"""Corrections of hours, and alerts that start and stop."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from sinks.contract import StoredRow
from watershed.demo.view_watch import SHOWN, Alerts, Revenue, described

DOCUMENT = {
    "status": "paid",
    "note": "change 7",
    "customer": {"name": "Ada"},
    "lines": [{"quantity": 8, "product": "amber", "unit_price": 25.00}] * 2,
}


def at(hour: int) -> datetime:
    return datetime(2026, 1, 1, hour, tzinfo=UTC)


def test_hours_that_are_there_at_first_were_not_corrected() -> None:
    revenue = Revenue()
    assert revenue.lines() == []
    revenue.observe({at(1): Decimal(10), at(2): Decimal(2000)})
    assert revenue.lines() == ["2026-01-01 02:00  2,000"]


def test_the_last_hour_is_shown_first_then_those_corrected_last() -> None:
    revenue = Revenue()
    hours = {at(number): Decimal(number) for number in range(1, 9)}
    revenue.observe(hours)
    for number in range(1, 6):
        revenue.observe(hours := hours | {at(number): Decimal(100 + number)})
    revenue.observe({hour: total for hour, total in hours.items() if hour != at(5)} | {at(8): Decimal("7.50")})
    assert revenue.lines() == [
        "2026-01-01 08:00  7.50, corrected from 8",
        "2026-01-01 05:00  no revenue any more, corrected from 105",
        "2026-01-01 04:00  104, corrected from 4",
        "2026-01-01 03:00  103, corrected from 3",
    ]
    assert len(revenue.lines()) == SHOWN + 1


def test_the_last_hours_correction_outlives_those_of_many_others() -> None:
    revenue = Revenue()
    hours = {at(number): Decimal(number) for number in range(1, 20)}
    revenue.observe(hours)
    revenue.observe(hours := hours | {at(19): Decimal(50)})
    revenue.observe({hour: total if hour == at(19) else total + 1 for hour, total in hours.items()})
    assert revenue.lines()[0] == "2026-01-01 19:00  50, corrected from 19"


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (DOCUMENT, "paid, change 7, of Ada: 8 × amber at 25.0; 8 × amber at 25.0"),
        (DOCUMENT | {"customer": None, "lines": []}, "paid, change 7, of nobody: no lines"),
        (None, "not there yet"),
    ],
)
def test_a_document_is_a_line(document: dict[str, object] | None, line: str) -> None:
    assert described(document) == line


def test_a_record_starts_an_alert_and_one_without_a_value_stops_it() -> None:
    alerts = Alerts()
    for version, (order, total) in enumerate(((1, "5"), (2, "6"), (1, "7"))):
        value = b'{"search":"dear","order_id":%d,"total":"%s"}' % (order, total.encode())
        alerts.observe(b'{"order_id":%d}' % order, value, version)
    assert (len(alerts.rows), alerts.started, alerts.stopped) == (2, 2, 0)
    alerts.observe(b'{"order_id":1}', None, 3)
    alerts.observe(b'{"order_id":3}', None, 4)
    assert (alerts.started, alerts.stopped) == (2, 1)
    assert list(alerts.rows.values()) == [
        StoredRow({"order_id": 2}, {"search": "dear", "order_id": 2, "total": "6"}, 1)
    ]
    assert list(alerts.last) == ["order 1 no longer meets “dear”"]
