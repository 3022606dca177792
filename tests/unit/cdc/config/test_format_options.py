"""What the options say together."""

import pytest

from cdc.config.format_options import READABLE, FormatOptions
from cdc.model.topics import Topics


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


@pytest.mark.parametrize(
    ("options", "compacted", "logs"),
    [
        (READABLE, (), ()),
        (FormatOptions(heartbeat_interval_ms=1), ("__debezium-heartbeat.shop",), ()),
        (FormatOptions(provide_transaction_metadata=True), (), ("shop.transaction",)),
        (FormatOptions(message_prefix_include_list=("a",)), (), ("shop.message",)),
        (FormatOptions(message_prefix_exclude_list=("a",)), (), ("shop.message",)),
        (FormatOptions(profile="debezium"), (), ("shop.message",)),
    ],
)
def test_topics_are_there_where_options_ask_for_them(
    options: FormatOptions, compacted: tuple[str, ...], logs: tuple[str, ...]
) -> None:
    assert options.side_topics(Topics("shop")) == (compacted, logs)
