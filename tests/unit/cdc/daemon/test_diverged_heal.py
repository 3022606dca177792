"""When a standby that was behind is healed by its diverged rows alone, and when all rows are compared instead."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from cdc.config.settings import PipelineConfig
from cdc.daemon import diverged_heal
from cdc.daemon.diverged_heal import DivergedHeal
from cdc.daemon.gap_state import Heal
from cdc.daemon.service import SystemClock
from cdc.kafka.diverged_keys import DivergedKeys, TooManyKeysError
from cdc.kafka.state_reader import StoredState
from cdc.model.control import PartialTransaction, PositionRecord, SnapshotRecord, SourceIdentity, SweepRecord
from cdc.model.events import Column, TableId
from cdc.model.topic_record import TopicRecord
from tests.support import wire

EPOCH, SWITCH = 4, 1_000
DAY_S = 86_400.0
SCHEMA, _ = wire.schema_and_relation((Column("id", 23, -1, "integer", False),), ["id"])
POSITION = PositionRecord(
    phase="streaming",
    epoch=EPOCH,
    seq=50,
    resume_lsn=1_200,
    source=SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed"),
    publication="watershed:7:abc",
    protocol="proto_version=1",
)
SNAPSHOT = SnapshotRecord(
    request="epoch 1",
    table_schema=SCHEMA.table.schema,
    table_name=SCHEMA.table.name,
    status="done",
    sweeps=False,
    requested_us=1,
)


def healing(**sections: Any) -> DivergedHeal:
    given = {
        "source": {"dsn": "postgresql://nobody@127.0.0.1/none", "tables": [str(SCHEMA.table)]},
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "topics": {"prefix": "shop"},
    }
    config = PipelineConfig.model_validate(given | sections)
    return DivergedHeal(config, None, SystemClock(), lambda _: None)  # type: ignore[arg-type]


class AskedError(Exception):
    """The source was asked."""


@pytest.fixture(autouse=True)
def _no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise AskedError

    monkeypatch.setattr(diverged_heal, "connect", connect)


def test_the_source_is_asked_where_only_rows_can_be_wrong() -> None:
    with pytest.raises(AskedError):
        healing().run(POSITION, Heal(EPOCH))


@pytest.mark.parametrize(
    ("heal", "position", "sections"),
    [
        (Heal(EPOCH, all_rows=True), POSITION, {}),
        (Heal(EPOCH, epoch=9), POSITION, {}),
        (Heal(EPOCH, moves_to=("8", "shop")), POSITION, {}),
        (Heal(EPOCH), POSITION.model_copy(update={"phase": "loading"}), {}),
        (
            Heal(EPOCH),
            POSITION.model_copy(update={"partial": PartialTransaction(commit_lsn=1, xid=7, next_index=3)}),
            {},
        ),
        (Heal(EPOCH), POSITION, {"snapshot": {"method": "consistent"}}),
        (Heal(EPOCH), POSITION, {"format": {"profile": "debezium"}}),
    ],
)
def test_otherwise_all_rows_are_compared(heal: Heal, position: PositionRecord, sections: dict[str, Any]) -> None:
    assert not healing(**sections).run(position, heal)


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Whether the topics are complete, with this snapshot record and this sweep."""

    def ask(snapshot: SnapshotRecord | None, sweep: SweepRecord | None = None) -> bool:
        found = () if snapshot is None else (snapshot,)
        state = StoredState(POSITION, found, (), 0, {}, {})
        monkeypatch.setattr(diverged_heal, "read_state", lambda _: state)
        latest = {} if sweep is None else {sweep.record_key: sweep.to("shop.control").value}
        monkeypatch.setattr(diverged_heal, "read_latest", lambda *_: latest)
        return healing()._are_complete(POSITION, SWITCH)

    return ask


def swept(lsn: int, epoch: int = EPOCH) -> SweepRecord:
    return SweepRecord.of(SCHEMA.table, 5, lsn, epoch, 0)


def test_topics_are_complete_after_a_snapshot_of_all_rows(complete: Callable[..., bool]) -> None:
    assert complete(SNAPSHOT)
    assert complete(SNAPSHOT.model_copy(update={"request": "a signal", "sweeps": True}))
    assert complete(SNAPSHOT, swept(SWITCH - 1))
    assert complete(SNAPSHOT, swept(9_000, EPOCH - 1))


