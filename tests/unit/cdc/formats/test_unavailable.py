"""The placeholder in forms that options give a column; the usual ones are in test_event_format_values.py."""

import uuid

import pytest

from cdc.config.format_options import BinaryMode, FormatOptions, TimeMode
from cdc.formats.unavailable import unavailable
from cdc.model.events import Column


def column(oid: int, name: str = "", element_oid: int = 0) -> Column:
    return Column("c", oid, -1, name, True, base_type_oid=oid, element_oid=element_oid)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("bytes", '"PMOrPg=="'),
        ("base64", '"PMOrPg=="'),
        ("base64-url-safe", '"PMOrPg=="'),
        ("hex", '"<ë>"'),
    ],
)
def test_bytes_are_as_the_mode_says_but_for_hex(mode: BinaryMode, expected: str) -> None:
    options = FormatOptions(profile="debezium", binary_handling_mode=mode, unavailable_value_placeholder="<ë>")
    found = unavailable(column(17), options)
    assert found is not None
    assert found.encode("latin-1").decode() == expected


def test_an_hstore_has_it_as_key_and_value() -> None:
    options = FormatOptions(profile="debezium", hstore_handling_mode="map", unavailable_value_placeholder="x")
    assert unavailable(column(16_500, "public.hstore"), options) == '{"x":"x"}'


def test_uuids_are_made_of_its_digest() -> None:
    """As Java's UUID.nameUUIDFromBytes makes them."""
    options = FormatOptions(profile="debezium", unavailable_value_placeholder="hello")
    assert unavailable(column(2951, element_oid=2950), options) == '["5d41402a-bc4b-3a76-b971-9d911017c592"]'
    assert uuid.UUID("5d41402a-bc4b-3a76-b971-9d911017c592").version == 3


@pytest.mark.parametrize(
    "of",
    [
        *(column(1700), column(1114), column(600), column(16_500, "vector"), column(1231, "", 1700)),
        *(column(16_501, "positive[]", 23), column(16_501, "name_of[]", 25)),  # of domains: bytes, if they are there
    ],
)
def test_other_forms_have_no_place_for_it(of: Column) -> None:
    assert unavailable(of, FormatOptions(profile="debezium", unavailable_value_placeholder="x")) is None


@pytest.mark.parametrize("mode", ["connect", "isostring"])
def test_an_array_of_dates_has_it_only_where_dates_are_plain_numbers(mode: TimeMode) -> None:
    """As recorded from Debezium 3.7.0.Final: null in these modes."""
    of, options = column(1182, "", 1082), FormatOptions(profile="debezium", unavailable_value_placeholder="x")
    assert unavailable(of, options) == "[120]"
    assert unavailable(of, options.model_copy(update={"time_precision_mode": mode})) is None


def test_profile_readable_has_none() -> None:
    assert unavailable(column(25), FormatOptions()) is None
