"""What the database or the source's table does not allow is refused by name, and leaves everything as it was."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, inspect

from cdc.config.stores import SqlConfig
from cdc.model.events import TableId, TableSchema, pack_version
from sinks.contract import Change, Json, Outcome
from sinks.errors import RefusedError
from sinks.records import encode_json
from sinks.shaping.sink import shaped
from sinks.sql.check import sql_findings
from tests.conformance.tables import CUSTOMERS, LABELS, ORDER_LINES
from tests.unit.sinks.sql.conftest import Open

V = pack_version(1, 100)


def run(url: str, *statements: str) -> None:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"indexes": [["nme"]]}, "indexes names column nme, which it does not have"),
        ({"types": {"nme": "text"}}, "types names column nme, which it does not have"),
        ({"table": "t" * 300}, "longer than"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(open_sink: Open, shape: dict[str, Any], message: str) -> None:
    sink = open_sink(shapes={"public.labels": shape})
    with pytest.raises(RefusedError, match=message):
        sink.prepare(LABELS.schema)


def test_types_and_views_that_the_database_refuses(open_sink: Open, url: str) -> None:
    if url.startswith("sqlite"):
        pytest.skip("takes any type, and views that ask for what is not there")
    with pytest.raises(RefusedError, match=r'SQL table of public\.labels: .* type "no_such" does not exist'):
        open_sink(shapes={"*": {"types": {"uses": "no_such"}}}).prepare(LABELS.schema)
    sink = open_sink()
    sink.prepare(LABELS.schema)
    run(url, "CREATE VIEW used AS SELECT uses FROM public.labels")
    newest = replace(LABELS.schema, version=2, columns=LABELS.schema.columns[:1])
    with pytest.raises(
        RefusedError, match=r"labels: .* cannot drop column uses[^\0]*drop objects that depend on the table"
    ):
        sink.prepare(newest, [LABELS.schema])
    run(url, "DROP VIEW used")
    sink.prepare(newest, [LABELS.schema])
    assert sink.generation() == 1


def test_a_table_of_others_is_not_taken(open_sink: Open, url: str) -> None:
    is_sqlite = url.startswith("sqlite")
    run(url, f"CREATE TABLE {'mine' if is_sqlite else 'public.mine'} (id int)")
    sink = open_sink(shapes={"*": {"table": "mine" if is_sqlite else "public.mine"}})
    with pytest.raises(RefusedError, match="mine already exists, and the sink did not create it"):
        sink.check(LABELS.schema)
    with pytest.raises(RefusedError, match="mine already exists, and the sink did not create it"):
        sink.prepare(LABELS.schema)


NAMES = {name: TableId("public", name) for name in ("Orders", "orders", "n_case")}


def named(name: str, *columns: str) -> TableSchema:
    held = LABELS.schema.columns[0]
    return replace(
        LABELS.schema, table=NAMES[name], columns=tuple(replace(held, name=column) for column in columns), key=("id",)
    )


def test_columns_that_differ_only_in_case(open_sink: Open, url: str) -> None:
    sink, schema = open_sink(), named("n_case", "id", "name", "Name")
    if not url.startswith("sqlite"):
        sink.prepare(schema)
        return
    for call in (sink.check, sink.prepare):
        with pytest.raises(
            RefusedError, match=r"public\.n_case: its columns name and Name differ only in case[^\0]*rename"
        ):
            call(schema)


def test_tables_that_differ_only_in_case(open_sink: Open, url: str) -> None:
    """Also with places of their own: what the sink keeps beside each of them has other names, too."""
    schemas = [named(name, "id") for name in ("Orders", "orders")]
    sink = open_sink()
    if url.startswith("sqlite"):
        sink.prepare(schemas[0])
        with pytest.raises(
            RefusedError, match=r"of public\.Orders and public\.orders would be one table, as public_Orders"
        ):
            sink.prepare(schemas[1])
        sink = open_sink(shapes={"public.orders": {"table": "others"}})
        sink.begin_generation(2)
    for number, schema in enumerate(schemas):
        sink.prepare(schema)
        row = {"id": "x" * number}
        assert sink.apply([Change(schema.table, row, V + number, row, 1)])[0].outcome is Outcome.WRITTEN
    assert [[row.row for row in sink.rows(schema.table)] for schema in schemas] == [[{"id": ""}], [{"id": "x"}]]
    assert sink.generation() == (2 if url.startswith("sqlite") else 1)


def test_findings_name_what_differs_only_in_case(tmp_path: Path) -> None:
    section = SqlConfig.model_validate({"url": f"sqlite:///{tmp_path}/store.db"})
    schemas = [named("Orders", "id"), named("n_case", "id", "name", "Name"), named("orders", "id")]
    columns, tables = sql_findings("lite", section, "shop", schemas)
    assert (columns.level, tables.level) == ("fail", "fail")
    assert "of public.n_case: its columns name and Name differ only in case" in columns.message
    assert "public.Orders and public.orders would be one table" in tables.message


def test_another_key_is_refused(open_sink: Open) -> None:
    sink = open_sink()
    sink.prepare(ORDER_LINES.schema)
    with pytest.raises(RefusedError, match="it has another key"):
        sink.prepare(replace(ORDER_LINES.schema, version=2, key=("order_id",)), [ORDER_LINES.schema])


def test_a_shape_that_changed_is_filled_again_and_indexes_change_without(open_sink: Open, url: str) -> None:
    sink = open_sink()
    sink.prepare(LABELS.schema)
    sink.apply([LABELS.upsert(V, name="a", uses=7)])
    indexed = open_sink(shapes={"*": {"indexes": [["uses"], ["uses", "name"]]}})
    assert indexed.generation() == 1
    indexed.prepare(LABELS.schema)
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    place = ("public_labels", None) if url.startswith("sqlite") else ("labels", "public")
    assert [one["column_names"] for one in inspect(engine).get_indexes(*place)] in (
        [["uses"], ["uses", "name"]],
        [["uses", "name"], ["uses"]],
    )
    sink.prepare(LABELS.schema)
    assert inspect(engine).get_indexes(*place) == []
    engine.dispose()
    changed = open_sink(shapes={"*": {"types": {"uses": "numeric(9,3)"}}})
    assert changed.generation() == 1, "begun by open_sink: the shape of before is no generation of this one"
    changed.prepare(LABELS.schema)
    assert list(changed.rows(LABELS.id)) == []
    changed.apply([LABELS.upsert(V, name="a", uses=7)])
    assert [row.row for row in changed.rows(LABELS.id)] in (
        [{"name": "a", "uses": 7}],
        [{"name": "a", "uses": 7.0}],
    )


CONSTANTS: dict[str, Json] = {
    "name": "it's 100 %s \\ :name ü",
    "balance": "-0.50",
    "exact": "NaN",
    "is_active": True,
    "joined_at": "2026-01-02T03:04:05.678901Z",
    "seen_at": "2026-01-02T03:04:05",
    "born": "2026-01-02",
    "clock": "03:04:05",
    "rating": -0.1,
    "level": -7,
    "visits": 0,
    "attributes": '{"a": [1, "%"]}',
    "raw": '{"a" : 1}',
    "tags": ["a", None, 'b"c', "{}"],
    "grid": [[1, 2], [3, 4]],
    "flags": [],
    "prices": ["1.10", None],
    "mood": "happy",
    "token": "00000000-0000-0000-0000-000000000001",
    "photo": "AAEC",
    "span": "1 day 02:00:00",
    "address": "10.0.0.1",
    "addresses": ["10.0.0.0/8"],
    "network": "10.0.0.0/8",
}


def with_constants(version: int) -> TableSchema:
    """All columns were added with a constant but the key."""
    filled = tuple((name, encode_json(value).decode()) for name, value in CONSTANTS.items())
    return replace(CUSTOMERS.schema, version=version, filled=filled)


def test_a_column_that_was_added_with_a_constant_has_it_in_all_rows(open_sink: Open) -> None:
    """As if each row had been written again with it: also in a table whose sink has slept for several versions."""
    sink, narrow = open_sink(), replace(CUSTOMERS.schema, columns=CUSTOMERS.schema.columns[:1])
    sink.prepare(narrow)
    sink.apply([Change(CUSTOMERS.id, {"id": 1}, V, {"id": 1}, 1)])
    again = replace(LABELS.schema.columns[0], name="again", nullable=True)
    between = replace(narrow, version=2, columns=(*narrow.columns, again), filled=(("again", '"2"'),))
    earlier = [narrow, between, replace(narrow, version=3, dropped=("again",))]
    sink.prepare(with_constants(4), earlier)
    sink.prepare(with_constants(4), earlier)
    sink.apply([CUSTOMERS.upsert(V, id=2, **CONSTANTS), CUSTOMERS.upsert(V, id=3)])
    rows = {row.key["id"]: row.row for row in sink.rows(CUSTOMERS.id)}
    assert {**rows[1], "id": 2} == rows[2] and None not in rows[2].values()
    assert rows[3] == {**dict.fromkeys(rows[2]), "id": 3}, "nothing is filled in for a row that has nulls itself"
    assert sink.generation() == 1


def test_a_mapping_gives_the_constant_to_the_column_of_its_name(open_sink: Open) -> None:
    """Where it changes the values, capture has published the rows again."""
    mapping = {"rename": {"level": "grade"}, "exclude": ["visits"], "as_text": ["rating"]}
    section = SqlConfig.model_validate({"url": "sqlite:///-", "mapping": {"public.*": mapping}})
    sink, narrow = shaped(open_sink(), section), replace(CUSTOMERS.schema, columns=CUSTOMERS.schema.columns[:1])
    sink.prepare(narrow)
    sink.apply([Change(CUSTOMERS.id, {"id": 1}, V, {"id": 1}, 1)])
    sink.prepare(with_constants(2), [narrow])
    (row,) = sink.rows(CUSTOMERS.id)
    assert (row.row["grade"], row.row["rating"]) == (-7, None)
    reasons = [section.why_published_again(CUSTOMERS.id, [], [name]) for name in ("level", "visits", "rating")]
    assert reasons == [None, None, "has a mapping that changes the values of an added column"]


def test_rows_of_an_earlier_generation_that_lack_a_constant_are_written_again(open_sink: Open) -> None:
    """They come with the versions that they have, and an equal version writes nothing."""
    sink, narrow = open_sink(), replace(CUSTOMERS.schema, columns=CUSTOMERS.schema.columns[:1])
    for schema in (narrow, LABELS.schema):
        sink.prepare(schema)
    sink.apply([Change(CUSTOMERS.id, {"id": 1}, V, {"id": 1}, 1)])
    sink.apply([LABELS.upsert(V, name="a")])
    sink.begin_generation(2)
    sink.prepare(with_constants(2), [narrow])
    sink.prepare(replace(LABELS.schema, version=2), [LABELS.schema])
    assert list(sink.rows(CUSTOMERS.id)) == []
    assert [row.key for row in sink.rows(LABELS.id)] == [{"name": "a"}], "it lacks nothing, and readers keep it"
    sink.apply([CUSTOMERS.upsert(V, id=1, **CONSTANTS)])
    assert [row.row["level"] for row in sink.rows(CUSTOMERS.id)] == [-7]
