"""When a Kafka transaction ends, and what its position says."""

from dataclasses import replace

import pytest

from cdc.capture.kafka_transaction import PositionConstants, Publisher
from cdc.capture.stream_state import StreamState
from cdc.config.settings import CaptureConfig
from cdc.model.control import PartialTransaction, PositionRecord, SourceIdentity, TopicState
from cdc.model.lsn import Lsn
from cdc.model.topic_record import TopicRecord

LIMITS = CaptureConfig(transaction_rows_max=3, transaction_bytes_max=1024, transaction_time_ms_max=500)
SOURCE = SourceIdentity(system_identifier="7", timeline=1, database="shop", slot="watershed")
SCHEMA_HISTORY = PositionConstants(2, SOURCE, "watershed:abc", {"shop.public.orders": TopicState(topic_id="id-1")})
STATE = StreamState(Lsn(900), PartialTransaction(commit_lsn=950, xid=7, next_index=4), seq=41, commit_ts_us=5)


@pytest.fixture
def publisher() -> Publisher:
    publisher = Publisher(SCHEMA_HISTORY, LIMITS)
    publisher.on_end_offsets({"shop.public.orders": [3, 4], "shop.state": [1]})
    return publisher


def records(count: int, size: int = 1) -> list[TopicRecord]:
    return [TopicRecord("shop.public.orders", b"k", b"v" * size)] * count


def test_nothing_produced_is_never_due(publisher: Publisher) -> None:
    publisher.on_produced([], now=0.0)
    assert not publisher.is_open
    assert not publisher.is_due(1_000.0, is_dry=True)


def test_input_that_runs_dry_ends_the_transaction(publisher: Publisher) -> None:
    publisher.on_produced(records(1), now=10.0)
    assert not publisher.is_due(10.0, is_dry=False)
    assert publisher.is_due(10.0, is_dry=True)


def test_under_load_it_stays_open_for_a_while_after_the_last_one_ended(publisher: Publisher) -> None:
    publisher.on_produced(records(1), now=10.0)
    assert publisher.is_due(10.0, is_dry=True)  # the first after a pause waits for nothing
    publisher.on_committed(10.0)
    publisher.on_produced(records(1), now=10.004)
    assert not publisher.is_due(10.004, is_dry=True)
    assert publisher.wait_s(10.004) == pytest.approx(0.001)
    assert publisher.is_due(10.0051, is_dry=True)
    publisher.on_produced(records(2), now=10.004)
    assert publisher.is_due(10.004, is_dry=False)  # rows end it at any time


@pytest.mark.parametrize(
    ("rows", "commit_s", "expected"),
    [
        (1, 0.001, 0.005),  # little load: rows wait for the pause, mostly
        (50, 0.001, 0.010),
        (100, 0.001, 0.020),  # throughput counts
        (50_000, 0.001, 0.020),
        (1, 0.012, 0.012),  # commits don't take more than half of the time
        (1, 3.0, 0.020),
    ],
)
def test_the_pause_between_two_ends_grows_with_the_load(rows: int, commit_s: float, expected: float) -> None:
    publisher = Publisher(SCHEMA_HISTORY, CaptureConfig())
    publisher.on_produced(records(rows), now=10.0)
    publisher.on_committed(10.0, commit_s=commit_s)
    assert publisher.wait_s(10.0) == pytest.approx(expected)


def test_a_configured_pause_is_that_at_every_load() -> None:
    publisher = Publisher(SCHEMA_HISTORY, CaptureConfig(transaction_time_ms_min=30))
    for rows, commit_s in (1, 0.001), (50_000, 3.0):
        publisher.on_produced(records(rows), now=10.0)
        publisher.on_committed(10.0, commit_s=commit_s)
        assert publisher.wait_s(10.0) == pytest.approx(0.030)


def test_rows_end_it(publisher: Publisher) -> None:
    publisher.on_produced(records(2), now=10.0)
    assert not publisher.is_due(10.0, is_dry=False)
    publisher.on_produced(records(1), now=10.0)
    assert publisher.is_due(10.0, is_dry=False)


