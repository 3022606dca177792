"""Events that are posted: in order, again after an outage, and never in the way."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.config.telemetry import TelemetryConfig
from cdc.telemetry import event_sender as module
from cdc.telemetry.deliveries import Deliveries
from cdc.telemetry.event_sender import EventSender, NotTaken, http_post
from cdc.telemetry.process import open_telemetry
from tests.support.receiver import Receiver
from tests.support.waiting import eventually

PATH = "/api/v1/lineage"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def numbers(receiver: Receiver) -> list[int]:
    return [json.loads(one.body)["n"] for one in receiver.taken(PATH)]


def test_events_arrive_in_order_with_the_key(receiver: Receiver) -> None:
    config = TelemetryConfig.model_validate({"openlineage_url": f"{receiver.url}/", "openlineage_api_key": "hidden"})
    telemetry = open_telemetry(config, "shop", "watershed-sinks", has_lineage=True)
    for n in range(20):
        telemetry.send_lineage({"n": n})
    telemetry.close(5.0)
    assert numbers(receiver) == list(range(20))
    assert receiver.posted[0].headers["authorization"] == "Bearer hidden"
    assert receiver.posted[0].headers["content-type"] == "application/json"
    assert telemetry.dropped() == {"lineage": 0}


def test_an_event_waits_for_a_server_that_is_overloaded_and_it_is_said_once(receiver: Receiver) -> None:
    receiver.code = 503
    counted = Deliveries("lineage", "look there")
    with capture_logs() as logs:
        sender = EventSender(http_post(receiver.url + PATH, {}), counted, retry_s_first=0.01)
        sender.send({"n": 1})
        sender.send({"n": 2})
        eventually(lambda: len(receiver.posted) >= 3, 5.0, "it is tried again")
        receiver.code = 200
        eventually(lambda: numbers(receiver) == [1, 2], 5.0, "both arrive in order")
        sender.shutdown()
    levels = [one["log_level"] for one in logs]
    assert levels == ["warning", "info"]
    assert "answered 503" in logs[0]["because"]
    assert logs[0]["next"] == "look there"
    assert counted.dropped == 0


def test_an_event_that_is_refused_for_good_does_not_hold_the_next(receiver: Receiver) -> None:
    receiver.code = 422
    counted = Deliveries("lineage", "")
    sender = EventSender(http_post(receiver.url + PATH, {}), counted)
    sender.send({"n": 1})
    eventually(lambda: counted.dropped == 1, 5.0, "it is given up")
    receiver.code = 201
    sender.send({"n": 2})
    sender.shutdown()
    assert numbers(receiver) == [2]


def test_a_redirect_is_a_mistake_of_the_address_and_the_key_goes_nowhere_else(receiver: Receiver) -> None:
    counted = Deliveries("lineage", "")
    with Receiver() as other, capture_logs() as logs:
        receiver.code, receiver.location = 302, f"{other.url}{PATH}?token=hunter2"
        sender = EventSender(http_post(receiver.url + PATH, {"Authorization": "Bearer hunter2"}), counted)
        sender.send({"n": 1})
        eventually(lambda: counted.dropped == 1, 5.0, "it is given up")
        sender.shutdown()
        assert other.requests == 0
    assert f"answered 302 Found: its address is {other.url}{PATH}" in logs[0]["because"]
    assert "hunter2" not in str(logs)


def test_an_error_that_nobody_expects_is_counted_and_the_next_event_is_sent() -> None:
    bodies: list[bytes] = []

    def post(body: bytes) -> None:
        bodies.append(body)
        if len(bodies) == 1:
            raise ValueError("Invalid header value b'hunter2'")

    counted = Deliveries("lineage", "")
    with capture_logs() as logs:
        sender = EventSender(post, counted)
        sender.send({"n": 1})
        sender.send({"n": 2})
        sender.shutdown()
    assert bodies == [b'{"n":1}', b'{"n":2}']
    assert counted.dropped == 1
    assert logs[0]["because"] == "an event can't be sent: ValueError"


class Away:
    """A server that does not answer until it is back."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.is_back = False

    def __call__(self, body: bytes) -> None:
        if not self.is_back:
            raise OSError("away")
        self.bodies.append(body)


def test_what_waits_is_bounded_by_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_MAX", 3)
    away, counted = Away(), Deliveries("lineage", "")
    sender = EventSender(away, counted, retry_s_first=0.01)
    begun = time.monotonic()
    for n in range(10):
        sender.send({"n": n})
    assert time.monotonic() - begun < 0.5
    assert counted.dropped == 7
    away.is_back = True
    sender.shutdown()
    assert [json.loads(body)["n"] for body in away.bodies] == [0, 1, 2]

    monkeypatch.setattr(module, "QUEUE_BYTES_MAX", 50)
    away, counted = Away(), Deliveries("lineage", "")
    sender = EventSender(away, counted, retry_s_first=0.01)
    for n in range(3):
        sender.send({"n": n, "text": "x" * 40})  # one alone is more than half of it
    assert counted.dropped == 2
    away.is_back = True
    sender.shutdown()
    assert len(away.bodies) == 1


def test_at_the_end_each_event_is_tried_once() -> None:
    away, counted = Away(), Deliveries("lineage", "")
    sender = EventSender(away, counted, retry_s_first=30.0)
    sender.send({"n": 1})
    sender.send({"n": 2})
    begun = time.monotonic()
    sender.shutdown()
    assert time.monotonic() - begun < 5.0
    assert counted.dropped == 2


def test_an_answer_that_is_no_http_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    from http.client import BadStatusLine

    def broken(*_: Any, **__: Any) -> None:
        raise BadStatusLine("x")

    monkeypatch.setattr("urllib.request.urlopen", broken)
    with pytest.raises(OSError, match="http://a"):
        http_post("http://a", {})(b"{}")


def test_a_refusal_names_the_address_and_the_code(receiver: Receiver) -> None:
    receiver.code = 401
    with pytest.raises(NotTaken, match=f"{receiver.url}{PATH} answered 401"):
        http_post(receiver.url + PATH, {"Authorization": "Bearer hidden"})(b"{}")
