"""The dead letters of sinks: reading them, and replaying or discarding them by order of an operator. A condition of SQL
selects rows by their keys, so that capture publishes them again."""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from cdc.config.config_file import Config
from cdc.kafka.compacted import read_latest
from cdc.kafka.signals import deliver
from cdc.kafka.state_reader import read_captured
from cdc.model.control import SignalRecord, SnapshotRecord
from cdc.model.errors import WatershedError
from cdc.model.events import VERSION_HEADER, TableId, TableSchema
from cdc.model.rejected_rows import RejectedRow, dead_letter_generation
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from watershed.client.pipeline_watch import PipelineWatch
from watershed.client.signal_sender import await_answer, send_signal

ANSWER_S_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One open dead letter."""

    sink: str
    topic: str
    key: str  # record key in the topic
    row: RejectedRow

    @property
    def generation(self) -> int | None:
        """The generation of the sink's store that rejected the row; None for a key of another form."""
        return dead_letter_generation(self.key)


def read_dead_letters(config: Config, sinks: Iterable[str]) -> list[DeadLetter]:
    """Returns the open letters of these sinks, of all generations, by sink and key. Raises UnreachableError,
    BrokerError."""
    topics = Topics(config.topics.prefix)
    return [
        DeadLetter(sink, topic, key, RejectedRow.decode(value, f"topic {topic}, key {key}"))
        for sink in sinks
        for topic in (topics.sink_dead_letter(sink),)
        for key, value in sorted(read_latest(config.kafka, topic).items())
    ]


def discard_dead_letters(config: Config, dead_letters: Iterable[DeadLetter]) -> None:
    """Discards these letters, and none of a later version of the row, which may have been rejected meanwhile."""
    for dead_letter in dead_letters:
        headers = [(VERSION_HEADER, str(dead_letter.row.version).encode())]
        deliver(config.kafka, TopicRecord(dead_letter.topic, dead_letter.key.encode(), None, headers))


def chosen_dead_letters(
    config: Config, sink: str, tables: Collection[TableId], keys: Collection[str]
) -> list[DeadLetter]:
    """Returns the sink's open letters of these tables (none: all), and of these keys (none: all), in the form of
    key_text. Raises WatershedError for a key that has none."""
    found = [one for one in read_dead_letters(config, [sink]) if not tables or one.row.table in tables]
    if not keys:
        return found
    chosen = [one for one in found if key_text(one.row.key) in keys]
    if missing := set(keys) - {key_text(one.row.key) for one in chosen}:
        of = f" of {', '.join(map(str, tables))}" if tables else ""
        raise WatershedError(f"sink {sink} has no dead letter{of} with {len(missing)} of these keys",
                             f"cdc dlq list {sink}")  # fmt: skip
    return chosen


def replay_dead_letters(
    config: Config, dead_letters: Sequence[DeadLetter], requested_by: str = ""
) -> Iterator[tuple[TableId, int]]:
    """Has capture publish the rows of one sink again, as they are in the source now. Yields each table with its number
    of rows when capture has accepted them. `requested_by`: a user of the HTTP server. Raises WatershedError, and
    NotInTimeError if capture does not answer."""
    by_table: dict[TableId, dict[str, Mapping[str, Any]]] = {}
    for one in dead_letters:  # two generations of the store may have rejected the same row
        by_table.setdefault(one.row.table, {})[key_text(one.row.key)] = one.row.key
    schemas = read_captured(config).schemas if by_table else {}
    for table, rows in sorted(by_table.items()):
        _require_no_snapshot(config, table)
        if table not in schemas:
            raise WatershedError(
                f"table {table} is not published",
                "add it to source.tables again, or correct topics.prefix; if it is gone for good: "
                f"cdc dlq discard {dead_letters[0].sink} --table {table}",
            )
        record = SignalRecord(
            action="snapshot",
            tables=(str(table),),
            where=keys_condition(schemas[table], list(rows.values())),
            requested_us=time.time_ns() // 1000,
            requested_by=requested_by,
        )
        topics = Topics(config.topics.prefix)
        answer = await_answer(config.kafka, topics, send_signal(config.kafka, topics, record), ANSWER_S_MAX)
        if not answer.is_accepted:
            raise WatershedError(
                f"refused: {answer.message}", answer.next or "see with cdc table list whether the table is captured"
            )
        yield table, len(rows)


def key_text(key: Mapping[str, Any]) -> str:
    """Returns a letter's key as operators write it: the text of one column, or a JSON list."""
    values = list(key.values())
    if len(values) == 1:
        return values[0] if isinstance(values[0], str) else json.dumps(values[0])
    return json.dumps(values, ensure_ascii=False)


def _require_no_snapshot(config: Config, table: TableId) -> None:
    """Raises WatershedError while a snapshot of the table runs, because a request for some rows would replace it."""
    with closing(PipelineWatch.of(config)) as watch:
        watch.read_to_end()
        record = watch.state(SnapshotRecord, SnapshotRecord.key_of(table))
    if record is not None and record.status in ("running", "paused"):
        raise WatershedError(
            f"a snapshot of {table} is {record.status}: replaying some rows would replace it",
            "wait until it is done (cdc snapshot status); it may publish these rows, too",
        )


KEYS_MAX: Final = 5_000  # keys in one condition
_BYTEA: Final = 17


def keys_condition(schema: TableSchema, keys: Sequence[Mapping[str, Any]]) -> str:
    """Returns the condition. Raises WatershedError for too many keys, and for keys without a form as text."""
    hint = f"cdc snapshot start --table {schema.table} publishes all rows of the table again"
    if len(keys) > KEYS_MAX:
        raise WatershedError(f"{len(keys)} rows of {schema.table} are too many for one condition", hint)
    for column in schema.columns:
        if column.name in schema.key and (column.element_oid or (column.base_type_oid or column.type_oid) == _BYTEA):
            raise WatershedError(
                f"rows of {schema.table} can't be selected by key: key column {column.name} has type "
                f"{column.type_name}",
                hint,
            )
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.key)
    values = ", ".join("(" + ", ".join(_literal(key[name]) for name in schema.key) + ")" for key in keys)
    return f"({names}) IN ({values})"


def _literal(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
