"""Heartbeats: when, and byte for byte."""

from cdc.formats.heartbeats import Heartbeats


def test_a_heartbeat_is_due_at_once_and_then_every_interval() -> None:
    beats = Heartbeats("srv", 10_000, schemas_enable=False)
    record = (b'{"serverName":"srv"}', b'{"ts_ms":1767323090000}')
    due = [bool(beats.due(now, 0)) for now in (0.0, 9.9, 10.0, 19.0, 25.0, 34.0)]
    assert due == [True, False, True, False, True, False]
    assert beats.due(40.0, 1_767_323_090_000_999) == [record]


def test_an_interval_of_zero_means_none() -> None:
    assert Heartbeats("srv", 0, schemas_enable=False).due(1e9, 0) == []


def test_with_schemas_key_and_value_name_theirs() -> None:
    [(key, value)] = Heartbeats("srv", 1, schemas_enable=True).due(0.0, 5_000)
    assert key == (
        b'{"schema":{"type":"struct","fields":[{"type":"string","optional":false,"field":"serverName"}],'
        b'"optional":false,"name":"io.debezium.connector.common.ServerNameKey","version":1},'
        b'"payload":{"serverName":"srv"}}'
    )
    assert value == (
        b'{"schema":{"type":"struct","fields":[{"type":"int64","optional":false,"field":"ts_ms"}],'
        b'"optional":false,"name":"io.debezium.connector.common.Heartbeat","version":1},"payload":{"ts_ms":5}}'
    )
