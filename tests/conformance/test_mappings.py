"""With columns renamed, left out, masked and added, and a condition, a store holds the mapping of the source's rows."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from msgspec import structs

from cdc.config.store_mapping import StoredTables
from cdc.model.events import pack_version
from sinks.contract import Change, Outcome, Sink
from sinks.reduction import reduce_changes
from sinks.schema_history import SchemaHistory
from sinks.shaping.sink import shaped
from tests.conformance.model import Model, assert_rows
from tests.conformance.tables import CUSTOMERS, Table
from tests.conformance.test_evolution import FIRST as FIRST_SCHEMA
from tests.conformance.test_evolution import NEW_ROW, ROW, SECOND
from tests.conformance.trial import History, Trial, delivered
from watershed.verify.expected import ExpectedRows

FIRST = pack_version(1, 0)
DIGEST_KEY = b"k" * 16
MAPPING: dict[str, Any] = {
    "exclude": ["raw", "grid", "span", "clock", "photo"],
    "rename": {"id": "customer", "name": "title", "balance": "amount"},
    "constants": {"origin": "shop"},
    "where": "visits >= 0 OR (is_active AND name IS NOT NULL)",
}
STORED = {
    **{
        MAPPING["rename"].get(name, name): kind
        for name, kind in CUSTOMERS.types.items()
        if name not in MAPPING["exclude"]
    },
    "origin": "text",
}


def mapped(change: Change) -> Change:
    """The mapping once more, by hand."""
    row, key = change.row, {"customer": change.key["id"]}
    if row is None:
        return structs.replace(change, key=key)
    is_held = (row["visits"] is not None and row["visits"] >= 0) or (
        row["is_active"] is True and row["name"] is not None
    )
    stored = {MAPPING["rename"].get(name, name): value for name, value in row.items() if name not in MAPPING["exclude"]}
    return structs.replace(change, key=key, row=stored | {"origin": "shop"} if is_held else None)


def section(**mapping: Any) -> StoredTables:
    return StoredTables.model_validate({"mapping": {"public.customers": mapping}})


@contextmanager
def opened(trial: Trial, held: StoredTables) -> Iterator[Sink]:
    trial.store.rename(held.mapping["public.customers"].rename)
    sink = shaped(trial.another(), held)
    sink.prepare(CUSTOMERS.schema)
    yield sink


MAPPED = Table(replace(CUSTOMERS.schema, key=("customer",)), STORED)


@pytest.mark.promise(2)
def test_however_a_history_is_delivered_the_store_holds_its_mapping(sink_under_test: Trial) -> None:
    trial, model = sink_under_test, Model()
    with opened(trial, section(**MAPPING)) as sink, opened(trial, section(**MAPPING)) as zombie:
        for seed in range(trial.store.history_count):
            random = Random(seed)
            history = History(random, [CUSTOMERS], first_id=seed * 1000, first_version=FIRST)
            for batch in delivered(random, history.changes(60)):
                random.choice((sink, sink, zombie)).apply(reduce_changes(batch))
                model.apply_all(mapped(change) for change in reduce_changes(batch))
        sink.make_readable({CUSTOMERS.id})
        zombie.make_readable({CUSTOMERS.id})
        rows = list(sink.rows(CUSTOMERS.id))
        assert_rows(MAPPED, rows, model, trial.store.exact_json)
        assert rows, "the condition holds for some"


@pytest.mark.promise(2)
def test_columns_that_an_update_left_alone_and_the_condition(sink_under_test: Trial) -> None:
    """Where the condition needs such a column, the store keeps what it has until the whole row comes."""
    trial = sink_under_test
    v = pack_version(1, 100)
    with opened(trial, section(where="visits > 0 AND photo IS NOT NULL", exclude=["attributes"])) as sink:
        whole = [CUSTOMERS.upsert(v, id=number, visits=1, photo="YWE=", name="first") for number in (1, 2, 3)]
        sink.apply([*whole, CUSTOMERS.upsert(v, id=4, visits=1, name="not held")])
        sink.apply(
            [
                CUSTOMERS.update(v + 1, ["photo"], id=1, visits=2, name="undecided"),
                CUSTOMERS.update(v + 1, ["photo"], id=2, visits=0, name="leaves"),
                CUSTOMERS.update(v + 1, ["attributes"], id=3, visits=2, photo="YmI=", name="whole without it"),
                CUSTOMERS.update(v + 1, ["photo"], id=4, visits=2, name="undecided"),
            ]
        )
        assert seen(sink) == {1: "first", 3: "whole without it"}
        sink.apply([CUSTOMERS.upsert(v + 2, id=number, visits=2, photo="Y2M=", name="come") for number in (1, 2, 4)])
        assert seen(sink) == {1: "come", 2: "come", 3: "whole without it", 4: "come"}


@pytest.mark.promise(2)
def test_a_table_gets_another_shape_with_the_versions_that_its_rows_had(sink_under_test: Trial) -> None:
    """The store is filled again: what the mapping of before left out or deleted comes, at the same versions."""
    trial = sink_under_test
    v = pack_version(1, 100)
    history = [CUSTOMERS.upsert(v + number, id=number, visits=number, name=f"n{number}") for number in range(4)]
    changes = [*history, CUSTOMERS.delete(v + 9, id=3)]
    with opened(trial, section(where="visits > 1", rename={"id": "customer"}, exclude=["born"])) as sink:
        sink.apply(reduce_changes(changes))
        sink.make_readable({CUSTOMERS.id})
        assert [row.key for row in sink.rows(CUSTOMERS.id)] == [{"customer": 2}]
    held = section(where="visits < 2 OR visits = 3")
    trial.store.rename(held.mapping["public.customers"].rename)
    sink = shaped(trial.another(), held)
    sink.begin_generation(2)
    for _ in range(2):  # a job that is killed does it again
        sink.discard(CUSTOMERS.id)
    sink.prepare(CUSTOMERS.schema)
    assert seen(sink) == {}
    sink.apply(reduce_changes(changes))
    assert seen(sink) == {0: "n0", 1: "n1"}
    assert all(row.row["born"] is None for row in sink.rows(CUSTOMERS.id))
    sink.apply(history)
    assert seen(sink) == {0: "n0", 1: "n1"}, "the deleted row's version is known again"
    assert sink.generation() == 2


@pytest.mark.promise(2)
def test_a_mask_is_stored_in_the_texts_place(sink_under_test: Trial) -> None:
    key = DIGEST_KEY.decode()
    with opened(sink_under_test, section(mask={"hash": ["name"], "hash_key": key})) as sink:
        sink.apply([CUSTOMERS.upsert(FIRST, id=1, name="ünï"), CUSTOMERS.upsert(FIRST, id=2)])
        shown = seen(sink)
    assert shown[2] is None
    assert len(shown[1]) == hashlib.sha256().digest_size * 2 and "ü" not in shown[1]


@pytest.mark.long
@pytest.mark.promise(2)
def test_computed_columns_have_their_types_in_every_store(sink_under_test: Trial) -> None:
    """A row without a value is rejected, and keeps what the store has. Verification finds the columns equal."""
    computed = {
        "total": "CAST(balance * visits AS numeric(14,2))",
        "exactly": "balance / visits",
        "twice": "visits * 2",
        "label": "upper(coalesce(name, 'none'))",
        "is_new": "visits = 1",
        "due": "born + 30",
        "week": "date_trunc('week', seen_at)",
        "joined": "joined_at",
    }
    held = section(computed=computed, exclude=["raw", "grid", "span", "clock", "photo"])
    v = pack_version(1, 100)
    known = {"balance": "1.50", "born": "2024-02-29", "seen_at": "2024-02-29T12:00:00.5"}
    known |= {"joined_at": "2024-02-29T12:00:00Z"}
    with opened(sink_under_test, held) as sink:
        changes = [
            CUSTOMERS.upsert(v, id=1, visits=1, **known),
            CUSTOMERS.upsert(v, id=2, visits=3, name="ünï", **known),
            CUSTOMERS.upsert(v, id=3, visits=0, **known),
            CUSTOMERS.upsert(v, id=4),
        ]
        results = sink.apply(changes)
        assert [one.outcome for one in results].count(Outcome.REJECTED) == 1
        assert results[2].reason == "computed column exactly: division by zero"
        (later,) = sink.apply([CUSTOMERS.upsert(v + 1, id=2, visits=0, **known)])
        assert later.outcome is Outcome.REJECTED
        sink.make_readable({CUSTOMERS.id})
        rows = {row.key["id"]: row.row for row in sink.rows(CUSTOMERS.id)}
    assert rows.keys() == {1, 2, 4}
    expected = ExpectedRows("mine", held, SchemaHistory((CUSTOMERS.schema,)), CUSTOMERS.types, {})
    source = {"balance": "1.50", "born": "2024-02-29", "seen_at": "2024-02-29 12:00:00.5"}
    source |= {"joined_at": "2024-02-29 12:00:00+00"}
    texts = {
        1: source | {"id": "1", "visits": "1"},
        2: source | {"id": "2", "visits": "3", "name": "ünï"},
        4: {"id": "4"},
    }
    for key, row in texts.items():
        found = expected.differences([row.get(name) for name in CUSTOMERS.types], rows[key])
        assert found == (), (key, rows[key])
    assert rows[2]["label"] == "ÜNÏ" and rows[2]["twice"] == 6 and rows[1]["is_new"] is True


def seen(sink: Sink) -> dict[int, Any]:
    """Name by key."""
    sink.make_readable({CUSTOMERS.id})
    return {row.key["id"]: row.row["name"] for row in sink.rows(CUSTOMERS.id)}


@pytest.mark.promise(2)
def test_a_schema_that_changes_under_a_mapping(sink_under_test: Trial) -> None:
    """Renamed columns that widen keep their values under the store's name; a column that is left out may go."""
    v = pack_version(1, 100)
    held = StoredTables.model_validate(
        {
            "mapping": {
                "public.living": {
                    "include": ["small", "kept", "photo"],
                    "rename": {"small": "size", "kept": "note", "id": "number"},
                    "where": "small > 1",
                }
            }
        }
    )
    sink = shaped(sink_under_test.another(), held)
    sink.prepare(FIRST_SCHEMA.schema)
    sink.apply([FIRST_SCHEMA.upsert(v, id=number, **ROW | {"small": number}) for number in (1, 2, 3)])
    sink.prepare(SECOND.schema, [FIRST_SCHEMA.schema])
    schema_history = SchemaHistory((FIRST_SCHEMA.schema, SECOND.schema))
    late = FIRST_SCHEMA.upsert(v + 1, id=4, **ROW)
    assert late.row is not None
    row, unchanged = schema_history.in_newest(1, late.row, frozenset())
    sink.apply(
        [
            structs.replace(late, row=row, unchanged=unchanged),
            SECOND.upsert(v + 2, id=3, **NEW_ROW),
            SECOND.upsert(v + 2, id=2, **NEW_ROW | {"small": 0}),
        ]
    )
    sink.make_readable({FIRST_SCHEMA.id})
    shown = {row.key["number"]: (row.row["size"], row.row["note"], set(row.row)) for row in sink.rows(FIRST_SCHEMA.id)}
    columns = {"number", "size", "note", "photo"}
    assert shown == {3: (2**40, "k", columns), 4: (7, "k", columns)}
