"""Whether a server has the database that is captured: what `cdc source move` looks at before it asks capture to
continue there. Writes nothing, neither there nor in Kafka.

Rows are compared as a heal does: by the digest of what consumers read. A heal deletes what the database does not have,
so a random sample of the rows of each topic has to be there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from cdc.config.settings import PipelineConfig, SourceConfig
from cdc.daemon.record_making import envelope_context
from cdc.formats.records import EnvelopeContext
from cdc.formats.row_digests import RowDigests
from cdc.kafka.state_reader import read_captured, read_position, read_versions
from cdc.kafka.topic_sample import read_sample
from cdc.model.control import PositionRecord
from cdc.model.errors import SourceError
from cdc.model.events import TableId, TableSchema
from cdc.model.topics import Topics
from cdc.pgoutput.record_keys import RecordKeys
from cdc.ports.source_table import SourceTable
from cdc.postgres.catalog import Publication, continued_schema
from cdc.postgres.chunk_statements import chunk_statement
from cdc.postgres.chunk_table import describe_for_chunks
from cdc.postgres.connection import SourceConnection, at_slot, connect, lost
from cdc.postgres.copy_lines import copy_lines
from cdc.postgres.source import check_source, read_slot
from cdc.tables.selection import require_same_keys

APPLICATION: Final = "watershed move"
DIFFERING_SHARE_MAX: Final = 0.05
"""Share of a table's sampled rows that may be missing or differ: rows that change while a replica catches up are fewer,
and a database that is not the same has more."""
LOCK_WAIT_S: Final = 3
_LOOKUP_KEYS: Final = 200  # in one statement
_LOOKUP_BYTES_MAX: Final = 256 * 1024 * 1024

# Sequences of the columns of a table, with their last values.
_SEQUENCES: LiteralString = """
SELECT a.attname::text, s.oid::regclass::text,
       CASE WHEN has_sequence_privilege(s.oid, 'SELECT,USAGE')
            THEN coalesce(pg_sequence_last_value(s.oid), q.seqstart - 1) END
  FROM pg_depend d
  JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
  JOIN pg_sequence q ON q.seqrelid = s.oid AND q.seqincrement > 0 AND NOT q.seqcycle
  JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
 WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
   AND d.refobjid = %s::int8::oid
