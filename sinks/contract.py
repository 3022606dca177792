"""The contract of every sink: its duties, and its callers'. `tests/conformance` checks each sink against this page.

A sink keeps a derived store equal to the source's rows. It is called with changes that may arrive late, twice, in any
order, in any grouping, and from two writers at once (a zombie job beside its successor). The result is the same each
time, because every write is guarded by the change's **version**: strictly greater wins, equal is a replay, smaller is
stale. The guard must be atomic *in the store* (external version, compare-and-set, guarded MERGE): a check in Python
before the write is not a guard. A delete leaves its version behind (a tombstone), so a stale upsert that comes later
can't restore the row.

A change may lack columns (`unchanged`): large values that an update did not change, and that capture could not read in
time. It is an update of the other columns of the row that the store holds, at its version. Capture promises the whole
row soon after, with a greater version. So a store's state in between has to be sensible, not perfect: the store keeps
its own values for these columns, though they may be older than the change if it lags behind compaction; and a key
without a live row stays as it is, because a row without some of its columns is not a row.

A table's schema may change while rows of older versions are still to come. The newest version is prepared first; the
job converts every row to it (`sinks.schema_history`). Columns that did not change keep their values in the store. If a
column was only added, older rows stay as they are, without it: that is NULL. After any other change capture publishes
every row again; until then a column of a typed store is NULL, and a document keeps its old value. A store's section may
say that this is not needed after two of them: `drops_columns`, because `prepare` removes a dropped column from the rows
that are there, and `fills_columns`, because it gives them the constants of new columns (`TableSchema.filled`).

Writes happen in many processes at once: one Sink object of the driver prepares tables, applies sweeps and makes changes
readable, and each worker process of the executors has one of its own, to which the tables are attached and which only
applies changes. Calls come from one thread at a time for each Sink object. Data errors are outcomes, for each change. A
store that can't be reached, or refuses service, raises SinkError after bounded retries; the whole batch is then applied
again.
"""

from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

import msgspec

from cdc.model.events import TableId, TableSchema
from sinks.errors import SinkError

Json = Any  # a decoded JSON value: None, bool, int, float, str, list, dict


class SourceOperation(msgspec.Struct, frozen=True, gc=False):
    """The operation in the source, and its time. Only tables that keep every change read it."""

    # c, u, d, r as in the record. A mapping's condition adds x: a row that it leaves out now, and may have held before;
    # n: a row that it leaves out from its beginning.
    operation: str
    at_us: int | None  # the commit, or the reading of a snapshot's row, in µs since 1970; None: the record lacks it


class Change(msgspec.Struct, frozen=True, gc=False):
    """The newest known state of one key, from a record. Values are the record's JSON values. `msgspec.structs.replace`
    makes an altered copy."""

    table: TableId
    key: dict[str, Json]  # column → value, in key order, from the record's key
    version: int  # cdc.model.events.pack_version
    # Every column of the newest schema that was prepared but the unchanged; None: the row is deleted.
    row: dict[str, Json] | None
    schema_version: int | None  # that the record was written with; None for a tombstone, which does not carry it
    unchanged: frozenset[str] = frozenset()  # columns that the row lacks, never of its key
    origin: SourceOperation | None = None  # None for a tombstone, which does not carry it


class Outcome(Enum):
    """The outcome of one change."""

    WRITTEN = "written"  # also a stale change, if the store does not say which of many have won (the warehouse)
    # The store holds this version or a newer one, or no live row whose columns could be kept: success.
    STALE = "stale"
    REJECTED = "rejected"  # the store can never hold this row (a value that its column can't hold)


class Result(NamedTuple):
    outcome: Outcome
    reason: str = ""  # for REJECTED: which column and why, without the value


class StoredRow(NamedTuple):
    """A live row as the store holds it, for comparison with the source."""

    key: dict[str, Json]
    row: dict[str, Json]  # column → value in the record's JSON form, or a Python value of the column's type
    version: int


class Sink(Protocol):
    """One derived store with all its tables."""

    name: str  # of the sink's section in the configuration

    def generation(self) -> int | None:
        """The generation that the store holds; None if it holds none (empty, or its data was deleted).

        It must also be None if the object of any prepared table has been deleted from the store since, so that the job
        knows that it must read the topics from the beginning.
        """

    def begin_generation(self, generation: int) -> None:
        """Marks the store as holding `generation`. Idempotent."""

    def discard(self, table: TableId) -> None:
        """Deletes everything that the store holds of the table, the versions of deleted rows included, because its rows
        will come again in another form with the versions that they had. Called between begin_generation and prepare.
        Idempotent."""

    def reset_versions(self, table: TableId) -> None:
        """Lets every later write win against the rows that the store holds of the table, because the topics that they
        came from no longer exist, and the versions of the new ones begin again. Where the store can, readers keep the
        rows, at version 0, and a sweep removes those that were not written since; elsewhere this is `discard`. Called
        between begin_generation and prepare. Idempotent."""

    def save_position(self, text: str, before: str | None) -> None:
        """Keeps the position of the sink's job in the store: a text of at most a few hundred kilobytes, in place of the
        one before. A store that later loses writes (a failover to a replica that lacks the newest, a restore of an
        older copy) must lose a position that was saved after them, too: it is how the job knows. Called after
        make_readable. begin_generation removes it.

        `before`: the text that the store must hold; None: any. Raises SinkError if it holds another one, or if the
        store may have lost writes since: where a lost connection may mean a failover, rows that were written after the
        position was saved last may be gone."""

    def saved_position(self) -> str | None:
        """Returns the position that was saved last, also if `generation` is None; None if there is none."""

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        """Creates the table's index, keys or table if they do not exist, after begin_generation; or brings it to this
        version of the schema. `earlier`: the known earlier versions. Idempotent; it may be killed at any point, and
        called by two writers at once. Raises RefusedError, naming table and column, for a table that this store can't
        hold (a column name that it reserves); SinkError for a table that was prepared in this generation and deleted
        since (it must not be created again empty), or that another job prepared with a later version."""

    def attach(self, schema: TableSchema) -> None:
        """Uses this schema for `apply` without touching the store: another Sink object has prepared the table, perhaps
        in another process."""

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        """Writes changes, at most one for each (table, key), guarded by version. Returns one result for each, in order.

        When it returns, every change with the outcome WRITTEN survives a kill -9 of the job.
        """

    def sweep(self, table: TableId, floor: int) -> int:
        """Deletes the rows of `table` whose version is below `floor`, with version `floor`. Returns their number.
        Idempotent.

        A deletion at `floor` must lose against every change at `floor` or above that was applied before, and against
        every change above it that comes later. The floor of a snapshot's sweep is the version of a row, usually of the
        first that the snapshot publishes; this row is published before the sweep.
        """

    def make_readable(self, tables: Collection[TableId]) -> None:
        """Makes everything visible to readers of the store that was applied to these tables, by whatever process (an
        index refresh). Cheap if nothing is new."""

    def rows(self, table: TableId) -> Iterator[StoredRow]:
        """Yields every live row that readers see, each once, in no particular order, in bounded memory."""

    def close(self) -> None:
        """Releases connections. Idempotent."""


def lost_writes(where: str) -> SinkError:
    """Returns the error of `Sink.save_position` for a store that does not hold the position that was saved before."""
    return SinkError(
        f"{where} may have lost its last writes: it does not hold the position that was saved last, or its connection "
        "was lost (a failover to a replica, a restored copy)",
        "nothing to do: the sink continues from the position that the store holds",
    )
