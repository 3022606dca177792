"""The initial load: what is published in which order, and what an end of it before its end leaves."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cdc.capture.consistent_load import InitialLoad, LoadStopped, TableLoad
from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.config.settings import CaptureConfig
from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.formats.unpublishable import Unpublishable
from cdc.model.control import PositionRecord, SchemaRecord, SnapshotRecord, SourceIdentity, SweepRecord, TopicState
from cdc.model.errors import ConnectionLost
from cdc.model.events import TableId, TableSchema
from cdc.model.lsn import Lsn
from cdc.model.topics import Topics
from cdc.pgoutput.relations import relation_of
from tests.support import wire
from tests.unit.cdc.capture.loops import COLUMNS, SCHEMA, Script

POINT = 5_000
SOURCE = SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed")
ORDERS, _ = wire.schema_and_relation(COLUMNS, ["id"], table=TableId("public", "orders"), oid=11)


def lines(count: int, first: int = 1) -> Iterator[bytes]:
    for number in range(first, first + count):
        yield f"{number}\tx".encode()


def table(rows: Iterator[bytes], schema: TableSchema = SCHEMA, epoch: int = 1, last_floor: int = 0) -> TableLoad:
    encoder = TableEncoder(schema, relation_of(schema), EnvelopeContext("shop", "shop", epoch, "0"))
    encoder.start_snapshot(POINT, 1_000_000)
    return TableLoad(schema, encoder, rows, 0, last_floor)


def load(
    script: Script,
    epoch: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
    unpublishable: Unpublishable | None = None,
    **limits: Any,
) -> InitialLoad:
    return InitialLoad(
        broker=script,
        publisher=Publisher(
            PositionConstants(epoch, SOURCE, "p", {SCHEMA.topic: TopicState(topic_id="id")}), CaptureConfig(**limits)
        ),
        consistent_point=Lsn(POINT),
        clock=script.clock,
        should_stop=should_stop,
        probe=script.probe,
        unpublishable=unpublishable or Unpublishable(Topics("shop")),
    )


def positions(script: Script) -> list[tuple[str, int, int]]:
    """(phase, seq, resume_lsn) of each committed position."""
    found: list[tuple[str, int, int]] = []
    for record in script.committed:
        if record.key == b"position":
            position = PositionRecord.open(record.value or b"", "state")
            found.append((position.phase, position.seq, position.resume_lsn))
    return found


def test_schemas_come_first_then_all_rows_numbered_then_the_position_to_stream_from() -> None:
    script = Script()
    load(script).run([table(lines(2)), table(lines(1, first=9), ORDERS)])
    schemas = [SchemaRecord.decode(r.value or b"", "") for r in script.committed if r.topic == "shop.control"]
    assert [schema.table_schema_of() for schema in schemas] == [SCHEMA, ORDERS]
    rows = [json.loads(r.value or b"") for r in script.committed if r.topic.startswith("shop.public")]
    assert [(row["op"], row["source"]["snapshot"], row["after"]["id"]) for row in rows] == [
        ("r", "true", 1), ("r", "true", 2), ("r", "true", 9),
    ]  # fmt: skip
    assert [row["source"]["seq"] for row in rows] == [1, 2, 3]
    assert {row["source"]["commit_lsn"] for row in rows} == {POINT}
    assert positions(script) == [("loading", 0, POINT), ("streaming", 3, POINT)]
    assert script.committed[0].topic == "shop.control"


def test_rows_that_can_not_be_published_take_no_number() -> None:
    script = Script()
    rows = iter([b"1\tx", b"2\t" + b"x" * 2_000, b"3\t\xff", b"4\tx"])
    unpublishable = Unpublishable(Topics("shop"), "skip", {SCHEMA.topic: 1_000})
    load(script, unpublishable=unpublishable).run([table(rows)])
    values = [json.loads(r.value or b"") for r in script.committed if r.topic == SCHEMA.topic]
    assert [(value["after"]["id"], value["source"]["seq"]) for value in values] == [(1, 1), (4, 2)]
    assert positions(script)[-1] == ("streaming", 2, POINT)
    assert unpublishable.counts == {"public.customers": 2}


def test_tables_without_rows_are_loaded_too() -> None:
    script = Script()
    load(script).run([table(lines(0))])
    assert positions(script) == [("loading", 0, POINT), ("streaming", 0, POINT)]


def test_a_long_load_is_committed_in_parts_that_say_so() -> None:
    script = Script()
    load(script, transaction_rows_max=1_000).run([table(lines(2_500))])
    assert positions(script) == [
        ("loading", 0, POINT), ("loading", 1_000, POINT), ("loading", 2_000, POINT), ("streaming", 2_500, POINT),
    ]  # fmt: skip
    probes = [note for note in script.notes if note.startswith("probe")]
    assert probes == [
        "probe load.rows-produced", "probe load.part-committed",
        "probe load.rows-produced", "probe load.part-committed",
        "probe load.rows-produced", "probe load.before-end",
    ]  # fmt: skip


def test_at_the_end_every_table_s_snapshot_is_done() -> None:
    script = Script()
    load(script).run([table(lines(2)), table(lines(0), ORDERS)])
    done = [SnapshotRecord.decode(r.value or b"", "") for r in script.committed if r.key.startswith(b"snapshot/")]
    assert [(record.table, record.status, record.rows) for record in done] == [
        (SCHEMA.table, "done", 2), (ORDERS.table, "done", 0),
    ]  # fmt: skip


def test_the_first_epoch_has_nothing_to_sweep() -> None:
    script = Script()
    load(script).run([table(lines(1))])
    assert not [r for r in script.committed if r.key.startswith(b"sweep/")]


def test_a_later_epoch_ends_with_a_sweep_of_each_table_in_the_last_kafka_transaction() -> None:
    script = Script()
    load(script, epoch=3).run([table(lines(1), epoch=3), table(lines(0), ORDERS, epoch=3, last_floor=9)])
    sweeps = [SweepRecord.decode(r.value or b"", "") for r in script.committed if r.key.startswith(b"sweep/")]
    assert [(s.table, s.floor, s.as_of_lsn, s.epoch, s.previous_floor) for s in sweeps] == [
        (SCHEMA.table, 3 << 48, POINT, 3, 0), (ORDERS.table, 3 << 48, POINT, 3, 9),
    ]  # fmt: skip
    last = script.notes[script.notes.index("probe load.before-end") :]
    assert [note.split()[0] for note in last] == ["probe", "produce", "produce", "commit"]
    assert "sweep/public.customers" in last[1] and last[2] == "produce state"


def test_a_stop_gives_up_what_is_not_committed() -> None:
    script = Script()
    with pytest.raises(LoadStopped):
        load(script, should_stop=lambda: True).run([table(lines(2_500))])
    assert positions(script) == [("loading", 0, POINT)]
    assert script.notes[-1] == "abort"


def test_a_source_that_goes_away_gives_up_what_is_not_committed() -> None:
    def broken() -> Iterator[bytes]:
        yield from lines(1_500)
        raise ConnectionLost("PostgreSQL: closed")

    script = Script()
    with pytest.raises(ConnectionLost):
        load(script, transaction_rows_max=1_000).run([table(broken())])
    assert positions(script) == [("loading", 0, POINT), ("loading", 1_000, POINT)]
    assert script.notes[-1] == "abort"
