"""What fits, what a dead letter holds, and how changes that are left out are counted."""

import json

import pytest

from cdc.capture.assembler import Assembler
from cdc.capture.stream_state import CapturedTables, StreamState
from cdc.capture.toast_batch import DraftRecord
from cdc.config.settings import OnUnpublishable
from cdc.formats.records import OutRecord, TableEncoder
from cdc.formats.transaction_metadata import TransactionMetadata
from cdc.formats.unpublishable import OVERHEAD_BYTES, Unpublishable, record_bytes
from cdc.model.control import UnpublishedRecord
from cdc.model.errors import DamagedTextError, UnpublishableError, UnsupportedChangeError
from cdc.model.events import Column, Position
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.pgoutput.messages import NULL, UNCHANGED, Begin, TupleValue
from tests.support import wire
from tests.support.holes import finished
from tests.support.snapshot_ports import UnfollowedTables, engine_of
from tests.unit.cdc.capture.loops import COLUMNS, CONTEXT, RELATION, SCHEMA, TABLE, TOPIC, TS_US, transaction

TOPICS = Topics("shop")
PLACE = Position(Lsn(0x2000), 5)
LIMITS = {TOPIC: 1_000, TOPICS.dead_letter: 1_200}
KEY = b'{"id":1}'
LARGE: OutRecord = (KEY, b"v" * 1_000, None)
FORMLESS = UnsupportedChangeError("public.customers at 0/2000#5: a value is not UTF-8")


def too_large(made: Unpublishable, record: OutRecord = LARGE) -> UnpublishableError:
    with pytest.raises(UnpublishableError) as refused:
        made.require_fits(SCHEMA, PLACE, [record])
    return refused.value


def counted(records: list[TopicRecord]) -> UnpublishedRecord:
    assert (records[-1].topic, records[-1].key) == ("shop.state", UnpublishedRecord.key_of(TABLE).encode())
    return UnpublishedRecord.decode(records[-1].value or b"", "state")


def test_a_record_counts_with_its_key_and_headers() -> None:
    assert record_bytes((KEY, b"12345", None)) == OVERHEAD_BYTES + 13
    assert record_bytes((KEY, None, [("n", b"12")])) == OVERHEAD_BYTES + 8 + 3 + 10


def test_what_fits_to_the_byte_is_published() -> None:
    made = Unpublishable(TOPICS, "stop", LIMITS)
    room = 1_000 - OVERHEAD_BYTES - len(KEY)
    made.require_fits(SCHEMA, PLACE, [(KEY, b"v" * room, None), (KEY, None, None)])
    too_large(made, (KEY, b"v" * (room + 1), None))
    assert made.accepts(TopicRecord(TOPIC, KEY, b"v" * room))
    assert not made.accepts(TopicRecord(TOPIC, KEY, b"v" * (room + 1)))
    assert made.accepts(TopicRecord("elsewhere", KEY, b"v" * (room + 1)))


def test_a_safe_value_fits_whatever_key_and_headers_say() -> None:
    """Of a moved row they hold a key each."""
    made = Unpublishable(TOPICS, "stop", {TOPIC: 1_000_000})
    key = b"k" * made.value_bytes_safe
    made.require_fits(SCHEMA, PLACE, [(key, key, [("__debezium.newkey", key)])])


def test_what_is_too_large_is_said_with_table_key_columns_sizes_position_and_a_way_out() -> None:
    error = too_large(Unpublishable(TOPICS, "stop", LIMITS))
    assert error.message == (
        "public.customers (key column id) at 0/2000#5: a record of 1136 bytes is larger than topic "
        "shop.public.customers takes, 1000"
    )
    for way_out in (
        "max.message.bytes of shop.public.customers",
        "publication",
        "capture.on_unpublishable",
        "cdc table start public.customers",
    ):
        assert way_out in error.hint
    assert error.table == TABLE
    assert "vvv" not in str(error)


