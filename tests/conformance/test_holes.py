"""Changes that lack large values: the store keeps its own, and never makes a row of what it does not know whole."""

import pytest

from cdc.model.events import pack_version
from sinks.contract import Outcome
from tests.conformance.tables import CUSTOMERS
from tests.conformance.trial import Trial

V = pack_version(1, 100)
WRITTEN, STALE = Outcome.WRITTEN, Outcome.STALE
LARGE = ("attributes", "photo", "tags")


@pytest.mark.promise(2)
def test_a_change_that_lacks_columns_keeps_the_stores_own_and_makes_no_row(sink_under_test: Trial) -> None:
    trial = sink_under_test
    held = {"attributes": '{"a": "é"}', "photo": "aHVnZQ==", "tags": ["x", None], "name": "first", "balance": "1.50"}
    trial.apply(
        *(CUSTOMERS.upsert(V, id=number, **held) for number in (1, 2, 3)),
        CUSTOMERS.upsert(V + 9, id=4, **held),
        CUSTOMERS.delete(V + 1, id=5),
    )
    # Of one batch: some are whole, some lack columns, and what is not there, deleted or newer stays as it is.
    assert trial.apply(
        CUSTOMERS.update(V + 2, LARGE, id=1, name="second"),
        CUSTOMERS.upsert(V + 2, id=2, name="whole"),
        CUSTOMERS.update(V + 2, LARGE[:1], id=3, photo=None, tags=[]),
        CUSTOMERS.update(V + 2, LARGE, id=4, name="late"),
        CUSTOMERS.update(V + 2, LARGE, id=5, name="deleted"),
        CUSTOMERS.update(V + 2, LARGE, id=6, name="never seen"),
    ) == [WRITTEN, WRITTEN, WRITTEN, STALE, STALE, STALE]
    trial.check()
    # A replay, an older one, and the whole row that follows.
    assert trial.apply(CUSTOMERS.update(V + 2, LARGE, id=1, name="again")) == [STALE]
    assert trial.apply(CUSTOMERS.upsert(V + 1, id=1, name="older")) == [STALE]
    assert trial.apply(*(CUSTOMERS.upsert(V + 20, id=number, name="whole") for number in (1, 5, 6))) == [WRITTEN] * 3
    trial.check()
