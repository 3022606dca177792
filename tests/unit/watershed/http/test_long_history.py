"""Hours of history from Prometheus: what it is asked, and what becomes of its answer."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr

from cdc.config.http_settings import HttpConfig, HttpPrometheus
from cdc.model.errors import UnreachableError
from tests.support.http_server import HttpServer, running
from tests.unit.watershed.http.test_access import USERS
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http.long_history import STEPS, HoursOfHistory, query
from watershed.http.server import http_server

NOW_S = 1_800_000_123.4
LABELS = {"environment": "production"}
SETTINGS = HttpPrometheus(
    url="http://prometheus:9090/base/", authorization=SecretStr("Bearer swordfish"), labels=LABELS
)


class Prometheus:
    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, str]]] = []
        self.result: list[dict[str, Any]] = []
        self.answer: Any = None
        self.failure = ""

    def fetch(self, url: str, hint: str, headers: Mapping[str, str], bytes_max: int) -> Any:
        assert bytes_max < 100_000_000
        self.asked.append((url, headers))
        if self.failure:
            raise UnreachableError(self.failure, hint)
        if self.answer is not None:
            return self.answer
        return {"status": "success", "data": {"resultType": "matrix", "result": self.result}}


@pytest.fixture
def prometheus() -> Prometheus:
    return Prometheus()


def part(prometheus: Prometheus) -> HoursOfHistory:
    return HoursOfHistory(SETTINGS, "shop", prometheus.fetch, lambda: NOW_S)


@pytest.fixture
def server(prometheus: Prometheus) -> Iterator[HttpServer]:
    with running(http_server(Pipeline().application(part(prometheus)), HttpConfig())) as port:
        yield HttpServer(port)


def test_it_asks_the_configured_server_for_steps_of_the_hours(server: HttpServer, prometheus: Prometheus) -> None:
    found = server.json("/v1/history/hours?hours=6&url=http://elsewhere&query=up&step=1")
    ((url, headers),) = prometheus.asked
    assert url.startswith("http://prometheus:9090/base/api/v1/query_range?")
    asked = {name: value for name, (value,) in parse_qs(urlsplit(url).query).items()}
    assert asked == {
        "query": query("shop", LABELS, 90),
        "start": str(1_800_000_090 - 6 * 3600),
        "end": "1800000090",
        "step": "90",
    }
    assert headers == {"Authorization": "Bearer swordfish"}
    assert found == {"start_unix_seconds": 1_799_978_490, "step_seconds": 90, "series": []}


def test_the_question_names_the_pipeline_and_quotes_what_the_file_has() -> None:
    text = query("shop", {"cluster": 'a"} or up{b="'}, 360)
    quoted = r'cluster="a\"} or up{b=\""'
    assert text.count(f'watershed_build_info{{{quoted},prefix="shop"}}[360s]') == 5
    for name in ("capture_lag_seconds", "sink_lag_seconds", "slot_retained_wal_bytes"):
        assert f"max_over_time(watershed_{name}{{{quoted}}}[360s])" in text
    for name in ("capture_records_total", "sink_written_changes_total"):
        assert f"rate(watershed_{name}{{{quoted}}}[360s])" in text
    short = query("shop", {}, 15)
    assert "rate(watershed_capture_records_total{}[300s])" in short, "several scrapes"
    assert "max_over_time(watershed_capture_lag_seconds{}[120s])" in short, "at least one"


def test_values_are_at_their_steps_and_what_is_missing_is_null(server: HttpServer, prometheus: Prometheus) -> None:
    start_s = 1_799_978_490
    prometheus.result = [
        {"metric": {"figure": "lag_seconds", "sink": "search"}, "values": [[start_s, "0.5"], [start_s + 180, "NaN"]]},
        {"metric": {"figure": "rate"}, "values": [[start_s + 90.001, "7"], [start_s - 900, "1"], [1e12, "1"]]},
    ]
    lag, rate = server.json("/v1/history/hours?hours=6")["series"]
    assert (lag["figure"], lag["sink"], lag["values"][:3]) == ("lag_seconds", "search", [0.5, None, None])
    assert (rate["figure"], rate["sink"]) == ("rate", None)
    assert rate["values"] == [None, 7.0] + [None] * (STEPS - 1)


@pytest.mark.parametrize("hours", ["0", "169", "-1", "x", "", "9" * 30])
def test_hours_are_bounded(server: HttpServer, prometheus: Prometheus, hours: str) -> None:
    code, text = server.get(f"/v1/history/hours?hours={hours}")
    assert code == 400 and "is no number from 1 to 168" in text
    assert prometheus.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        {"status": "error", "error": "no"},
        [],
        "x",
        {"data": {"result": [{"metric": {"figure": "other"}, "values": []}]}},
        {"data": {"result": [{"metric": {"figure": "rate"}, "values": [[NOW_S, "many"]]}]}},
    ],
)
def test_what_is_no_answer_of_prometheus_is_said(server: HttpServer, prometheus: Prometheus, answer: Any) -> None:
    prometheus.answer = answer
    code, text = server.get("/v1/history/hours?hours=6")
    said = json.loads(text)
    assert (code, said["error"]) == (503, "http://prometheus:9090/base answers, but not with series of Prometheus")
    assert said["next"].startswith("check http.prometheus")


def test_an_error_of_prometheus_is_one_sentence(server: HttpServer, prometheus: Prometheus) -> None:
    prometheus.failure = "http://prometheus:9090/base/api/v1/query_range can't be read: 503 query timed out"
    code, text = server.get("/v1/history/hours")
    assert (code, json.loads(text)["error"]) == (503, prometheus.failure)
    assert "swordfish" not in text


def test_the_console_knows_whether_there_are_hours(server: HttpServer) -> None:
    assert server.json("/v1/console") == {"hours": True, "pipelines": False}
    with running(http_server(Pipeline().application(HoursOfHistory(None, "shop")), HttpConfig())) as port:
        without = HttpServer(port)
        assert without.json("/v1/console") == {"hours": False, "pipelines": False}
        code, text = without.get("/v1/history/hours")
        assert (code, json.loads(text)["error"]) == (404, "no Prometheus is configured")


def test_it_needs_a_token_where_there_are_users(prometheus: Prometheus) -> None:
    with running(http_server(Pipeline().application(part(prometheus)), HttpConfig(users=USERS))) as port:
        assert HttpServer(port).get("/v1/history/hours")[0] == 401
    assert prometheus.asked == []
