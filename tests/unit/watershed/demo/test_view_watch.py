"""Corrections of hours, and alerts that start and stop."""

from datetime import UTC, datetime
from decimal import Decimal

from sinks.contract import StoredRow
from watershed.demo.view_watch import SHOWN, Alerts, Hour, Revenue


def at(hour: int) -> datetime:
    return datetime(2026, 1, 1, hour, tzinfo=UTC)


def test_hours_that_are_there_at_first_were_not_corrected() -> None:
    revenue = Revenue()
    assert revenue.shown() == ()
    revenue.take({at(1): Decimal(10), at(2): Decimal(20)})
    assert revenue.shown() == (Hour(at(2), Decimal(20), None),)


def test_the_last_hour_is_shown_first_then_those_corrected_last() -> None:
    revenue = Revenue()
    hours = {at(number): Decimal(number) for number in range(1, 9)}
    revenue.take(hours)
    for number in range(1, 6):
        revenue.take(hours := hours | {at(number): Decimal(100 + number)})
    revenue.take({hour: total for hour, total in hours.items() if hour != at(5)} | {at(8): Decimal("7.50")})
    assert revenue.shown() == (
        Hour(at(8), Decimal("7.50"), Decimal(8)),
        Hour(at(5), None, Decimal(105)),
        Hour(at(4), Decimal(104), Decimal(4)),
        Hour(at(3), Decimal(103), Decimal(3)),
    )
    assert len(revenue.shown()) == SHOWN + 1


def test_the_last_hours_correction_outlives_those_of_many_others() -> None:
    revenue = Revenue()
    hours = {at(number): Decimal(number) for number in range(1, 20)}
    revenue.take(hours)
    revenue.take(hours := hours | {at(19): Decimal(50)})
    revenue.take({hour: total if hour == at(19) else total + 1 for hour, total in hours.items()})
    assert revenue.shown()[0] == Hour(at(19), Decimal(50), Decimal(19))


def test_a_record_starts_an_alert_and_one_without_a_value_stops_it() -> None:
    alerts = Alerts()
    for version, (order, total) in enumerate(((1, "5"), (2, "6"), (1, "7"))):
        value = b'{"search":"dear","order_id":%d,"total":"%s"}' % (order, total.encode())
        alerts.take(b'{"order_id":%d}' % order, value, version)
    assert (len(alerts.rows), alerts.started, alerts.stopped) == (2, 2, 0)
    alerts.take(b'{"order_id":1}', None, 3)
    alerts.take(b'{"order_id":3}', None, 4)
    assert (alerts.started, alerts.stopped) == (2, 1)
    assert alerts.rows == [StoredRow({"order_id": 2}, {"search": "dear", "order_id": 2, "total": "6"}, 1)]
    assert alerts.shown() == ("order 1 no longer meets “dear”", "order 2 meets “dear”", "order 1 meets “dear”")
