"""Records of state, control and progress: both ways, and what is refused."""

import json
import zlib
from dataclasses import replace

import pytest

from cdc.model.control import (
    IncompleteRowsRecord,
    PartialTransaction,
    PositionRecord,
    ProgressRecord,
    SchemaRecord,
    SignalAnswer,
    SignalsRecord,
    SnapshotProgress,
    SnapshotRecord,
    SourceIdentity,
    SweepRecord,
    TombstonesRecord,
    TopicState,
)
from cdc.model.errors import GapError, WatershedError
from cdc.model.events import Column, TableId, TableSchema
from cdc.model.topic_record import TopicRecord

WHERE = "shop.state"
POSITION = PositionRecord(
    phase="streaming",
    epoch=3,
    seq=41,
    resume_lsn=(1 << 64) - 1,
    partial=PartialTransaction(commit_lsn=7, xid=560, next_index=2),
    source=SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed"),
    publication="watershed#1",
    protocol="proto_version=1",
    topics={"shop.public.orders": TopicState(topic_id="x", end_offsets=(4, 0, 9))},
)
ORDERS = TableSchema(
    TableId("public", "orders"),
    version=2,
    oid=16384,
    columns=(
        Column("id", 20, -1, "bigint", nullable=False),
        Column("status", 16400, -1, "order_status", nullable=True, type_kind="e", base_type_oid=16400),
    ),
    key=("id",),
    topic="shop.public.orders",
)


@pytest.mark.parametrize(
    ("fields", "owes_sweep"),
    [
        ({"sweeps": True}, False),  # an operator asked for it
        ({"sweeps": True, "owes": "the heal"}, True),
        ({"sweeps": True, "owes": "the heal", "status": "cancelled"}, True),
        ({"sweeps": False, "owes": "the heal", "deletes_in": {"after": None, "up_to": None}}, True),  # took it over
        ({"sweeps": False, "owes": "the heal", "compares": True}, False),
        ({"sweeps": False, "owes": "its initial snapshot"}, False),
    ],
)
def test_a_sweep_is_owed_where_rows_are_and_the_snapshot_was_to_end_with_one(
    fields: dict[str, object], owes_sweep: bool
) -> None:
    common = {"request": "r", "table_schema": "public", "table_name": "a", "status": "running", "requested_us": 1}
    assert SnapshotRecord.model_validate(common | fields).owes_sweep == owes_sweep


def test_a_sealed_position_comes_back_as_it_was() -> None:
    sealed = POSITION.sealed()
    assert sealed.checksum != 0
    assert PositionRecord.open(sealed.encode(), WHERE) == sealed


def test_the_checksum_does_not_depend_on_how_the_json_is_written() -> None:
    loose = json.dumps(dict(reversed(json.loads(POSITION.sealed().encode()).items())), indent=1)
    assert PositionRecord.open(loose.encode(), WHERE) == POSITION.sealed()


@pytest.mark.parametrize("change", [{"seq": 42}, {"resume_lsn": 1}, {"partial": None}, {"checksum": 0}, {"topics": {}}])
@pytest.mark.invariant(10)
def test_an_edited_position_is_a_gap(change: dict[str, object]) -> None:
    edited = json.loads(POSITION.sealed().encode()) | change
    with pytest.raises(GapError, match="checksum does not match"):
        PositionRecord.open(json.dumps(edited).encode(), WHERE)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "value"),
        (b"\xff", "value"),
        (b"[]", "value"),
        (b"{}", "phase"),
        (POSITION.encode().replace(b'"epoch":3', b'"epoch":0'), "epoch"),
        (POSITION.encode().replace(b'"epoch":3', b'"epoch":32768'), "epoch"),
        (POSITION.encode().replace(b'"seq":41', b'"seq":-1'), "seq"),
        (POSITION.encode().replace(b'"seq":41', b'"seq":41,"later":1'), "later"),
        (POSITION.encode().replace(b"streaming", b"resting"), "phase"),
    ],
)
def test_a_value_that_is_no_position_is_named_with_its_topic(value: bytes, reason: str) -> None:
    with pytest.raises(WatershedError) as caught:
        PositionRecord.open(value, WHERE)
    assert caught.value.message.startswith(f"{WHERE} holds a value that is not a PositionRecord: {reason}: ")
    assert caught.value.hint


def test_a_schema_comes_back_as_the_table_it_describes() -> None:
    record = SchemaRecord.decode(SchemaRecord.of(ORDERS).encode(), "shop.control")
    assert record.table_schema_of() == ORDERS


def test_a_sweep_names_its_table() -> None:
    sweep = SweepRecord(table_schema="public", table_name="orders", floor=1 << 48, as_of_lsn=9, epoch=1)
    assert SweepRecord.decode(sweep.encode(), "shop.control").table == ORDERS.table


def test_progress_comes_back_with_its_offsets() -> None:
    progress = ProgressRecord(
        epoch=1, seq=5, lsn=99, commit_ts_us=1, published_ts_us=2, end_offsets={"shop.public.orders": (1, 2)}
    )
    assert ProgressRecord.decode(progress.encode(), "shop.progress") == progress


def test_each_kind_has_its_key() -> None:
    snapshot = SnapshotRecord(
        request="r", table_schema="public", table_name="orders", status="running", sweeps=True, requested_us=1
    )
    holes = IncompleteRowsRecord(table_schema="public", table_name="orders", keys=(("1",),))
    tombstones = TombstonesRecord(table_schema="public", table_name="orders", floor=5)
    progress = SnapshotProgress(
        request="r", table='"a.b".c', status="running", rows=0, rows_estimated=0, rows_per_s=0, updated_us=1
    )
    for record, key in (
        (POSITION.sealed(), "position"),
        (SignalsRecord(offset=3), "signals"),
        (snapshot, "snapshot/public.orders"),
        (progress, "snapshot/a%2Eb.c"),
        (holes, "holes/public.orders"),
        (tombstones, "tombstones/public.orders"),
        (SchemaRecord.of(ORDERS), "schema/public.orders/2"),
        (SweepRecord.of(ORDERS.table, 5, 9, 2, 3), "sweep/public.orders"),
    ):
        assert record.to("topic") == TopicRecord("topic", key.encode(), record.encode())
        assert type(record).decode(record.encode(), "") == record
    assert SignalAnswer.key_of("x1") == "signal/x1"


def test_keys_of_tables_do_not_collide() -> None:
    tricky = [TableId("a.b", "c"), TableId("a", "b.c"), TableId("a", "b/1"), TableId("a%2Eb", "c")]
    keys = [SchemaRecord.of(replace(ORDERS, table=table)).record_key for table in tricky]
    assert len(set(keys)) == len(tricky)
    assert all(key.count("/") == 2 for key in keys)


def test_a_record_that_was_written_before_a_field_was_added_is_as_it_was() -> None:
    written = POSITION.sealed().model_dump(mode="json", exclude={"published_lsn", "checksum"})
    del written["source"]["branches"]
    body = json.dumps(written, sort_keys=True, separators=(",", ":")).encode()
    value = json.dumps({**written, "checksum": zlib.crc32(body)}).encode()
    found = PositionRecord.open(value, "shop.state")
    assert found.published_below >= found.resume_lsn
    assert found.source == POSITION.source
