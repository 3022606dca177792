"""Heartbeats, in Debezium's form: {"serverName":"shop"} and {"ts_ms":1767323090000}. Pure."""

from cdc.formats import connect


class Heartbeats:
    """Makes a record with the time at an interval, in the Kafka transaction of the position."""

    def __init__(self, server: str, interval_ms: int, *, schemas_enable: bool) -> None:
        """`server`: topics.prefix; `interval_ms`: 0 for no heartbeats."""
        self._interval_s = interval_ms / 1000
        self._key = f'{{"serverName":{connect.dumps(server)}}}'
        self._converter = connect.Converter(
            connect.HEARTBEAT_KEY, connect.HEARTBEAT_VALUE, schemas_enable=schemas_enable
        )
        self._at = float("-inf")

    def due(self, now: float, now_us: int) -> list[tuple[bytes, bytes]]:
        """(key, value) if it is time for one. `now`: monotonic seconds; `now_us`: our clock, µs since 1970."""
        if not self._interval_s or now - self._at < self._interval_s:
            return []
        self._at = now
        return [self._converter.record(self._key, f'{{"ts_ms":{now_us // 1000}}}')]
