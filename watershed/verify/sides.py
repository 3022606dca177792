"""One table of one store, ready to be compared with the source."""

from cdc.config.config_file import Config
from cdc.config.stores import StoreConfig
from cdc.formats.masks import masks_of
from cdc.model.errors import ConfigError
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord
from sinks.contents import StoreContents
from sinks.errors import RefusedError
from sinks.schema_history import SchemaHistory
from watershed.verify.expected import ExpectedRows
from watershed.verify.settling import Side
from watershed.verify.source_rows import VerifiedTable


def side_of(config: Config, sink: str, contents: StoreContents, history: SchemaHistory, source: VerifiedTable) -> Side:
    """Attaches the table to the contents. Raises RefusedError for a mapping that does not fit the table."""
    schema = history.newest
    masks = masks_of(schema, config.masking.masks(config.source))
    uncompared = contents.uncompared(schema.table)
    expected = ExpectedRows(sink, config.sinks[sink], history, source.types, masks, uncompared)
    contents.attach(expected.schema)
    return Side(sink, contents, expected, source, contents.is_partial(schema.table))


def not_filled(sink: str, section: StoreConfig, record: SinkRecord | None, table: TableId) -> str:
    """Says why the store does not hold the table as the configuration describes it; "" if it does. Raises RefusedError
    for a mapping whose function is not installed here."""
    if record is None:
        return ""
    if str(table) in record.excluded:
        return f"sink {sink} runs with a configuration that does not include {table}"
    try:
        fingerprints = section.fingerprints([table])
    except ConfigError as error:
        raise RefusedError(f"sink {sink}: mapping of {table}: {error.message}", error.hint) from error
    if record.mappings.get(str(table)) != fingerprints.get(str(table)):
        return f"sink {sink} has filled {table} with a mapping that differs from the present configuration"
    return ""
