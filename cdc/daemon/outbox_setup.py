"""Wiring: makes the outbox of a session from the configuration and the source."""

from collections.abc import Mapping
from pathlib import Path

from cdc.config.settings import PipelineConfig
from cdc.formats.profiles import column_formats
from cdc.model.errors import ConfigError
from cdc.model.events import TableId, TableSchema
from cdc.model.topics import Topics
from cdc.outbox.event_stream import OutboxStream
from cdc.outbox.router import Contract
from cdc.ports.source_table import SourceTable
from cdc.postgres.catalog import schema_of
from cdc.postgres.connection import connect
from cdc.postgres.seal_key import read_seal_key


def open_outbox(config: PipelineConfig, *, promises_utf8: bool) -> OutboxStream | None:
    """Opens the outbox; None if no events are configured. `promises_utf8`: see EnvelopeContext. Raises ConfigError,
    SourceError with the next step, ConnectionLost."""
    outbox = config.outbox
    if not outbox.is_used:
        return None
    sealed = None
    if outbox.messages is not None:
        with connect(config.source, application="watershed outbox") as connection:
            sealed = outbox.messages, read_seal_key(connection, TableId.parse(outbox.messages.function))
    return OutboxStream(
        config.topics.prefix,
        outbox.tables,
        sealed,
        config.format_options,
        _contract(outbox.contracts),
        promises_utf8=promises_utf8,
    )


def require_columns(config: PipelineConfig, table: SourceTable) -> TableSchema:
    """Returns the table's schema. Raises ConfigError if its columns have no form in records, or masks do not fit."""
    schema = schema_of(table, None, Topics(config.topics.prefix))
    column_formats(schema, config.format_options)
    return schema


def require_format(config: PipelineConfig, outbox: OutboxStream | None, table: SourceTable) -> None:
    """Raises ConfigError or SourceError if no records can be made of the table's rows, or no events of its rows."""
    schema = require_columns(config, table)
    if outbox is not None and outbox.takes(schema.table):
        outbox.describe(schema.oid, schema)
    elif config.format.encoding != "json":
        from cdc.formats.encodings import forms_of  # imported only if needed: it needs the library for Avro

        forms_of(schema, config.format_options, config.topics.prefix)


def _contract(files: Mapping[str, str]) -> Contract | None:
    """Reads JSON Schemas. Relative paths are from the working directory."""
    if not files:
        return None
    try:
        from cdc.outbox.contracts import contract_of  # imported only if needed: it takes a while
    except ImportError as error:
        raise ConfigError("outbox.contracts needs jsonschema", "pip install 'watershed-cdc[contracts]'") from error
    schemas = {}
    for event_type, file in files.items():
        try:
            schemas[event_type] = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"outbox.contracts: can't read {file}", "correct the path, or the file") from error
    return contract_of(schemas)
