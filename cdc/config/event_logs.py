"""Section `event_logs`: tables of events that views read, loaded from the topics of the outbox. Pure."""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from cdc.config.outbox_routing import Placement, is_topic
from cdc.config.outbox_settings import OutboxConfig, OutboxTable, Routing
from cdc.config.section import Section
from cdc.config.stores import SqlConfig, StoreConfig
from cdc.config.views import NAME
from cdc.model.events import TableId

SCHEMA_OF_LOGS: Final = "event_logs"  # views name a log `event_logs.<name>`
MESSAGES: Final = "messages"


class EventLogConfig(Section):
    """A log of events. Views with the same base read it as table `event_logs.<name>`."""

    base: str  # a sink of type sql on PostgreSQL, in whose database the log is kept
    topics: Annotated[tuple[str, ...], Field(min_length=1)]  # topics that the outbox writes
    # What writes these topics: a table of outbox.tables, or `messages`. Needed only where their forms differ.
    outbox: str | None = None


class EventForm(NamedTuple):
    """The options of the outbox on which the meaning of a record's bytes depends."""

    format: Literal["debezium", "cloudevents_binary", "cloudevents_structured"]
    key_converter: Literal["string", "json"]
    value_converter: Literal["string", "json", "bytes"]
    has_schemas: bool
    placements: tuple[Placement, ...]  # in headers and in the envelope
    aggregate_column: str  # the columns whose values are those of aggregatetype and type, where they are placed
    type_column: str


def log_table(name: str) -> TableId:
    """Returns the name under which views read the log."""
    return TableId(SCHEMA_OF_LOGS, name)


def event_form(log: EventLogConfig, outbox: OutboxConfig) -> EventForm:
    """Returns the form of the log's records. Raises ValueError if there is no form, or more than one."""
    forms = dict(_forms(outbox))
    if not forms:
        raise ValueError("section outbox writes no events: name a table in outbox.tables, or set outbox.messages")
    if log.outbox is not None and log.outbox not in forms:
        raise ValueError(f"outbox: {log.outbox} does not write events; these do: {', '.join(forms)}")
    found = {form for writer, form in forms.items() if log.outbox in (None, writer)}
    if len(found) > 1:
        raise ValueError(f"{', '.join(forms)} write records of different forms: name the writer in option outbox")
    (form,) = found
    if form.value_converter == "bytes":
        raise ValueError("value.converter of the outbox is bytes: a log keeps payloads that are JSON or text")
    return form


def _forms(outbox: OutboxConfig) -> Iterator[tuple[str, EventForm]]:
    writers: list[tuple[str, Routing]] = [(table.table, table) for table in outbox.tables]
    if outbox.messages is not None:
        writers.append((MESSAGES, outbox.messages))
    for name, routing in writers:
        yield (
            name,
            EventForm(
                routing.format,
                routing.key_converter,
                routing.converter,
                routing.schemas_enable,
                tuple(placement for placement in routing.placements if placement.where != "partition"),
                routing.route_by_field,
                routing.table_field_event_type if isinstance(routing, OutboxTable) else "type",
            ),
        )


def problem(
    logs: Mapping[str, EventLogConfig],
    views: Collection[str],
    sinks: Mapping[str, StoreConfig],
    outbox: OutboxConfig,
    tables: Collection[TableId],
    topic_prefix: str,
) -> str | None:
    """Returns the first error of the logs; None if there is none. `views`: their names. `tables`: that are captured."""
    for name, log in logs.items():
        if not NAME.fullmatch(name):
            return f"{name!r} can't be a log's name: a lower-case letter, then letters, digits and _, 40 at most"
        if name in views:
            return f"{name}: a view has this name, too: rename one of them"
        if log_table(name) in tables:
            return f"{name}: views name it {log_table(name)}, as a captured table: rename the log"
        base = sinks.get(log.base)
        if not isinstance(base, SqlConfig):
            return f"{name}.base: {log.base} is not a sink of type sql"
        if not base.url.get_secret_value().startswith(("postgresql:", "postgres:")):
            return f"{name}.base: the database of {log.base} is not PostgreSQL, which logs need"
        for topic in log.topics:
            if not is_topic(topic):
                return f"{name}.topics: {topic!r} can't be a topic's name: letters, digits, '.', _ and -, 249 at most"
            if topic.startswith(f"{topic_prefix}."):
                return f"{name}.topics: {topic} is an internal topic of capture, which has no events"
        if len(set(log.topics)) != len(log.topics):
            return f"{name}.topics: a topic is listed twice"
        try:
            event_form(log, outbox)
        except ValueError as error:
            return f"{name}: {error}"
    return None
