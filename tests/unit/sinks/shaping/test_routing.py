"""Rows that their values route to sinks: however records are delivered, each row is in its sink alone."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from cdc.config.store_mapping import StoredTables
from cdc.model.events import TableSchema, pack_version
from sinks.contract import Change, Result, Sink
from sinks.reduction import document_id, reduce_changes
from sinks.shaping.sink import shaped
from tests.conformance.model import Model
from tests.conformance.tables import CUSTOMERS
from tests.conformance.trial import History, delivered

FIRST = pack_version(1, 0)
ROUTES = {
    "loyal": "visits + 0 >= 10",
    "new": "visits * 1 < 10",
    "unknown": "coalesce(visits, -1) = -1 AND visits IS NULL",
}


class ModelSink:
    """A store that does what every store must: guarded by version, it holds the newest change of each key."""

    name = "mine"

    def __init__(self, held: Model) -> None:
        self.held = held

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        pass

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        return [Result(self.held.apply(change)) for change in changes]

    def sweep(self, table: Any, floor: int) -> int:
        return self.held.sweep(table, floor)


def routed(held: Model, where: str) -> Sink:
    """Another job on the store of this route."""
    store: Any = ModelSink(held)
    sink = shaped(store, StoredTables.model_validate({"mapping": {"public.customers": {"where": where}}}))
    sink.prepare(CUSTOMERS.schema)
    return sink


@pytest.mark.promise(2)
def test_each_row_is_in_the_sink_of_its_value_alone() -> None:
    moved = 0
    for seed in range(40):
        random, source = Random(seed), Model()
        stores = {name: Model() for name in ROUTES}
        sinks = {name: routed(stores[name], where) for name, where in ROUTES.items()}
        changes = History(random, [CUSTOMERS], first_id=1, first_version=FIRST).changes(60)
        source.apply_all(changes)
        for sink in sinks.values():
            for batch in delivered(random, changes):  # to each sink in another order
                sink.apply(reduce_changes(batch))
        floor = FIRST + random.randrange(60)
        source.sweep(CUSTOMERS.id, floor)
        for sink in sinks.values():
            sink.sweep(CUSTOMERS.id, floor)
            for batch in delivered(random, changes):  # by a job that was killed before
                sink.apply(reduce_changes(batch))
        rows = source.rows(CUSTOMERS.id)
        held = {name: store.rows(CUSTOMERS.id) for name, store in stores.items()}
        for key, (version, row) in rows.items():
            visits = row["visits"]
            wanted = "unknown" if visits is None else "loyal" if visits >= 10 else "new"
            assert {name: of[key] for name, of in held.items() if key in of} == {wanted: (version, row)}, (seed, key)
        assert sum(map(len, held.values())) == len(rows), seed
        moved += sum(len({name for name, store in stores.items() if key in _written(store)}) > 1 for key in rows)
    assert moved > 20, "rows have moved from one sink to another"


def _written(store: Model) -> set[str]:
    return store.held.get(CUSTOMERS.id, {}).keys() | set()


def test_a_move_in_any_order() -> None:
    """The delete of the former sink and the row of the new one have the same version: neither depends on the other."""
    first = CUSTOMERS.upsert(FIRST + 1, id=1, visits=3)
    second = CUSTOMERS.upsert(FIRST + 2, id=1, visits=30)
    key = document_id({"id": 1})
    for order in ((first, second), (second, first), (second, second, first, second)):
        for name, where in ROUTES.items():
            store = Model()
            for change in order:
                routed(store, where).apply([change])
            assert store.held[CUSTOMERS.id][key] == (second.version, second.row if name == "loyal" else None)
