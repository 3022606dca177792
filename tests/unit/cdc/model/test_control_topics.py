"""Our own records: where they go, and under which key."""

from cdc.model.control import (
    IncompleteRowsRecord,
    PositionRecord,
    SchemaRecord,
    SnapshotRecord,
    SourceIdentity,
    SweepRecord,
)
from cdc.model.control_topics import (
    incomplete_rows_record,
    position_record,
    schema_record,
    snapshot_record,
    sweep_record,
    tombstones_record,
)
from cdc.model.events import TableId
from cdc.model.topics import Topics
from tests.unit.cdc.capture.loops import SCHEMA

TOPICS = Topics("shop")


def test_each_kind_has_its_topic_key_and_value() -> None:
    position = PositionRecord(
        phase="streaming",
        epoch=1,
        seq=2,
        resume_lsn=3,
        source=SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed"),
        publication="p",
        protocol="x",
    ).sealed()
    snapshot = SnapshotRecord(
        request="r", table_schema="public", table_name="customers", status="running", sweeps=True, requested_us=1
    )
    holes = IncompleteRowsRecord(table_schema="public", table_name="customers", keys=(("1",),))
    made = [
        position_record(TOPICS, position),
        snapshot_record(TOPICS, snapshot),
        schema_record(TOPICS, SCHEMA),
        sweep_record(TOPICS, TableId("public", "t"), floor=5, as_of_lsn=9, epoch=2),
        incomplete_rows_record(TOPICS, holes),
        tombstones_record(TOPICS, TableId("public", "t"), floor=5),
    ]
    assert [(record.topic, record.key) for record in made] == [
        ("shop.state", b"position"),
        ("shop.state", b"snapshot/public.customers"),
        ("shop.control", b"schema/public.customers/1"),
        ("shop.control", b"sweep/public.t"),
        ("shop.state", b"holes/public.customers"),
        ("shop.state", b"tombstones/public.t"),
    ]
    assert IncompleteRowsRecord.decode(made[4].value or b"", "") == holes
    assert PositionRecord.open(made[0].value or b"", "") == position
    assert SnapshotRecord.decode(made[1].value or b"", "") == snapshot
    assert SchemaRecord.decode(made[2].value or b"", "").table_schema_of() == SCHEMA
    assert SweepRecord.decode(made[3].value or b"", "") == SweepRecord(
        table_schema="public", table_name="t", floor=5, as_of_lsn=9, epoch=2
    )
