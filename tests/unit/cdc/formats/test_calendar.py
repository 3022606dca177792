"""Dates and times as numbers, against Python's own calendar and PostgreSQL's edges."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.formats import calendar
from cdc.model.errors import MalformedValueError


@given(st.dates())
def test_days_are_pythons(day: date) -> None:
    days = (day - date(1970, 1, 1)).days
    assert calendar.epoch_days(str(day)) == days
    assert calendar.iso_date(days) == str(day)


@given(st.integers(-2_500_000_000, 2_500_000_000))
def test_days_beyond_pythons_years_go_there_and_back(days: int) -> None:
    year, rest = calendar.iso_date(days)[:-6], calendar.iso_date(days)[-6:]
    text = f"{int(year):04}{rest}" if int(year) > 0 else f"{1 - int(year):04}{rest} BC"
    assert calendar.epoch_days(text) == days


def test_years_before_christ_and_whole_days() -> None:
    assert calendar.epoch_days("0044-03-15 BC") == -735_160
    first = -719_528 * calendar.DAY_US  # 1 BC is a leap year
    assert calendar.epoch_us("0001-01-01 00:00:01 BC", has_zone=False) == first + 1_000_000
    assert calendar.time_utc_us("24:00:00-05:30:15") == 19_815 * 1_000_000


@given(st.datetimes())
def test_timestamps_are_pythons(at: datetime) -> None:
    us = (at - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert calendar.epoch_us(str(at), has_zone=False) == us
    assert calendar.epoch_us(f"{at}+00", has_zone=True) == us


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("1970-01-01", 0),
        ("0001-01-01", -719_162),
        ("0001-12-31 BC", -719_163),
        ("4714-11-24 BC", -2_440_588),  # PostgreSQL's first day
        ("5874897-12-31", 2_145_042_905),  # and its last
    ],
)
def test_days_of_all_ages(text: str, days: int) -> None:
    assert calendar.epoch_days(text) == days


def test_pythons_zero_is_ours() -> None:
    assert calendar.epoch_us("1970-01-01 00:00:00+00", has_zone=True) == 0
    assert calendar.epoch_us("2024-01-31 12:00:00.5", has_zone=False) == round(
        datetime(2024, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC).timestamp() * 1e6
    )


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("00:00:00", 0),
        ("24:00:00", 86_400_000_000),
        ("12:34:56.000001", 45_296_000_001),
        ("12:34:56.7", 45_296_700_000),
    ],
)
def test_times_of_day(text: str, us: int) -> None:
    assert calendar.time_us(text) == us


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("11:51:30.123789+00", "11:51:30.123789"),
        ("01:30:00+05:30", "20:00:00"),
        ("23:00:00-02", "01:00:00"),
        ("24:00:00+00", "24:00:00"),
        ("00:00:00+15:59", "08:01:00"),
        ("12:00:00+01:02:03", "10:57:57"),
    ],
)
def test_times_with_time_zone_are_turned_to_utc(text: str, iso: str) -> None:
    assert calendar.iso_time(calendar.time_utc_us(text)) == iso


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("00:00:00", (0, 0, 0, 0)),
        ("1 year 2 mons 3 days 04:05:06.78", (1, 2, 3, 14_706_780_000)),
        ("-1 years -2 mons +3 days -04:05:06.78", (-1, -2, 3, -14_706_780_000)),
        ("1 day", (0, 0, 1, 0)),
        ("-178000000 years", (-178_000_000, 0, 0, 0)),
        ("1 mon -00:00:00.000001", (0, 1, 0, -1)),
        ("2562047788:00:54.775807", (0, 0, 0, 9_223_372_036_854_775_807)),
    ],
)
def test_intervals_have_a_sign_for_each_part(text: str, found: tuple[int, ...]) -> None:
    assert tuple(calendar.interval(text)) == found


@pytest.mark.parametrize(
    ("days", "iso"),
    [(0, "1970-01-01"), (-719_163, "0000-12-31"), (-2_440_588, "-4713-11-24"), (2_932_897, "+10000-01-01")],
)
def test_years_are_printed_as_java_does(days: int, iso: str) -> None:
    assert calendar.iso_date(days) == iso


@pytest.mark.parametrize(("digits", "iso"), [(None, "00:00:01.5"), (0, "00:00:01"), (3, "00:00:01.500")])
def test_a_fraction_has_the_digits_that_are_asked_for(digits: int | None, iso: str) -> None:
    assert calendar.iso_time(1_500_000, digits) == iso


def test_what_postgresql_does_not_print_is_refused() -> None:
    for text in ("", "31.01.2024", "infinity", "2023-02-29", "2024-13-01"):
        with pytest.raises(MalformedValueError):
            calendar.epoch_days(text)
    for text in ("", "12:00", "1:00:00", "12:00:00+00"):
        with pytest.raises(MalformedValueError):
            calendar.time_us(text)
    for text in ("", "12:00:00", "12:00:00Z"):
        with pytest.raises(MalformedValueError):
            calendar.time_utc_us(text)
    for text in ("2024-01-31 12:00:00+00", "2024-01-31"):
        with pytest.raises(MalformedValueError):
            calendar.epoch_us(text, has_zone=False)
    with pytest.raises(MalformedValueError):
        calendar.epoch_us("2024-01-31 12:00:00", has_zone=True)
    for text in ("", "P1Y", "1 hour"):
        with pytest.raises(MalformedValueError):
            calendar.interval(text)
