"""Looks at the catalog and what follows from them, each at its place in the log."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.model.control import SchemaRecord
from cdc.model.errors import ConnectionLost, SourceError, UnsupportedChangeError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.table_state import ColumnFacts, StorageFacts, TableFacts
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import RelationColumn
from cdc.pgoutput.relations import relation_of
from cdc.ports.catalog_reader import CatalogAnswer, CatalogPoll, CatalogPollFailed, DivergedTable, KnownTable
from cdc.tables.schema_tracking import SchemaTracker, TrackedTables

ID, NAME = Column("id", 23, -1, "integer", False), Column("name", 25, -1, "text", True)
MORE = Column("more", 25, -1, "text", True)
ITEMS = TableSchema(TableId("public", "items"), 1, 7, (ID, NAME), ("id",), "shop.public.items")
WIDER = replace(ITEMS, version=2, columns=(ID, NAME, MORE))
GONE = TableId("public", "gone")


def facts(*names: str, has_missing: bool = False) -> TableFacts:
    columns = tuple(
        ColumnFacts(number=number, name=name, changed_in="700", has_missing=has_missing and number > 2)
        for number, name in enumerate(names, 1)
    )
    return TableFacts(oid=7, columns=columns, storage=(StorageFacts(oid=7, file=70),), generated="", others="a")


THEN = facts("id", "name")
REPLACED = THEN.model_copy(update={"oid": 8})


@dataclass
class Catalog:
    """cdc.ports.catalog_reader.CatalogReader."""

    asked: list[CatalogPoll] = field(default_factory=list)
    coming: list[CatalogAnswer | CatalogPollFailed] = field(default_factory=list)

    def ask(self, question: CatalogPoll) -> None:
        self.asked.append(question)

    def answers(self) -> list[CatalogAnswer | CatalogPollFailed]:
        came, self.coming = self.coming, []
        return came


class World:
    def __init__(
        self,
        *,
        is_half_published: bool = False,
        known: TableSchema = ITEMS,
        facts: TableFacts = THEN,
        constants: Mapping[str, str] | None = None,
        needed_by: str | None = None,
    ) -> None:
        """`constants`: those of the catalog when the stream announces columns. `needed_by`: who needs all rows."""
        self.catalog = Catalog()
        self.altered: list[TableSchema] = []
        self.read_again: list[str] = []
        self.asked: list[tuple[list[str], list[str]]] = []  # columns that were dropped, and added
        self._constants, self._needed_by = constants or {}, needed_by
        self.tracker = SchemaTracker(
            topics=Topics("shop"),
            tables=TrackedTables(
                known={ITEMS.table: KnownTable(known, facts, "entry")},
                stopped={GONE: "as it was"},
                publication="fingerprint",
                is_half_published=is_half_published,
            ),
            describe=self._describe,
            catalog=self.catalog,
            rows=self,
            earlier=self,
            now_us=lambda: 17,
            new_nonce=lambda: f"look {len(self.catalog.asked)}",
        )

    def alter(self, schema: TableSchema) -> None:
        self.altered.append(schema)

    # ---- EarlierRecords

    def constants(self, oid: int, names: Collection[str]) -> Mapping[str, str]:
        assert oid == 7
        return {name: self._constants[name] for name in names if name in self._constants}

    def encoded(self, schema: TableSchema, constants: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        published = {column.name for column in schema.columns}
        return tuple((name, json.dumps(text)) for name, text in constants.items() if name in published)

    def why_published_again(self, schema: TableSchema, dropped: Collection[str], added: Collection[str]) -> str | None:
        assert schema.table == ITEMS.table
        self.asked.append((list(dropped), list(added)))
        return self._needed_by

    # ---- the rest

    def _describe(self, oid: int, columns: Sequence[RelationColumn]) -> list[Column]:
        assert (oid, [column.name for column in columns]) == (7, ["more"])
        return [MORE]

    def reread(self, table: TableId, why: str) -> list[TopicRecord]:
        assert table == ITEMS.table
        self.read_again.append(why)
        return [TopicRecord("shop.state", b"snapshot", b"{}")]

    def look(self, seen: DivergedTable | None, **changes: Any) -> bytes:
        """Asked and answered; the mark is on its way."""
        self.tracker.watch()
        nonce = self.catalog.asked[-1].nonce
        tables = {} if seen is None else {ITEMS.table: seen}
        self.catalog.coming.append(replace(CatalogAnswer(nonce, "fingerprint", tables, frozenset()), **changes))
        return nonce.encode()

    def received(self, watermark: bytes) -> list[str]:
        """Keys of what the mark's transaction publishes."""
        self.tracker.watermark(watermark)
        return [record.key.decode() for record in self.tracker.end()[0]]


