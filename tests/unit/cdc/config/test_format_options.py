"""What the options say together."""

import pytest

from cdc.config.format_options import READABLE, FormatOptions


def test_context_headers_are_debeziums_default_not_ours() -> None:
    assert not READABLE.has_context_headers
    assert FormatOptions(profile="debezium").has_context_headers
    assert not FormatOptions(profile="debezium", extended_headers_enabled=False).has_context_headers
    assert FormatOptions(extended_headers_enabled=True).has_context_headers


@pytest.mark.parametrize(
    ("options", "suits"),
    [
        (READABLE, True),
        (FormatOptions(tombstones_on_delete=False, extended_headers_enabled=True), True),
        (FormatOptions(schemas_enable=True), False),
        (FormatOptions(hstore_handling_mode="map"), False),
        (FormatOptions(profile="debezium"), False),
    ],
)
def test_which_records_sinks_can_read(options: FormatOptions, suits: bool) -> None:
    assert options.suits_sinks is suits