"""


@dataclass(frozen=True, slots=True)
class TableCheck:
    """What was found of one table."""

    table: TableId
    columns: str = ""  # how the columns differ, in words; empty: they do not
    sampled: int = 0  # rows of the topic that were to be looked up
    missing: int = 0  # of these
    differing: int = 0
    unknown: str = ""  # why rows can't be compared, in words
    warnings: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """Returns why an operator has to decide, in words; empty: the table is the same."""
        if self.unknown:
            return f"{self.table} can't be compared with its topic: {self.unknown}"
        if self.columns:
            return f"{self.table} has other columns there ({self.columns})"
        if self.missing + self.differing > DIFFERING_SHARE_MAX * self.sampled:
            return (
                f"of {self.sampled:,} sampled rows of {self.table}, {self.missing:,} are missing there and "
                f"{self.differing:,} differ"
            )
        return ""


@dataclass(frozen=True, slots=True)
class MoveCheck:
    """What was found on the server."""

    server: tuple[str, str]  # see SourceIdentity.server
    former: tuple[str, str]
    tables: tuple[TableCheck, ...]

    def require_same(self) -> None:
        """Raises SourceError with the figures if it does not have the same database."""
        problems = [problem for table in self.tables if (problem := table.problem)]
        if problems:
            raise SourceError(
                f"database {self.server[1]} (system identifier {self.server[0]}) is not the captured one: "
                + "; ".join(problems),
                "let it catch up, or correct --to. To continue there all the same: --accept-differences, which "
                "publishes the rows that differ, and deletes those that are missing there from topics and stores",
            )


def check_move(config: PipelineConfig, target: SourceConfig, *, replaces_slot: bool) -> MoveCheck:
    """Compares the captured tables with those of the server that `target` names. Raises SourceError where capture could
    not continue there, UnreachableError, BrokerError, GapError for a damaged position."""
    position = read_position(config)
    if position is None or position.phase != "streaming":
        raise SourceError(
            f"capture of prefix {config.topics.prefix} has not begun to stream: nothing is moved", "cdc run"
        )
    source = check_source(target, config.snapshot)
    server = source.identity.server
    if server == position.source.server:
        raise SourceError(
            f"capture reads from this database already ({server[1]}, system identifier {server[0]}): nothing is moved",
            "correct --to, or source.dsn; if the same server was promoted or restored, cdc check says what is next",
        )
    captured, context = read_captured(config), envelope_context(config, source.identity, position)
    checks = []
    try:
        with connect(target, application=APPLICATION) as connection:
            connection.execute(f"SET lock_timeout = '{LOCK_WAIT_S}s'")
            with at_slot(target, connection) as server_of_slot:
                _require_slot(server_of_slot, target.slot, position, server, replaces_slot=replaces_slot)
            for found in source.tables:
                before = captured.schemas.get(found.table)
                if before is not None and not target.is_outbox(found.table):
                    sampling = _Sampling(config, target, connection, context, source.publication)
                    checks.append(sampling.check(found, before, captured.floors.get(found.table, 0)))
    except psycopg.Error as error:
        raise lost(error) from error
    return MoveCheck(server, position.source.server, tuple(checks))


def _require_slot(
    connection: SourceConnection, name: str, position: PositionRecord, server: tuple[str, str], *, replaces_slot: bool
) -> None:
    """Capture makes a slot of its own, so one of this name must not exist, or may be dropped."""
    slot = read_slot(connection, name)
    if slot is None:
        return
    if slot.active_pid is not None:
        raise SourceError(
            f"a process streams from slot {name} on the new server (pid {slot.active_pid})",
            "end it, if it is a capture that was started there for this database; or choose another source.slot",
        )
    is_position_s = server[0] == position.source.system_identifier and name == position.source.slot
    if slot.plugin != "pgoutput" or (slot.database != server[1] and not is_position_s):
        raise SourceError(
            f"slot {name} of the new server is not capture's: it is of plugin {slot.plugin}, database {slot.database}",
            "choose another source.slot",
        )
    if not replaces_slot:
        raise SourceError(
            f"slot {name} exists on the new server: pg_upgrade has kept it, or another pipeline uses the name",
            "if pg_upgrade has kept it: --replace-slot drops it, and capture creates its own; otherwise choose another "
            "source.slot",
        )


@dataclass(frozen=True, slots=True)
class _Sampling:
    config: PipelineConfig
    target: SourceConfig
    connection: SourceConnection
    context: EnvelopeContext
    publication: Publication | None

    def check(self, found: SourceTable, before: TableSchema, floor: int) -> TableCheck:
        require_same_keys(before, found)
        table, warnings = found.table, tuple(self._sequences_behind(found))
        if not before.key:
            return TableCheck(table, unknown="its records have no key, so all its rows would be published again")
        if not self.config.format_options.suits_sinks:
            return TableCheck(table, unknown="its records have another form than those of profile readable")
        schema = continued_schema(found, before, Topics(self.config.topics.prefix))
        columns = "" if schema.version == before.version else columns_differing(before, schema)
        versions = read_versions(self.config.kafka, self.config.topics.prefix, schema.table)
        digests = RowDigests(schema, self.context, versions)
        rows = read_sample(self.config.kafka, schema.topic, digests, floor)
        texts = RecordKeys(schema)
        there = self._rows(schema, {key: text for key in rows if (text := texts.texts(key)) is not None}, digests)
        return TableCheck(table, columns, len(rows), *compared(rows, there), warnings=warnings)

    def _rows(self, schema: TableSchema, keys: Mapping[bytes, Sequence[str]], digests: RowDigests) -> dict[bytes, int]:
        """Returns record key → digest of those rows that the table has."""
        lines: list[bytes] = []
        publication = self.publication
        if publication is not None and schema.table not in publication.columns:
            publication = None  # capture will add the table
        try:
            _, described = describe_for_chunks(self.connection, schema, publication, self.target.chosen(schema.table))
            texts = [tuple(text) for text in keys.values()]
            batches = [texts[begin : begin + _LOOKUP_KEYS] for begin in range(0, len(texts), _LOOKUP_KEYS)]
            while batches:
                batch = batches.pop()
                statement = chunk_statement(described, schema.columns, 2 * len(batch), keys=batch)
                copied = copy_lines(self.connection, statement, _LOOKUP_BYTES_MAX)
                if not copied.is_ended:
                    raise SourceError(f"rows of {schema.table} are too large to be compared", "--accept-differences")
                if len(copied.lines) < copied.row_count and len(batch) > 1:
                    batches += [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
                else:
                    lines += copied.lines
        finally:
            if not self.connection.closed:
                self.connection.execute("ROLLBACK")
        return dict(row for line in lines if (row := digests.of_line(line)) is not None)

    def _sequences_behind(self, found: SourceTable) -> Iterator[str]:
        """Yields warnings of sequences that would give keys which rows have already: logical replication and some dumps
        leave them at their start."""
        for column, sequence, last in self.connection.execute(_SEQUENCES, (found.oid,)).fetchall():
            if last is None or found.key[:1] != (column,):
                continue  # no right to read it; or no index to find the greatest value by
            query = sql.SQL("SELECT max({}) FROM {}").format(sql.Identifier(column), sql.Identifier(*found.table))
            row = self.connection.execute(query).fetchone()
            greatest = row[0] if row is not None else None
            if greatest is not None and greatest > last:
                yield (
                    f"sequence {sequence} is at {last}, but {found.table} has {column} {greatest}: inserts there would "
                    f"fail. SELECT setval('{sequence}', {greatest})"
                )


def compared(sampled: Mapping[bytes, int], there: Mapping[bytes, int]) -> tuple[int, int]:
    """Returns how many of the sampled rows are missing, and how many differ. A row that can't be looked up, because its
    key has another form than the table's, is missing: the heal would delete it. Both: record key → digest."""
    missing = sum(key not in there for key in sampled)
    return missing, sum(there.get(key, digest) != digest for key, digest in sampled.items())


def columns_differing(before: TableSchema, now: TableSchema) -> str:
    """Returns how the columns of the second differ from those of the first, in words."""
    was, is_now = ({column.name: column for column in schema.columns} for schema in (before, now))
    lacking = [name for name in was if name not in is_now]
    added = [name for name in is_now if name not in was]
    words = [f"without {', '.join(lacking)}"] if lacking else []
    words += [f"also {', '.join(added)}"] if added else []
    for name, column in is_now.items():
        if name in was and was[name].type_name != column.type_name:
            words.append(f"{name} is {column.type_name}, was {was[name].type_name}")
        elif name in was and was[name].nullable != column.nullable:
            words.append(f"{name} {'may' if column.nullable else 'must not'} be NULL")
        elif name in was and was[name].labels != column.labels:
            words.append(f"type {column.type_name} has other labels")
    return "; ".join(words) or "in another order, or of types with the same name"
