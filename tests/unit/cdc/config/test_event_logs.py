"""Section `event_logs`: errors of the configuration, and the form of a log's records."""

from typing import Any

import pytest
from pydantic import ValidationError

from cdc.config.config_file import Config
from cdc.config.event_logs import event_form, log_table

LOG: dict[str, Any] = {"base": "copy", "topics": ["outbox.event.order"]}
TABLE: dict[str, Any] = {"table": "cdc.outbox"}
SETTINGS: dict[str, Any] = {
    "source": {"dsn": "postgresql://localhost/shop", "tables": ["public.orders", "event_logs.taken"]},
    "kafka": {"bootstrap_servers": "localhost:9092"},
    "topics": {"prefix": "shop"},
    "outbox": {"tables": [TABLE]},
    "sinks": {
        "copy": {"type": "sql", "url": "postgresql://localhost/copy"},
        "file": {"type": "sql", "url": "sqlite:///copy.db"},
    },
    "views": {
        "documents": {
            "base": "copy",
            "sql": "SELECT aggregateid FROM event_logs.orders GROUP BY 1",
            "key": ["aggregateid"],
            "target": {"type": "topic"},
        }
    },
}


def configured(name: str = "orders", outbox: Any = None, **changes: Any) -> Config:
    settings = SETTINGS | {"event_logs": {name: LOG | changes}}
    return Config.model_validate(settings | {"outbox": outbox} if outbox is not None else settings)


def test_a_log_has_a_base_and_topics_and_a_name_that_views_use() -> None:
    settings = configured()
    assert settings.event_logs["orders"].topics == ("outbox.event.order",)
    assert str(log_table("orders")) == "event_logs.orders"
    form = event_form(settings.event_logs["orders"], settings.outbox)
    assert (form.format, form.value_converter, form.type_column) == ("debezium", "string", "type")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "Two Words"}, "'Two Words' can't be a log's name"),
        ({"name": "documents"}, "documents: a view has this name, too"),
        ({"name": "taken"}, "taken: views name it event_logs.taken, as a captured table"),
        ({"base": "nobody"}, "orders.base: nobody is not a sink of type sql"),
        ({"base": "file"}, "orders.base: the database of file is not PostgreSQL"),
        ({"topics": []}, "at least 1 item"),
        ({"topics": ["no space"]}, "'no space' can't be a topic's name"),
        ({"topics": ["a", "a"]}, "a topic is listed twice"),
        ({"topics": ["shop.public.orders"]}, "is an internal topic of capture"),
        ({"outbox": {}}, "section outbox writes no events"),
        ({"outbox": {"tables": [TABLE | {"value.converter": "bytes"}]}}, "value.converter of the outbox is bytes"),
    ],
)
def test_an_error_names_the_log_or_the_option(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s)event_logs.*{reason}"):
        configured(**changes)


def test_writers_of_different_forms_need_the_name_of_one() -> None:
    outbox = {"tables": [TABLE | {"format": "cloudevents_binary"}], "messages": {}}
    with pytest.raises(ValidationError, match=r"cdc\.outbox, messages write records of different forms"):
        configured(outbox=outbox)
    named = Config.model_validate(SETTINGS | {"outbox": outbox, "event_logs": {"orders": LOG | {"outbox": "messages"}}})
    assert event_form(named.event_logs["orders"], named.outbox).format == "debezium"
    with pytest.raises(ValidationError, match=r"public\.other does not write events; these do: cdc\.outbox, messages"):
        Config.model_validate(SETTINGS | {"outbox": outbox, "event_logs": {"orders": LOG | {"outbox": "public.other"}}})
    same = {"tables": [TABLE, {"table": "sales.outbox", "retention_s": 60}], "messages": {}}
    assert configured(outbox=same).event_logs
