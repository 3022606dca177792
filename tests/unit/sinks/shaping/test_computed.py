"""Computed columns of a mapping: rows, schemas, rows without a value, and what ALTER TABLE does to their inputs."""

from dataclasses import replace
from typing import Any

import pytest

from cdc.config.store_mapping import StoredTables, TableMapping
from cdc.config.stores import SqlConfig
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableSchema
from sinks.contract import Outcome
from sinks.errors import RefusedError
from sinks.schema_history import SchemaHistory
from sinks.search.mapping import field_of
from sinks.shaping.check import planned_tables
from sinks.shaping.expressions.types import ComputationError
from sinks.shaping.table import TableShape
from sinks.sql.types import postgres_form
from sinks.warehouse.columns import column_type
from tests.conformance.tables import CUSTOMERS, NUMERIC_12_2
from tests.unit.sinks.shaping.test_sink import Store, mapped

TOTAL = {"total": "balance * visits"}


def section(pattern: str = "public.customers", **mapping: Any) -> StoredTables:
    return StoredTables.model_validate({"mapping": {pattern: mapping}})


def shape(*schemas: TableSchema, pattern: str = "public.customers", **mapping: Any) -> TableShape:
    return TableShape("mine", section(pattern, **mapping), SchemaHistory(schemas or (CUSTOMERS.schema,)))


def altered(version: int, **columns: Column | None) -> TableSchema:
    """The schema of customers with other columns of these names; None: without them."""
    kept = [columns.get(column.name, column) for column in CUSTOMERS.schema.columns]
    added = [
        c for name, c in columns.items() if c is not None and all(name != o.name for o in CUSTOMERS.schema.columns)
    ]
    return replace(CUSTOMERS.schema, version=version, columns=(*(c for c in kept if c is not None), *added))


def test_columns_are_computed_from_the_source_s_columns() -> None:
    made = shape(
        computed={**TOTAL, "name": "upper(name)", "is_new": "visits = 0"},
        exclude=["name", "visits"],
        rename={"balance": "amount"},
        constants={"shop": 1},
    )
    change = made.change(CUSTOMERS.upsert(5, id=1, balance="1.50", visits=3, name="ünï"))
    assert change is not None and change.row is not None
    assert {name: change.row[name] for name in ("amount", "total", "name", "is_new", "shop")} == {
        "amount": "1.50",
        "total": "4.50",
        "name": "ÜNÏ",
        "is_new": False,
        "shop": 1,
    }
    assert list(change.row) == [column.name for column in made.schema.columns]
    assert [(c.name, c.type_name, c.nullable) for c in made.schema.columns[-4:]] == [
        ("shop", "bigint", False),
        ("total", "numeric", True),
        ("name", "text", True),
        ("is_new", "boolean", True),
    ]


def test_each_kind_of_store_has_a_type_for_a_computed_column() -> None:
    made = shape(
        computed={
            "total": "CAST(balance * visits AS numeric(14,2))",
            "half": "visits / 2",
            "label": "coalesce(name, '')",
            "is_new": "visits = 0",
            "due": "born + 30",
            "week": "date_trunc('week', seen_at)",
        }
    )
    columns = {column.name: column for column in made.schema.columns}
    names = ("total", "half", "label", "is_new", "due", "week")
    assert [column_type(columns[name]).sql for name in names] == [
        *("decimal(14,2)", "int", "string", "boolean", "date", "timestamp_ntz"),
    ]
    assert [postgres_form(columns[name]).ddl for name in names] == [
        *("numeric(14,2)", "integer", "text", "boolean", "date", "timestamp"),
    ]
    assert [field_of(columns[name])["type"] for name in names] == [
        "double",
        "integer",
        "text",
        "boolean",
        "date",
        "date",
    ]


def test_a_row_without_a_value_is_rejected_and_no_other() -> None:
    made = shape(computed={"share": "balance / visits"})
    with pytest.raises(ComputationError, match=r"^computed column share: division by zero$"):
        made.change(CUSTOMERS.upsert(5, id=1, balance="1", visits=0))
    store = Store()
    sink = mapped(store, computed={"share": "balance / visits"}, where="level IS NULL")
    sink.prepare(CUSTOMERS.schema)
    changes = [
        CUSTOMERS.upsert(5, id=1, balance="1", visits=0),
        CUSTOMERS.upsert(6, id=2, balance="1", visits=2),
        CUSTOMERS.upsert(7, id=3, balance="1", visits=0, level=1),
        CUSTOMERS.delete(8, id=4),
        CUSTOMERS.update(9, ["balance"], id=5, visits=1),
        CUSTOMERS.upsert(10, id=6, balance="NaN", visits=0),
    ]
    results = sink.apply(changes)
    assert [result.outcome for result in results] == [
        *(Outcome.REJECTED, Outcome.WRITTEN, Outcome.WRITTEN, Outcome.WRITTEN, Outcome.STALE, Outcome.REJECTED)
    ]
    assert results[0].reason == "computed column share: division by zero"
    assert "column balance" in results[5].reason and "1" not in results[5].reason, "no value of the row"
    written = [(change.key["id"], change.row and change.row["share"]) for change in store.changes]
    assert written == [(2, "0.50000000000000000000"), (3, None), (4, None)]


def test_a_change_that_lacks_a_column() -> None:
    """An unchanged large value is not in the change. A value that depends on it waits for the whole row."""
    made = shape(computed={"label": "coalesce(name, mood::text)", "total": "balance * visits"}, exclude=["name"])
    lacking = CUSTOMERS.update(5, ["name"], id=1, balance="2", visits=2, mood="ok")
    assert made.change(lacking) is None
    other = CUSTOMERS.update(5, ["photo"], id=1, balance="2", visits=2, mood="ok")
    change = made.change(other)
    assert change is not None and change.row is not None and change.unchanged == {"photo"}
    assert (change.row["label"], change.row["total"]) == ("ok", "4")


