"""The tables with which a new epoch begins, after a gap or an interrupted first start."""

from collections.abc import Mapping
from types import MappingProxyType

import structlog

from cdc.config.settings import PipelineConfig, SourceConfig
from cdc.daemon.outbox_setup import require_format
from cdc.daemon.topic_identity import require_no_others_records
from cdc.kafka.state_reader import read_captured, read_tables
from cdc.model.control import TopicState
from cdc.model.errors import BrokerError, ConfigError, SourceError, WatershedError
from cdc.model.events import TableId
from cdc.model.table_state import TableRecord
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.postgres.catalog import read_publication
from cdc.postgres.connection import SourceConnection
from cdc.postgres.source import checked_table
from cdc.tables.selection import require_same_keys

log = structlog.get_logger(__name__)


def continued(
    config: PipelineConfig,
    connection: SourceConnection,
    now_us: int,
    *,
    is_continued: bool,
    topics: Mapping[str, TopicState] = MappingProxyType({}),
) -> tuple[SourceConfig, list[TopicRecord]]:
    """Returns the source with the tables that can be captured, and the records of those that can't be: they are
    stopped, each alone, and a session adds them when that is possible. Tables that an operator stopped stay stopped.
    `now_us`: µs since 1970. `is_continued`: if not, this is the first start, where a table that is named must be
    capturable. `topics`: as they are, when a gap is healed. Raises SourceError if no table can be captured,
    ConnectionLost, BrokerError."""
    source, known, records = config.source, read_captured(config).schemas, read_tables(config)
    names = Topics(config.topics.prefix)
    publication = read_publication(connection, source.publication, source.table_ids)
    errors: dict[TableId, WatershedError] = {}
    tables: list[TableId] = []
    for table in source.table_ids:
        try:
            found = checked_table(connection, table, publication, source.chosen(table))
            if is_continued:
                require_same_keys(known.get(table), found)
            if not source.is_outbox(table):
                require_format(config, None, found)
                # Without any known table the state is lost, and the records may be capture's own.
                if known and table not in known:
                    require_no_others_records(table, name := names.table(table), topics.get(name))
        except (SourceError, ConfigError, BrokerError) as error:
            if not is_continued and source.is_named(table):
                raise
            errors[table] = error
        else:
            tables.append(table)
    if errors and not tables:
        raise next(iter(errors.values()))
    held = {table for table, record in records.items() if record.status == "stopped" and record.is_held}
    stopped = []
    for table, why in errors.items():
        if table not in held:
            log.error("table stopped, the others continue", table=str(table), error=why.message, next=why.hint)
            stopped.append(TableRecord.stopped(table, why, now_us, is_held=False))
    # If an operator has stopped all of them, they are captured again: no signal could start one in state GAP.
    chosen = [table for table in tables if table not in held] or tables
    narrowed = source.model_copy(update={"tables": (), "matched": tuple(map(str, chosen))})
    return narrowed, [record.to(names.state) for record in stopped]
