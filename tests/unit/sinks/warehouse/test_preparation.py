"""A table is brought to a new schema in one commit, whatever others do meanwhile."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from cdc.model.events import Column, TableId, TableSchema
from sinks.errors import RefusedError, SinkError
from sinks.schema_history import SchemaHistory
from sinks.warehouse.columns import column_type
from sinks.warehouse.evolution import Evolution
from sinks.warehouse.layout import Layout
from sinks.warehouse.merging import PreparedTable
from sinks.warehouse.naming import table_location
from sinks.warehouse.preparation import ATTEMPT_COUNT_MAX, Preparation
from sinks.warehouse.staging import TableForm
from tests.unit.sinks.warehouse.scripted import ScriptedEngine

TABLE = TableId("public", "a")
NO_LAYOUT = Layout()
WHERE = table_location("shop", TABLE)
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
    """With the table as version 1 in generation 1."""
    made = ScriptedEngine()
    made.namespace = {"watershed.generation": "1", "watershed.tables": '[["public", "a"]]'}
    made.tables[WHERE.rows] = {
        "watershed.table": "public.a",
        "watershed.key": '["id"]',
        "watershed.columns": '[["id", "bigint"], ["number", "int"]]',
        "watershed.generation": "1",
        "watershed.schema_version": "1",
        "watershed.mode": "current",
        "watershed.layout": "[[], []]",
        "owner": "somebody",
    }
    made.columns[WHERE.rows] = {**types(FIRST), "ws_version": "bigint"}
    return made


def prepare(engine: ScriptedEngine, *versions: TableSchema, layout: Layout = NO_LAYOUT) -> None:
    schema_history = SchemaHistory.of(versions)
    table = PreparedTable(WHERE, TableForm.of(schema_history.newest))
    Preparation(engine, "shop", lambda _: None).prepare(schema_history, table, layout)


def test_partitions_and_order_change_in_place(engine: ScriptedEngine) -> None:
    engine.tables[WHERE.rows]["watershed.layout"] = '[["days(`at`)", "`number`"], []]'
    prepare(engine, FIRST, layout=Layout(("`number`", "bucket(4, `id`)"), ("`id` DESC",)))
    dropped, added, ordered, noted = engine.statements[:4]
    assert dropped.endswith("DROP PARTITION FIELD days(`at`)")
    assert added.endswith("ADD PARTITION FIELD bucket(4, `id`)")
    engine.tables[WHERE.rows]["watershed.layout"] = '[["`number`"], []]'
    prepare(engine, FIRST)
    assert any(text.endswith("DROP PARTITION FIELD `number_value`") for text in engine.statements)
    assert ordered.endswith("WRITE LOCALLY ORDERED BY `id` DESC")
    assert "watershed.layout" in noted


@pytest.mark.parametrize("mode", ["history", "changelog"])
def test_what_the_topics_cant_give_again_is_not_discarded(engine: ScriptedEngine, mode: str) -> None:
    engine.tables[WHERE.rows]["watershed.mode"] = mode
    with pytest.raises(RefusedError, match=f"shop.public.a is a {mode}, whose rows can't be written again") as refused:
        Preparation(engine, "shop", lambda _: None).discard(TABLE, WHERE)
    assert "RENAME" in refused.value.hint
    assert engine.statements == []


def test_a_table_of_the_sources_rows_is_discarded_with_its_deleted_keys(engine: ScriptedEngine) -> None:
    Preparation(engine, "shop", lambda _: None).discard(TABLE, WHERE)
    assert len(engine.begun("DROP TABLE")) == 2


def test_what_is_as_it_should_be_is_left_alone(engine: ScriptedEngine) -> None:
    prepare(engine, FIRST)
    assert (engine.evolutions, engine.statements) == ([], [])


def test_columns_and_their_note_change_at_once(engine: ScriptedEngine) -> None:
    prepare(engine, FIRST, RETYPED)
    change = Evolution(dropped=("number",), added=(("number", "string"), ("label", "string")))
    assert engine.evolutions == [change]
    assert engine.tables[WHERE.rows]["watershed.schema_version"] == "2"
    assert engine.tables[WHERE.rows]["owner"] == "somebody"
    prepare(engine, FIRST, RETYPED)
    assert len(engine.evolutions) == 1


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
    assert engine.columns[WHERE.rows].keys() == {"id", "ws_version"}


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
    ("noted", "message"),
    [
        ({"watershed.table": "public.b"}, "is not the table of"),
        ({"watershed.key": '["x"]'}, "it has another key"),
        ({"watershed.mode": "history"}, "its mode is history"),
    ],
)
def test_another_owner_or_key_is_refused(engine: ScriptedEngine, noted: dict[str, str], message: str) -> None:
    engine.tables[WHERE.rows] |= noted
    with pytest.raises(RefusedError, match=rf"shop\.public\.a.*{message}"):
        prepare(engine, FIRST)


def test_a_key_of_another_type_is_refused(engine: ScriptedEngine) -> None:
    with pytest.raises(RefusedError, match="column id of its key has another type"):
        prepare(engine, FIRST, schema(2, replace(ID, type_oid=25, base_type_oid=25)))
