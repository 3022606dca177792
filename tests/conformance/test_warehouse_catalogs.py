"""The warehouse in catalogs on real servers: Iceberg's own REST catalog, and PostgreSQL."""

from dataclasses import replace
from random import Random
from typing import cast

import pytest

from cdc.model.events import Column, pack_version
from sinks.errors import SinkError
from sinks.warehouse.check import check_place
from sinks.warehouse.contents import WarehouseContents
from tests.conformance.stores import STORES
from tests.conformance.tables import CUSTOMERS, ORDER_LINES
from tests.conformance.trial import History, Trial, delivered
from tests.conformance.warehouse_store import WarehouseStore

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("store_name", ["warehouse-rest", pytest.param("warehouse-postgresql", marks=pytest.mark.long)])
def test_a_catalog_on_a_server_ends_equal(store_name: str, request: pytest.FixtureRequest, unique: str) -> None:
    """A history from two jobs, a sweep, a schema change, and a store that was emptied."""
    with STORES[store_name](request, unique) as opened:
        store, trial, random = cast(WarehouseStore, opened), Trial(opened), Random(5)
        try:
            assert trial.fresh_generation is None
            assert store.place.location in check_place(store.place)
            zombie = trial.another()
            history = History(random, [CUSTOMERS, ORDER_LINES], first_id=0, first_version=pack_version(1, 0))
            for batch in delivered(random, history.changes(12)):
                trial.apply(*batch, sink=random.choice((trial.sink, zombie)))
            trial.sweep(ORDER_LINES, history.version - 2)
            trial.check()
            added = Column("added", 25, -1, "text", nullable=True, base_type_oid=25)
            wider = replace(CUSTOMERS.schema, version=2, columns=(*CUSTOMERS.schema.columns, added))
            trial.sink.prepare(wider, [CUSTOMERS.schema])
            assert all(row.row["added"] is None for row in trial.sink.rows(CUSTOMERS.id))
            assert trial.sink.generation() == 1
            contents = WarehouseContents(store.place)
            contents.attach(wider)
            assert {key["id"]: held.version for key, held in contents.rows(CUSTOMERS.id)} == {
                row.key["id"]: row.version for row in trial.sink.rows(CUSTOMERS.id)
            }
            store.delete_all()
            assert (trial.sink.generation(), trial.another().generation()) == (None, None)
        finally:
            trial.close()
    if store_name == "warehouse-rest":  # its server has ended
        with pytest.raises(SinkError, match="does not answer"):
            check_place(store.place)
