"""A table is brought to a new schema in one commit, whatever others do meanwhile."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cdc.model.errors import RefusedError, SinkError
from cdc.model.events import Column, TableId, TableSchema
from sinks.lineage import Lineage
from sinks.warehouse.columns import column_type
from sinks.warehouse.evolution import Evolution
from sinks.warehouse.naming import place
from sinks.warehouse.preparation import ATTEMPT_COUNT_MAX, Preparation
from tests.unit.sinks.warehouse.scripted import ScriptedEngine

TABLE = TableId("public", "a")
WHERE = place("shop", TABLE)
ID = Column("id", 20, -1, "bigint", False, "b", 20)
NUMBER = Column("number", 23, -1, "integer", True, "b", 23)
LABEL = Column("label", 25, -1, "text", True, "b", 25)


def schema(version: int, *columns: Column) -> TableSchema:
    return TableSchema(TABLE, version, 16385, columns, ("id",), "shop.public.a")


FIRST = schema(1, ID, NUMBER)
RETYPED = schema(2, ID, replace(NUMBER, type_oid=25, type_name="text", base_type_oid=25), LABEL)


def types(known: TableSchema) -> Mapping[str, str]:
    return {column.name: column_type(column).sql for column in known.columns}


@pytest.fixture
def engine() -> ScriptedEngine:
    """With the table as version 1 in generation 1, and its view."""
    made = ScriptedEngine()
    made.namespace = {"watershed.generation": "1", "watershed.tables": '[["public", "a"]]'}
    made.tables[WHERE.rows] = {
        "watershed.table": "public.a",
        "watershed.key": '["id"]',
        "watershed.columns": '[["id", "bigint"], ["number", "int"]]',
        "watershed.generation": "1",
        "watershed.schema_version": "1",
        "owner": "somebody",
    }
    made.columns[WHERE.rows] = {**types(FIRST), "ws_version": "bigint", "ws_deleted": "boolean"}
    made.views[WHERE.live] = {"watershed.columns": '[["id", "bigint"], ["number", "int"]]'}
    return made


def prepare(engine: ScriptedEngine, *versions: TableSchema) -> None:
    lineage = Lineage.of(versions)
    Preparation(engine, "shop", lambda _: None).prepare(lineage, WHERE, types(lineage.newest))


def test_what_is_as_it_should_be_is_left_alone(engine: ScriptedEngine) -> None:
    prepare(engine, FIRST)
    assert (engine.evolutions, engine.statements) == ([], [])


@pytest.mark.parametrize(("first", "second"), [("a", "a_with_deleted"), ("a_with_deleted", "a")])
def test_tables_whose_names_meet_are_refused_before_anything_is_dropped(first: str, second: str) -> None:
    engine = ScriptedEngine()
    engine.namespace = {"watershed.generation": "1", "watershed.tables": "[]"}
    held, refused = (place("shop", TableId("public", name)) for name in (first, second))
    engine.tables[held.rows], engine.views[held.live] = {}, {}
    later = replace(schema(1, ID), table=TableId("public", second))
    with pytest.raises(RefusedError, match=f"table public.{second} would share a name"):
        Preparation(engine, "shop", lambda _: None).prepare(Lineage.of([later]), refused, types(later))
    assert (engine.statements, engine.tables) == ([], {held.rows: {}})


def test_columns_and_their_note_change_at_once_and_the_view_follows(engine: ScriptedEngine) -> None:
    prepare(engine, FIRST, RETYPED)
    change = Evolution(dropped=("number",), added=(("number", "string"), ("label", "string")))
    assert engine.evolutions == [change]
    assert engine.tables[WHERE.rows]["watershed.schema_version"] == "2"
    assert engine.tables[WHERE.rows]["owner"] == "somebody"
    (view,) = engine.begun("CREATE OR REPLACE VIEW")
    assert "SELECT `id`, `number`, `label` FROM" in view
    prepare(engine, FIRST, RETYPED)
    assert len(engine.evolutions) == 1


def test_a_view_that_a_killed_job_left_behind_is_made_anew(engine: ScriptedEngine) -> None:
    prepare(engine, FIRST, RETYPED)
    engine.statements.clear()
    prepare(engine, FIRST, RETYPED)  # the scripted engine keeps the view of version 1
    assert len(engine.begun("CREATE OR REPLACE VIEW")) == len(engine.statements) == 1


def test_a_column_that_was_away_between_is_another(engine: ScriptedEngine) -> None:
    prepare(engine, FIRST, schema(2, ID), schema(3, ID, NUMBER))
    assert engine.evolutions == [Evolution(dropped=("number",), added=(("number", "int"),))]


def test_versions_of_an_earlier_generation_say_nothing(engine: ScriptedEngine) -> None:
    engine.namespace = {"watershed.generation": "2", "watershed.tables": "[]"}
    engine.tables[WHERE.rows]["watershed.schema_version"] = "7"
    prepare(engine, FIRST)
    assert engine.evolutions == [Evolution()]
    assert engine.tables[WHERE.rows]["watershed.schema_version"] == "1"
    assert engine.tables[WHERE.rows]["watershed.generation"] == "2"


def test_a_table_without_a_noted_version_keeps_its_columns_by_name(engine: ScriptedEngine) -> None:
    del engine.tables[WHERE.rows]["watershed.schema_version"]
    prepare(engine, FIRST, schema(2, ID), schema(3, ID, NUMBER))
    assert engine.evolutions == [Evolution()]


def test_the_second_of_two_writers_looks_again(engine: ScriptedEngine) -> None:
    engine.before_evolution = lambda: prepare(engine, FIRST, RETYPED)
    prepare(engine, FIRST, RETYPED)
    assert len(engine.evolutions) == 1


def test_a_writer_that_knows_an_older_schema_reads_it_again(engine: ScriptedEngine) -> None:
    engine.before_evolution = lambda: prepare(engine, FIRST, RETYPED, schema(3, ID))
    with pytest.raises(SinkError, match="prepared with a later schema than version 2"):
        prepare(engine, FIRST, RETYPED)
    assert engine.columns[WHERE.rows].keys() == {"id", "ws_version", "ws_deleted"}


def test_endless_conflicts_are_an_error(engine: ScriptedEngine) -> None:
    found = dict(engine.tables[WHERE.rows])

    def intrude() -> None:
        engine.conflicts += 1
        engine.tables[WHERE.rows] = {**found, "other": str(engine.conflicts)}
        engine.before_evolution = intrude

    engine.before_evolution = intrude
    with pytest.raises(SinkError, match=f"{ATTEMPT_COUNT_MAX} times"):
        prepare(engine, FIRST, RETYPED)
    assert engine.evolutions == []


@pytest.mark.parametrize(
    ("noted", "said"),
    [({"watershed.table": "public.b"}, "is not the table of"), ({"watershed.key": '["x"]'}, "it has another key")],
)
def test_another_owner_or_key_is_refused(engine: ScriptedEngine, noted: dict[str, str], said: str) -> None:
    engine.tables[WHERE.rows] |= noted
    with pytest.raises(RefusedError, match=rf"shop\.public\.a_with_deleted.*{said}"):
        prepare(engine, FIRST)


def test_a_key_of_another_type_is_refused(engine: ScriptedEngine) -> None:
    with pytest.raises(RefusedError, match="column id of its key has another type"):
        prepare(engine, FIRST, schema(2, replace(ID, type_oid=25, base_type_oid=25)))
