"""The connection between running tasks and the driver."""

import socket
import threading
from multiprocessing import AuthenticationError

import pytest

from spark_jobs.reports import Address, Reporter, ReportServer, open_reporter


class Taker:
    """Takes all reports."""

    def __init__(self) -> None:
        self.taken: list[object] = []

    def take(self, report: object) -> bool:
        self.taken.append(report)
        return True


@pytest.fixture
def server() -> ReportServer:
    return ReportServer("127.0.0.1", "127.0.0.1")


def test_reports_are_handed_over_and_answered(server: ReportServer) -> None:
    taken: list[object] = []

    def take(report: object) -> bool:
        taken.append(report)
        return len(taken) < 2

    with server.receiving(take) as address:
        reporter = Reporter(address)
        assert [reporter.send({"offset": 1}), reporter.send({"offset": 2})] == [True, False]
        reporter.close()
    assert taken == [{"offset": 1}, {"offset": 2}]


def test_each_round_has_its_own_reports(server: ReportServer) -> None:
    first, second = Taker(), Taker()
    with server.receiving(first.take) as one, server.receiving(second.take) as other:
        reporters = [Reporter(one), Reporter(other)]
        assert all(reporter.send(number) for number, reporter in enumerate(reporters))
    assert (first.taken, second.taken) == ([0], [1])
    assert [reporter.send("late") for reporter in reporters] == [None, None], "a task of a round that is over ends"
    assert (first.taken, second.taken) == ([0], [1])


def test_who_does_not_know_the_key_is_not_listened_to(server: ReportServer) -> None:
    taker = Taker()
    with server.receiving(taker.take) as address:
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            Reporter(address._replace(key=b"another")).send("forged")
        # One that connects and is silent holds nobody up.
        with socket.create_connection((address.host, address.port)):
            reporter = Reporter(address)
            assert reporter.send("known")
    assert taker.taken == ["known"]


def test_a_driver_that_can_not_be_reached_is_no_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert open_reporter(Address("127.0.0.1", port, b"key", 1)) is None


def test_a_report_to_a_driver_that_died_ends_the_task(server: ReportServer) -> None:
    died = threading.Event()

    def die(_: object) -> bool:
        died.set()
        raise OSError("the driver dies")

    with server.receiving(die) as address:
        reporter = Reporter(address)
        assert reporter.send("a report") is None
    assert died.is_set()
