"""What was committed, against the source: nothing goes back, nothing is stale, nothing is left over."""

import json
import random
from collections.abc import Mapping, Sequence

from cdc.model.control import SweepRecord
from cdc.model.events import TableId, pack_version
from cdc.model.topic_record import TopicRecord
from tests.simulation.snapshots.source import SCHEMAS, TABLES, Row, Rows, Source

_NAMES = {SCHEMAS[name].topic: name for name in TABLES}

HOLE = "hole"  # in place of a large value
Versioned = dict[tuple[str, int], tuple[int, Row | None]]  # (table, key) → version and row; None: deleted


def judge(
    records: Sequence[TopicRecord],
    source: Source,
    before: Mapping[tuple[str, int], tuple[int, Row]],
    floors: Mapping[TableId, int],
    chance: random.Random,
    *,
    tombstones: bool = False,
) -> None:
    """`before`: what stores held at first; `floors`: of the last sweeps, as a reader from the beginning finds them;
    `tombstones`: whether one that knows nothing of sweeps finds the same. Raises AssertionError."""
    store: Versioned = dict(before)
    swept_late: list[SweepRecord] = []
    last = (0, 0)
    swept: dict[str, int] = {}  # table → floor
    taken: set[int] = set()  # versions that are a sweep's own
    for record in records:
        if record.topic in _NAMES:
            name, key = _NAMES[record.topic], json.loads(record.key)["id"]
            version, value = _read(record)
            if record.value is not None:
                last = _follows(last, json.loads(record.value)["source"], taken)
                _is_of_its_time(record.value, name, key, value, source)
            # A sink that has swept would take it for what it swept: the floor is never a row's own version.
            assert version > swept.get(name, -1) or record.value is None, f"{name} {key} at the floor of a sweep before"
            is_new = record.value is not None and json.loads(record.value)["op"] == "c"
            _apply(store, (name, key), version, value, is_new=is_new)
        elif record.key.startswith(b"sweep/"):
            sweep = SweepRecord.decode(record.value or b"", "control")
            assert sweep.floor >= swept.get(sweep.table_name, 0), "a table's floor went down"
            swept[sweep.table_name] = sweep.floor
            swept_late.append(sweep)
            taken.add(sweep.floor)
        # A sink applies a sweep once it has applied the commit; how much later is its business.
        while swept_late and chance.random() < 0.2:
            _sweep(store, swept_late.pop(0))
    for sweep in swept_late:
        _sweep(store, sweep)
    plain = compacted(records, before)
    rebuilt = dict(plain)
    for table, floor in floors.items():
        for (name, key), (version, _) in plain.items():
            if name == table.name and version < floor:
                rebuilt[name, key] = floor, None
    for name in TABLES:
        rows = source.visible[name]
        assert _live(store, name) == rows, f"{name}: a store holds {_live(store, name)}, the source {rows}"
        assert _live(rebuilt, name) == rows, f"{name}: rebuilt {_live(rebuilt, name)}, the source {rows}"
        if tombstones:
            assert _live(plain, name) == rows, f"{name}: without sweeps {_live(plain, name)}, the source {rows}"


def changes_again(source: Source, table: str, key: int, lsn: int) -> bool:
    """Whether the log has a change of this row behind the position."""
    later = (op for entry in source.log if entry.end_lsn > lsn for op in entry.ops if op.table == table)
    return any(op.is_truncate or key in (op.old, op.new and op.new[0]) for op in later)


def compacted(records: Sequence[TopicRecord], before: Mapping[tuple[str, int], tuple[int, Row | None]]) -> Versioned:
    """What the topics hold after compaction."""
    held: Versioned = dict(before)
    for record in records:
        if record.topic in _NAMES:
            held[_NAMES[record.topic], json.loads(record.key)["id"]] = _read(record)
    return held


def _read(record: TopicRecord) -> tuple[int, Row | None]:
    if record.value is None:
        return int(dict(record.headers or ())["watershed.version"] or 0), None
    value = json.loads(record.value)
    version = pack_version(value["source"]["epoch"], value["source"]["seq"])
    row = value["after"]
    if row is None:
        return version, None
    unchanged = value["source"].get("unchanged", [])
    assert unchanged == [name for name in ("id", "v", "big") if name not in row]
    return version, Row(row["v"], row.get("big", HOLE))


def _follows(last: tuple[int, int], source: Mapping[str, int], taken: set[int]) -> tuple[int, int]:
    """Versions rise, and within an epoch leave out only those that are a sweep's own."""
    epoch, seq = source["epoch"], source["seq"]
    first = seq if last == (0, 0) else last[1] + 1 if epoch == last[0] else 1
    assert (epoch, seq) > last, f"{epoch}/{seq} follows {last}"
    assert all(pack_version(epoch, between) in taken for between in range(first, seq)), f"{epoch}/{seq} follows {last}"
    return epoch, seq


def _is_of_its_time(encoded: bytes, name: str, key: int, row: Row | None, source: Source) -> None:
    """A row that was read is the one that the source had at the commit at which it counts: neither older nor newer. An
    event's row is what was written; a large value that was read for it may be newer, never older."""
    value = json.loads(encoded)
    message = value["source"]
    if value["op"] == "r":
        rows = source.rows_at(name, message["commit_lsn"])
        assert rows.get(key) == row, f"{name} {key}: {row} published, {rows} in the log"
    elif message["snapshot"] == "incremental":
        assert key not in source.rows_at(name, message["commit_lsn"]), f"{name} {key}: deleted, and in the log"
    elif row is not None:
        op = source.op_at(message["commit_lsn"], message["tx_index"])
        assert op.new is not None and op.new[0] == key
        written = op.new[1]
        assert row.v == written.v, f"{name} {key}: {row} published, {written} written"
        if row.big == HOLE or message.get("filled"):
            assert op.has_hole, f"{name} {key}: {row} published, the log has all of {written}"
            later = {written.big, *(other.big for other in source.rows_since(name, key, message["commit_lsn"])), HOLE}
            assert row.big in later, f"{name} {key}: {row} published, {written} written, then {later}"
        else:
            assert row.big == written.big, f"{name} {key}: {row} published, {written} written"


def _apply(store: Versioned, key: tuple[str, int], version: int, row: Row | None, *, is_new: bool = False) -> None:
    """As sinks.contract says. `is_new`: a row that began here."""
    held = store.get(key)
    if held is not None and held[0] >= version:
        return
    if row is not None and row.big == HOLE:
        if is_new:
            row = None
        elif held is None or held[1] is None:
            return
        else:
            row = row._replace(big=held[1].big)
    store[key] = version, row


def _sweep(store: Versioned, sweep: SweepRecord) -> None:
    """As sinks.contract says."""
    for (name, key), (version, value) in list(store.items()):
        if name == sweep.table_name and value is not None and version < sweep.floor:
            store[name, key] = sweep.floor, None


def _live(store: Versioned, name: str) -> Rows:
    return {key: value for (table, key), (_, value) in store.items() if table == name and value is not None}
