"""What must hold in the state, control and progress topics, and between them and the table topics."""

import json
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tests.checker.records import SEQ_BITS, Change, Record, parse

Complaints = Iterator[str]
PHASES = ("intent", "loading", "streaming")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of the table with a version below the floor are gone."""

    table: str  # schema.table
    floor: int
    as_of_lsn: int
    epoch: int


def all_sweeps_of(control: Sequence[Record]) -> list[Sweep]:
    """In the order of the topic; earlier ones of a table go when it is compacted."""
    found = []
    for record in control:
        if record.key.startswith(b"sweep/") and record.value is not None:
            value = parse(record.value)
            table = f"{value['table_schema']}.{value['table_name']}"
            found.append(Sweep(table, value["floor"], value["as_of_lsn"], value["epoch"]))
    return found


def sweeps_of(control: Sequence[Record]) -> list[Sweep]:
    """The last sweep of each table."""
    return list({sweep.table: sweep for sweep in all_sweeps_of(control)}.values())


def stream_begin(state: Sequence[Record]) -> tuple[int, int]:
    """(epoch, LSN): the last epoch, and where its stream begins: its first position that has an LSN. (0, 0) without."""
    begin = (0, 0)
    for record in state:
        position = _position(record)
        if position is not None and position["phase"] != "intent" and position["epoch"] > begin[0]:
            begin = position["epoch"], position["resume_lsn"]
    return begin


def history_begin(state: Sequence[Record]) -> tuple[int, int]:
    """(epoch, LSN) of the last history: as `stream_begin`, but an epoch that begins with a promotion goes on with the
    one before, and has neither intent nor load nor sweep."""
    begin, previous = (0, 0), None
    for record in state:
        position = _position(record)
        if position is None:
            continue
        is_new = position["phase"] != "intent" and (previous is None or position["epoch"] > begin[0])
        goes_on = previous is not None and previous["phase"] == position["phase"] == "streaming"
        if is_new and not goes_on:
            begin = position["epoch"], position["resume_lsn"]
        previous = position
    return begin


def streaming_epochs(state: Sequence[Record]) -> set[int]:
    """Those that came to streaming."""
    found = [position for record in state if (position := _position(record)) is not None]
    return {position["epoch"] for position in found if position["phase"] == "streaming"}


def joined(state: Sequence[Record]) -> dict[str, list[int]]:
    """Topic without prefix → LSNs, rising, where its table joined when the last position's epoch was under way; more
    than one where it left between."""
    found = [position for record in state if (position := _position(record)) is not None]
    places: dict[str, set[int]] = {}
    for position in found:
        if position["epoch"] == found[-1]["epoch"]:
            for topic, message in position.get("topics", {}).items():
                if message.get("since_lsn"):
                    places.setdefault(topic.partition(".")[2], set()).add(message["since_lsn"])
    return {topic: sorted(lsns) for topic, lsns in places.items()}


def positions_never_go_back(state: Sequence[Record]) -> Complaints:
    """Epochs rise; within one, phases, seq, resume_lsn and what is published of a transaction never go back."""
    previous: Mapping[str, Any] | None = None
    for record in state:
        position = _position(record)
        if position is None:
            yield f"{record}: not a position record with its checksum"
            continue
        if previous is not None:
            yield from _steps_back(record, previous, position)
        partial = position["partial"]
        if partial is not None and partial["commit_lsn"] < position["resume_lsn"]:
            yield f"{record}: half published is a transaction that resume_lsn covers"
        previous = position


def _steps_back(record: Record, then: Mapping[str, Any], now: Mapping[str, Any]) -> Complaints:
    if now["epoch"] < then["epoch"]:
        yield f"{record}: epoch {now['epoch']} after {then['epoch']}"
    if now["epoch"] != then["epoch"]:
        return
    if PHASES.index(now["phase"]) < PHASES.index(then["phase"]):
        yield f"{record}: phase {now['phase']} after {then['phase']}"
    for field in ("seq", "resume_lsn"):
        if now[field] < then[field]:
            yield f"{record}: {field} {now[field]} after {then[field]}"
    partly, before = now["partial"], then["partial"]
    if before is None:
        return
    if partly is None:
        if now["resume_lsn"] <= before["commit_lsn"]:
            yield f"{record}: the half published transaction was forgotten"
    elif partly["commit_lsn"] == before["commit_lsn"] and partly["next_index"] < before["next_index"]:
        yield f"{record}: next_index {partly['next_index']} after {before['next_index']}"


def positions_are_true(state: Sequence[Record], changes: Sequence[Change], sweeps: Sequence[Sweep] = ()) -> Complaints:
    """Each position parts the epoch's streamed rows exactly: up to its seq what it covers, above it what it does not.
    The last one covers everything that was published, sweeps with a number of their own among it."""
    rows: dict[int, _Parting] = {}
    for epoch in {change.epoch for change in changes}:
        rows[epoch] = _Parting([(c.seq, c.position) for c in changes if c.epoch == epoch and not c.is_loaded])
    last: Mapping[str, Any] | None = None
    for record in state:
        position = _position(record)
        if position is None:
            continue
        last = position
        if position["phase"] != "streaming" or position["epoch"] not in rows:
            continue
        partial = position["partial"]
        boundary = (position["resume_lsn"], 0) if partial is None else (partial["commit_lsn"], partial["next_index"])
        newest_counted, oldest_left = rows[position["epoch"]].at(position["seq"])
        if newest_counted is not None and newest_counted >= boundary:
            yield f"{record}: seq {position['seq']} counts the row at {newest_counted}, the position ends at {boundary}"
        if oldest_left is not None and oldest_left < boundary:
            yield f"{record}: the position ends at {boundary}, seq {position['seq']} leaves out that at {oldest_left}"
    if changes and last is None:
        yield "row records without a position"
    if last is not None:
        versions = [change.version for change in changes] + [sweep.floor for sweep in sweeps]
        newest = max((v & (1 << SEQ_BITS) - 1 for v in versions if v >> SEQ_BITS == last["epoch"]), default=0)
        if newest != last["seq"]:
            yield f"the last position says seq {last['seq']}, the topics end at {newest}"
        if any(change.epoch > last["epoch"] for change in changes):
            yield f"rows of a later epoch than the last position's {last['epoch']}"


class _Parting:
    """Pairs of number and position, parted at a number: the highest position up to it and the lowest above it."""

    def __init__(self, pairs: list[tuple[int, tuple[int, int]]]) -> None:
        in_order = sorted(pairs)
        self._numbers = [number for number, _ in in_order]
        positions = [position for _, position in in_order]
        self._highest = list(accumulate(positions, max))
        self._lowest = list(accumulate(reversed(positions), min))[::-1]

    def at(self, number: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        i = bisect_right(self._numbers, number)
        return (self._highest[i - 1] if i else None), (self._lowest[i] if i < len(self._lowest) else None)


def progress_is_true(progress: Sequence[Record], records: Sequence[Record], changes: Sequence[Change]) -> Complaints:
    """Everything that was committed below a progress record's LSN lies below its end offsets, tombstones too; LSNs
    never go back within an epoch. Of a cut, nothing that was committed later lies below its end offsets."""
    partitions: dict[tuple[str, int], list[tuple[int, tuple[int, int]]]] = {}
    for record, commit in _commits(records, changes):
        partitions.setdefault((record.topic, record.partition), []).append((record.offset, commit))
    partings = {place: _Parting(pairs) for place, pairs in partitions.items()}
    previous = (0, 0)
    known: set[str] = set()  # a topic that is not told of any more is one of a table that left
    for record in progress:
        if record.key != b"progress" or record.value is None:
            continue
        reported = parse(record.value)
        now = reported["epoch"], reported["lsn"]
        if now < previous:
            yield f"{record}: (epoch, lsn) {now} after {previous}"
        previous = now
        known |= reported["end_offsets"].keys()
        for (topic, partition), parting in partings.items():
            ends = reported["end_offsets"].get(topic)
            if ends is None and topic in known:
                continue
            end = ends[partition] if ends is not None else 0
            newest, oldest = parting.at(end - 1)
            if reported.get("is_cut") and newest is not None and newest >= now:
                yield f"{record}: the cut {now} has {newest} in {topic}/{partition} below end offset {end}"
            if oldest is not None and oldest < now:
                yield f"{record}: (epoch, lsn) {now} covers {oldest} in {topic}/{partition}, end offset {end} does not"


def _commits(records: Sequence[Record], changes: Sequence[Change]) -> Iterator[tuple[Record, tuple[int, int]]]:
    """Each record with (epoch, commit LSN); a tombstone has its delete's. Rows of a load were committed before
    their LSN, which is where the stream begins."""
    by_place = {
        (c.record.topic, c.record.partition, c.record.offset): (c.epoch, c.commit_lsn - c.is_loaded) for c in changes
    }
    newest: dict[tuple[str, int, bytes], tuple[int, int]] = {}
    for record in records:
        place = (record.topic, record.partition, record.key)
        if record.value is not None:
            newest[place] = by_place[record.topic, record.partition, record.offset]
        if place in newest:
            yield record, newest[place]


def floors_never_go_down(sweeps: Sequence[Sweep]) -> Complaints:
    """From one sweep of a table to the next."""
    floors: dict[str, int] = {}
    for sweep in sweeps:
        if sweep.floor < floors.get(sweep.table, 0):
            yield f"table {sweep.table}: floor {sweep.floor} after {floors[sweep.table]}"
        floors[sweep.table] = sweep.floor


def compared(state: Sequence[Record], epoch: int) -> set[str]:
    """Tables whose rows were compared with their topics when this epoch began: those of earlier epochs stay valid."""
    found = [
        parse(record.value) for record in state if record.key.startswith(b"snapshot/") and record.value is not None
    ]
    return {
        f"{snapshot['table_schema']}.{snapshot['table_name']}"
        for snapshot in found
        if snapshot["request"] == f"epoch {epoch}" and snapshot.get("compares")
    }


def sweeps_belong_to_their_epoch(
    sweeps: Sequence[Sweep], first: int, newest: int, tables: Sequence[str], compared: Collection[str] = ()
) -> Complaints:
    """In a history whose first epoch is above 1, nothing of an earlier one survives the sweep of any table that was not
    compared."""
    floors = {sweep.table: sweep.floor for sweep in sweeps}
    for table in tables:
        if table not in compared and first > 1 and floors.get(table, 0) < first << SEQ_BITS:
            yield f"epoch {first}: table {table} has floor {floors.get(table)}, below {first << SEQ_BITS}"
    for sweep in sweeps:
        if sweep.epoch > newest or sweep.floor >> SEQ_BITS > sweep.epoch:
            yield f"table {sweep.table}: floor {sweep.floor} or epoch {sweep.epoch} is ahead of epoch {newest}"


def _position(record: Record) -> Mapping[str, Any] | None:
    """The position record, if its checksum fits: CRC-32 of the rest as compact JSON with sorted names."""
    if record.key != b"position" or record.value is None:
        return None
    try:
        position: dict[str, Any] = json.loads(record.value)
    except ValueError:
        return None
    checksum = position.pop("checksum", None)
    body = json.dumps(position, sort_keys=True, separators=(",", ":")).encode()
    return position if checksum == zlib.crc32(body) else None
