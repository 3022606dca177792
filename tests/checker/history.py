"""The topics against what the source did: event by event, and folded against its rows."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.checker.journal import Entry
from tests.checker.positions import Sweep
from tests.checker.records import Change, Row, key_text
from tests.checker.truncations import Truncations

Complaints = Iterator[str]
Table = dict[str, Row]  # a row's key as text → the row


@dataclass(frozen=True, slots=True)
class Expected:
    """A row record that a journal entry calls for."""

    number: int  # of the journal entry
    table: str
    op: str
    identity: str  # the key as text
    after: Row | None
    known: Row | None  # `before` holds some of it, or is null

    def __str__(self) -> str:
        return f"{self.op} of {self.table} {self.identity}"


def expected_of(entry: Entry) -> list[Expected]:
    """One, for an update that changed the key a delete and a create, for TRUNCATE none."""
    if entry.is_truncate:
        return []
    old, new = (None if key is None else key_text(key) for key in (entry.old_key, entry.new_key))
    if old == new:
        assert new is not None
        return [Expected(entry.number, entry.table, "u", new, entry.new_row, entry.old_row)]
    expected = []
    if old is not None:
        expected.append(Expected(entry.number, entry.table, "d", old, None, entry.old_row))
    if new is not None:
        expected.append(Expected(entry.number, entry.table, "c", new, entry.new_row, None))
    return expected


def streams_the_journal(changes: Sequence[Change], journal: Sequence[Entry], begins: int) -> Complaints:
    """Each transaction that is in the stream is there whole, once, unaltered and in its order; none is there that the
    source does not know; none is missing that wrote after `begins`, the LSN where the last epoch's stream does."""
    by_xid: dict[int, list[Change]] = {}
    for change in sorted(changes, key=lambda c: (c.epoch, c.seq)):
        if change.is_streamed:
            by_xid.setdefault(change.xid or 0, []).append(change)
    committed = _transactions(journal)
    later = _Later(journal)
    for xid, events in by_xid.items():
        if xid not in committed:
            yield f"phantom: transaction {xid} is not in the source's journal ({len(events)} events, {events[0]})"
            continue
        yield from _unlike(xid, events, [wanted for entry in committed[xid] for wanted in expected_of(entry)], later)
    for xid, entries in committed.items():
        lost = [wanted for entry in entries for wanted in expected_of(entry)]
        if lost and xid not in by_xid and entries[-1].lsn >= begins:
            yield f"lost: transaction {xid} with {len(lost)} changes, of {lost[0]}"


class _Later:
    """What a key's row held after a change, and from then on."""

    def __init__(self, journal: Sequence[Entry]) -> None:
        self._rows: dict[tuple[str, str], list[tuple[int, Row]]] = {}
        for entry in journal:
            for wanted in expected_of(entry):
                if wanted.after is not None:
                    rows = self._rows.setdefault((wanted.table, wanted.identity), [])
                    rows.append((wanted.number, wanted.after))

    def has(self, wanted: Expected, column: str, value: Any) -> bool:
        rows = self._rows[wanted.table, wanted.identity]
        return any(number >= wanted.number and row.get(column, ...) == value for number, row in rows)


def _is_written(event: Change, want: Expected, later: _Later) -> bool:
    """Whether the event's row is what was written; a column may be left out, and one that was read may be newer."""
    if event.after is None or want.after is None:
        return event.after is want.after
    logged = {name: value for name, value in event.after.items() if name not in event.filled}
    return (
        event.after.keys() | event.unchanged == want.after.keys()
        and all(want.after[name] == value for name, value in logged.items())
        and all(later.has(want, name, event.after[name]) for name in event.filled)
    )


def _unlike(xid: int, events: Sequence[Change], wanted: Sequence[Expected], later: _Later) -> Complaints:
    if len({(e.epoch, e.commit_lsn) for e in events}) != 1:
        yield f"transaction {xid} was published in several epochs or with several commit LSNs"
    for i in range(max(len(events), len(wanted))):
        if i >= len(events):
            yield f"transaction {xid}: {len(wanted) - i} changes lost, the first {wanted[i]}"
            return
        if i >= len(wanted):
            yield f"transaction {xid}: {len(events) - i} events too many, the first {events[i]}"
            return
        event, want = events[i], wanted[i]
        if (event.table, event.op, event.identity) != (want.table, want.op, want.identity):
            yield f"transaction {xid}, change {i}: {event} instead of {want}"
            return
        if not _is_written(event, want, later):
            yield f"transaction {xid}, change {i}: {event} holds another row than the source wrote"
        if event.before is not None and (
            want.known is None or any(want.known.get(name, ...) != value for name, value in event.before.items())
        ):
            yield f"transaction {xid}, change {i}: {event} knows an old row that was not there"


