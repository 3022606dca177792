"""Two generations of one SQL store: readers see one of them by the tables' names, and a swap is one transaction."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import create_engine, inspect

from cdc.config.stores import SqlConfig
from cdc.model.events import pack_version
from sinks.contract import Outcome
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.slots import FIRST
from sinks.sql.sink import SqlSink
from sinks.sql.slots import SqlSlots
from tests.conformance.tables import LABELS, ODD_NAMES, PAIRS, Table

V = pack_version(1, 100)
QUICK = Retries(attempt_count_max=2, delay_s_first=0.01)


class Database:
    """A store with tables of three names, one of them quoted, and indexes."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        shapes = {"public.labels": {"indexes": [["uses"]]}, "public.pairs": {"table": "couples"}}
        self.config = SqlConfig.model_validate({"url": SecretStr(url), "shapes": shapes})
        self._stack = stack
        self._engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        stack.callback(self._engine.dispose)
        self.slots = stack.enter_context(closing(SqlSlots(self.config, "shop", QUICK)))
        self.is_sqlite = url.startswith("sqlite")
        self.labels = "public_labels" if self.is_sqlite else "public.labels"

    def open(self, slot: str = FIRST, begins: int | None = None) -> SqlSink:
        sink = SqlSink.open(self.config, "shop", QUICK, slot=slot)
        self._stack.callback(sink.close)
        if begins is not None:
            sink.begin_generation(begins)
        for table in (LABELS, PAIRS, ODD_NAMES):
            sink.prepare(table.schema)
        return sink

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """What the last one returns."""
        with self._engine.begin() as connection:
            results = [connection.exec_driver_sql(statement) for statement in statements]
            return [tuple(row) for row in results[-1]] if results[-1].returns_rows else []

    def read(self, name: str = "") -> dict[str, int]:
        return dict(self.run(f"SELECT name, uses FROM {name or self.labels}"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with ExitStack() as stack:
        yield Database(url, stack)


def filled(sink: SqlSink, uses: int, table: Table = LABELS) -> None:
    assert sink.apply([table.upsert(V + uses, name="a", uses=uses)])[0].outcome is Outcome.WRITTEN


def test_readers_see_the_other_generation_after_one_step_and_the_former_again_after_another(database: Database) -> None:
    former, new = database.open(begins=1), database.open("g2", begins=2)
    filled(former, 1)
    if database.is_sqlite:
        database.run(f"CREATE VIEW shown AS SELECT * FROM {database.labels}")
    filled(new, 2)
    slots = database.slots
    assert (slots.serving(), slots.others(), slots.generation(FIRST)) == (FIRST, {"g2": 2}, 1)
    assert database.read() == {"a": 1}
    for _ in range(2):
        slots.serve("g2")
        assert (slots.others(), slots.generation(FIRST), database.read()) == ({"g1": 1}, 2, {"a": 2})
    if database.is_sqlite:
        assert database.read("shown") == {"a": 2}, "a view reads what has the name"
    serving = database.open()
    assert serving.generation() == 2
    filled(serving, 3)
    slots.serve("g1")
    assert (slots.others(), slots.generation(FIRST), database.read()) == ({"g2": 2}, 1, {"a": 1})
    kept = database.open("g2")
    filled(kept, 4)
    slots.serve("g2")
    assert database.read() == {"a": 4}
    slots.drop("g1")
    slots.drop("g1")
    assert slots.others() == {}
    names = inspect(database._engine)
    left = [name for schema in names.get_schema_names() for name in names.get_table_names(schema)]
    assert not [name for name in left if "g1" in name or "g2" in name]
    assert len([name for name in left if name.startswith(("sink", "watershed_shop.sink"))]) == 1


def test_tables_that_were_built_take_their_places_and_the_others_stay_as_they_are(database: Database) -> None:
    former = database.open(begins=1)
    filled(former, 1)
    former.apply([PAIRS.upsert(V, left="x", right="y", weight=1)])
    new = SqlSink.open(database.config, "shop", QUICK, slot="g2")
    with closing(new):
        new.begin_generation(2)
        new.prepare(LABELS.schema)
        filled(new, 2)
        new.save_position("of both", None)
    former.save_position("of the former", None)
    if database.is_sqlite:
        database.run(f"CREATE VIEW shown AS SELECT * FROM {database.labels}")
    database.slots.check_room([LABELS.id])
    for _ in range(2):  # idempotent
        database.slots.serve("g2", adopts=True)
        assert (database.slots.others(), database.slots.generation(FIRST), database.read()) == ({}, 2, {"a": 2})
    if database.is_sqlite:
        assert database.read("shown") == {"a": 2}, "a view reads what has the name"
    serving = database.open()
    assert (serving.generation(), serving.saved_position()) == (2, "of both")
    assert [row.key for row in serving.rows(PAIRS.id)] == [{"left": "x", "right": "y"}]
    stale = [PAIRS.upsert(V, left="x", right="y", weight=1), LABELS.upsert(V + 1, name="a", uses=1)]
    assert [one.outcome for one in serving.apply(stale)] == [Outcome.STALE] * 2, "all have their versions"
    filled(serving, 3)
    assert database.read() == {"a": 3}
    names = inspect(database._engine)
    left = [name for schema in names.get_schema_names() for name in names.get_table_names(schema)]
    assert not [name for name in left if "g1" in name or "g2" in name]


def test_indexes_follow_the_tables(database: Database) -> None:
    database.open(begins=1)
    database.open("g2", begins=2)
    database.slots.serve("g2")
    database.open()
    place: tuple[str, str | None] = ("public_labels", None) if database.is_sqlite else ("labels", "public")
    found = inspect(database._engine).get_indexes(*place)
    assert [index["column_names"] for index in found] == [["uses"]]


def test_a_writer_of_the_former_generation_writes_nothing_that_is_older(database: Database) -> None:
    """Behind its names there is another generation now, which has its own guard."""
    former, new = database.open(begins=1), database.open("g2", begins=2)
    filled(new, 7)
    database.slots.serve("g2")
    assert former.apply([LABELS.upsert(V + 6, name="a", uses=6)])[0].outcome is Outcome.STALE
    with pytest.raises(SinkError, match="dropped"):
        filled(new, 8)
    assert database.read() == {"a": 7}


def test_what_the_sink_did_not_make_is_named_before_anything_is_built(database: Database) -> None:
    database.open(begins=1)
    database.slots.check_room()
    if database.is_sqlite:
        database.run(
            "CREATE INDEX mine ON public_labels (uses)",
            "CREATE TRIGGER told AFTER INSERT ON public_labels BEGIN SELECT 1; END",
        )
        wanted = r"public\.labels: .* did not create: index mine, trigger told"
    else:
        database.run(
            "CREATE INDEX mine ON public.labels (uses)",
            "CREATE VIEW shown AS SELECT * FROM public.labels",
            "CREATE TABLE refers (label text REFERENCES public.labels)",
            "ALTER TABLE public.labels ADD CONSTRAINT few CHECK (uses < 1000)",
        )
        wanted = (
            r"public\.labels: .* did not create: constraint few of labels, constraint refers_label_fkey of refers, "
            "index mine, view shown"
        )
    with pytest.raises(SinkError, match=wanted):
        database.slots.check_room()
    database.open("g2", begins=2)
    with pytest.raises(SinkError, match=wanted):
        database.slots.serve("g2")
    assert database.slots.generation(FIRST) == 1


def test_who_may_read_the_former_table_may_read_the_new_one(database: Database) -> None:
    if database.is_sqlite:
        pytest.skip("has no rights")
    database.open(begins=1)
    database.run(
        "GRANT SELECT ON public.labels TO PUBLIC",
        "GRANT UPDATE (uses) ON public.labels TO pg_monitor WITH GRANT OPTION",
    )
    database.open("g2", begins=2)
    database.slots.serve("g2")
    granted = database.run(
        "SELECT has_table_privilege('pg_signal_backend', 'public.labels', 'SELECT'), "
        "has_column_privilege('pg_monitor', 'public.labels', 'uses', 'UPDATE WITH GRANT OPTION'), "
        "has_column_privilege('pg_monitor', 'public.labels', 'name', 'UPDATE')"
    )
    assert granted == [(True, True, False)]


def test_a_reader_who_holds_the_table_makes_the_swap_fail_soon_and_completely(database: Database) -> None:
    """Others would wait behind it meanwhile."""
    if database.is_sqlite:
        pytest.skip("its readers hold nothing that a rename needs")
    filled(database.open(begins=1), 1)
    database.open("g2", begins=2)
    with database._engine.connect() as reader:
        reader.exec_driver_sql("SELECT * FROM couples").all()
        with pytest.raises(SinkError, match="another session holds a lock"):
            database.slots.serve("g2")
        reader.rollback()
    assert (database.slots.others(), database.read()) == ({"g2": 2}, {"a": 1})


def test_a_generation_that_lacks_a_table_is_not_served(database: Database) -> None:
    assert database.slots.generation("g7") is None
    database.open(begins=1)
    database.open("g2", begins=2)
    database.run('DROP TABLE "public_labels~g2"' if database.is_sqlite else 'DROP TABLE public."labels~g2"')
    with pytest.raises(SinkError):
        database.slots.serve("g2")
    assert database.slots.generation(FIRST) == 1