@pytest.mark.parametrize("what", ["large", "formless"])
def test_the_table_stops_unless_capture_is_told_otherwise(what: str) -> None:
    made = Unpublishable(TOPICS, record_bytes_max=LIMITS)
    error = too_large(made) if what == "large" else FORMLESS
    with pytest.raises(UnsupportedChangeError) as again:
        made.replacements(SCHEMA, PLACE, error, now_us=7)
    assert again.value is error
    assert made.counts == {}


@pytest.mark.parametrize("what", ["large", "formless"])
def test_a_table_that_has_stopped_does_not_stop_again(what: str) -> None:
    """The rest of a half published transaction is sent again, and with it what stopped the table."""
    made = Unpublishable(TOPICS, record_bytes_max=LIMITS, leaving={TABLE})
    error = too_large(made) if what == "large" else FORMLESS
    assert made.replacements(SCHEMA, PLACE, error, now_us=7) == []
    assert made.counts == {}


def test_a_dead_letter_has_the_key_what_fits_of_the_value_and_the_reason() -> None:
    made = Unpublishable(TOPICS, "dead_letter", LIMITS)
    records = made.replacements(SCHEMA, PLACE, too_large(made, (KEY, b"v" * 5_000, None)), now_us=7)
    letter = records[0]
    assert (letter.topic, letter.key) == ("shop.dead-letter", KEY)
    headers = dict(letter.headers or ())
    assert headers["watershed.topic"] == TOPIC.encode()
    assert headers["watershed.table"] == b"public.customers"
    assert headers["watershed.position"] == b"0/2000#5"
    assert b"larger than topic" in (headers["watershed.reason"] or b"")
    assert headers["watershed.size"] == b"5000"
    assert letter.value
    assert set(letter.value) == set(b"v")
    assert made.accepts(letter)
    assert record_bytes((letter.key, letter.value, letter.headers)) > 1_100
    assert counted(records).dead_letters == 1


def test_a_dead_letter_is_whole_where_its_topic_takes_more() -> None:
    made = Unpublishable(TOPICS, "dead_letter", LIMITS | {TOPICS.dead_letter: 100_000})
    letter = made.replacements(SCHEMA, PLACE, too_large(made), now_us=7)[0]
    assert letter.value == LARGE[1]
    assert "watershed.size" not in dict(letter.headers or ())


def test_a_value_without_a_form_is_a_dead_letter_without_key_and_value() -> None:
    made = Unpublishable(TOPICS, "dead_letter", LIMITS)
    letter = made.replacements(SCHEMA, PLACE, FORMLESS, now_us=7)[0]
    assert (letter.key, letter.value) == (b"", None)
    assert dict(letter.headers or ())["watershed.reason"] == FORMLESS.message.encode()


@pytest.mark.parametrize("policy", ["stop", "dead_letter", "skip"])
def test_what_was_damaged_on_its_way_is_read_again_whatever_the_policy_is(policy: OnUnpublishable) -> None:
    damaged = DamagedTextError("public.customers at 0/2000#5", TABLE, b"digest")
    made = Unpublishable(TOPICS, policy, LIMITS, leaving={TABLE})
    with pytest.raises(DamagedTextError):
        made.replacements(SCHEMA, PLACE, damaged, now_us=7)
    assert made.counts == {}


def test_what_is_skipped_is_counted_from_what_state_says_on() -> None:
    before = UnpublishedRecord(table_schema="public", table_name="customers", dead_letters=3, skipped=4)
    made = Unpublishable(TOPICS, "skip", LIMITS, [before])
    assert made.counts == {"public.customers": 7}
    made.replacements(SCHEMA, PLACE, FORMLESS, now_us=7)
    records = made.replacements(SCHEMA, PLACE, FORMLESS, now_us=8)
    assert len(records) == 1
    reported = counted(records)
    assert (reported.table, reported.dead_letters, reported.skipped) == (TABLE, 3, 6)
    assert (reported.position, reported.reason, reported.updated_us) == ("0/2000#5", FORMLESS.message, 8)
    assert made.counts == {"public.customers": 9}


# ---- in the stream