def seen(schema: TableSchema | None, now: TableFacts | None, **changes: Any) -> DivergedTable:
    return replace(DivergedTable(schema, now, None, "entry", frozenset()), **changes)


def test_a_look_that_finds_nothing_needs_no_mark() -> None:
    world = World()
    world.look(None)
    assert world.catalog.asked == [
        CatalogPoll("look 0", {ITEMS.table: KnownTable(ITEMS, THEN, "entry")}, {GONE: "as it was"})
    ]
    world.tracker.watch()
    assert len(world.catalog.asked) == 2
    assert world.tracker.end() == ([], [])


def test_what_was_seen_counts_where_its_mark_is_received() -> None:
    world = World()
    watermark = world.look(seen(WIDER, facts("id", "name", "more")))
    world.tracker.watch()
    assert (world.altered, len(world.catalog.asked)) == ([], 1), "one question at a time"
    world.tracker.watermark(b"somebody else's")
    assert world.tracker.end() == ([], [])
    assert world.received(watermark) == ["schema/public.items/2", "table/public.items"]
    assert (world.altered, world.read_again) == ([WIDER], [])
    world.tracker.watch()
    assert world.catalog.asked[-1].tables == {ITEMS.table: KnownTable(WIDER, facts("id", "name", "more"), "entry")}


def test_rows_that_changed_without_events_are_read_again() -> None:
    world = World()
    watermark = world.look(seen(WIDER, facts("id", "name", "more", has_missing=True)))
    assert world.received(watermark) == ["schema/public.items/2", "snapshot", "table/public.items"]
    assert world.read_again == ["column more was added with a default"]


def without(*numbers: int) -> TableFacts:
    """The facts of id, name and more, without the columns of these numbers."""
    whole = facts("id", "name", "more").model_copy(update={"attributes": 3})
    return whole.model_copy(update={"columns": tuple(c for c in whole.columns if c.number not in numbers)})


WHOLE, NARROW = without(), without(2)
NARROWER = replace(WIDER, version=3, columns=(ID, MORE))
WITH_DEFAULT = facts("id", "name", "more", has_missing=True)


def published(schema_records: Sequence[TopicRecord]) -> list[SchemaRecord]:
    return [SchemaRecord.decode(r.value or b"", "") for r in schema_records if r.key.startswith(b"schema/")]


def test_a_dropped_column_is_noted_where_no_reader_needs_the_rows() -> None:
    world = World(known=WIDER, facts=WHOLE)
    world.tracker.watermark(world.look(seen(NARROWER, NARROW)))
    records, adopted = world.tracker.end()
    assert [record.key for record in records] == [*[b"schema/public.items/3"] * 2, b"table/public.items"]
    assert published(records)[-1].dropped == ("name",)
    assert (world.read_again, world.asked, adopted) == ([], [(["name"], [])], [NARROWER])


