"""Which tables the patterns of `source.tables` take: those that match when the configuration takes effect, and those
that begin to match later if `source.new_tables` allows it. Pure.

The tables that were taken are recorded, with the patterns that took them. So a table is new if the recorded patterns
would take it, but did not; a table that only changed patterns take was asked for by the operator.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cdc.config.settings import SourceConfig
from cdc.config.table_choice import TableChoice
from cdc.model.errors import ConfigError, UnsupportedChangeError
from cdc.model.events import TableId
from cdc.model.table_state import SelectionRecord
from cdc.model.topics import NAME_CHARS_MAX, Topics


@dataclass(frozen=True, slots=True)
class Matches:
    """The existing tables that patterns match."""

    taken: tuple[TableId, ...]
    # Of these, tables that are stopped until an operator starts them, with the error that says why.
    stopped: Mapping[TableId, UnsupportedChangeError] = field(default_factory=dict)
    ignored: tuple[TableId, ...] = ()  # new ones, by source.new_tables
    excess: tuple[TableId, ...] = ()  # those beyond source.tables_max

    @property
    def capturable(self) -> "Matches":
        """Without those that are stopped."""
        return Matches(tuple(table for table in self.taken if table not in self.stopped))

    def apply_to(self, source: SourceConfig) -> SourceConfig:
        """Returns the source with the tables that patterns take."""
        return source.with_matched(self.taken)


def match(
    source: SourceConfig,
    existing: Iterable[TableId],
    record: SelectionRecord | None,
    topics: Topics,
    captured: Collection[TableId] = (),
) -> Matches:
    """Decides about the existing tables. `record`: of the configuration that was in force last. `captured`: tables that
    ever were; one that was dropped and is created again is not new, whenever that was noticed."""
    choice = source.choice
    then = None if record is None else TableChoice(record.include, record.exclude)
    known = frozenset(() if record is None else record.tables)
    taken: list[TableId] = []
    ignored: list[TableId] = []
    excess: list[TableId] = []
    stopped: dict[TableId, UnsupportedChangeError] = {}
    # Those that are captured already go first: new ones take no place of theirs.
    found = sorted((table for table in existing if choice.matches(table)), key=lambda t: (str(t) not in known, t))
    for table in found:
        is_new = then is not None and str(table) not in known and table not in captured and then.takes(table)
        if is_new and source.new_tables == "ignore":
            ignored.append(table)
        elif len(taken) == source.tables_max:
            excess.append(table)
        else:
            taken.append(table)
            if is_new and source.new_tables == "stop":
                stopped[table] = UnsupportedChangeError(
                    f"table {table} began to match source.tables, and source.new_tables is stop",
                    f"cdc table start {table}: it is captured, with all its rows; or add it to source.exclude_tables",
                    table=table,
                )
    return Matches(tuple(taken), stopped | _sharing(source, taken, topics), tuple(ignored), tuple(excess))


def _sharing(source: SourceConfig, taken: Collection[TableId], topics: Topics) -> dict[TableId, UnsupportedChangeError]:
    """Returns the errors of tables whose topic would be another's: Kafka takes `.` and `_` for the same."""
    owners = {name.replace(".", "_"): f"topic {name}" for name in topics.own}
    owners |= {topics.table(table).replace(".", "_"): f"table {table}" for table in source.choice.names}
    sharing = {}
    for table in taken:
        owner = owners.setdefault(topics.table(table).replace(".", "_"), f"table {table}")
        if owner != f"table {table}":
            sharing[table] = UnsupportedChangeError(
                f"table {table} can't be captured: to Kafka its topic {topics.table(table)} is that of {owner}",
                "add one of them to source.exclude_tables, and capture it under another topics.prefix and slot",
                table=table,
            )
        elif len(topics.table(table)) > NAME_CHARS_MAX:
            sharing[table] = UnsupportedChangeError(
                f"table {table} can't be captured: its topic's name has more than Kafka's {NAME_CHARS_MAX} characters",
                "rename the table, or add it to source.exclude_tables",
                table=table,
            )
    return sharing


def require_tables(source: SourceConfig, matched: Matches) -> None:
    """For a configuration that takes effect: raises ConfigError for patterns that take no table, or too many."""
    if matched.excess:
        count = len(matched.taken) + len(matched.excess)
        raise ConfigError(
            f"source.tables: the patterns match {count} tables, more than source.tables_max ({source.tables_max})",
            "narrow the patterns, add source.exclude_tables, or raise source.tables_max: each table has a topic",
        )
    if not source.choice.names and not (matched.taken or matched.ignored):
        raise ConfigError(
            f"source.tables: no table matches {', '.join(source.choice.patterns)}",
            "correct the patterns, which match the whole of schema.table, or create a table; views, foreign tables, "
            "partitions, tables of extensions and PostgreSQL's own are never matched",
        )


def idle_patterns(source: SourceConfig, matched: Matches) -> list[str]:
    """Returns the patterns that match no table now. They may match one later."""
    found, exclude = (*matched.taken, *matched.ignored, *matched.excess), source.exclude_tables
    return [p for p in source.choice.patterns if not any(TableChoice((p,), exclude).matches(t) for t in found)]


def selection_of(source: SourceConfig) -> SelectionRecord:
    """Returns the record of the configuration in force. `source`: with the tables that patterns take."""
    names = tuple(map(str, source.table_ids))
    return SelectionRecord(include=source.tables, exclude=source.exclude_tables, tables=names)
