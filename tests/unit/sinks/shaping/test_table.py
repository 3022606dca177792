"""Rows, keys and schemas in the shape of a mapping; mappings that a schema does not fit."""

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from cdc.config.store_mapping import StoredTables
from cdc.model.events import Column
from sinks.errors import RefusedError
from sinks.schema_history import SchemaHistory
from sinks.shaping.table import TableShape
from sinks.warehouse.columns import column_type
from tests.conformance.tables import CUSTOMERS, ORDER_LINES, Table

KEY = "k" * 16


def section(table: str = "public.customers", **mapping: Any) -> StoredTables:
    return StoredTables.model_validate({"mapping": {table: mapping}})


def shape(of: Table = CUSTOMERS, pattern: str = "", **mapping: Any) -> TableShape:
    return TableShape("mine", section(pattern or str(of.id), **mapping), SchemaHistory((of.schema,)))


def test_columns_are_chosen_renamed_masked_and_added() -> None:
    made = shape(
        include=["name", "balance", "visits"],
        rename={"id": "customer", "name": "title"},
        constants={"source": "shop", "rank": 3},
        mask={"hash": ["name"], "hash_key": KEY},
    )
    change = CUSTOMERS.upsert(7, id=1, name="ünï", balance="1.50", born="2024-01-31")
    digest = hmac.digest(KEY.encode(), "ünï".encode(), hashlib.sha256).hex()
    assert made.change(change) == structs.replace(
        change,
        key={"customer": 1},
        row={"customer": 1, "title": digest, "balance": "1.50", "visits": None, "source": "shop", "rank": 3},
    )
    assert [(column.name, column.type_name) for column in made.schema.columns] == [
        ("customer", "bigint"),
        ("title", "text"),
        ("balance", "numeric"),
        ("visits", "integer"),
        ("source", "text"),
        ("rank", "bigint"),
    ]
    assert made.schema.key == ("customer",)


def test_columns_are_kept_as_text_with_every_value_of_their_type() -> None:
    made = shape(as_text=["visits", "balance", "born"], rename={"visits": "count"})
    row = made.row(CUSTOMERS.row(id=1, visits=17, balance="NaN", born="infinity"))
    assert (row["count"], row["balance"], row["born"], row["name"]) == ("17", "NaN", "infinity", None)
    assert made.row(CUSTOMERS.row(id=1))["count"] is None
    types = {column.name: column_type(column).sql for column in made.schema.columns}
    assert (types["id"], types["count"], types["balance"], types["born"]) == ("bigint", "string", "string", "string")
    column = Column("grid", 1007, -1, "integer[]", nullable=True, base_type_oid=1007, element_oid=23)
    arrays = replace(CUSTOMERS.schema, columns=(*CUSTOMERS.schema.columns, column))
    gridded = TableShape("mine", section(as_text=["grid"]), SchemaHistory((arrays,)))
    grid = gridded.row(CUSTOMERS.row(id=1) | {"grid": [[1, 2], [3, None]]})["grid"]
    assert grid == "[[1,2],[3,null]]"
    stored = gridded.schema.columns[-1]
    assert column_type(stored).array([grid]).to_pylist() == [grid]


def test_values_that_stores_lack_are_null_with_a_flag() -> None:
    made = shape(as_null=["born", "balance"], rename={"born": "birthday"})
    good, bad = CUSTOMERS.row(id=1, born="0001-01-01", balance="1.50"), CUSTOMERS.row(id=1, born="infinity")
    names = ("birthday", "birthday_not_held", "balance", "balance_not_held")
    assert [made.row(good)[name] for name in names] == ["0001-01-01", False, "1.50", False]
    assert [made.row(bad)[name] for name in names] == [None, True, None, False]
    assert [made.row(bad | {"balance": "NaN"})[name] for name in names[2:]] == [None, True]
    types = {column.name: column_type(column).sql for column in made.schema.columns}
    assert (types["birthday"], types["birthday_not_held"], types["balance_not_held"]) == ("date", "boolean", "boolean")
    lacking = made.change(CUSTOMERS.update(5, ["born"], id=1))
    assert lacking is not None and lacking.row is not None
    assert lacking.unchanged == {"birthday", "birthday_not_held"} and not lacking.unchanged & lacking.row.keys()


def test_masks_count_characters_and_leave_null() -> None:
    made = shape(ORDER_LINES, mask={"truncate": {"remark": 2}})
    assert made.row(ORDER_LINES.row(order_id=1, line_no=1, remark="äöü"))["remark"] == "äö"
    assert made.row(ORDER_LINES.row(order_id=1, line_no=1))["remark"] is None
    hidden = shape(ORDER_LINES, mask={"asterisks": {"remark": 3}})
    assert hidden.row(ORDER_LINES.row(order_id=1, line_no=1, remark="x"))["remark"] == "***"


def test_a_row_that_does_not_meet_the_condition_is_deleted_at_its_version() -> None:
    made = shape(where="visits > 1", rename={"id": "key"})
    kept, gone = CUSTOMERS.upsert(5, id=1, visits=2), CUSTOMERS.upsert(6, id=1, visits=1)
    whole = made.change(kept)
    assert whole is not None and whole.row is not None and whole.row["key"] == 1
    assert made.change(gone) == structs.replace(gone, key={"key": 1}, row=None)
    assert made.change(CUSTOMERS.tombstone(7, id=1)) == structs.replace(CUSTOMERS.tombstone(7, id=1), key={"key": 1})


