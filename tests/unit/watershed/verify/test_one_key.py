"""One row beside what the stores have of it: what is said of each store."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.config_file import Config
from cdc.model.events import Column, TableId, TableSchema
from sinks.contents import StoredEntry
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from watershed.verify import one_key, settling
from watershed.verify.one_key import KeyReader, StoreRow, Verdict
from watershed.verify.pipeline_reader import SinkStalledError
from watershed.verify.source_rows import SourceRow

SCHEMA = TableSchema(
    TableId("public", "goods"),
    1,
    1,
    (
        Column("id", 20, -1, "bigint", nullable=False),
        Column("name", 25, -1, "text", nullable=True),
        Column("phone", 25, -1, "text", nullable=True),
    ),
    ("id",),
    "shop.public.goods",
)
KEY = b'{"id":1}'


def config(**mapping: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "host=none", "tables": ["public.goods"]},
            "kafka": {"bootstrap_servers": "none:1"},
            "topics": {"prefix": "shop"},
            "masking": {"asterisks": {"public.goods.phone": 3}},
            "sinks": {"cache": {"url": "redis://c", "mapping": {"public.goods": mapping} if mapping else {}}},
        }
    )


class World:
    """Source, pipeline and store of one row; `at_reach` happens each time that the sink has reached the source."""

    def __init__(self, row: SourceRow | None, entry: StoredEntry | None, settings: Config) -> None:
        self.row = row
        self.entry = entry
        self.settings = settings
        self.at_reach: Callable[[], None] = lambda: None
        self.is_known = True
        self.is_partial_store = False
        self.is_ready = True
        self.mappings = settings.sinks["cache"].fingerprints([SCHEMA.table])
        self.types = {"id": "int8", "name": "text", "phone": "text"}

    # the source

    def by_keys(self, keys: Sequence[bytes]) -> dict[bytes, SourceRow]:
        return {} if self.row is None else dict.fromkeys(keys, self.row)

    def require_unaltered(self) -> None:
        """It is not altered."""

    def writers(self) -> set[str]:
        return set()

    # the pipeline

    def require_sink(self, sink: str) -> None:
        if not self.is_known:
            raise SinkStalledError(f"sink {sink} has never run: its store holds nothing", "start it")

    def record(self, sink: str) -> Any:
        assert sink == "cache"
        return SimpleNamespace(generation=3, applied_lsn=0x500, excluded=(), mappings=self.mappings)

    def unsettled(self, table: TableId, wait_s: float = 0.0) -> str:
        del table, wait_s
        return ""

    def wait_until_applied(self, sink: str) -> None:
        assert sink == "cache"
        self.at_reach()

    def ceiling(self) -> int:
        return 100

    # the store

    def attach(self, schema: TableSchema) -> None:
        assert schema.table == SCHEMA.table

    def uncompared(self, table: TableId) -> frozenset[str]:
        assert table == SCHEMA.table
        return frozenset()

    def is_partial(self, table: TableId) -> bool:
        assert table == SCHEMA.table
        return self.is_partial_store

    def is_prepared(self, table: TableId) -> bool:
        assert table == SCHEMA.table
        return self.is_ready

    def held(self, table: TableId, keys: Sequence[Any]) -> list[StoredEntry | None]:
        assert table == SCHEMA.table
        assert list(keys) == [{"id": 1}]
        return [self.entry]

    def close(self) -> None:
        """Nothing is open."""


def row(name: str, xmin: str = "7") -> SourceRow:
    return SourceRow(xmin, ("1", name, "555 1234"))


def held(name: str, version: int = 9) -> StoredEntry:
    return StoredEntry(version, {"id": 1, "name": name, "phone": "***"})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "PAUSE_S", 0.0)
    monkeypatch.setattr(one_key, "read_dead_letters", lambda *_: [])


def asked(world: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[KeyReader, list[StoreRow]]:
    monkeypatch.setattr(one_key, "open_contents", lambda *_: world)
    reader = KeyReader(world.settings, SchemaHistory.of([SCHEMA]), world, world, KEY)
    return reader, list(reader.stores())


def store(world: World, monkeypatch: pytest.MonkeyPatch) -> StoreRow:
    (found,) = asked(world, monkeypatch)[1]
    return found


def test_the_source_is_shown_with_the_masks_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, _ = asked(World(row("a"), held("a"), config()), monkeypatch)
    assert reader.source().row == {"id": "1", "name": "a", "phone": "***"}
    reader, _ = asked(World(None, None, config()), monkeypatch)
    assert reader.source().row is None


def test_a_store_with_the_row_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = store(World(row("a"), held("a"), config()), monkeypatch)
    assert (found.verdict, found.why, found.generation, found.version) == (Verdict.EQUAL, "", 3, 9)
    assert found.as_json()["applied_lsn"] == "0/500"
    assert found.row == {"id": 1, "name": "a", "phone": "***"}


def test_a_row_that_is_gone_from_both_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in (None, StoredEntry(9, None)):
        found = store(World(None, entry, config()), monkeypatch)
        assert (found.verdict, found.why) == (Verdict.EQUAL, "no row in either")


def test_a_row_that_the_condition_leaves_out_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = store(World(row("a"), None, config(where="name = 'b'")), monkeypatch)
    assert (found.verdict, found.why) == (Verdict.EXCLUDED, "the mapping's condition leaves the row out")


def test_names_of_the_store_are_found_by_those_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(row("a"), held("a"), config(rename={"name": "title"}, exclude=["phone"]))
    world.entry = StoredEntry(9, {"id": 1, "title": "a"})
    found = store(world, monkeypatch)
    assert (found.verdict, found.names) == (Verdict.EQUAL, {"id": "id", "name": "title"})


def test_a_row_that_stays_different_differs_with_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    found = store(World(row("new"), held("old"), config()), monkeypatch)
    assert (found.verdict, found.why) == (Verdict.DIFFERS, "wrong column: name is 'old', expected 'new'")
    assert found.next == "cdc repair --sink cache --table public.goods corrects it"
    missing = store(World(row("new"), None, config()), monkeypatch)
    assert (missing.verdict, missing.why) == (Verdict.DIFFERS, "missing")
    extra = store(World(None, held("old"), config()), monkeypatch)
    assert (extra.verdict, extra.why) == (Verdict.DIFFERS, "extra")


def test_a_row_that_the_store_rejects_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    letter = SimpleNamespace(row=SimpleNamespace(table=SCHEMA.table, key={"id": 1}, reason="too long"))
    other = SimpleNamespace(row=SimpleNamespace(table=SCHEMA.table, key={"id": 2}, reason="too short"))
    monkeypatch.setattr(one_key, "read_dead_letters", lambda *_: [other, letter])
    found = store(World(row("new"), None, config()), monkeypatch)
    assert (found.verdict, found.why) == (Verdict.DIFFERS, "the store rejects the row: too long")
    assert found.next == "remove the cause, then: cdc dlq replay cache", "published again, it would be rejected again"


def test_a_change_that_was_on_its_way_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(row("new"), held("old"), config())

    def arrives() -> None:
        world.entry = held("new", 10)

    world.at_reach = arrives
    found = store(world, monkeypatch)
    assert (found.verdict, found.version) == (Verdict.EQUAL, 10)


def test_a_sink_that_stands_still_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(row("new"), held("old"), config())

    def stands() -> None:
        raise SinkStalledError("sink cache does not make progress: it has been at 0/500 for 5 s", "start it")

    world.at_reach = stands
    found = store(world, monkeypatch)
    assert (found.verdict, found.next) == (Verdict.BEHIND, "start it")
    assert found.row == {"id": 1, "name": "old", "phone": "***"}


def test_a_row_that_changes_at_each_reading_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    world, numbers = World(row("0"), held("-1", 1), config()), iter(range(1, 1_000))

    def changes() -> None:
        number = next(numbers)
        world.row, world.entry = row(str(number), str(number)), held(f"-{number}", 1 + number)

    world.at_reach = changes
    assert store(world, monkeypatch).verdict == Verdict.UNDECIDED


def test_a_store_that_can_not_be_compared_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(row("a"), held("b"), config())
    world.mappings = {"public.goods": "another"}
    found = store(world, monkeypatch)
    assert (found.verdict, found.version) == (Verdict.NOT_COMPARED, 9)
    assert "with a mapping that differs" in found.why
    world.is_ready = False
    assert "has no table of public.goods" in store(world, monkeypatch).why
    world.is_known = False
    assert "has never run" in store(world, monkeypatch).why

    def closed(*_: object) -> Any:
        raise SinkError("Redis does not answer", "start it")

    world.is_known = True
    monkeypatch.setattr(one_key, "open_contents", closed)
    reader = KeyReader(world.settings, SchemaHistory.of([SCHEMA]), world, world, KEY)  # type: ignore[arg-type]
    (found,) = reader.stores()
    assert (found.verdict, found.why) == (Verdict.NOT_COMPARED, "Redis does not answer")


def test_a_row_may_be_absent_from_a_store_whose_rows_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(row("a"), None, config())
    world.is_partial_store = True
    assert store(world, monkeypatch).verdict == Verdict.EXPIRED


def test_a_row_that_differs_at_this_moment_is_pending_where_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(row("new"), held("old"), config())
    monkeypatch.setattr(one_key, "open_contents", lambda *_: world)
    world.at_reach = lambda: pytest.fail("it was waited for")
    reader = KeyReader(world.settings, SchemaHistory.of([SCHEMA]), world, world, KEY)  # type: ignore[arg-type]
    (found,) = reader.stores(is_settled=False)
    assert (found.verdict, found.why, found.row) == (Verdict.PENDING, "", {"id": 1, "name": "old", "phone": "***"})
    assert found.as_json()["differences"] == [{"column": "name", "expected": "'new'", "stored": "'old'"}]
    world.entry = held("new")
    assert next(iter(reader.stores(is_settled=False))).verdict is Verdict.EQUAL