def loads_what_came_before(
    changes: Sequence[Change],
    journal: Sequence[Entry],
    epoch: int,
    truncations: Truncations,
    ended: Collection[int] = (),
) -> Complaints:
    """The rows that the last epoch loaded, if it loaded any, are the journal's transactions that are not in its stream,
    folded. `ended`: epochs whose load did."""
    if not any(change.is_loaded and change.epoch == epoch for change in changes):
        return
    rows = _not_streamed([change for change in changes if change.epoch == epoch], journal, truncations)
    loaded: dict[str, Table] = {}
    for change in changes:
        if change.is_loaded and change.epoch == epoch:
            table = loaded.setdefault(change.table, {})
            if change.identity in table:
                yield f"{change}: a row loaded twice"
            _apply(table, change.identity, change.after)
        elif not change.is_loaded and change.epoch not in (epoch, *ended):
            yield f"{change}: a streamed row of an epoch whose load did not end"
    for name in sorted(rows.keys() | loaded.keys()):
        yield from differences(f"load of {name}", rows.get(name, {}), loaded.get(name, {}))


def chunks_are_the_source(
    changes: Sequence[Change],
    journal: Sequence[Entry],
    epoch: int,
    truncations: Truncations,
    early: Sequence[tuple[int, Entry]] = (),
) -> Complaints:
    """Each row that the last epoch read beside the stream is the source's row as of its mark: whoever replays what the
    source did, in the stream's order, has that very row there. `early`: what is not in the stream, since its table
    joined only at the LSN; rising."""
    for change, rows in _replayed(changes, journal, epoch, truncations, early):
        if change.op == "r" and not change.is_streamed:
            row = rows.get(change.table, {}).get(change.identity)
            if row is None:
                yield f"{change}: the source has no such row at its mark"
            elif row != change.after:
                yield f"{change}: the source has another row at its mark"


def deletes_of_chunks_are_the_source(
    changes: Sequence[Change], journal: Sequence[Entry], epoch: int, truncations: Truncations
) -> Complaints:
    """Where a key was not found and became a delete, the source has no row of it as of the mark. For a source whose
    every change is in the journal: those that look for what vanished without a trace have not."""
    for change, rows in _replayed(changes, journal, epoch, truncations):
        if change.op == "d" and not change.is_streamed and change.identity in rows.get(change.table, {}):
            yield f"{change}: the source has that row at its mark"


def sweeps_spare_the_source(
    changes: Sequence[Change],
    journal: Sequence[Entry],
    sweeps: Sequence[Sweep],
    epoch: int,
    truncations: Truncations,
) -> Complaints:
    """No row that the source has when a sweep of the last epoch takes effect is below its floor: `sweeps` are all that
    were ever written, not only the last, whose traces a later snapshot covers. For a source whose every change is in
    the journal."""
    versions = {(c.table, c.identity): c.version for c in sorted(changes, key=lambda c: c.version) if c.epoch < epoch}
    due = sorted((sweep for sweep in sweeps if sweep.epoch == epoch), key=lambda sweep: sweep.as_of_lsn, reverse=True)
    loaded = [change for change in changes if change.epoch == epoch and change.is_loaded]
    versions |= {(change.table, change.identity): change.version for change in loaded}
    rows: Mapping[str, Table] = {}
    for change, rows in _replayed(changes, journal, epoch, truncations):
        while due and due[-1].as_of_lsn <= change.commit_lsn:
            yield from _taken(due.pop(), rows, versions)
        versions[change.table, change.identity] = change.version
    while due:
        yield from _taken(due.pop(), rows, versions)


def _taken(sweep: Sweep, rows: Mapping[str, Table], versions: Mapping[tuple[str, str], int]) -> Complaints:
    for identity in rows.get(sweep.table, {}):
        if versions.get((sweep.table, identity), 0) < sweep.floor:
            yield f"the sweep of {sweep.table} as of {sweep.as_of_lsn} takes {identity}, which the source has"


