"""A sink in the shape of a mapping: what its store is given, and which results come back."""

from collections.abc import Sequence
from typing import Any

from cdc.config.store_mapping import StoredTables
from cdc.model.events import TableSchema
from sinks.contract import Change, Outcome, Result
from sinks.shaping.sink import shaped
from tests.conformance.tables import CUSTOMERS


class Store:
    """Keeps what it is given."""

    name = "mine"

    def __init__(self) -> None:
        self.schemas: list[TableSchema] = []
        self.changes: list[Change] = []

    def prepare(self, schema: TableSchema, earlier: Sequence[TableSchema] = ()) -> None:
        self.schemas += [*earlier, schema]

    def attach(self, schema: TableSchema) -> None:
        self.schemas.append(schema)

    def apply(self, changes: Sequence[Change]) -> list[Result]:
        self.changes += changes
        return [Result(Outcome.WRITTEN)] * len(changes)


def mapped(store: Any, **mapping: Any) -> Any:
    return shaped(store, StoredTables.model_validate({"mapping": {"public.customers": mapping} if mapping else {}}))


def test_without_a_mapping_it_is_the_sink_itself() -> None:
    store = Store()
    assert mapped(store) is store


def test_each_change_has_its_result() -> None:
    store = Store()
    sink = mapped(store, where="photo IS NULL", rename={"id": "key"})
    sink.prepare(CUSTOMERS.schema)
    assert store.schemas[0].key == ("key",)
    changes = [
        CUSTOMERS.update(5, ["photo"], id=1),
        CUSTOMERS.upsert(6, id=2),
        CUSTOMERS.upsert(7, id=3, photo="YWE="),
    ]
    assert [result.outcome for result in sink.apply(changes)] == [Outcome.STALE, Outcome.WRITTEN, Outcome.WRITTEN]
    assert [(change.key, change.row is None) for change in store.changes] == [({"key": 2}, False), ({"key": 3}, True)]


def test_a_worker_process_knows_the_newest_version_only() -> None:
    """The driver has checked the mapping: a column that is excluded may be gone."""
    store = Store()
    mapped(store, exclude=["gone"]).attach(CUSTOMERS.schema)
    assert store.schemas == [CUSTOMERS.schema]
