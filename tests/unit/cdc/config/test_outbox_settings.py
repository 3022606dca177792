"""Section outbox."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.outbox_settings import OutboxConfig, OutboxMessages, OutboxTable, with_outbox_tables


def table(**options: Any) -> OutboxTable:
    return OutboxTable.model_validate({"table": "public.outbox", **options})


def test_debeziums_names_and_defaults() -> None:
    found = OutboxTable.model_validate({"table": "public.outbox", "route.by.field": "type"})
    assert found.route_by_field == "type"
    assert (found.table_field_event_id, found.table_field_event_key, found.table_field_event_payload) == (
        "id",
        "aggregateid",
        "payload",
    )
    assert found.route_topic_replacement == "outbox.event.${routedByValue}"


def test_the_converter_of_values_follows_what_they_are() -> None:
    assert table().converter == "string"
    assert table(table_expand_json_payload=True).converter == "json"
    assert table(table_fields_additional_placement=["type:envelope"]).converter == "json"
    assert table(value_converter="bytes").converter == "bytes"


@pytest.mark.parametrize(
    "options",
    [
        {"table_expand_json_payload": True, "value_converter": "string"},
        {"table_fields_additional_placement": "type:nowhere"},
        {"route_topic_regex": "("},
        {"route_topic_replacement": "${nothing}"},
        {"format": "cloudevents_binary", "schemas_enable": True},
        {"table_op_invalid_behavior": "shrug"},
        {"tracing_span_context_field": "x"},
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        table(**options)


def test_a_message_has_no_columns_but_an_events() -> None:
    assert OutboxMessages(table_fields_additional_placement="type:header").placements[0].column == "type"
    with pytest.raises(ValidationError, match="no column part"):
        OutboxMessages(table_fields_additional_placement="part:partition")


def test_a_table_is_listed_once() -> None:
    with pytest.raises(ValidationError, match="listed twice"):
        OutboxConfig(tables=(table(), table()))


def test_outbox_tables_are_captured_with_the_others() -> None:
    sections = {"source": {"tables": ["public.a"], "dsn": "x"}, "outbox": {"tables": [{"table": "public.outbox"}]}}
    assert with_outbox_tables(sections)["source"] == {
        "tables": ["public.a", "public.outbox"],
        "outbox": ["public.outbox"],
        "dsn": "x",
    }
    with pytest.raises(ValueError, match=r"is an outbox table and in source\.tables"):
        with_outbox_tables({"source": {"tables": ["public.outbox"]}, "outbox": sections["outbox"]})


@pytest.mark.parametrize("sections", [{}, [], {"source": 1, "outbox": {"tables": []}}, {"source": {"tables": 3}}])
def test_what_is_no_configuration_is_left_to_the_models(sections: object) -> None:
    assert with_outbox_tables(sections) == sections