def test_columns_that_a_change_lacks() -> None:
    lacking = CUSTOMERS.update(5, ["attributes", "photo"], id=1, visits=2)
    # Left out of the store: the change is whole. Renamed: under the store's name.
    made = shape(exclude=["photo"], rename={"attributes": "more"}).change(lacking)
    assert made is not None and made.unchanged == {"more"}
    whole = shape(exclude=["photo", "attributes"]).change(lacking)
    assert whole is not None and not whole.unchanged
    # Of the condition: only what the others decide is applied.
    undecided = shape(where="photo IS NULL AND visits = 2")
    assert undecided.change(lacking) is None
    decided = undecided.change(CUSTOMERS.update(5, ["photo"], id=1, visits=3))
    assert decided is not None and decided.row is None and not decided.unchanged


def test_rows_without_a_mapping_are_the_same_objects() -> None:
    change = CUSTOMERS.upsert(5, id=1)
    assert shape().change(change) is change


@pytest.mark.parametrize(
    ("mapping", "reported"),
    [
        ({"include": ["nme"]}, "include names column nme, which the table does not have"),
        ({"exclude": ["nme"]}, "exclude names column nme, which the table does not have"),
        ({"rename": {"nme": "x"}}, "rename names column nme, which the table does not have"),
        ({"mask": {"truncate": {"nme": 1}}}, "mask names column nme, which the table does not have"),
        ({"where": "nme = 'x'"}, "table public.customers has no column nme"),
        ({"exclude": ["id"]}, "exclude names column id, which is part of the record key"),
        ({"as_text": ["nme"]}, "as_text names column nme, which the table does not have"),
        ({"as_text": ["id"]}, "as_text names column id, which is part of the record key"),
        ({"as_null": ["nme"]}, "as_null names column nme, which the table does not have"),
        ({"as_null": ["name"]}, "as_null names column name, which has type"),
        (
            {"as_null": ["born"], "rename": {"name": "born_not_held"}},
            "the flag of born and column name would both be named born_not_held",
        ),
        ({"mask": {"asterisks": {"id": 1}}}, "mask names column id, which is part of the record key"),
        ({"mask": {"asterisks": {"visits": 1}}}, "mask names column visits, which has type integer: only text can be"),
        ({"rename": {"name": "visits"}}, "column name and column visits would both be named visits"),
        ({"constants": {"name": 1}}, "the constant name and column name would both be named name"),
        (
            {"where": "photo = 'x'"},
            "column photo of public.customers has type bytea, which conditions can only compare",
        ),
    ],
)
def test_what_the_schema_does_not_fit_is_refused_with_sink_table_and_column(
    mapping: dict[str, Any], reported: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        shape(**mapping)
    assert caught.value.message.startswith("sink mine: mapping of public.customers: ")
    assert reported in caught.value.message


def test_an_entry_for_several_tables_may_name_columns_of_some() -> None:
    made = shape(ORDER_LINES, "public.*", exclude=["name"], rename={"remark": "note"}, include=["remark", "photo"])
    assert [column.name for column in made.schema.columns] == ["order_id", "line_no", "note"]
    with pytest.raises(RefusedError, match="has no column visits"):
        shape(ORDER_LINES, "public.*", where="visits = 1")


def later(without: str) -> SchemaHistory:
    """The customers, then without a column."""
    kept = tuple(column for column in CUSTOMERS.schema.columns if column.name != without)
    return SchemaHistory((CUSTOMERS.schema, replace(CUSTOMERS.schema, version=2, columns=kept)))


def test_a_column_that_the_table_loses() -> None:
    TableShape("mine", section(exclude=["photo"]), later("photo"))
    with pytest.raises(RefusedError, match="rename names column photo, which the table does not have"):
        TableShape("mine", section(rename={"photo": "image"}), later("photo"))
    with pytest.raises(RefusedError, match="has no column visits"):
        TableShape("mine", section(where="visits = 1"), later("visits"))


def test_earlier_versions_have_the_stores_names_too() -> None:
    """So that a store knows which of its columns stayed what they were."""
    made = TableShape("mine", section(rename={"name": "title"}, exclude=["tags"]), later("photo"))
    (earlier,) = made.earlier
    assert [column.name for column in earlier.columns] == [column.name for column in made.schema.columns]
    schema_history = SchemaHistory((earlier, made.schema))
    assert schema_history.carried(1) == {column.name for column in made.schema.columns}


def test_a_column_that_takes_the_stores_name_of_another_is_refused() -> None:
    added = (*CUSTOMERS.schema.columns, Column("title", 25, -1, "text", nullable=True, base_type_oid=25))
    schema_history = SchemaHistory((CUSTOMERS.schema, replace(CUSTOMERS.schema, version=2, columns=added)))
    with pytest.raises(RefusedError, match="column name and column title would both be named title"):
        TableShape("mine", section(rename={"name": "title"}), schema_history)