def test_rows_are_published_again_where_a_reader_needs_them() -> None:
    world = World(known=WIDER, facts=WHOLE, needed_by="sink search keeps column name")
    with capture_logs() as logs:
        world.tracker.watermark(world.look(seen(NARROWER, NARROW)))
        records, _ = world.tracker.end()
    assert world.read_again == ["column name was dropped"]
    assert [record.dropped for record in published(records)] == [()]
    assert [line["because"] for line in logs if "because" in line] == ["sink search keeps column name"]


def test_a_constant_default_is_in_the_version_that_adds_the_column() -> None:
    world = World()
    world.tracker.watermark(world.look(seen(WIDER, WITH_DEFAULT, constants={"more": "x", "other": "y"})))
    records, _ = world.tracker.end()
    assert [record.filled for record in published(records)] == [{"more": '"x"'}]
    assert (world.read_again, world.asked) == ([], [([], ["more"])])


def test_the_stream_announces_a_column_with_its_constant() -> None:
    """Rows follow at once; the poll then finds the same constant."""
    world = World(constants={"more": "x"})
    after, records = world.tracker.follow(ITEMS, relation_of(WIDER))
    assert (after.filled, published(records)[0].filled) == ((("more", '"x"'),), {"more": '"x"'})
    world.received(world.look(seen(after, WITH_DEFAULT, constants={"more": "x"})))
    assert (world.read_again, world.asked) == ([], [([], ["more"])])


@pytest.mark.parametrize("then", [None, "another"])
def test_a_constant_that_the_stream_did_not_find_is_none(then: str | None) -> None:
    """The column was dropped and added again meanwhile, or its table rewritten."""
    world = World(constants={} if then is None else {"more": then})
    after, _ = world.tracker.follow(ITEMS, relation_of(WIDER))
    world.received(world.look(seen(after, WITH_DEFAULT, constants={"more": "x"})))
    assert (world.read_again, world.asked) == (["column more was added with a default"], [])


def test_a_default_that_is_no_constant_is_read_from_the_rows() -> None:
    """Partitions have theirs each for itself."""
    world = World()
    world.received(world.look(seen(WIDER, WITH_DEFAULT)))
    assert world.read_again == ["column more was added with a default"]


def test_a_column_that_is_not_published_changes_no_record() -> None:
    world = World()
    world.received(world.look(seen(ITEMS, WITH_DEFAULT)))
    assert (world.read_again, world.asked) == ([], [])


def test_other_changes_beside_a_dropped_column_are_read_from_the_rows() -> None:
    world = World(known=WIDER, facts=WHOLE)
    renamed = NARROW.model_copy(
        update={"columns": tuple(c.model_copy(update={"name": f"{c.name}_"}) for c in NARROW.columns)}
    )
    world.received(world.look(seen(NARROWER, renamed)))
    assert world.read_again == ["column id was renamed to id_"]


def test_columns_that_are_added_and_dropped_one_after_the_other_stay_clear() -> None:
    """A migration in several transactions, while rows are written."""
    world = World(known=ITEMS, facts=without(3), constants={"more": "x"})
    after, _ = world.tracker.follow(ITEMS, relation_of(WIDER))
    last, _ = world.tracker.follow(after, relation_of(NARROWER))
    now = WITH_DEFAULT.model_copy(update={"columns": WITH_DEFAULT.columns[::2], "attributes": 3})
    world.received(world.look(seen(last, now, constants={"more": "x"})))
    assert (world.read_again, world.asked) == ([], [(["name"], ["more"])])


def test_a_column_that_is_added_and_renamed_between_two_polls_is_read_again() -> None:
    """Found by tests/simulation/altered.py: rows that were written before the second change have its value under the
    first name, and neither poll sees this."""
    world = World()
    world.tracker.follow(ITEMS, relation_of(WIDER))
    other = replace(MORE, name="other")
    last = replace(ITEMS, version=3, columns=(ID, NAME, other, MORE))
    world.received(world.look(seen(last, facts("id", "name", "other", "more"))))
    assert world.read_again == ["columns were added, and altered again"]


