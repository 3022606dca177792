"""`sink_under_test`: each case runs for every store of STORES but `sql-shaped`, which `test_many_operations.py` has."""

from collections.abc import Iterator

import pytest

from tests.conformance.stores import LONG, STORES, url_of
from tests.conformance.trial import Trial
from tests.conftest import PostgresServer, new_database


@pytest.fixture(scope="session")
def sql_database(postgres: PostgresServer) -> Iterator[str]:
    """URL of a database that SQL stores share, one after the other."""
    with new_database(postgres) as dsn:
        yield url_of(dsn)


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in STORES if name != "sql-shaped"
    ]
)
def sink_under_test(request: pytest.FixtureRequest, unique: str) -> Iterator[Trial]:
    """A fresh, empty store with generation 1 begun, the sink, and the model of what it must hold."""
    with STORES[request.param](request, unique) as store:
        trial = Trial(store)
        try:
            yield trial
        finally:
            trial.close()
