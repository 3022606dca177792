"""One position over all stores."""

from typing import Any

import pytest

from cdc.model.control import ProgressRecord
from cdc.model.sink_records import SinkRecord
from tests.support.pipeline_records import position
from tests.support.status_facts import applied
from watershed.client.applied import Positions
from watershed.status.position import PositionOfStores, position_of_stores


def record(sink: str, lsn: int, since_s: float, **fields: Any) -> SinkRecord:
    return applied(lsn, sink=sink, applied_since_us=round(since_s * 1e6), store="cache", **fields)


NOW = ProgressRecord(epoch=1, seq=0, lsn=1, commit_ts_us=0, published_ts_us=0, end_offsets={})


def found(*records: SinkRecord, progress: ProgressRecord = NOW) -> PositionOfStores:
    return position_of_stores(Positions(records, position(500), progress))


def test_the_position_is_the_smallest_and_holds_since_all_stores_show_it() -> None:
    stores = found(record("a", 0x500, 20), record("b", 0x400, 10))
    assert (stores.lsn, stores.epoch, stores.since_unix_seconds, stores.is_complete) == ("0/400", 1, 20.0, True)
    assert [(store.sink, store.lsn, store.since_unix_seconds) for store in stores.stores] == [
        ("a", "0/500", 20.0),
        ("b", "0/400", 10.0),
    ]


def test_an_earlier_epoch_is_less_whatever_its_lsn() -> None:
    assert (found(record("a", 0x500, 1), record("b", 0x10, 1, epoch=2)).lsn) == "0/500"


@pytest.mark.parametrize(
    "other",
    [
        record("b", 0, 1, epoch=0),  # nothing is applied yet
        record("b", 0x500, 1, role="building"),  # another generation is about to take over
        record("b", 0x500, 1, history="former"),  # it reads other topics than there are
    ],
)
def test_a_store_without_a_position_leaves_none_for_all(other: SinkRecord) -> None:
    stores = found(record("a", 0x500, 1), other)
    assert (stores.lsn, stores.since_unix_seconds, stores.is_complete) == (None, None, False)
    assert [store.lsn for store in stores.stores] == ["0/500", None]


def test_no_store_is_no_position() -> None:
    assert found().lsn is None


def test_rows_that_are_missing_below_the_position_are_named() -> None:
    progress = NOW.model_copy(update={"owed": {"public.b": "it is stopped"}})
    stores = found(record("a", 0x500, 1, owed={"public.a": "a snapshot runs"}), progress=progress)
    assert stores.stores[0].owed == {"public.a": "a snapshot runs", "public.b": "it is stopped"}
    assert not stores.is_complete
    assert found(record("a", 1, 1, excluded=("public.b",)), progress=progress).is_complete
    assert not found(record("a", 1, 1, dead_letters=1)).is_complete