@pytest.mark.parametrize(
    ("update", "sweep"),
    [
        ({"status": "running"}, None),
        ({"status": "cancelled"}, None),
        ({"owes": "the snapshot that heals the gap"}, None),
        ({"where": "id > 3", "request": "epoch 1"}, None),
        ({"request": "a signal"}, None),  # of a part
        ({}, swept(SWITCH)),  # a TRUNCATE that never happened
    ],
)
def test_rows_may_be_missing_otherwise(
    complete: Callable[..., bool], update: dict[str, Any], sweep: SweepRecord | None
) -> None:
    assert not complete(SNAPSHOT.model_copy(update=update), sweep)


def test_a_table_without_a_snapshot_is_not_known_to_be_complete(complete: Callable[..., bool]) -> None:
    assert not complete(None)


def record(lsn: int) -> bytes:
    return b'{"before":null,"source":{"version":"0","epoch":%d,"seq":1,"commit_lsn":%d,"tx_index":0}}' % (EPOCH, lsn)


def test_keys_count_only_if_the_epoch_began_before_the_branches_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(*records: tuple[bytes, int]) -> dict[TableId, tuple[str, ...]] | None:
        found = DivergedKeys(EPOCH, SWITCH, are_read_later=True)
        for key, lsn in records:
            found.take(key, record(lsn), time.time_ns() // 1_000_000)
        found.end_partition()
        monkeypatch.setattr(diverged_heal, "read_diverged_keys", lambda *_, **__: found)
        return healing()._keys([SCHEMA], POSITION, SWITCH, DAY_S)

    assert keys((b'{"id":1}', 10), (b'{"id":2}', 2_000)) == {SCHEMA.table: ('{"id":2}',)}
    assert keys((b'{"id":2}', 2_000)) is None
    assert keys((b'{"id":1}', 10), (b"no key of the table", 2_000)) is None

    def refuse(*_: object, **__: object) -> DivergedKeys:
        raise TooManyKeysError

    monkeypatch.setattr(diverged_heal, "read_diverged_keys", refuse)
    assert healing()._keys([SCHEMA], POSITION, SWITCH, DAY_S) is None


@pytest.mark.promise(2)
@pytest.mark.parametrize(("hours", "is_healed"), [(1, True), (11, True), (13, False), (70, False)])
def test_a_delete_that_never_happened_may_be_gone_from_the_topic(
    hours: int, is_healed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody heals on Monday what was lost on Friday: the tombstone was compacted away, and nothing in the topic
    names the row that the table has."""
    found, now_ms = DivergedKeys(EPOCH, SWITCH, are_read_later=True), time.time_ns() // 1_000_000
    for key, lsn, hours_ago in ((b'{"id":1}', 10, hours + 50), (b'{"id":1}', 20, hours), (b'{"id":2}', 2_000, 0)):
        found.take(key, record(lsn), now_ms - hours_ago * 3_600_000)
    found.end_partition()
    monkeypatch.setattr(diverged_heal, "read_diverged_keys", lambda *_, **__: found)
    assert (healing()._keys([SCHEMA], POSITION, SWITCH, DAY_S) is not None) is is_healed


def snapshot_of(*keys: str) -> TopicRecord:
    return healing()._snapshot(SCHEMA, 5, keys)


def test_a_snapshot_of_no_rows_is_done() -> None:
    none = SnapshotRecord.decode(snapshot_of().value or b"", "state")
    some = SnapshotRecord.decode(snapshot_of('{"id":2}').value or b"", "state")
    assert (none.status, none.owes, none.request) == ("done", "", "epoch 5")
    assert (some.status, some.owes, some.keys) == ("running", diverged_heal.OWES, ('{"id":2}',))


@pytest.mark.parametrize(("read_lsn", "is_whole"), [(None, True), (0, False), (SWITCH, False), (SWITCH + 1, True)])
def test_whole_topics_are_read_where_values_were_read_from_tables_behind_the_switch(
    monkeypatch: pytest.MonkeyPatch, read_lsn: int | None, is_whole: bool
) -> None:
    asked: list[bool] = []

    def read(*_: object, are_read_later: bool) -> DivergedKeys:
        asked.append(are_read_later)
        return DivergedKeys(EPOCH, SWITCH, are_read_later=are_read_later)

    monkeypatch.setattr(diverged_heal, "read_diverged_keys", read)
    healing()._keys([SCHEMA], POSITION.model_copy(update={"read_lsn": read_lsn}), SWITCH, DAY_S)
    assert asked == [is_whole]
