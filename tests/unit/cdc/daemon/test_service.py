"""What the service does between sessions."""

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from cdc.config.config_file import Config
from cdc.daemon import service as service_module
from cdc.daemon.service import RETRY_S_FIRST, RETRY_S_MAX, RETRY_S_OF_SEVERAL, Backoff, Service
from cdc.model.errors import ConnectionLost, DamagedTextError, ProtocolError, UnsupportedChangeError
from cdc.model.events import TableId
from cdc.ports.stream import unarmed

TABLE = TableId("public", "t")


def minimal_config() -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "postgresql://u@127.0.0.1:1/d", "tables": ["public.t"]},
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "topics": {"prefix": "p"},
        }
    )


class Clock:
    """Time passes where a test says so."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now

    def now_us(self) -> int:
        return int(self.now * 1e6)


def test_delays_double_up_to_a_limit_and_begin_again_behind_a_session_that_lasted() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    delays = []
    for _ in range(8):
        backoff.begin()
        delays.append(backoff.next_s("gone"))
    assert delays == [RETRY_S_FIRST * 2**n for n in range(6)] + [RETRY_S_MAX] * 2
    backoff.begin()
    clock.now += RETRY_S_MAX + 1
    assert backoff.next_s("gone") == RETRY_S_FIRST


def test_another_cause_begins_again_with_a_short_delay_but_only_once() -> None:
    backoff = Backoff(Clock())
    for port in range(7):
        backoff.next_s(f"connection to port {5430 + port} refused (0/{port:X}AB)")
    assert backoff.next_s("the database system is starting up") == RETRY_S_FIRST
    assert [backoff.next_s(cause) for cause in ("a standby", "a", "connection to port 1 refused (0/1)", "a")] == [
        RETRY_S_FIRST,
        RETRY_S_FIRST,
        RETRY_S_FIRST * 2,
        RETRY_S_FIRST * 4,
    ]
    assert max(backoff.next_s(letter) for letter in "bcdfghijklmnopqrstuvwxyz" * 2) == RETRY_S_MAX


def test_with_several_servers_they_stay_short() -> None:
    backoff = Backoff(Clock(), RETRY_S_OF_SEVERAL)
    assert max(backoff.next_s("gone") for _ in range(9)) == RETRY_S_OF_SEVERAL <= 1.0


class Sessions(Service):
    """Sessions that end at once, each with what the test says."""

    def __init__(self, config: Config, end: Callable[[int], Exception | None]) -> None:
        super().__init__(config, unarmed)
        self.begun = 0
        self.waited: list[float] = []
        self._end = end
        self._stop.wait = self._wait  # type: ignore[method-assign, assignment]

    def _wait(self, timeout_s: float) -> bool:
        self.waited.append(timeout_s)
        return False

    def check(self, **_: bool) -> object:  # type: ignore[override]
        class Identity:
            database = "d"

        class Source:
            identity, tables = Identity(), ()

        return Source()

    def _is_known(self) -> bool:
        return True

    def _handle_signals(self) -> None:
        pass

    def _session(self) -> None:
        self.begun += 1
        error = self._end(self.begun)
        if error is None:
            self._stop.set()
            return
        raise error


@pytest.mark.parametrize(
    "error", [UnsupportedChangeError("table public.t was altered", table=TABLE), ConnectionLost("Kafka: fenced")]
)
def test_sessions_that_fail_again_and_again_are_begun_with_growing_delays(error: Exception) -> None:
    service = Sessions(minimal_config(), lambda number: error if number < 4 else None)
    service.run()
    assert service.waited == [RETRY_S_FIRST, RETRY_S_FIRST * 2, RETRY_S_FIRST * 4]
    assert service.begun == 4
    assert service_module.RETRY_S_MAX > RETRY_S_FIRST * 4


def damaged(near: bytes) -> DamagedTextError:
    return DamagedTextError("public.t at 0/10#0", TABLE, near)


def test_damaged_text_is_read_again_and_stops_the_table_only_where_it_comes_each_time() -> None:
    errors: list[Exception] = [damaged(b"a"), damaged(b"b"), damaged(b"a"), damaged(b"a")]
    service = Sessions(minimal_config(), lambda number: errors[number - 1] if number <= len(errors) else None)
    failures: list[dict[TableId, UnsupportedChangeError]] = []
    session = service._session
    service._session = lambda: (failures.append(dict(service._failures)), session())[1]  # type: ignore[method-assign, func-returns-value]
    service.run()
    assert failures[:4] == [{}] * 4
    assert "the server sent the same bytes 3 times" in failures[4][TABLE].message


def test_a_load_that_meets_a_change_it_can_not_read_ends() -> None:
    """There is no stream yet that could go on without the table."""
    service = Sessions(minimal_config(), lambda _: damaged(b"a"))
    service._is_loading = True
    with pytest.raises(UnsupportedChangeError, match="the same bytes 3 times"):
        service.run()
    assert service.begun == 3


def test_bytes_that_are_not_the_protocol_are_read_again_and_end_the_service_where_they_come_each_time() -> None:
    errors = [ProtocolError("tag z at 0/10"), ProtocolError("tag y at 0/10")]
    service = Sessions(minimal_config(), lambda number: errors[number - 1] if number <= 2 else None)
    service.run()
    assert service.begun == 3
    service = Sessions(minimal_config(), lambda _: ProtocolError("tag z at 0/10"))
    with pytest.raises(ProtocolError, match="tag z"):
        service.run()
    assert service.begun == 3


def test_what_is_lost_behind_a_request_to_stop_begins_no_session() -> None:
    service = Sessions(minimal_config(), lambda _: None)

    def session() -> None:
        service._stop.set()
        raise ConnectionLost("Kafka: commit: the brokers have not answered for 3 s")

    service._session = session  # type: ignore[method-assign]
    with capture_logs() as logs:
        service.run()
    assert service.waited == []
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "not drained, the next start continues from the position record"
    ]
