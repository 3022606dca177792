"""What progress records claim, against the source: of a table that owes nothing, every row that was committed up to the
LSN is below the end offsets, and every row that was gone is deleted there or swept."""

import json
from collections.abc import Collection, Iterator, Sequence

from cdc.model.control import ProgressRecord, SweepRecord
from cdc.model.topics import Topics
from tests.checker.records import Change, Record, change_of
from tests.simulation.snapshots.judge import changes_again
from tests.simulation.snapshots.source import Source

_Latest = dict[int, Change]  # key → its last change


class Claims:
    """`left_out`: (table, key) of rows of which changes were left out as configured."""

    def __init__(self, topics: Topics, source: Source, left_out: Collection[tuple[str, int]]) -> None:
        self._topics = topics
        self._source = source
        self._left_out = left_out
        self.checked = 0  # tables that were said to owe nothing

    def untrue(
        self, tables: Sequence[str], progress: Sequence[Record], records: Sequence[Record], control: Sequence[Record]
    ) -> Iterator[str]:
        """Yields a complaint for each row. `records`: of the tables' topics, those of a partition in order."""
        sweeps = [SweepRecord.decode(r.value or b"", "") for r in control if r.key.startswith(b"sweep/")]
        waiting = {name: [r for r in records if r.topic == self._topic(name)] for name in tables}
        latest: dict[str, _Latest] = {name: {} for name in tables}
        for each in progress:
            if each.key != ProgressRecord.KEY.encode() or each.value is None:
                continue
            claim = ProgressRecord.decode(each.value, "progress")
            for name in tables:
                ends = claim.end_offsets[self._topic(name)]
                for record in waiting[name]:
                    if record.offset < ends[record.partition] and record.value is not None:  # or its delete says it
                        latest[name][_id(record)] = change_of(record)
                waiting[name] = [r for r in waiting[name] if r.offset >= ends[r.partition]]
                if f"public.{name}" not in claim.owed:
                    self.checked += 1
                    done = [s for s in sweeps if s.table_name == name and s.as_of_lsn <= claim.lsn]
                    floor = max((sweep.floor for sweep in done), default=0)
                    for key, why in self._missing(name, claim.lsn, latest[name], floor):
                        yield f"CLAIM: {each} at {claim.lsn}: {name} {key} {why}"

    def _topic(self, name: str) -> str:
        return f"{self._topics.prefix}.public.{name}"

    def _missing(self, name: str, lsn: int, latest: _Latest, floor: int) -> Iterator[tuple[int, str]]:
        rows = self._source.rows_before(name, lsn)
        for key in {*rows, *latest}:
            change, row = latest.get(key), rows.get(key)
            if (name, key) in self._left_out or (change is not None and change.commit_lsn >= lsn):
                continue  # what is newer than the claim is no part of it
            held = None if change is None or change.version < floor else change.after
            if (held is None) != (row is None):
                yield key, f"is {held} in the topic, {row} in the source"
            elif held is not None and row is not None and held["v"] != row.v:
                yield key, f"has {held['v']} in the topic, {row.v} in the source"
            elif held is not None and "big" not in held and not changes_again(self._source, name, key, lsn):
                yield key, "lacks its large value"


def _id(record: Record) -> int:
    number: int = json.loads(record.key)["id"]
    return number