def test_bytes_end_it(publisher: Publisher) -> None:
    publisher.on_produced(records(1, size=1022), now=10.0)
    assert not publisher.is_due(10.0, is_dry=False)
    publisher.on_produced([TopicRecord("t", b"k", None)], now=10.0)
    assert publisher.is_due(10.0, is_dry=False)


def test_time_ends_it_counted_from_its_first_record(publisher: Publisher) -> None:
    publisher.on_produced(records(1), now=10.0)
    publisher.on_produced(records(1), now=10.4)
    assert not publisher.is_due(10.49, is_dry=False)
    assert publisher.is_due(10.5, is_dry=False)


def test_a_committed_transaction_is_counted_no_more(publisher: Publisher) -> None:
    publisher.on_produced(records(3, size=400), now=10.0)
    publisher.on_committed()
    assert not publisher.is_open
    publisher.on_produced(records(1), now=20.0)
    assert not publisher.is_due(20.1, is_dry=False)


def test_it_does_not_end_inside_a_transaction_that_fits(publisher: Publisher) -> None:
    publisher.on_produced(records(2), now=10.0)
    publisher.on_ended()
    publisher.on_produced(records(2, size=500), now=10.1, is_begun=True)
    assert not publisher.is_due(20.0, is_dry=True, is_begun=True)
    assert publisher.is_due(20.0, is_dry=False)  # where it has ended


def test_a_transaction_of_which_nothing_is_produced_yet_holds_nothing_up(publisher: Publisher) -> None:
    publisher.on_produced(records(1), now=10.0)
    publisher.on_ended()
    assert publisher.is_due(10.0, is_dry=True, is_begun=True)


def test_a_transaction_of_more_rows_or_bytes_is_split(publisher: Publisher) -> None:
    publisher.on_produced(records(3), now=10.0, is_begun=True)
    assert publisher.is_due(10.0, is_dry=False, is_begun=True)
    publisher.on_committed(is_begun=True)
    publisher.on_ended()
    publisher.on_produced(records(1, size=1023), now=10.0, is_begun=True)
    assert publisher.is_due(10.0, is_dry=False, is_begun=True)


def test_a_transaction_that_is_split_already_waits_for_nothing(publisher: Publisher) -> None:
    publisher.on_committed(is_begun=True)
    publisher.on_produced(records(1), now=10.0, is_begun=True)
    assert publisher.is_due(10.0, is_dry=True, is_begun=True)
    assert publisher.is_due(10.5, is_dry=False, is_begun=True)
    publisher.on_ended()
    publisher.on_produced(records(1), now=10.0, is_begun=True)  # the next one is not
    assert not publisher.is_due(10.5, is_dry=True, is_begun=True)


def test_an_end_that_does_not_come_is_not_waited_for_until_the_brokers_abort(publisher: Publisher) -> None:
    publisher.on_produced(records(1), now=10.0, is_begun=True)
    assert not publisher.is_due(39.9, is_dry=True, is_begun=True)
    assert publisher.is_due(40.0, is_dry=True, is_begun=True)


def test_a_position_says_all_that_a_restart_needs(publisher: Publisher) -> None:
    position = publisher.position(STATE)
    assert PositionRecord.open(position.encode(), "here") == position
    assert (position.phase, position.epoch, position.seq, position.resume_lsn) == ("streaming", 2, 41, 900)
    assert position.partial == STATE.partial
    assert (position.source, position.publication, position.protocol) == (SOURCE, "watershed:abc", "proto_version=1")
    topic = position.topics["shop.public.orders"]
    assert (topic.topic_id, topic.end_offsets) == ("id-1", (3, 4))


def test_a_position_of_the_load_says_so(publisher: Publisher) -> None:
    assert publisher.position(STATE, is_loading=True).phase == "loading"


def test_newer_end_offsets_go_into_the_positions_to_come(publisher: Publisher) -> None:
    publisher.on_end_offsets({"shop.public.orders": (5, 6)})
    assert publisher.position(STATE).topics["shop.public.orders"].end_offsets == (5, 6)


