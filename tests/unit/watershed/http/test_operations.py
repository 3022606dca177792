"""What an operator may do over HTTP, who may not, and what becomes of it."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cdc.config.http_settings import HttpConfig
from cdc.model.control import SignalAnswer
from cdc.model.errors import UnreachableError, WatershedError
from tests.support.http_server import running
from tests.unit.watershed.http.test_access import OPERATE, READ, USERS
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http.operations import ACTIONS, BODY_BYTES_MAX
from watershed.http.server import http_server


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline()


@pytest.fixture
def port(pipeline: Pipeline) -> Iterator[int]:
    with running(http_server(pipeline.application(), HttpConfig(users=USERS))) as made:
        yield made


def post(port: int, path: str, body: object, token: str | None = OPERATE) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        text = body if isinstance(body, str) else json.dumps(body)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request("POST", path, text, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize("path", [path for path in ACTIONS if path != "/v1/reload"])
def test_an_operation_is_a_signal_that_names_the_user(path: str, port: int, pipeline: Pipeline) -> None:
    wanted = {"tables": ["public.orders", "public.orders"]}
    assert post(port, path, wanted) == (200, {"answer": "done", "tables": ["public.orders"]})
    (signal,) = pipeline.signals
    assert (signal.action, signal.tables, signal.requested_by) == (ACTIONS[path][0], ("public.orders",), "oncall")


@pytest.mark.parametrize("path", ACTIONS)
def test_nobody_else_may_do_it(path: str, port: int, pipeline: Pipeline) -> None:
    wanted = {"tables": ["public.orders"]}
    assert post(port, path, wanted, READ)[0] == 403
    assert post(port, path, wanted, None)[0] == post(port, path, wanted, "x" * 20)[0] == 401
    with running(http_server(pipeline.application(), HttpConfig())) as open_port:
        assert post(open_port, path, wanted, OPERATE)[0] == 403
    assert pipeline.signals == []


def test_the_configuration_is_read_again_as_a_whole(port: int, pipeline: Pipeline) -> None:
    assert post(port, "/v1/reload", {"tables": ["public.orders"]})[0] == 400
    assert post(port, "/v1/reload", "")[0] == 200
    assert [(one.action, one.tables, one.requested_by) for one in pipeline.signals] == [("reload", (), "oncall")]


def test_all_snapshots_are_paused_and_a_part_of_a_table_is_read_again(port: int, pipeline: Pipeline) -> None:
    assert post(port, "/v1/snapshots/pause", "")[0] == 200
    assert post(port, "/v1/snapshots/start", {"tables": ["public.orders"], "where": "id > 7"})[0] == 200
    assert [(one.action, one.tables, one.where) for one in pipeline.signals] == [
        ("pause", (), None),
        ("snapshot", ("public.orders",), "id > 7"),
    ]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/v1/tables/stop", "{", "the body: Invalid JSON"),
        ("/v1/tables/stop", {"table": "public.orders"}, "table: Extra inputs are not permitted"),
        ("/v1/tables/stop", {"tables": ["orders"]}, "tables: Value error, 'orders' is not schema.table"),
        ("/v1/tables/stop", {}, "no tables are named"),
        ("/v1/snapshots/start", "", "no tables are named"),
        ("/v1/tables/stop", {"tables": ["public.orders"], "where": "true"}, "where is for /v1/snapshots/start"),
        ("/v1/tables/stop", " " * (BODY_BYTES_MAX + 10), "the body: Invalid JSON"),
    ],
)
def test_a_request_that_is_none_is_refused(path: str, body: object, error: str, port: int, pipeline: Pipeline) -> None:
    code, failure = post(port, path, body)
    assert code == 400 and failure["error"].startswith(error) and failure["next"]
    assert pipeline.signals == []


def test_what_capture_refuses_is_said_with_the_next_step(port: int, pipeline: Pipeline) -> None:
    pipeline.answer = SignalAnswer(is_accepted=False, message="public.orders is not captured", next="add it")
    code, failure = post(port, "/v1/tables/stop", {"tables": ["public.orders"]})
    assert (code, failure) == (409, {"error": "refused: public.orders is not captured", "next": "add it"})


@pytest.mark.parametrize(
    ("error", "code"), [(UnreachableError("no brokers", "start them"), 503), (WatershedError("no answer", "wait"), 504)]
)
def test_a_capture_that_does_not_answer_is_no_success(
    error: WatershedError, code: int, port: int, pipeline: Pipeline
) -> None:
    pipeline.fails = error
    assert post(port, "/v1/snapshots/pause", {}) == (code, {"error": error.message, "next": error.hint})


def test_operations_are_asked_for_by_post(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/v1/snapshots/pause", headers={"Authorization": f"Bearer {OPERATE}"})
    assert connection.getresponse().status == 405
    connection.close()
