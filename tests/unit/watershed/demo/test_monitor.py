"""What the monitor makes of the progress topic and of sampled rows."""

import os
import time

import pytest

from cdc.config.config_file import Config
from cdc.config.settings import KafkaConfig, SourceConfig, TopicConfig
from cdc.model.control import ProgressRecord
from cdc.model.errors import WatershedError
from cdc.model.lsn import Lsn
from cdc.model.sink_records import SinkRecord
from watershed.demo.figures import Spread
from watershed.demo.monitor import Monitor, tree_mib
from watershed.demo.workload import CommittedSample

ALWAYS = float("inf")


def config() -> Config:
    return Config(
        source=SourceConfig(dsn="postgresql://nobody@127.0.0.1:1/none", tables=("public.orders",)),
        kafka=KafkaConfig(bootstrap_servers="127.0.0.1:1"),
        topics=TopicConfig(prefix="shop"),
    )


@pytest.fixture
def monitor() -> Monitor:
    """Nothing of it is started: it gets its records from the tests."""
    return Monitor(config(), "", {"search": lambda _: [], "warehouse": None}, lambda: 0, dict)


def progress(seq: int, lsn: int, epoch: int = 1) -> bytes:
    return ProgressRecord(
        epoch=epoch, seq=seq, lsn=lsn, commit_ts_us=0, published_ts_us=0, end_offsets={"shop.public.orders": (seq,)}
    ).encode()


def sink(name: str, applied_lsn: int, written: int = 0, generation: int = 1, applied_at: float = 0.0) -> bytes:
    return SinkRecord(
        sink=name,
        generation=generation,
        end_offsets={},
        applied_lsn=applied_lsn,
        epoch=1,
        commit_ts_us=0,
        applied_ts_us=int(applied_at * 1_000_000),
        sweeps={},
        written=written,
        stale=0,
    ).encode()


def sample(number: int, committed_at: float, lsn: int) -> CommittedSample:
    return CommittedSample("orders", {"id": number}, committed_at, Lsn(lsn))


def test_captures_progress_is_counted(monitor: Monitor) -> None:
    now = time.time()
    monitor.take(ProgressRecord.KEY, progress(2000, 500), now - 2)
    monitor.take(ProgressRecord.KEY, progress(2600, 900), now)
    figures = monitor.figures()
    assert (figures.captured_rows, figures.captured_lsn) == (2600, 900)
    assert figures.captured_rate == pytest.approx(300, rel=0.1)


def test_a_sinks_counts_go_on_when_its_job_starts_again(monitor: Monitor) -> None:
    for applied, written in ((100, 50), (200, 80), (200, 0), (300, 30)):
        monitor.take(SinkRecord.key_of("search", 1), sink("search", applied, written), 0.0)
    store = monitor.figures().stores["search"]
    assert (store.applied_lsn, store.written) == (300, 110)


def test_the_newest_generation_counts(monitor: Monitor) -> None:
    monitor.take(SinkRecord.key_of("search", 2), sink("search", 50, generation=2), 0.0)
    monitor.take(SinkRecord.key_of("search", 1), sink("search", 900, generation=1), 0.0)
    assert monitor.figures().stores["search"].applied_lsn == 50


def test_sinks_that_are_not_watched_are_ignored(monitor: Monitor) -> None:
    monitor.take(SinkRecord.key_of("other", 1), sink("other", 900), 0.0)
    assert set(monitor.figures().stores) == {"search", "warehouse"}


def test_without_a_probe_a_row_is_readable_when_its_sink_has_applied_it(monitor: Monitor) -> None:
    for number, lsn in ((1, 100), (2, 200), (3, 300)):
        monitor.sample(sample(number, committed_at=1000.0 + number, lsn=lsn))
    monitor.take(SinkRecord.key_of("warehouse", 1), sink("warehouse", 200, applied_at=1012.0), 0.0)
    assert monitor.freshness("warehouse", 0.0, ALWAYS) == Spread(2, 10.0, 11.0, 11.0)
    assert monitor.figures().stores["warehouse"].pending == 1
    # A store with a probe is not believed: its rows wait to be seen.
    monitor.take(SinkRecord.key_of("search", 1), sink("search", 900, applied_at=1012.0), 0.0)
    assert monitor.freshness("search", 0.0, ALWAYS).count == 0
    assert monitor.figures().stores["search"].pending == 3


def test_a_value_that_is_not_ours_is_an_error(monitor: Monitor) -> None:
    with pytest.raises(WatershedError, match="progress topic"):
        monitor.take(ProgressRecord.KEY, b"{}", 0.0)


def test_memory_is_that_of_a_whole_tree_and_nothing_for_who_has_ended() -> None:
    assert tree_mib(os.getpid()) > 5
    assert tree_mib(2**22 + 1) == 0
