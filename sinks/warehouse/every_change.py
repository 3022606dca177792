"""The SQL of tables that keep every change: histories and change logs. Pure text.

**History** (type 2 by commit time). A change begins an interval `[valid_from, valid_to)`, which ends with the key's
next change. A delete is a separate row, with only key and times, whose interval is empty. A row that a snapshot read
begins no interval if it equals the row before it. A row that a condition leaves out ends the interval of the key's
former row, if there is one.

A batch is placed between the table's rows of its keys, in the order of their versions. Changes in any order, and any
number of times, result in the same rows: a version that the table already has is not written again, and each row ends
where the next version begins. Only those rows of the table are read that may get another neighbour: rows without a
later version, and rows at, or ended by, a version of the batch or a later one.

**Change log.** Each change is a row, and each sweep. Versions of changes are unique within a table, so a version that
the table already has is a replay. The floor of a snapshot's sweep is the version of the first row that the snapshot
publishes, so a sweep and a change may have the same version: only a sweep is the replay of a sweep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sinks.warehouse.naming import NEXT_VERSION, SEEN_VERSION, UNCHANGED, VERSION, quoted
from sinks.warehouse.statements import AT, OPERATION, SOURCE, full, literal, same_key

STAGED_COLUMNS: Final[Mapping[str, str]] = {
    VERSION: "bigint",
    OPERATION: "string",
    AT: "timestamp",
    UNCHANGED: "array<string>",
}
SWEPT: Final = "t"  # a change log's operation for a sweep: all rows of lower versions were deleted
IS_SWEEP: Final = f"t.operation = '{SWEPT}'"  # of a row `t` of a change log
_IS_ROW: Final = "IN ('c', 'u', 'r')"
_END: Final = ", ".join(f"t.{name} = n.{name}" for name in ("valid_to", "is_current", NEXT_VERSION, SEEN_VERSION))
_OWN: Final = ("operation", "valid_from", "valid_to", "is_current", VERSION, NEXT_VERSION, SEEN_VERSION)


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """A table of mode `history`."""

    table: tuple[str, ...]
    types: Mapping[str, str]  # column of the source → Spark's type
    key: Sequence[str]

    def merge(self, lowest: int, condition: str, *, compares: bool, lacks: bool) -> str:
        """Returns the statement that merges a batch. `lowest`: the lowest of the batch's versions. `condition`: see
        statements.merge. `compares`: some of the batch's rows were read by a snapshot, and may equal those of the
        table. `lacks`: some lack columns.
        """
        near = f"(t.is_current OR t.{VERSION} >= {lowest}L OR t.{NEXT_VERSION} >= {lowest}L)"
        every = [*map(quoted, self.types), *_OWN]
        return (
            f"MERGE INTO {full(self.table)} t USING ({self._placed(near, condition, compares, lacks)}) n "
            f"ON {same_key(self.key, f't.{VERSION} = n.{VERSION}', near, condition, right='n')} "
            f"WHEN MATCHED AND n.ws_stored THEN UPDATE SET "
            f"{_END} "
            f"WHEN NOT MATCHED THEN "
            f"INSERT ({', '.join(every)}) VALUES ({', '.join(f'n.{name}' for name in every)})"
        )

    def count_below(self, floor: int) -> str:
        """Returns the query that counts the rows which a sweep ends."""
        return f"SELECT count(*) AS rows FROM {full(self.table)} WHERE is_current AND {SEEN_VERSION} < {floor}L"

    def sweep(self, floor: int) -> str:
        """Returns the statement that ends the rows of lower versions now."""
        keys = ", ".join(map(quoted, self.key))
        below = f"FROM {full(self.table)} WHERE is_current AND {SEEN_VERSION} < {floor}L"
        begun = f"SELECT {keys}, {VERSION}, false AS ws_ends, valid_from {below}"
        ends = f"SELECT {keys}, {floor}L AS {VERSION}, true AS ws_ends, valid_from {below}"
        at = "greatest(n.valid_from, current_timestamp())"
        inserted = [*map(quoted, self.key), "operation", "valid_from", "valid_to", "is_current", VERSION, SEEN_VERSION]
        ours = ["'d'", at, at, "false", f"n.{VERSION}", f"n.{VERSION}"]
        values = [*(f"n.{quoted(name)}" for name in self.key), *ours]
        return (
            f"MERGE INTO {full(self.table)} t USING ({begun} UNION ALL {ends}) n "
            f"ON {same_key(self.key, f't.{VERSION} = n.{VERSION}', right='n')} "
            f"WHEN MATCHED AND NOT n.ws_ends THEN "
            f"UPDATE SET t.valid_to = {at}, t.is_current = false, t.{NEXT_VERSION} = {floor}L "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(inserted)}) VALUES ({', '.join(values)})"
        )

    def _placed(self, near: str, condition: str, compares: bool, lacks: bool) -> str:
        """Returns the query of the batch's new rows, and of the table's rows that get another end."""
        columns = ", ".join(map(quoted, self.types))
        partition = f"PARTITION BY {', '.join(map(quoted, self.key))} ORDER BY {VERSION}"
        # Of several rows with one version only the first is kept, which is the table's if it has one.
        once = (
            f"SELECT * FROM (SELECT *, lag({VERSION}) OVER ({partition}, NOT ws_stored) AS ws_before "
            f"FROM ({self._together(near, condition, reads_rows=compares or lacks)})) "
            f"WHERE NOT ws_before <=> {VERSION}"
        )
        if lacks:
            others = "".join(f", {self._filled(name, partition)}" for name in self.types if name not in self.key)
            ours = ", ".join(
                [*map(quoted, self.key), VERSION, OPERATION, AT, UNCHANGED, "ws_stored", "ws_was_next", "ws_was_seen"]
            )
            once = f"SELECT {ours}{others} FROM ({once})"
        row = f"struct({columns})"
        same = f"{row} <=> lag({row}) OVER ({partition})" if compares else "false"
        kept = (
            f"SELECT * FROM (SELECT *, coalesce(lag({OPERATION}) OVER ({partition}) {_IS_ROW}, false) AS ws_follows, "
            f"{same} AS ws_same FROM ({once}))"
        )
        is_kept = (
            f"(ws_stored OR CASE WHEN {OPERATION} IN ('x', 'n') THEN ws_follows "
            f"WHEN {OPERATION} = 'r' THEN NOT (ws_follows AND ws_same) "
            f"WHEN size({UNCHANGED}) > 0 THEN ws_follows ELSE true END)"
        )
        if not compares:
            return self._with_ends(f"{kept} WHERE {is_kept}", partition, columns, "ws_was_seen")
        # A snapshot's row that equals the table's: its version is recorded, otherwise a sweep would end the row.
        lives = f"SELECT *, sum(if({is_kept}, 1, 0)) OVER ({partition}) AS ws_life FROM ({kept})"
        keys = ", ".join(map(quoted, self.key))
        seen = (
            f"SELECT *, max(if({is_kept} OR {OPERATION} = 'r', {VERSION}, NULL)) OVER (PARTITION BY {keys}, ws_life) "
            f"AS ws_seen FROM ({lives})"
        )
        return self._with_ends(f"SELECT * FROM ({seen}) WHERE {is_kept}", partition, columns, "ws_seen")

    def repair(self) -> str:
        """Returns the statement that gives every row the end which the following row requires."""
        keys = ", ".join(map(quoted, self.key))
        stored = (
            f"SELECT {keys}, {VERSION}, operation AS {OPERATION}, valid_from AS {AT}, true AS ws_stored, "
            f"{NEXT_VERSION} AS ws_was_next, {SEEN_VERSION} AS ws_was_seen FROM {full(self.table)}"
        )
        return (
            f"MERGE INTO {full(self.table)} t "
            f"USING ({self._with_ends(stored, f'PARTITION BY {keys} ORDER BY {VERSION}', keys, 'ws_was_seen')}) n "
            f"ON {same_key(self.key, f't.{VERSION} = n.{VERSION}', right='n')} WHEN MATCHED THEN UPDATE SET {_END}"
        )

    def _with_ends(self, rows: str, partition: str, columns: str, seen: str) -> str:
        """Returns the query of new rows, and of the table's rows that get another end or were seen later. `rows`: a
        query of all rows; `seen`: the column with the last version at which a row was seen.
        """
        seen = f"greatest({seen}, ws_was_seen, {VERSION})"  # ignores NULL
        ended = (
            f"SELECT *, {OPERATION} {_IS_ROW} AS ws_is_row, lead({VERSION}) OVER ({partition}) AS ws_then, "
            f"lead({AT}) OVER ({partition}) AS ws_until FROM ({rows})"
        )
        return (
            f"SELECT {columns}, {VERSION}, ws_stored, {AT} AS valid_from, "
            f"if(ws_is_row, {OPERATION}, 'd') AS operation, "
            # A clock that was set back results in an empty interval, not in one that ends before it begins.
            f"CASE WHEN NOT ws_is_row THEN {AT} WHEN ws_then IS NULL THEN NULL ELSE greatest({AT}, ws_until) END "
            f"AS valid_to, ws_is_row AND ws_then IS NULL AS is_current, "
            f"if(ws_is_row, ws_then, NULL) AS {NEXT_VERSION}, {seen} AS {SEEN_VERSION} FROM ({ended}) "
            f"WHERE NOT ws_stored OR (ws_is_row AND (NOT ws_then <=> ws_was_next OR {seen} > ws_was_seen))"
        )

    def _together(self, near: str, condition: str, *, reads_rows: bool) -> str:
        """Returns the query of the batch's rows and of the table's rows near them. Columns of the table's rows beside
        the key are only read if `reads_rows`.
        """
        stored = ", ".join(
            f"t.{quoted(name)}" if reads_rows or name in self.key else f"CAST(NULL AS {kind}) AS {quoted(name)}"
            for name, kind in self.types.items()
        )
        where = " AND ".join(filter(None, [near, condition]))
        return (
            f"SELECT {stored}, t.{VERSION}, t.operation AS {OPERATION}, t.valid_from AS {AT}, "
            f"CAST(NULL AS array<string>) AS {UNCHANGED}, true AS ws_stored, t.{NEXT_VERSION} AS ws_was_next, "
            f"t.{SEEN_VERSION} AS ws_was_seen "
            f"FROM {full(self.table)} t LEFT SEMI JOIN {SOURCE} s ON {same_key(self.key)} WHERE {where} "
            f"UNION ALL SELECT {', '.join(map(quoted, self.types))}, {VERSION}, {OPERATION}, "
            f"coalesce({AT}, current_timestamp()), {UNCHANGED}, false, CAST(NULL AS bigint), CAST(NULL AS bigint) "
            f"FROM {SOURCE}"
        )

    def _filled(self, name: str, partition: str) -> str:
        """Returns the expression of a column that takes its former value where a row lacks it."""
        column = quoted(name)
        known = f"if(array_contains({UNCHANGED}, {literal(name)}), NULL, struct({column} AS v))"
        return f"(last_value({known}, true) OVER ({partition})).v AS {column}"


def append(table: tuple[str, ...], columns: Sequence[str], lowest: int, highest: int) -> str:
    """Returns the statement that appends the batch's changes to a change log. `lowest`, `highest`: of the batch's
    versions.
    """
    every = [*map(quoted, columns), "operation", "committed_at", VERSION, UNCHANGED]
    source = (
        f"SELECT {', '.join(map(quoted, columns))}, if({OPERATION} = 'x', 'd', {OPERATION}) AS operation, "
        f"coalesce({AT}, current_timestamp()) AS committed_at, {VERSION}, {UNCHANGED} FROM {SOURCE} "
        f"WHERE {OPERATION} <> 'n'"
    )
    return _appending(table, source, every, f"NOT {IS_SWEEP}", lowest, highest)


def sweep_log(table: tuple[str, ...], floor: int) -> str:
    """Returns the statement that appends the row of a sweep, with the floor as its version."""
    source = f"SELECT '{SWEPT}' AS operation, current_timestamp() AS committed_at, {floor}L AS {VERSION}"
    return _appending(table, source, ["operation", "committed_at", VERSION], IS_SWEEP, floor, floor)


def _appending(
    table: tuple[str, ...], source: str, every: Sequence[str], is_such: str, lowest: int, highest: int
) -> str:
    # The first branch is never taken. Without it, the commit would be an append, which Iceberg does not check for
    # conflicts with other writers.
    return (
        f"MERGE INTO {full(table)} t USING ({source}) s ON t.{VERSION} = s.{VERSION} AND {is_such} "
        f"AND t.{VERSION} >= {lowest}L AND t.{VERSION} <= {highest}L "
        f"WHEN MATCHED AND s.{VERSION} > t.{VERSION} THEN DELETE "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(every)}) VALUES ({', '.join(f's.{name}' for name in every)})"
    )
