"""Other pipelines beside this one: what is asked and shown, and that one that does not answer holds up no other."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from cdc.config.http_settings import HttpConfig, HttpPipeline, HttpPrometheus, HttpUser
from cdc.model.errors import UnreachableError
from tests.support.http_server import HttpServer, running
from tests.support.status_facts import full_status
from tests.support.waiting import eventually
from tests.unit.watershed.http.test_access import READ, USERS, ask
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http import pipelines
from watershed.http.pipelines import OtherPipelines, summary_of
from watershed.http.server import http_server

OTHERS = {
    "eu": HttpPipeline(url="https://eu:8480", token=SecretStr("swordfish"), console="https://eu.example.org/console"),
    "us": HttpPipeline(url="http://us:8480/watershed/"),
}


class Network:
    """What each address answers: JSON, or what a call raises or waits for."""

    def __init__(self) -> None:
        status = json.loads(full_status().model_dump_json())
        self.answers: dict[str, Any] = dict.fromkeys(("https://eu:8480", "http://us:8480/watershed"), status)
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def fetch(self, url: str, hint: str, headers: Mapping[str, str], bytes_max: int) -> Any:
        assert bytes_max < 100_000_000
        self.asked.append((url, headers))
        found = self.answers[url.removesuffix("/v1/status")]
        if isinstance(found, str):
            raise UnreachableError(found, hint)
        return found() if isinstance(found, Callable) else found  # type: ignore[arg-type]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    monkeypatch.setattr(pipelines, "ASK_PAUSE_S", 0.0)
    return Network()


def part(network: Network, **options: Any) -> OtherPipelines:
    return OtherPipelines(HttpConfig(pipelines=OTHERS, **options), full_status, network.fetch)


def shown(server: HttpServer) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in server.json("/v1/pipelines")["pipelines"]}


def test_each_is_asked_with_its_token_and_summed_up(network: Network) -> None:
    with running(http_server(Pipeline().application(part(network)), HttpConfig())) as port:
        found = shown(HttpServer(port))
        assert HttpServer(port).json("/v1/console") == {"hours": False, "pipelines": True}
    assert sorted(network.asked, key=lambda one: one[0]) == [
        ("http://us:8480/watershed/v1/status", {}),
        ("https://eu:8480/v1/status", {"Authorization": "Bearer swordfish"}),
    ]
    assert list(found) == ["", "eu", "us"], "this one first, then as in the file"
    assert found["eu"]["console"] == "https://eu.example.org/console"
    assert found["us"]["console"] == "http://us:8480/watershed"
    assert found[""]["summary"] == found["eu"]["summary"] == found["us"]["summary"]
    assert "swordfish" not in json.dumps(found)


def test_the_summary_has_the_numbers_and_the_worst_problems() -> None:
    status = full_status()
    found = summary_of(status)
    assert (found.prefix, found.database, found.capture) == (status.prefix, "shop", status.capture.state)
    assert (found.tables, found.stores) == (len(status.tables), len(status.sinks))
    errors = [one.message for one in status.problems if one.severity == "error"]
    assert (found.errors, found.errors + found.warnings) == (len(errors), len(status.problems))
    assert [one.message for one in found.problems][: len(errors)] == errors[:3]
    lags = {"capture": status.capture.lag_seconds, **{one.sink: one.lag_seconds for one in status.sinks}}
    assert found.lag_seconds == lags[found.furthest] == max(lag for lag in lags.values() if lag is not None)


def test_one_that_does_not_answer_says_so_and_holds_up_no_other(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "WAIT_S", 0.05)
    goes_on = threading.Event()
    status = network.answers["https://eu:8480"]
    network.answers["http://us:8480/watershed"] = lambda: goes_on.wait(10) and status
    with running(http_server(Pipeline().application(part(network)), HttpConfig())) as port:
        server = HttpServer(port)
        found = eventually(lambda: (now := shown(server))["eu"]["summary"] and now, 10.0, "the other one is shown")
        assert (found["us"]["summary"], found["us"]["error"]) == (None, ""), "it is being asked"
        assert [url for url, _ in network.asked].count("http://us:8480/watershed/v1/status") == 1, "once at a time"
        goes_on.set()
        eventually(lambda: shown(server)["us"]["summary"], 10.0, "its answer is shown")
        network.answers["http://us:8480/watershed"] = "http://us:8480/watershed/v1/status can't be read: refused"
        failed = eventually(lambda: (now := shown(server)["us"])["error"] and now, 10.0, "the failure is shown")
        assert "refused" in failed["error"] and "http.pipelines.us" in failed["next"]
        assert failed["summary"] == found["eu"]["summary"], "the last answer is kept"
        network.answers["http://us:8480/watershed"] = status
        eventually(lambda: not shown(server)["us"]["error"], 10.0, "it is back")


@pytest.mark.parametrize("answer", [{}, [], "", {"prefix": 1}])
def test_an_answer_that_is_no_status_is_said(network: Network, answer: Any) -> None:
    network.answers["https://eu:8480"] = lambda: answer
    with running(http_server(Pipeline().application(part(network)), HttpConfig())) as port:
        eu = shown(HttpServer(port))["eu"]
    assert eu["error"] == "https://eu:8480 answers, but not with a status of Watershed"


def test_a_status_of_another_version_may_have_more() -> None:
    status = json.loads(full_status().model_dump_json())
    status["new"] = status["capture"]["new"] = status["tables"][0]["new"] = {"a": 1}
    status["capture"]["state"] = "a new one"
    assert summary_of(status).capture == "a new one"


def test_only_known_users_see_what_others_show_to_theirs(network: Network) -> None:
    with running(http_server(Pipeline().application(part(network, users=USERS)), HttpConfig(users=USERS))) as port:
        assert ask(port, "/v1/pipelines")[0] == 401
        assert ask(port, "/v1/pipelines", READ)[0] == 200
    everywhere = {"host": "0.0.0.0", "insecure": True}  # noqa: S104
    application = Pipeline().application(part(network, **everywhere))
    with running(http_server(application, HttpConfig.model_validate(everywhere))) as port:
        assert HttpServer(port).get("/v1/pipelines")[0] == 403


# ---- the configuration


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://eu:8480", "http:// or https://"),
        ("eu:8480", "http:// or https://"),
        ("javascript:alert(1)", "http:// or https://"),
        ("https://", "http:// or https://"),
        ("https://me:hunter2@eu:8480", "no user or password"),
        ("https://eu:8480/?a=1", "no ? or #"),
        ("https://eu:port", "Port"),
    ],
)
def test_an_address_is_a_plain_one(url: str, said: str) -> None:
    for make in (HttpPipeline, HttpPrometheus):
        with pytest.raises(ValidationError) as refused:
            make(url=url)
        assert said in str(refused.value) and "hunter2" not in str(refused.value)
    with pytest.raises(ValidationError):
        HttpPipeline(url="https://eu:8480", console=url)


def test_a_secret_can_be_sent_in_a_header() -> None:
    for secret in ("a\nb", "a\r\nX: y", "ä", "", " a", "a "):
        with pytest.raises(ValidationError, match="printable ASCII"):
            HttpPipeline(url="https://eu", token=SecretStr(secret))
    assert HttpPrometheus(url="https://p", authorization=SecretStr("Basic dTpw")).authorization is not None


def test_secrets_that_are_sent_unencrypted_are_known() -> None:
    token = SecretStr("swordfish")
    others = {
        "eu": HttpPipeline(url="https://eu", token=token),
        "us": HttpPipeline(url="http://us", token=token),
        "here": HttpPipeline(url="http://127.0.0.1:8490", token=token),
        "open": HttpPipeline(url="http://open"),
    }
    prometheus = HttpPrometheus(url="http://p:9090", authorization=token)
    found = HttpConfig(pipelines=others, prometheus=prometheus, users={"a": HttpUser(token=SecretStr("x" * 20))})
    assert found.unencrypted == ("http.pipelines.us.token", "http.prometheus.authorization")


def test_pipelines_are_bounded_in_number() -> None:
    with pytest.raises(ValidationError, match="at most 50"):
        HttpConfig(pipelines={f"p{n}": HttpPipeline(url="http://p") for n in range(51)})
