"""What is drift and what is on its way: a source and a store that change between two looks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from cdc.config.store_mapping import StoredTables as Section
from cdc.model.events import Column, TableId, TableSchema
from cdc.postgres.chunk_table import TableAlteredError
from sinks.contents import StoredEntry
from sinks.schema_history import SchemaHistory
from watershed.verify import settling, suspects
from watershed.verify.expected import ExpectedRows
from watershed.verify.model import DriftKind, RowDifference
from watershed.verify.settling import ROUNDS_MAX, ROUNDS_MIN, Side, settle
from watershed.verify.source_rows import RowsTooLargeError, SourceRow
from watershed.verify.suspects import Suspects

TABLE = TableSchema(
    TableId("public", "goods"),
    1,
    1,
    (Column("id", 20, -1, "bigint", nullable=False), Column("name", 25, -1, "text", nullable=True)),
    ("id",),
    "shop.public.goods",
)
KEY = b'{"id":1}'
CEILING = 100


class Settled(NamedTuple):
    differences: list[RowDifference]
    undecided: int


class Pair:
    """Source and store; `at_reach` happens each time that the store has shown what the source had."""

    def __init__(self, row: SourceRow | None, held: StoredEntry | None) -> None:
        self.row = row
        self.stored = held
        self.at_reach: Callable[[], None] = lambda: None
        self.running: set[str] = set()
        self.unfinished = ""
        self.reads = 0
        self.rows_max = 1_000
        self.reaches = 0
        self.is_altered = False

    # the source

    def by_keys(self, keys: Sequence[bytes]) -> dict[bytes, SourceRow]:
        self.reads += 1
        if len(keys) > self.rows_max:
            raise RowsTooLargeError
        return {} if self.row is None else dict.fromkeys(keys, self.row)

    def require_unaltered(self) -> None:
        if self.is_altered:
            raise TableAlteredError("table public.goods was altered")

    def writers(self) -> set[str]:
        return set(self.running)

    # the store

    def held(self, table: TableId, keys: Sequence[Any]) -> list[StoredEntry | None]:
        assert table == TABLE.table
        return [self.stored for _ in keys]

    # the world

    def unsettled(self, table: TableId) -> str:
        assert table == TABLE.table
        return self.unfinished

    def wait_until_applied(self, sink: str) -> None:
        assert sink == "cache"
        self.reaches += 1
        self.at_reach()

    def ceiling(self) -> int:
        return CEILING


def row(name: str, xmin: str = "7", key: int = 1) -> SourceRow:
    return SourceRow(xmin, (str(key), name))


def held(name: str, version: int) -> StoredEntry:
    return StoredEntry(version, {"id": 1, "name": name})


def decided(pair: Any, *keys: bytes, is_partial: bool = False) -> Settled:
    expected = ExpectedRows("cache", Section(), SchemaHistory.of([TABLE]), {"id": "int8", "name": "text"}, {})
    found: list[RowDifference] = []
    with Suspects() as keys_left:
        for key in keys or (KEY,):
            keys_left.add(key)
        for page in settle(Side("cache", pair, expected, pair, is_partial), pair, keys_left):
            found += page
        return Settled(found, len(keys_left))


def kinds(settled: Settled) -> list[DriftKind]:
    assert not settled.undecided
    return [one.kind for one in settled.differences]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "PAUSE_S", 0.0)
    monkeypatch.setattr(settling, "WRITERS_S_MAX", 0.01)
    monkeypatch.setattr(settling, "CHECK_S", 0.0)


def test_the_same_write_beside_another_row_is_drift() -> None:
    settled = decided(Pair(row("new"), held("old", 9)))
    assert kinds(settled) == [DriftKind.WRONG]
    assert [(c.column, c.source, c.store) for c in settled.differences[0].columns] == [("name", "'new'", "'old'")]
    assert kinds(decided(Pair(None, held("old", 9)))) == [DriftKind.EXTRA]
    assert kinds(decided(Pair(row("new"), StoredEntry(9, None)))) == [DriftKind.MISSING]  # a deleted row's version
    assert kinds(decided(Pair(row("x"), held("x", 9)))) == []
    assert kinds(decided(Pair(row("x"), held("x", 9)._replace(copies=2)))) == [DriftKind.TWICE]
    assert kinds(decided(Pair(row("x"), held("x", 9)._replace(is_edited=True)))) == [DriftKind.WRONG]


def test_a_row_that_was_on_its_way_is_right() -> None:
    pair = Pair(row("new"), held("old", 9))

    def arrives() -> None:
        pair.stored = held("new", 10)

    pair.at_reach = arrives
    assert kinds(decided(pair)) == []


def test_a_row_that_changes_between_two_looks_is_not_drift_until_it_rests() -> None:
    """Each look finds the write before: the store shows it, the source is one further."""
    pair = Pair(row("0"), held("-1", 1))
    looks = iter(range(1, 1_000))

    def changes() -> None:
        number = next(looks)
        pair.row, pair.stored = row(str(number), str(number)), held(str(number), 1 + number)

    pair.at_reach = changes
    settled = decided(pair)
    assert (settled.differences, settled.undecided, pair.reads) == ([], 1, ROUNDS_MAX)


def test_a_row_that_the_store_has_not_is_missing_when_the_source_keeps_it() -> None:
    pair = Pair(row("new"), None)
    assert kinds(decided(pair)) == [DriftKind.MISSING]
    assert pair.reads == 3, "the same tuple at three readings, with a look at the store between them"
    assert kinds(decided(Pair(row("new"), None), is_partial=True)) == [], "it may have expired"

    pair = Pair(row("new", "1"), None)  # inserted and deleted all the time
    numbers = iter(range(2, 1_000))

    def again() -> None:
        pair.row = row("new", str(next(numbers)))

    pair.at_reach = again
    assert decided(pair) == Settled([], 1)


def test_versions_above_the_ceiling_are_of_nobodys_writing() -> None:
    for stored in (held("x", CEILING + 1), held("y", CEILING + 1), StoredEntry(CEILING + 1, None)):
        settled = decided(Pair(row("x"), stored))
        assert kinds(settled) == [DriftKind.FUTURE]
        assert settled.differences[0].is_foreign
    assert kinds(decided(Pair(row("x"), held("x", CEILING)))) == []
    assert kinds(decided(Pair(None, StoredEntry(CEILING + 1, None)))) == [], "nothing is shown that should not be"

    pair = Pair(row("x"), held("w", 9))

    def later() -> None:
        pair.stored = held("x", CEILING + 1 if pair.reads == 1 else CEILING)

    pair.at_reach = later  # written behind the position that was read, and met by a later one
    assert kinds(decided(pair)) == []


def test_wrong_lookup_keys_are_drift_when_they_were_wrong_at_the_reading_before() -> None:
    """Of two rows that exchange a value the store may show the second one's change before the first one's."""
    faulty = held("x", 9)._replace(lookups=(("by:x", "absent"),))
    settled = decided(Pair(row("x"), faulty))
    assert kinds(settled) == [DriftKind.LOOKUP]
    assert [(c.column, c.store) for c in settled.differences[0].columns] == [("by:x", "absent")]
    both = decided(Pair(row("y"), faulty))
    assert kinds(both) == [DriftKind.WRONG] and len(both.differences[0].columns) == 2

    pair = Pair(row("x"), held("x", 9))
    looks = iter([faulty, held("x", 9)])
    pair.at_reach = lambda: setattr(pair, "stored", next(looks))
    assert kinds(decided(pair)) == []


def test_while_writers_or_snapshots_run_nothing_is_drift() -> None:
    pair = Pair(row("new"), held("old", 9))
    pair.running = {"3/17"}
    assert decided(pair) == Settled([], 1)
    pair.running, pair.unfinished = set(), "a snapshot runs"
    assert decided(pair) == Settled([], 1)


def test_rows_too_large_are_read_in_smaller_parts() -> None:
    pair = Pair(None, held("old", 9))
    pair.rows_max = 2
    keys = [b'{"id":%d}' % number for number in range(5)]
    assert sorted(one.key for one in decided(pair, *keys).differences) == keys


class HotPair(Pair):
    """Rows of which each reading of the source is one version ahead of the store; row 1 differs and rests."""

    version = 0

    def by_keys(self, keys: Sequence[bytes]) -> dict[bytes, SourceRow]:
        self.version += 1
        return {key: row("new", "7" if key == KEY else str(self.version)) for key in keys}

    def held(self, table: TableId, keys: Sequence[Any]) -> list[StoredEntry | None]:
        assert table == TABLE.table
        return [held("old", 9 if key == {"id": 1} else self.version) for key in keys]


def test_waits_do_not_depend_on_the_number_of_keys_that_change_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: each page of keys waited ten times for writers, snapshots and the sink; `cdc verify` did not end."""
    monkeypatch.setattr(suspects, "PAGE_KEYS", 2)
    pair = HotPair(None, None)
    keys = [b'{"id":%d}' % number for number in range(7)]
    settled = decided(pair, *keys)
    assert [(one.key, one.kind) for one in settled.differences] == [(KEY, DriftKind.WRONG)]
    assert (settled.undecided, pair.reaches) == (6, ROUNDS_MAX)


def test_no_round_is_begun_when_the_time_for_waits_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "WAITED_S_MAX", 0.0)
    pair = HotPair(None, None)
    settled = decided(pair, KEY, b'{"id":2}')
    assert [one.key for one in settled.differences] == [KEY]
    assert (settled.undecided, pair.reaches) == (1, ROUNDS_MIN)
    assert kinds(decided(Pair(row("new"), None))) == [DriftKind.MISSING], "every kind of difference is found until then"


def test_a_table_that_was_altered_meanwhile_has_no_drift() -> None:
    """The store of a row that is right may already have the columns of the next schema."""
    pair = Pair(row("x"), StoredEntry(9, {"id": 1, "name": "x", "size": None}))
    assert kinds(decided(pair)) == [DriftKind.WRONG]
    pair.is_altered = True
    with pytest.raises(TableAlteredError):
        decided(pair)