def _replayed(
    changes: Sequence[Change],
    journal: Sequence[Entry],
    epoch: int,
    truncations: Truncations,
    early: Sequence[tuple[int, Entry]] = (),
) -> Iterator[tuple[Change, Mapping[str, Table]]]:
    """The epoch's changes in order, each with what the source's tables hold before it; after the last one they hold
    what they do in the end. Rows are the journal's: a record may lack columns, or have newer ones."""
    in_order = sorted((c for c in changes if c.epoch == epoch and not c.is_loaded), key=lambda change: change.seq)
    rows = _not_streamed(in_order, journal, truncations)
    emptied = sorted(truncations.places, key=lambda place: place.seq, reverse=True)
    written = {
        xid: iter([wanted for entry in entries for wanted in expected_of(entry)])
        for xid, entries in _transactions(journal).items()
    }
    waiting = list(reversed(early))
    for change in in_order:
        while waiting and waiting[-1][0] <= change.commit_lsn:
            _apply_entry(rows, waiting.pop()[1])
        while emptied and emptied[-1].seq <= change.seq:
            rows[emptied.pop().table] = {}
        yield change, rows
        if change.is_streamed:
            want = next(written.get(change.xid or 0, iter(())), None)
            is_same = want is not None and (want.table, want.identity) == (change.table, change.identity)
            after = want.after if want is not None and is_same else change.after
            _apply(rows.setdefault(change.table, {}), change.identity, after)
    for place in emptied:
        rows[place.table] = {}
    for _, entry in reversed(waiting):
        _apply_entry(rows, entry)


def _not_streamed(changes: Sequence[Change], journal: Sequence[Entry], truncations: Truncations) -> dict[str, Table]:
    """The source's rows after the journal's transactions that are not in this stream."""
    streamed = {change.xid for change in changes if change.is_streamed}
    rows: dict[str, Table] = {}
    for entry in journal:
        if entry.is_truncate and entry.number not in truncations.streamed:
            rows[entry.table] = {}
        elif entry.xid not in streamed and not entry.is_truncate:
            _apply_entry(rows, entry)
    return rows


def _apply_entry(rows: dict[str, Table], entry: Entry) -> None:
    if entry.is_truncate:
        rows[entry.table] = {}
    for wanted in expected_of(entry):
        _apply(rows.setdefault(wanted.table, {}), wanted.identity, wanted.after)


def fold(changes: Sequence[Change], sweeps: Sequence[Sweep]) -> dict[str, Table]:
    """What a consumer holds that read everything and applied the sweeps. Partitions may be read in any order."""
    newest: dict[tuple[str, str], Change] = {}
    for change in changes:
        place = change.table, change.identity
        if place not in newest or newest[place].version < change.version:
            newest[place] = change
    floors = {sweep.table: sweep.floor for sweep in sweeps}
    tables: dict[str, Table] = {}
    for (table, identity), change in newest.items():
        if change.version >= floors.get(table, 0):
            _apply(tables.setdefault(table, {}), identity, change.after)
    return tables


def last_rows_are_whole(changes: Sequence[Change], sweeps: Sequence[Sweep] = ()) -> Complaints:
    """Of each key that was not swept: what a compacted topic keeps. At rest; while changes come it may be that one is
    still to be read."""
    floors = {sweep.table: sweep.floor for sweep in sweeps}
    newest: dict[tuple[str, str], Change] = {}
    for change in sorted(changes, key=lambda change: change.version):
        newest[change.table, change.identity] = change
    for change in newest.values():
        if change.unchanged and change.version >= floors.get(change.table, 0):
            yield f"{change}: the last of its key, and without {', '.join(sorted(change.unchanged))}"


def folds_to_the_source(
    changes: Sequence[Change], sweeps: Sequence[Sweep], source: Mapping[str, Sequence[tuple[Row, Row]]]
) -> Complaints:
    """Every row and column of every table, and no row more."""
    folded = fold(changes, sweeps)
    for table in sorted(source.keys() | folded.keys()):
        rows = {key_text(key): row for key, row in source.get(table, ())}
        yield from differences(table, rows, folded.get(table, {}))


def differences(where: str, source: Table, ours: Table) -> Complaints:
    """Rows that one side lacks, and columns that differ."""
    for key in sorted(source.keys() - ours.keys()):
        yield f"{where}: row {key} is missing"
    for key in sorted(ours.keys() - source.keys()):
        yield f"{where}: row {key} is not in the source"
    for key in sorted(source.keys() & ours.keys()):
        if source[key] != ours[key]:
            columns = {**source[key], **ours[key]}
            unlike = [c for c in columns if source[key].get(c, ...) != ours[key].get(c, ...)]
            yield f"{where}: row {key} differs in {', '.join(unlike)}"


def _apply(table: Table, identity: str, row: Row | None) -> None:
    if row is None:
        table.pop(identity, None)
    else:
        table[identity] = row


def _transactions(journal: Sequence[Entry]) -> dict[int, list[Entry]]:
    found: dict[int, list[Entry]] = {}
    for entry in journal:
        found.setdefault(entry.xid, []).append(entry)
    return found