def assembled(policy: OnUnpublishable, *changes: bytes) -> tuple[Assembler, list[TopicRecord]]:
    """What a transaction with these changes becomes, and one that inserts a row behind it."""
    engine = engine_of([SCHEMA], CONTEXT)
    start = StreamState(Lsn(1_000), None, seq=0, commit_ts_us=0)
    unpublishable = Unpublishable(TOPICS, policy, LIMITS)
    made = Assembler(
        CapturedTables([SCHEMA]),
        CONTEXT,
        start,
        engine,
        UnfollowedTables(),
        unpublishable=unpublishable,
    )
    messages = [wire.begin(1_100, TS_US, 7), wire.relation_bytes(RELATION), *changes, wire.commit(1_100, 1_148, TS_US)]
    frames = [wire.xlog_data(message, 0) for message in messages]
    records, failure = made.consume([*frames, *transaction(1_200, 9)], TS_US)
    if failure is not None:
        raise failure
    return made, finished(records)


def row(number: int, size: int = 1) -> list[TupleValue]:
    return [str(number).encode(), b"x" * size]


def published(records: list[TopicRecord]) -> list[tuple[str, int, int, int]]:
    """(op, id, seq, tx_index)"""
    values = [json.loads(r.value) for r in records if r.topic == TOPIC and r.value]
    return [(v["op"], (v["after"] or v["before"])["id"], v["source"]["seq"], v["source"]["tx_index"]) for v in values]


@pytest.mark.parametrize("policy", ["dead_letter", "skip"])
def test_a_change_that_is_left_out_takes_no_version_but_its_place(policy: OnUnpublishable) -> None:
    changes = [wire.insert(10, row(1)), wire.insert(10, row(2, 2_000)), wire.insert(10, row(3))]
    made, records = assembled(policy, *changes)
    assert published(records) == [("c", 1, 1, 0), ("c", 3, 2, 2), ("c", 9, 3, 0)]
    assert made.state == StreamState(Lsn(1_248), None, seq=3, commit_ts_us=TS_US)
    assert made.unpublished == {"public.customers": 1}
    letters = [record for record in records if record.topic == TOPICS.dead_letter]
    assert [letter.key for letter in letters] == ([b'{"id":2}'] if policy == "dead_letter" else [])


def test_records_of_one_change_are_left_out_together() -> None:
    """The delete and the tombstone of a moved row, whose create is too large."""
    moved = wire.update(10, row(2, 2_000), [b"1", NULL])
    _, records = assembled("skip", moved)
    assert published(records) == [("c", 9, 1, 0)]


def test_a_row_with_a_hole_counts_as_it_is_without() -> None:
    columns = [*COLUMNS, Column("more", 25, -1, "text", True)]
    schema, relation = wire.schema_and_relation(columns, ["id"], table=TABLE, oid=10)
    start = StreamState(Lsn(1_000), None, seq=0, commit_ts_us=0)
    engine = engine_of([schema], CONTEXT)
    unpublishable = Unpublishable(TOPICS, "skip", LIMITS)
    made = Assembler(
        CapturedTables([schema]),
        CONTEXT,
        start,
        engine,
        UnfollowedTables(),
        unpublishable=unpublishable,
    )
    changes = [wire.update(10, [b"1", b"x" * 2_000, UNCHANGED]), wire.update(10, [b"2", b"x", UNCHANGED])]
    messages = [wire.begin(1_100, TS_US, 7), wire.relation_bytes(relation), *changes]
    records, failure = made.consume([wire.xlog_data(message, 0) for message in messages], TS_US)
    assert failure is None
    (hole,) = [record for record in records if isinstance(record, DraftRecord)]
    assert (hole.key, hole.draft.key) == (b'{"id":2}', ("2",))


def test_the_table_stops_before_a_change_that_is_too_large() -> None:
    with pytest.raises(UnpublishableError, match="larger than topic"):
        assembled("stop", wire.insert(10, row(1)), wire.insert(10, row(2, 2_000)))