def test_a_topic_whose_end_nobody_knows_yet_has_none() -> None:
    position = Publisher(SCHEMA_HISTORY, LIMITS).position(STATE)
    assert position.topics["shop.public.orders"].end_offsets == ()


def test_a_position_says_how_each_table_is_captured_and_keeps_those_that_leave_while_it_is_half_published() -> None:
    orders, gone = "shop.public.orders", TopicState(topic_id="id-2", end_offsets=(9,), publication_entry="def")
    captured = TopicState(topic_id="id-1", publication_entry="ghi", since_lsn=800)
    publisher = Publisher(
        PositionConstants(2, SOURCE, "watershed:abc", {orders: captured}, leaving={"gone": gone}), LIMITS
    )
    assert publisher.position(STATE).topics == {orders: captured, "gone": gone}
    assert publisher.position(replace(STATE, partial=None)).topics == {orders: captured}


def test_only_what_comes_from_the_source_moves_the_lsn_below_which_everything_is_published() -> None:
    publisher = Publisher(replace(SCHEMA_HISTORY, published_lsn=800), LIMITS)
    whole = StreamState(Lsn(900), None, seq=41, commit_ts_us=5)

    def published(state: StreamState) -> int:
        lsn = publisher.position(state).published_lsn
        publisher.on_committed()
        return lsn

    assert published(whole) == 800  # a keepalive
    publisher.on_produced(records(1), now=1.0, is_content=False)
    assert published(whole) == 800  # progress
    publisher.on_produced(records(1), now=1.0)
    assert published(whole) == 900
    assert published(replace(whole, resume_lsn=Lsn(990))) == 900
    publisher.on_produced(records(1), now=1.0)
    assert published(replace(STATE, resume_lsn=Lsn(990), partial=replace_commit(995))) == 996
    publisher.on_produced(records(1), now=1.0)
    publisher.on_read(1_200)  # values of rows that may be newer than the stream
    assert published(replace(whole, resume_lsn=Lsn(1_000))) == 1_200
    assert published(replace(whole, resume_lsn=Lsn(1_300))) == 1_200


def test_the_position_says_up_to_where_values_were_read_from_tables_also_in_the_next_session() -> None:
    first = Publisher(replace(SCHEMA_HISTORY, published_lsn=800), LIMITS)
    assert (first.position(STATE).read_lsn, first.position(STATE).read_below) == (0, 0)
    first.on_read(1_200)
    first.on_read(1_100)
    assert first.position(STATE).read_below == 1_200
    assert Publisher(replace(SCHEMA_HISTORY, read_lsn=1_200), LIMITS).position(STATE).read_below == 1_200


def replace_commit(lsn: int) -> PartialTransaction:
    return PartialTransaction(commit_lsn=lsn, xid=8, next_index=1)


def test_of_a_history_of_which_it_is_not_known_it_stays_so() -> None:
    publisher = Publisher(SCHEMA_HISTORY, LIMITS)
    publisher.on_produced(records(1), now=1.0)
    position = publisher.position(STATE)
    assert (position.published_lsn, position.published_below) == (0, 951)


def test_a_position_counts_what_followed_the_end_offsets_that_are_known(publisher: Publisher) -> None:
    """Else the brokers could lose the newest records, and nobody would know that there were more."""

    def appended() -> int:
        return publisher.position(STATE).topics["shop.public.orders"].appended

    assert appended() == 0
    publisher.on_produced([*records(2), TopicRecord("shop.state", b"k", b"v")], now=0.0)
    assert appended() == 2
    publisher.on_committed()
    assert appended() == 3  # with the marker
    publisher.on_produced(records(2), now=0.0)
    assert appended() == 5
    publisher.on_end_offsets({"shop.public.orders": (8, 6)})
    assert appended() == 0  # the answer may include what was produced
    publisher.on_produced(records(1), now=0.0)
    assert appended() == 1
    publisher.on_committed()
    assert appended() == 2  # the marker came after the answer
