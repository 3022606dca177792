"""Positions of sinks have keys of their own and come back as they were; the newest serving generation counts."""

from cdc.model.sink_records import SinkRecord, newest
from tests.support.pipeline_records import sink


def test_a_sink_comes_back_with_its_offsets() -> None:
    record = SinkRecord(
        sink="cache",
        generation=2,
        end_offsets={"shop.public.orders": (1, 2)},
        applied_lsn=99,
        epoch=1,
        commit_ts_us=1,
        applied_ts_us=2,
        sweeps={"public.orders": 1 << 48},
        written=4,
        stale=1,
    )
    assert SinkRecord.decode(record.encode(), "shop.progress") == record


def test_each_generation_has_its_key() -> None:
    assert SinkRecord.key_of("cache", 2) == "sink/cache/2"


def test_the_newest_generation_counts_and_lost_ones_do_not() -> None:
    records = [sink(2, 10), sink(10, 5), sink(3, 99)]
    assert newest(records, "search") == records[1]
    assert newest(records, "search", 11) is None
    assert newest(records, "cache") is None
