"""Wiring: the tables that patterns of the configuration take, from the source's catalog and the recorded selection."""

from typing import TypeVar

import structlog

from cdc.config.settings import PipelineConfig
from cdc.kafka.state_reader import read_captured
from cdc.model.errors import WatershedError
from cdc.model.table_state import SelectionRecord
from cdc.model.topics import Topics
from cdc.postgres.catalog import existing_tables
from cdc.postgres.connection import connect
from cdc.tables.matching import Matches, idle_patterns, match, require_tables

log = structlog.get_logger(__name__)
C = TypeVar("C", bound=PipelineConfig)
NAMED_MAX = 20


def read_matches(config: PipelineConfig, record: SelectionRecord | None) -> Matches:
    """Returns what the patterns match now. Raises ConnectionLost, UnreachableError, BrokerError."""
    if not config.source.choice.patterns:
        return Matches(())
    with connect(config.source, application="watershed tables") as connection:
        existing = existing_tables(connection)
    return match(config.source, existing, record, Topics(config.topics.prefix), read_captured(config).schemas)


def with_matches(config: C, matches: Matches) -> C:
    """Returns the configuration with the tables that its patterns take."""
    return config.model_copy(update={"source": matches.apply_to(config.source)})


def matched_at_start(config: C, record: SelectionRecord | None, *, is_running_on: bool) -> C:
    """For the beginning of a process: also says what the patterns leave out. Raises ConfigError for patterns that take
    no table, or too many; `is_running_on`: capture, which runs already, leaves out what is too much."""
    matches = read_matches(config, record)
    if not is_running_on:
        require_tables(config.source, matches)
    log_left_out(config, matches)
    for pattern in idle_patterns(config.source, matches):
        log.warning("a pattern matches no table yet", pattern=pattern)
    return with_matches(config, matches)


def log_left_out(config: PipelineConfig, matches: Matches) -> None:
    if matches.ignored:
        log.info("tables that began to match are ignored, by source.new_tables", tables=_names(matches.ignored))
    if matches.excess:
        error = WatershedError(
            f"patterns match more than source.tables_max ({config.source.tables_max}) tables: {len(matches.excess)} "
            "of them are not captured",
            "narrow the patterns, or raise source.tables_max; then cdc reload",
        )
        log.error(error.message, tables=_names(matches.excess), next=error.hint)


def _names(tables: tuple[object, ...]) -> str:
    more = f" and {len(tables) - NAMED_MAX} more" if len(tables) > NAMED_MAX else ""
    return " ".join(map(str, tables[:NAMED_MAX])) + more
