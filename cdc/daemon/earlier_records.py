"""What readers make of records that were written before a table was altered. Implements
cdc.tables.schema_tracking.EarlierRecords.

A dropped column's values are still in the records of rows that have not changed since, and a column that was added with
a constant default is missing in them. The schema says both, so that our readers leave out the one and fill in the other
(sinks/schema_history.py). What their stores hold of such rows already is another question: it depends on the store
whether preparing the table changes that, too. So rows are published again if a store needs it, if the topic has other
readers, or if the configuration demands it.
"""

from collections.abc import Callable, Collection, Mapping

from cdc.config.settings import PipelineConfig, SourceConfig
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.kafka.state_reader import read_sinks
from cdc.model.errors import MalformedValueError
from cdc.model.events import TableSchema
from cdc.pgoutput.relations import relation_of
from cdc.postgres.catalog import read_constants
from cdc.postgres.connection import connect


class EarlierRecords:
    """The records of one session's tables."""

    def __init__(self, source: SourceConfig, config: Callable[[], PipelineConfig], context: EnvelopeContext) -> None:
        """`config`: returns the configuration in force, of which the sinks may change while the session lasts."""
        self._source = source
        self._config = config
        self._context = context

    def constants(self, oid: int, names: Collection[str]) -> Mapping[str, str]:
        with connect(self._source, application="watershed describe") as connection:
            return read_constants(connection, oid, names)

    def encoded(self, schema: TableSchema, constants: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        return encoded_constants(schema, constants, self._context)

    def why_published_again(self, schema: TableSchema, dropped: Collection[str], added: Collection[str]) -> str | None:
        config = self._config()
        if why := config.why_published_again(schema.table, dropped, added):
            return why
        # A sink of another file, or one that was removed and may come back, goes on where its store is.
        filled = {record.sink for record in read_sinks(config) if schema.topic in record.end_offsets}
        if strange := sorted(filled - config.sink_names):
            return f"sink {strange[0]} was filled from its topic, and the configuration of capture does not have it"
        return None


def encoded_constants(
    schema: TableSchema, constants: Mapping[str, str], context: EnvelopeContext
) -> tuple[tuple[str, str], ...]:
    """Returns the JSON that records have for these values, which are as PostgreSQL prints them. Columns that are not
    published, and values that no record can have, are missing."""
    if not constants:
        return ()
    encoder = TableEncoder(schema, relation_of(schema), context)
    found = []
    for name, text in constants.items():
        try:
            found.append((name, encoder.column(name, text.encode()).encode("latin-1").decode()))
        except (MalformedValueError, ValueError, KeyError):
            continue
    return tuple(found)