def test_a_column_that_was_dropped_and_added_again_is_another_one() -> None:
    """In one transaction: names and types are the same as before, and nothing announces it."""
    world = World()
    again = facts("id", "gone", "name").model_copy(update={"columns": facts("id", "-", "name").columns[::2]})
    world.received(world.look(seen(ITEMS, again)))
    assert world.read_again == ["column name was dropped"]


def test_the_name_of_a_dropped_column_makes_its_values_come_back() -> None:
    """Seconds or years later: records that were not written since have the former column's values."""
    world = World(known=replace(ITEMS, dropped=("more",)))
    records = world.received(world.look(seen(replace(WIDER, dropped=("more",)), facts("id", "name", "more"))))
    assert world.read_again == ["columns were added, and altered again"]
    assert records == [*["schema/public.items/2"] * 2, "snapshot", "table/public.items"]
    world.read_again.clear()
    last = facts("id", "name", "more", "more2")
    world.received(world.look(seen(replace(WIDER, version=3), last)))
    assert world.read_again == [], "the rows were read again: no record has the former values"


@pytest.mark.parametrize("is_marked_before", [False, True])
def test_a_mark_whose_commit_was_not_answered_says_nothing(is_marked_before: bool) -> None:
    """The connection is lost while the mark is written: it may be in the log all the same."""
    world = World()
    watermark = world.look(seen(WIDER, facts("id", "name", "more")))
    if is_marked_before:
        world.tracker.watermark(watermark)
    world.catalog.coming.append(CatalogPollFailed(watermark.decode()))
    if is_marked_before:
        world.tracker.watch()  # asks again, while the mark's transaction is being received
        other = world.catalog.asked[-1].nonce
        world.catalog.coming.append(
            CatalogAnswer(other, "fingerprint", {ITEMS.table: seen(WIDER, facts("id", "name", "more"))}, frozenset())
        )
    else:
        world.tracker.watermark(watermark)
    assert world.tracker.end() == ([], [])
    world.tracker.watch()
    assert len(world.catalog.asked) == 2
    assert world.altered == []


def test_a_look_says_nothing_of_a_table_that_the_stream_described_anew_meanwhile() -> None:
    world = World()
    watermark = world.look(seen(replace(ITEMS, version=2, columns=(ID,)), facts("id")))
    after, records = world.tracker.follow(ITEMS, relation_of(WIDER))
    assert (after, [record.key for record in records]) == (WIDER, [b"schema/public.items/2"])
    assert json.loads(records[0].value or b"")["version"] == 2
    assert world.received(watermark) == []
    world.tracker.watch()
    assert world.catalog.asked[-1].tables == {ITEMS.table: KnownTable(WIDER, THEN, "entry")}, "it is looked at again"


def test_a_column_that_had_another_name_meanwhile_is_noted() -> None:
    """The catalog may never be seen with it."""
    world = World()
    other = replace(ITEMS, version=2, columns=(ID, MORE))
    after, records = world.tracker.follow(ITEMS, relation_of(other))
    assert [record.key for record in records] == [b"schema/public.items/2", b"table/public.items"]
    assert [c["strayed"] for c in json.loads(records[1].value or b"")["facts"]["columns"]] == [False, True]
    assert world.received(world.look(seen(replace(ITEMS, version=3), THEN)))
    assert world.read_again == ["column name had another name or type meanwhile"]
    assert after == other