def test_a_renamed_or_dropped_column_is_named() -> None:
    for gone in ({"visits": None}, {"visits": None, "count": replace(CUSTOMERS.schema.columns[11], name="count")}):
        with pytest.raises(RefusedError) as caught:
            shape(CUSTOMERS.schema, altered(2, **gone), computed=TOTAL)
        assert caught.value.message.startswith(
            "sink mine: mapping of public.customers: computed column total: table public.customers has no column visits"
        )
        assert "correct the sink's mapping" in caught.value.hint


def test_a_column_that_gets_another_type() -> None:
    wide = altered(2, visits=Column("visits", 20, -1, "bigint", True, base_type_oid=20))
    made = shape(CUSTOMERS.schema, wide, computed={"twice": "visits * 2"})
    assert made.schema.columns[-1].type_name == "bigint"
    assert made.earlier[0].columns[-1].type_name == "integer", "stored values stay, and the store's column widens"
    text = altered(2, visits=Column("visits", 25, -1, "text", True, base_type_oid=25))
    with pytest.raises(RefusedError, match=r"\* needs a number, not text"):
        shape(CUSTOMERS.schema, text, computed={"twice": "visits * 2"})
    made = shape(CUSTOMERS.schema, text, computed={"shown": "visits::text", "named": "upper(name)"})
    assert [c.name for c in made.earlier[0].columns[-2:]] == ["network", "named"], "its values come again"


def test_a_column_that_is_dropped_and_added_again() -> None:
    versions = CUSTOMERS.schema, altered(2, visits=None), replace(CUSTOMERS.schema, version=3)
    made = shape(*versions, computed=TOTAL)
    for earlier in made.earlier:
        assert all(column.name != "total" for column in earlier.columns)
    assert made.schema.columns[-1].name == "total"


def test_a_type_that_the_expression_did_not_fit_before() -> None:
    label = altered(2, mood=Column("mood", 25, -1, "text", True, base_type_oid=25))
    made = shape(CUSTOMERS.schema, label, computed={"capital": "upper(mood)"})
    assert made.schema.columns[-1].name == "capital"
    assert all(column.name != "capital" for column in made.earlier[0].columns)


def test_limits_of_a_numeric_are_those_of_a_cast_or_of_one_column() -> None:
    """Others would change with a column's limits, whose rows do not come again then."""
    wide = altered(
        2, balance=Column("balance", 1700, NUMERIC_12_2 + (8 << 16), "numeric(20,2)", True, base_type_oid=1700)
    )
    texts = {"one": "balance", "chosen": "coalesce(balance, balance)", "fixed": "balance::numeric(14,3)"}
    for schema, limits in ((CUSTOMERS.schema, "numeric(12,2)"), (wide, "numeric(20,2)")):
        types = [column.type_name for column in shape(schema, computed=texts).schema.columns[-3:]]
        assert types == [limits, "numeric", "numeric(14,3)"]


def test_a_changed_expression_is_another_mapping() -> None:
    entries = [{}, {"computed": TOTAL}, {"computed": {"total": "balance * 2"}}, {"computed": {"sum": TOTAL["total"]}}]
    mappings = [TableMapping.model_validate(entry) for entry in entries]
    assert len({mapping.fingerprint() for mapping in mappings}) == len(entries)
    for mapping in mappings:
        assert TableMapping.parsed(mapping.to_json(), mapping.mask) == mapping


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        ({"computed": {"born_not_held": "1"}, "as_null": ["born"]}, "and the flag of born would both be named"),
        ({"computed": {"name": "1"}}, "the computed column name and column name would both be named name"),
        (
            {"computed": {"total": "bal * 2"}},
            "computed column total: table public.customers has no column bal; it has id",
        ),
        (
            {"computed": {"total": "sqrt(balance)"}},
            "computed column total: sqrt(…) is not available: available are abs",
        ),
        ({"computed": {"total": "rating * 2"}}, "computed column total: * needs a number, not double precision"),
        ({"computed": {"n": "name"}, "mask": {"truncate": {"name": 1}}}, "it would show column name, which mask hides"),
    ],
)
def test_what_does_not_fit_is_refused(mapping: dict[str, Any], reason: str) -> None:
    for pattern in ("public.customers", "public.*"):
        with pytest.raises(RefusedError) as caught:
            shape(pattern=pattern, **mapping)
        assert reason in caught.value.message
        assert caught.value.message.startswith("sink mine: mapping of public.customers: ")


def test_names_are_clear_in_the_configuration() -> None:
    for mapping, reason in (
        ({"computed": {"a": "1"}, "constants": {"a": 1}}, "two columns would be named a"),
        ({"computed": {"a": "1"}, "rename": {"name": "a"}}, "two columns would be named a"),
        ({"computed": {"": "1"}}, "a column needs a name"),
        ({"computed": {"a": 1}}, "valid string"),
    ):
        with pytest.raises(ValueError, match=reason):
            section(**mapping)


def test_check_lists_computed_columns_and_every_problem() -> None:
    def sinks(**computed: str) -> dict[str, Any]:
        mapping = {"public.customers": {"include": ["name"], "computed": computed}}
        return {"reports": SqlConfig.model_validate({"url": "sqlite:////r.db", "mapping": mapping})}

    (planned,) = planned_tables(sinks(**TOTAL), [CUSTOMERS.schema])
    assert planned.columns == ("id", "name", "total")
    with pytest.raises(
        ConfigError, match=r"sink reports: mapping of public\.customers: computed column x: it can't be read"
    ):
        planned_tables(sinks(x="balance *"), [CUSTOMERS.schema])
