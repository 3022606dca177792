"""A task's store is opened by name, with the tables that the driver has prepared."""

from typing import Any

import pytest

from cdc.model.events import TableSchema
from sinks.schema_history import SchemaHistory
from spark_jobs import stores
from spark_jobs.stores import open_store
from tests.unit.spark_jobs.records import catalog, job, schema


class FakeSink:
    def __init__(self) -> None:
        self.attached: list[TableSchema] = []
        self.is_closed = False

    def attach(self, schema: TableSchema) -> None:
        self.attached.append(schema)

    def apply(self, changes: Any) -> Any:
        return changes

    def close(self) -> None:
        self.is_closed = True


def test_the_tables_are_attached_in_their_newest_version(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FakeSink()
    monkeypatch.setattr(stores, "make_sink", lambda *_: sink)
    target = open_store(job(), catalog(SchemaHistory((schema(), schema(version=2))), SchemaHistory((schema("b"),))))
    assert [(held.table.name, held.version) for held in sink.attached] == [("a", 2), ("b", 1)]
    changes: Any = ["as they are"]
    applied: Any = target.apply(changes)
    assert applied == ["as they are"]
    assert target.finish() == ()
    target.close()
    assert sink.is_closed