def test_a_partition_that_passed_is_noted() -> None:
    world = World()
    parted = THEN.model_copy(update={"storage": (StorageFacts(oid=8, file=80),)})
    world.received(world.look(seen(replace(ITEMS, version=2, columns=(ID,)), parted)))
    world.read_again.clear()
    assert world.tracker.described(7, ITEMS) == []
    assert world.tracker.described(8, None) == [], "it is known"
    assert world.tracker.described(9, None) == [], "it is not described behind the root"
    world.tracker.described(7, ITEMS)
    (record,) = world.tracker.described(9, None)
    assert [part["oid"] for part in json.loads(record.value or b"")["facts"]["storage"]] == [8, 9]
    world.received(world.look(seen(replace(ITEMS, version=2, columns=(ID,)), parted)))
    assert world.read_again == ["a partition was detached or dropped"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (seen(None, None, error=SourceError("table public.items does not exist")), "does not exist"),
        (seen(None, None, entry="", error=SourceError("it was renamed: it is public.things now")), "it was renamed"),
        (seen(None, REPLACED, entry="", error=SourceError("it has no key")), "it was dropped and created again"),
        (seen(ITEMS, THEN, entry="another"), "it was removed from the publication"),
        (seen(replace(ITEMS, version=2, oid=8), REPLACED), "it was dropped and created again"),
        (seen(replace(ITEMS, version=2, key=("name",)), THEN), "its key is (name), but was (id)"),
        (seen(replace(ITEMS, version=2, columns=(replace(ID, type_oid=25), NAME)), THEN), "the type of key column id"),
    ],
)
def test_what_can_not_be_followed_stops_the_table(found: DivergedTable, expected: str) -> None:
    world = World()
    watermark = world.look(found)
    with pytest.raises(UnsupportedChangeError) as stop:
        world.received(watermark)
    assert expected in stop.value.message
    assert (stop.value.table, stop.value.is_held) == (ITEMS.table, False)
    assert world.altered == []


def test_nobody_is_told_to_take_back_that_a_table_was_created_again() -> None:
    world = World()
    watermark = world.look(seen(replace(ITEMS, version=2, oid=8), REPLACED))
    with pytest.raises(UnsupportedChangeError) as by_catalog:
        world.received(watermark)
    with pytest.raises(UnsupportedChangeError) as by_stream:
        World().tracker.follow(ITEMS, relation_of(replace(ITEMS, oid=8)))
    for stop in (by_catalog, by_stream):
        assert "it is added again automatically" in stop.value.hint
        assert "undo the change" not in stop.value.hint


def test_a_relation_that_can_not_be_followed_stops_the_table() -> None:
    with pytest.raises(UnsupportedChangeError, match=r"it is called public\.things now") as stop:
        World().tracker.follow(ITEMS, relation_of(replace(ITEMS, table=TableId("public", "things"))))
    assert stop.value.table == ITEMS.table


def test_another_publication_is_examined_by_the_next_session() -> None:
    world = World()
    world.look(None, publication=None)
    with pytest.raises(ConnectionLost, match="altered or dropped"):
        world.tracker.watch()


def test_a_look_that_failed_is_asked_for_again() -> None:
    world = World()
    watermark = world.look(seen(WIDER, THEN))
    world.catalog.coming.append(CatalogPollFailed(watermark.decode()))
    world.tracker.watch()
    assert len(world.catalog.asked) == 2
    assert world.received(watermark) == []


def test_a_table_that_can_join_again_needs_another_session() -> None:
    world = World()
    world.look(None, ready=frozenset({GONE}))
    assert not world.tracker.is_due
    world.tracker.watch()
    assert world.tracker.is_due


@pytest.mark.parametrize("changes", [{"begun": (GONE,)}, {"ended": (ITEMS.table,)}])
def test_a_session_ends_when_other_tables_match_but_not_within_a_transaction(changes: dict[str, Any]) -> None:
    world = World(is_half_published=True)
    world.look(None, **changes)
    world.tracker.watch()
    assert not world.tracker.is_due
    world.tracker.end()
    world.look(None, **changes)
    world.tracker.watch()
    assert world.tracker.is_due


def test_no_table_joins_before_the_half_published_transaction_has_ended() -> None:
    world = World(is_half_published=True)
    world.look(None, ready=frozenset({GONE}))
    world.tracker.watch()
    assert not world.tracker.is_due
    world.tracker.end()
    world.look(None, ready=frozenset({GONE}))
    world.tracker.watch()
    assert world.tracker.is_due
