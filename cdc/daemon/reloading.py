"""A configuration file that is read again while capture runs: `cdc reload`, or SIGHUP.

The file is checked as a whole, and what is new in it also at the source, before anything changes: with a mistake, the
configuration in force stays. Otherwise the session ends, and the next one has the new configuration, as after a restart
of the process.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from cdc.config.masking import Mask
from cdc.config.settings import PipelineConfig, SourceConfig
from cdc.daemon.matched_tables import with_matches
from cdc.daemon.outbox_setup import require_format
from cdc.kafka.state_reader import read_captured, read_selection
from cdc.model.errors import ConfigError, SourceError, WatershedError
from cdc.model.events import TableId
from cdc.model.topics import Topics
from cdc.postgres.catalog import existing_tables, read_publication
from cdc.postgres.connection import SourceConnection, connect
from cdc.postgres.source import checked_table
from cdc.tables.matching import match, require_tables
from cdc.tables.selection import require_same_keys

log = structlog.get_logger(__name__)

# What a new session takes from the configuration alone. All else belongs to the process, its topics or its slot.
SOURCE_OPTIONS: Final = frozenset(
    {
        *("tables", "exclude_tables", "new_tables", "tables_max"),
        *("key_columns", "include_columns", "exclude_columns", "matched"),
    }
)
SECTIONS: Final = frozenset({"source", "masking"})
STAYS: Final = "the configuration in force stays"
NAMED_MAX: Final = 10


class Reloading:
    """The configuration in force, and the one that the next session takes up. Called from any thread."""

    def __init__(self, given: PipelineConfig, reread: Callable[[], PipelineConfig] | None = None) -> None:
        """`reread`: reads the file again; raises ConfigError. None: there is no file."""
        self.in_force = given
        self._reread = reread
        self._pending: PipelineConfig | None = None
        self._lock = threading.Lock()

    @property
    def has_file(self) -> bool:
        return self._reread is not None

    @property
    def is_due(self) -> bool:
        """Says whether the session is to end, so that the next one takes up a new configuration."""
        return self._pending is not None

    def take_up(self) -> bool:
        """Puts the new configuration in force. Says whether there is one."""
        with self._lock:
            pending, self._pending = self._pending, None
            if pending is not None:
                self.in_force = pending
            return pending is not None

    def request(self, source: SourceConfig) -> str:
        """Reads the file again and checks it. `source`: the server to ask. Returns what changes, in words. Raises
        WatershedError for a mistake, after which nothing has changed."""
        if self._reread is None:
            raise WatershedError("capture was started without a configuration file", "start it again to change it")
        with self._lock:
            try:
                now = self._reread()
                said = _checked(self.in_force, now, source)
            except WatershedError as error:
                raise WatershedError(f"{error.message}: {STAYS}", error.hint) from error
            self._pending = now if said else None
            if not said:
                self.in_force = now  # it differs in other processes' sections: capture reads them where it needs them
            return said or "nothing has changed for capture"


def _own(config: PipelineConfig) -> tuple[object, ...]:
    return (*(getattr(config, name) for name in PipelineConfig.model_fields), config.has_sinks_at_cuts)


def _other_changes(before: PipelineConfig, now: PipelineConfig) -> Iterator[str]:
    """Yields the keys that differ and that no session takes up."""
    for section in PipelineConfig.model_fields:
        then, new = getattr(before, section), getattr(now, section)
        if then != new and section not in SECTIONS:
            yield section
    for option in SourceConfig.model_fields:
        if option not in SOURCE_OPTIONS and getattr(before.source, option) != getattr(now.source, option):
            yield f"source.{option}"


def _checked(before: PipelineConfig, now: PipelineConfig, at: SourceConfig) -> str:
    """Returns what the new configuration changes; "" for nothing. Raises WatershedError if it changes what can't change
    now, or if a table that it names, or an option of a table that it changes, is a mistake."""
    if others := sorted(_other_changes(before, now)):
        raise ConfigError(
            f"{', '.join(others)} can't change while capture runs",
            "take the change back, then reload; or restart cdc run, which takes up the whole file",
        )
    if _own(before) == _own(now):
        return ""
    topics, record = Topics(now.topics.prefix), read_selection(now)
    known = read_captured(now).schemas
    with connect(at, application="watershed reload") as connection:
        matches = match(now.source, existing_tables(connection), record, topics, known)
        require_tables(now.source, matches)
        new = with_matches(now, matches)
        had = [TableId.parse(name) for name in record.tables] if record is not None else [*before.source.table_ids]
        joining = [table for table in new.source.table_ids if table not in had]
        leaving = [table for table in had if table not in new.source.table_ids]
        columns = _columns(connection, before, new, joining)
        if now.source.columns != before.source.columns:
            now.source.columns.require_meaning(columns)
        now.source.columns.require_unpublished(known[table] for table in new.source.table_ids if table in known)
    said = [_named("joins", "join", joining), _named("leaves", "leave", leaving)]
    if now.has_sinks_at_cuts != before.has_sinks_at_cuts:
        said.append("a sink commits at cuts" if now.has_sinks_at_cuts else "no sink commits at cuts")
    masked = {mask.table for mask in {*before.format_options.masks} ^ {*new.format_options.masks}}
    if masked := masked.difference(joining, leaving):
        named = ", ".join(map(str, sorted(masked)))
        said.append(f"masks of {named} have changed: rows keep their values until cdc snapshot start reads them again")
    return "; ".join(filter(None, said)) or "options of tables have changed"


def _columns(
    connection: SourceConnection, before: PipelineConfig, new: PipelineConfig, joining: list[TableId]
) -> list[tuple[TableId, str]]:
    """Checks the tables that the operator names or whose options changed. Returns the columns of all that were looked
    at, which are all tables if the choice of columns changed."""
    source, columns = new.source, []
    known = read_captured(new).schemas
    publication = read_publication(connection, source.publication, source.table_ids)

    def masks(config: PipelineConfig) -> list[Mask]:
        return [mask for mask in config.format_options.masks if mask.table == table]

    for table in source.table_ids:
        has_other_masks = masks(new) != masks(before)
        is_changed = has_other_masks or source.chosen(table) != before.source.chosen(table)
        if not is_changed and table not in joining:
            continue
        try:
            found = checked_table(connection, table, publication, source.chosen(table))
            require_same_keys(known.get(table), found)
            require_format(new, None, found)
        except (SourceError, ConfigError):
            has_other_key = source.chosen(table).key != before.source.chosen(table).key
            if source.is_named(table) and (table in joining or has_other_key or has_other_masks):
                raise
            continue  # it is stopped, alone, with this reason
        columns += [(table, name) for name in (*(column.name for column in found.columns), *found.left_out)]
    return columns


def _named(one: str, several: str, tables: list[TableId]) -> str:
    if not tables:
        return ""
    names = ", ".join(map(str, tables[:NAMED_MAX]))
    more = f" and {len(tables) - NAMED_MAX} more" if len(tables) > NAMED_MAX else ""
    return f"{names}{more} {one if len(tables) == 1 else several}"
