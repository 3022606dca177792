"""All rules at once, for the topics of a prefix and the database that they come from."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import psycopg

from tests.checker import history, joins, positions, rules, truncations
from tests.checker.journal import Entry, Keys, read_journal, read_rows
from tests.checker.positions import Sweep
from tests.checker.records import Change, Record, Row, changes_of, read_topics

COMPLAINTS_MAX = 5  # of each rule


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the judge was shown. Records of each partition in order; a topic's records may be interleaved."""

    tables: Sequence[str]  # schema.table
    partition_counts: Mapping[str, int]
    table_records: Sequence[Record]
    state: Sequence[Record]
    control: Sequence[Record]
    progress: Sequence[Record]
    journal: Sequence[Entry]
    rows: Mapping[str, Sequence[tuple[Row, Row]]]


@dataclass(frozen=True, slots=True)
class Report:
    """What was seen, so that a test can say that it tested something."""

    epoch: int
    changes: Sequence[Change]
    sweeps: Sequence[Sweep]  # the last of each table
    state: Sequence[Record]
    complaints: Sequence[str]

    @property
    def ops(self) -> Counter[str]:
        return Counter(change.op for change in self.changes)


def table_topic(prefix: str, table: str) -> str:
    """Letters, digits, `.`, `_` and `-` of the table's name; `_` for everything else."""
    return f"{prefix}." + "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in table)


def gather(bootstrap_servers: str, prefix: str, dsn: str, tables: Sequence[str], keys: Keys | None = None) -> Evidence:
    """Read everything. The source must be at rest, and capture have confirmed its end."""
    topics = [table_topic(prefix, table) for table in tables]
    others = [f"{prefix}.state", f"{prefix}.control", f"{prefix}.progress"]
    records, counts = read_topics(bootstrap_servers, [*topics, *others])
    missing = {*topics, *others} - counts.keys()
    assert not missing, f"topics {sorted(missing)} do not exist"
    by_topic: dict[str, list[Record]] = {topic: [] for topic in counts}
    for record in records:
        by_topic[record.topic].append(record)
    with psycopg.connect(dsn, autocommit=True) as connection:
        return Evidence(
            tables=tables,
            partition_counts=counts,
            table_records=[record for topic in topics for record in by_topic[topic]],
            state=by_topic[others[0]],
            control=by_topic[others[1]],
            progress=by_topic[others[2]],
            journal=read_journal(connection),
            rows=read_rows(connection, tables, keys),
        )


def judge(evidence: Evidence) -> Report:
    """Every rule; complaints say which."""
    records = evidence.table_records
    complaints = _take("readable", rules.readable(records))
    if complaints:
        return Report(0, (), (), evidence.state, complaints)
    changes = changes_of(records)
    sweeps, all_sweeps = positions.sweeps_of(evidence.control), positions.all_sweeps_of(evidence.control)
    state = [record for record in evidence.state if record.key == b"position"]
    epoch, begins = positions.stream_begin(state)
    first_epoch, history_begins = positions.history_begin(state)
    since = positions.joined(state)
    joined = {table: since.get(table_topic("", table)[1:], []) for table in evidence.tables}
    journal, early = joins.part(changes, evidence.journal, joined)
    emptied = truncations.find(changes, journal, all_sweeps, epoch, begins)
    found = {
        "seq": rules.seq_without_gap_or_repetition(changes, [sweep.floor for sweep in all_sweeps]),
        "version": rules.versions_rise_for_each_key(records),
        "partition": rules.keys_lie_where_java_puts_them(records, evidence.partition_counts),
        "tombstone": rules.deletes_have_tombstones(records),
        "position": rules.positions_rise_with_seq(changes),
        "epoch": rules.epochs_follow_each_other(records),
        "state": positions.positions_never_go_back(state),
        "state truth": positions.positions_are_true(state, changes, all_sweeps),
        "progress": positions.progress_is_true(evidence.progress, records, changes),
        "sweep": positions.sweeps_belong_to_their_epoch(
            sweeps, first_epoch, epoch, evidence.tables, positions.compared(evidence.state, first_epoch)
        ),
        "floor": positions.floors_never_go_down(all_sweeps),
        "truncate": emptied.lost,
        "stream": history.streams_the_journal(changes, journal, history_begins),
        "chunk": history.chunks_are_the_source(changes, journal, epoch, emptied, early),
        "absent": history.deletes_of_chunks_are_the_source(changes, journal, epoch, emptied),
        "load": history.loads_what_came_before(changes, journal, epoch, emptied, positions.streaming_epochs(state)),
        "whole": history.last_rows_are_whole(changes, sweeps),
        "rows": history.folds_to_the_source(changes, sweeps, evidence.rows),
    }
    return Report(epoch, changes, sweeps, state, [c for rule, broken in found.items() for c in _take(rule, broken)])


def require_true(evidence: Evidence) -> Report:
    """Raises AssertionError with all complaints."""
    report = judge(evidence)
    assert not report.complaints, "the judge complains:\n" + "\n".join(f"  {line}" for line in report.complaints)
    return report


def _take(rule: str, complaints: Iterable[str]) -> list[str]:
    return [f"{rule}: {complaint}" for complaint in islice(complaints, COMPLAINTS_MAX)]
