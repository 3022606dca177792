"""Decides where a generation of a sink continues. Pure.

The store itself says how far it is: the job notes its position in the store, after the rows and before it publishes the
position. So a store that lost its last writes, or was restored from an older copy, is continued from where it is, and
not from where the progress topic says that it was.

A position means something only for the topics that it was written for. When capture begins again with new topics (the
former ones were deleted, or their cluster was lost), versions begin again too: the store would take each new row for an
older one. Such a store is foreign: it is built again beside the one that readers see, or, where there can be only one,
its rows lose against every later write and are removed if none comes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pydantic import ValidationError

from cdc.model.control import ProgressRecord, table_key
from cdc.model.events import TableId
from cdc.model.rejected_rows import dead_letter_table
from cdc.model.sink_records import SinkRecord
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import BUILT_AGAIN, covers

RESHAPED: Final = "its mapping has changed"
INCLUDED: Final = "tables are no longer excluded"
TOO_OLD: Final = "it was not updated for half the time for which topics keep deletes"
LOST_WRITES: Final = "the store has lost its last writes, and is written again"


def too_old_s(deletes_kept_s: float) -> float:
    """A store that was not updated for so long may have missed deletes that compaction has removed from the topics,
    which keep them for `deletes_kept_s`."""
    return deletes_kept_s / 2


def parse_position(text: str | None) -> SinkRecord | None:
    """Returns the position that a store holds. None if it holds none that this version understands."""
    try:
        return None if text is None else SinkRecord.model_validate_json(text)
    except ValidationError:
        return None


def continued(marker: int | None, saved: SinkRecord | None, history: str) -> SinkRecord | None:
    """Returns the position from which the generation continues. None if it must be filled from the beginning: the store
    holds none, or not all of it, or it is foreign."""
    if saved is None or saved.generation != marker or saved.history != history:
        return None
    return saved


def is_foreign(marker: int | None, saved: SinkRecord | None, history: str, now_us: int, old_s: float) -> bool:
    """Says of a store that must be filled from the beginning whether rows that it may hold can't be compared with those
    of the topics by version, or may have been deleted without a trace in the topics. `old_s`: see `too_old_s`."""
    if saved is None:
        return marker is not None  # a store without either holds nothing
    return saved.history != history or now_us - saved.applied_ts_us > old_s * 1_000_000


def is_too_old(last: SinkRecord, published: ProgressRecord | None, now_us: int, old_s: float) -> bool:
    """Returns whether deletes that the store has not applied may soon be removed from the topics. A topic that the note
    does not have counts: the job may have been killed behind the first rows, before it noted anything."""
    is_behind = published is not None and not covers(last.end_offsets, published.end_offsets)
    return is_behind and now_us - last.applied_ts_us > old_s * 1_000_000


def with_rows_owed(last: SinkRecord, tables: Iterable[TableId]) -> SinkRecord:
    """Returns the position of a store that is too old: rows that were deleted since may be in it for ever."""
    return last.model_copy(update={"owed": last.owed | {str(table): f"{BUILT_AGAIN}{TOO_OLD}" for table in tables}})


def with_writes_owed(last: SinkRecord, tables: Iterable[TableId]) -> SinkRecord:
    """Returns the position of a store that has lost writes. Some of them may have closed dead letters: until they are
    repeated, nobody would know that a row is missing which the store rejected before."""
    return last.model_copy(update={"owed": dict.fromkeys(map(str, tables), LOST_WRITES) | last.owed})


def with_closings_owed(last: SinkRecord, open_dead_letters: Iterable[str]) -> SinkRecord:
    """Returns the position of a transactional sink, whose dead letters are closed just before the transaction is
    committed that has the rows: where fewer are open than it says, the row may still be missing, until its record is
    read again. `open_dead_letters`: dead_letter_key of each."""
    still = Counter(str(dead_letter_table(dead_letter)) for dead_letter in open_dead_letters)
    closed = [TableId.parse(table) for table, count in last.rejected.items() if still[table] < count]
    return with_writes_owed(last, closed)


def never_held(last: SinkRecord, schema_histories: Iterable[SchemaHistory]) -> list[TableId]:
    """Returns the tables that the generation has never read. A store that is filled in place may have rows of them all
    the same: of former topics, from before a history in which these tables were not captured."""
    schemas = [schema_history.newest for schema_history in schema_histories]
    return [
        schema.table
        for schema in schemas
        if schema.topic not in last.end_offsets | last.shown and table_key(schema.table) not in last.sweeps
    ]


def must_be_built_again(last: SinkRecord) -> bool:
    """Says whether only another generation can show all rows."""
    return any(reason.startswith(BUILT_AGAIN) for reason in last.owed.values())


def has_lost_writes(saved: SinkRecord, published: SinkRecord) -> bool:
    """Says whether the store has lost writes since this position was published: the job that published it noted it in
    the store before."""
    return (published.job, published.applied_ts_us) > (saved.job, saved.applied_ts_us)


def why_filled_again(marker: int | None, held: int | None, saved: SinkRecord | None, history: str) -> str:
    """Returns the reason why a store can't be continued, for an operator. `held`: its generation, whatever shape its
    tables have."""
    if saved is not None and saved.history != history:
        return "it was filled from topics that no longer exist"
    if marker is None and held is not None:
        return "tables are gone, or their shapes have changed"
    return "it does not hold the position that belongs to its rows"


def of_tables(record: SinkRecord, tables: Mapping[str, str]) -> SinkRecord:
    """Returns the part of a position that concerns these tables. `tables`: their topics by schema.table."""
    parts = {
        field: {name: value for name, value in getattr(record, field).items() if name in names}
        for field, names in _names_in_position(tables).items()
    }
    return record.model_copy(update=parts)


def with_adopted(built: SinkRecord, former: SinkRecord, tables: Mapping[str, str], random_text: str) -> SinkRecord:
    """Returns the position of a generation that adopts the other tables of the former one. `built`: of the tables that
    were built for it; `tables`: their topics by schema.table; `random_text`: of the JobId.

    It shows what both show. It is as old as the older one: what the former one may have missed, it has missed too.
    """
    own, shown = of_tables(built, tables), min(built, former, key=lambda one: (one.epoch, one.applied_lsn))
    joined = {
        field: {name: value for name, value in getattr(former, field).items() if name not in names}
        | getattr(own, field)
        for field, names in _names_in_position(tables).items()
    }
    numbers = {
        "generation": built.generation,
        "job": (max(built.job[0], former.job[0]) + 1, random_text),
        "applied_lsn": shown.applied_lsn,
        "epoch": shown.epoch,
        "commit_ts_us": shown.commit_ts_us,
        "shown": shown.shown,
        "applied_ts_us": min(built.applied_ts_us, former.applied_ts_us),
    }
    return former.model_copy(update=joined | numbers)


def _names_in_position(tables: Mapping[str, str]) -> dict[str, set[str]]:
    """Returns the names of tables in each field of SinkRecord that has one entry for each table."""
    topics, names = set(tables.values()), set(tables)
    keys = {table_key(TableId.parse(table)) for table in tables}
    return {
        "end_offsets": topics,
        "incarnations": topics,
        "refused": topics,
        "sweeps": keys,
        "mappings": names,
        "owed": names,
    }


def first_position(sink: str, generation: int, history: str, reset: Iterable[TableId], now_us: int) -> SinkRecord:
    """Returns the position of a generation of which nothing was read yet."""
    return SinkRecord(
        sink=sink,
        generation=generation,
        end_offsets={},
        applied_lsn=0,
        epoch=0,
        commit_ts_us=0,
        applied_ts_us=now_us,
        sweeps={table_key(table): 0 for table in reset},
        written=0,
        stale=0,
        history=history,
    )


def still_disowned(saved: SinkRecord | None, tables: Iterable[TableId]) -> list[TableId]:
    """Returns those of the tables whose rows of former topics the noted generation has not removed yet."""
    return [table for table in tables if saved is not None and saved.sweeps.get(table_key(table)) == 0]


def included_again(last: SinkRecord, holds: Callable[[TableId], bool]) -> list[TableId]:
    """Returns the tables that the store did not hold, and holds from now on. What it may have of them is from before
    they were excluded."""
    return [table for table in map(TableId.parse, last.excluded) if holds(table)]