@pytest.mark.parametrize("size", [8_000, 7_000])
def test_of_a_row_that_no_record_holds_none_is_made(size: int) -> None:
    """Its letter has the key alone; below eight times the topic's limit the record is made and measured."""
    moved = wire.update(10, row(2, size), [b"1", NULL])
    _, records = assembled("dead_letter", wire.insert(10, row(3)), moved)
    assert published(records) == [("c", 3, 1, 0), ("c", 9, 2, 0)]
    (letter,) = [record for record in records if record.topic == TOPICS.dead_letter]
    reason = dict(letter.headers or ())["watershed.reason"] or b""
    if size == 8_000:
        assert (letter.key, letter.value) == (b'{"id":1}', None)
        assert b"public.customers (key column id) at 0/44C#1: column name has 8000 bytes, more than a record" in reason
    else:
        assert b"a record of" in reason


def test_a_large_row_with_a_hole_that_no_record_holds_is_refused() -> None:
    columns = [*COLUMNS, Column("more", 25, -1, "text", True)]
    schema, relation = wire.schema_and_relation(columns, ["id"], table=TABLE, oid=10)
    encoder = TableEncoder(schema, relation, CONTEXT)
    frame = wire.xlog_data(wire.update(10, [b"1", b"x" * 9_000, UNCHANGED]), 0)
    made = Unpublishable(TOPICS, "skip", LIMITS)
    with pytest.raises(UnpublishableError) as refused:
        made.without_unpublished_columns(encoder, frame, PLACE)
    assert (refused.value.keys, refused.value.value) == ((KEY,), None)


def test_a_line_that_no_record_holds_and_one_that_may() -> None:
    encoder = TableEncoder(SCHEMA, RELATION, CONTEXT)
    made = Unpublishable(TOPICS, "skip", LIMITS)
    with pytest.raises(UnpublishableError, match="column name has 9000 bytes") as refused:
        made.row_record(encoder, b"1\t" + b"x" * 9_000, *PLACE, 1, 0)
    assert refused.value.keys == (KEY,)
    with pytest.raises(UnpublishableError, match="a record of 7"):
        made.row_record(encoder, b"1\t" + b"x" * 7_000, *PLACE, 1, 0)


def test_a_value_without_a_form_is_left_out_too() -> None:
    _, records = assembled("skip", wire.insert(10, [b"1", b"\xff"]), wire.insert(10, row(2)))
    assert published(records) == [("c", 2, 1, 1), ("c", 9, 2, 0)]


def test_a_change_that_is_left_out_is_no_event_of_its_transaction() -> None:
    metadata = TransactionMetadata(schemas_enable=False)
    metadata.start(Begin(Lsn(1_100), TS_US, 7), None)
    metadata.opening()
    metadata.block("public.a")
    before = metadata.total
    metadata.block("public.b")
    metadata.block("public.b")
    metadata.withdraw("public.b", before)
    assert metadata.counts == {"public.a": 1}
    assert '"total_order":2,"data_collection_order":1' in metadata.block("public.b")


def test_rows_are_made_at_once_only_if_all_may_be_published_and_fit_into_the_memory_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, encoder = Unpublishable(TOPICS, "stop", LIMITS), TableEncoder(SCHEMA, RELATION, CONTEXT)
    encoder.start_snapshot(5, TS_US)

    def at_once(*lines: bytes) -> list[TopicRecord] | None:
        return made.row_records(encoder, lines, Lsn(5), 0, 1, TS_US)

    usual, large = [b"1\tx", b"2\ty"], b"3\t" + b"x" * 1_000
    alone = [
        TopicRecord(TOPIC, *Unpublishable(TOPICS).row_record(encoder, line, Lsn(5), i, 1 + i, TS_US))
        for i, line in enumerate(usual)
    ]
    wide = Unpublishable(TOPICS, "stop", {TOPIC: 100_000})
    assert wide.row_records(encoder, usual, Lsn(5), 0, 1, TS_US) == alone
    assert at_once(*usual, large) is None
    assert at_once(*usual, b"4\t\xff") is None
    monkeypatch.setattr("cdc.formats.unpublishable.AT_ONCE_BYTES_MAX", 5)
    assert wide.row_records(encoder, usual, Lsn(5), 0, 1, TS_US) is None
