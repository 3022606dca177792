"""What must hold in the table topics whatever the source did: numbering, order, places, tombstones.

Each rule takes the records or changes of *all* table topics of a prefix, each partition's in order, and yields
complaints.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from tests.checker.records import SEQ_BITS, VERSION_HEADER, Change, NotAChangeError, Record, change_of, partition_of

Complaints = Iterator[str]


def seq_without_gap_or_repetition(changes: Sequence[Change], floors: Iterable[int] = ()) -> Complaints:
    """Over all topics, each epoch's row records are numbered 1, 2, 3…; a number may be a sweep's own instead, which is
    then its floor."""
    owned: dict[int, set[int]] = {}
    for floor in floors:
        owned.setdefault(floor >> SEQ_BITS, set()).add(floor & (1 << SEQ_BITS) - 1)
    epochs: dict[int, dict[int, Change]] = {}
    for change in changes:
        seen = epochs.setdefault(change.epoch, {})
        if change.seq in seen:
            yield f"seq {change.seq} twice in epoch {change.epoch}: {seen[change.seq]} and {change}"
        seen[change.seq] = change
    for epoch, seen in sorted(epochs.items()):
        missing = sorted(set(range(1, max(seen) + 1)) - seen.keys() - owned.get(epoch, set()))
        if missing:
            yield f"epoch {epoch}: {len(missing)} seq missing of 1 to {max(seen)}, the first {missing[0]}"
        if min(seen) < 1:
            yield f"epoch {epoch}: seq {min(seen)} is below 1"


def versions_rise_for_each_key(records: Sequence[Record]) -> Complaints:
    """In each partition, a key's versions rise; a tombstone's may equal its delete's."""
    last: dict[tuple[str, int, bytes], int] = {}
    for record in records:
        version = version_of(record)
        if version is None:
            yield f"{record}: a record without a version"
            continue
        place = (record.topic, record.partition, record.key)
        before = last.get(place, -1)
        if version < before or (version == before and record.value is not None):
            yield f"{record}: version {_words(version)} of key {record.key!r} after {_words(before)}"
        last[place] = version


def keys_lie_where_java_puts_them(records: Sequence[Record], partition_counts: Mapping[str, int]) -> Complaints:
    """A key is always in one partition: the one that every Java producer chooses."""
    for record in records:
        wanted = partition_of(record.key, partition_counts[record.topic])
        if record.partition != wanted:
            yield f"{record}: key {record.key!r} belongs into partition {wanted}"


def deletes_have_tombstones(records: Sequence[Record]) -> Complaints:
    """A delete's tombstone is the key's next record and says the delete's version; there is no other tombstone."""
    open_deletes: dict[tuple[str, int, bytes], Record] = {}
    for record in records:
        place = (record.topic, record.partition, record.key)
        delete = open_deletes.pop(place, None)
        if record.value is None:
            if delete is None:
                yield f"{record}: a tombstone without a delete before it"
            elif version_of(record) != version_of(delete):
                yield f"{record}: the tombstone of {delete} has another version"
            continue
        if delete is not None:
            yield f"{delete}: the delete's key goes on with {record} instead of a tombstone"
        if change_of(record).op == "d":
            open_deletes[place] = record
    for delete in open_deletes.values():
        yield f"{delete}: a delete without a tombstone"


def positions_rise_with_seq(changes: Sequence[Change]) -> Complaints:
    """In order of seq, an epoch has the rows of a load, all at one point, then streamed rows and those of chunks, whose
    positions (commit_lsn, tx_index) rise; only the delete and the create of a moved key share one."""
    in_order = sorted(changes, key=lambda change: (change.epoch, change.seq))
    for epoch, group in groupby(in_order, key=lambda change: change.epoch):
        previous: Change | None = None
        consistent_points = set()
        for change in group:
            if change.is_loaded:
                consistent_points.add(change.commit_lsn)
                if previous is not None and not previous.is_loaded:
                    yield f"{change}: a snapshot row after the streamed {previous}"
            elif previous is not None and previous.is_loaded:
                if change.commit_lsn < previous.commit_lsn:
                    yield f"{change}: committed before the snapshot's point"
            elif previous is not None and change.position <= previous.position:
                is_move = change.position == previous.position and (previous.op, change.op) == ("d", "c")
                if not is_move:
                    yield f"{change}: position {change.position} follows {previous.position} of {previous}"
            previous = change
        if len(consistent_points) > 1:
            yield f"epoch {epoch}: snapshot rows at {len(consistent_points)} points"


def epochs_follow_each_other(records: Sequence[Record]) -> Complaints:
    """In a partition, no record of an epoch follows one of a later epoch: a fenced writer wrote nothing more."""
    last: dict[tuple[str, int], int] = {}
    for record in records:
        version = version_of(record)
        if version is None:
            continue
        epoch, place = version >> SEQ_BITS, (record.topic, record.partition)
        if epoch < last.get(place, 0):
            yield f"{record}: epoch {epoch} after epoch {last[place]}"
        last[place] = max(epoch, last.get(place, 0))


def version_of(record: Record) -> int | None:
    """A row record's from its source block, a tombstone's from its header."""
    if record.value is not None:
        return change_of(record).version
    values = [value for name, value in record.headers if name == VERSION_HEADER]
    return int(values[0]) if len(values) == 1 and values[0].isdigit() else None


def readable(records: Iterable[Record]) -> Complaints:
    """Every value is a row record, every key is there."""
    for record in records:
        if not record.key:
            yield f"{record}: no key"
        elif record.value is not None:
            try:
                change_of(record)
            except NotAChangeError as error:
                yield str(error)


def _words(version: int) -> str:
    return f"({version >> SEQ_BITS}, {version & (1 << SEQ_BITS) - 1})"
