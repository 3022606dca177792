"""What an operator may do over HTTP, who may not, and what becomes of it."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cdc.config.http_settings import HttpConfig
from cdc.model.audit import AuditRecord
from cdc.model.control import SignalAnswer, SignalRecord
from cdc.model.errors import ConfigError, NotInTimeError, UnreachableError, WatershedError
from tests.support.http_server import running
from tests.support.waiting import eventually
from tests.unit.watershed.http.test_access import OPERATE, READ, USERS
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http.operations import BODY_BYTES_MAX, Operations
from watershed.http.server import http_server
from watershed.http.signals import Action
from watershed.http.store_operations import DeadLetterRequest, store_operations

# Path → action, of operations that take tables.
ACTIONS: dict[str, Action] = {
    "/v1/snapshots/start": "snapshot",
    "/v1/snapshots/pause": "pause",
    "/v1/snapshots/resume": "resume",
    "/v1/snapshots/cancel": "cancel",
    "/v1/tables/stop": "stop_table",
    "/v1/tables/start": "start_table",
}


class Stores:
    """Remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.fails: WatershedError | None = None
        self.is_new = True

    def _ask(self, *what: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.asked.append(what)

    def replay(self, wanted: DeadLetterRequest, user: str) -> Mapping[str, int]:
        self._ask("replay", wanted.sink, wanted.tables, wanted.keys, user)
        return {"public.orders": 2} if wanted.tables else {}

    def discard(self, wanted: DeadLetterRequest) -> int:
        self._ask("discard", wanted.sink, wanted.tables, wanted.keys)
        return 3

    def rebuild(self, sink: str, action: str) -> bool:
        self._ask(action, sink)
        return self.is_new

    def cancel(self, sink: str) -> None:
        self._ask("cancel", sink)


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline()


@pytest.fixture
def port(pipeline: Pipeline, stores: Stores) -> Iterator[int]:
    audit = pipeline.audit.audit
    application = pipeline.application(Operations(store_operations(stores), audit))
    with running(http_server(application, HttpConfig(users=USERS), audit)) as made:
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


@pytest.mark.parametrize("path", ACTIONS)
def test_an_operation_is_a_signal_that_names_the_user(path: str, port: int, pipeline: Pipeline) -> None:
    wanted = {"tables": ["public.orders", "public.orders"]}
    assert post(port, path, wanted) == (200, {"answer": "done", "tables": ["public.orders"]})
    (signal,) = pipeline.signals
    assert (signal.action, signal.tables, signal.requested_by) == (ACTIONS[path], ("public.orders",), "oncall")


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
        ("/v1/tables/stop", "[]", "the body: Input should be an object"),
        ("/v1/tables/stop", {}, "tables: none is named"),
        ("/v1/snapshots/start", "", "tables: none is named"),
        ("/v1/snapshots/start", {"tables": ["a.b", "a.c"], "where": "true"}, "where: it is for exactly one table"),
        ("/v1/tables/stop", {"tables": ["public.orders"], "where": "true"}, "where: Extra inputs are not permitted"),
        ("/v1/snapshots/heal", {"tables": ["public.orders"]}, "tables: a gap is healed as a whole"),
        ("/v1/snapshots/start", {"tables": ["a.b"], "where": "a = '\0'"}, "the body has a character NUL"),
        ("/v1/tables/stop", {"tables": ["a.\0"]}, "the body has a character NUL"),
        ("/v1/dead-letters/discard", {}, "sink: Field required"),
        ("/v1/dead-letters/replay", {"sink": "search", "keys": ["1"]}, "keys: they are of exactly one table"),
        ("/v1/sinks/search/rebuild", {"tables": []}, "tables: Extra inputs are not permitted"),
    ],
)
def test_a_request_that_is_none_is_refused(path: str, body: object, error: str, port: int, pipeline: Pipeline) -> None:
    code, failure = post(port, path, body)
    assert code == 400 and failure["error"].startswith(error) and failure["next"]
    assert pipeline.signals == []
    assert pipeline.audit.said == [("oncall", pipeline.audit.entries[0][1].action, "400")]


def test_a_body_that_is_too_long_is_not_read_to_its_end(port: int, pipeline: Pipeline) -> None:
    code, failure = post(port, "/v1/tables/stop", " " * (BODY_BYTES_MAX + 10))
    assert code == 413 and failure["next"]
    assert pipeline.signals == []


def test_what_capture_refuses_is_said_with_the_next_step(port: int, pipeline: Pipeline) -> None:
    pipeline.answer = SignalAnswer(is_accepted=False, message="public.orders is not captured", next="add it")
    code, failure = post(port, "/v1/tables/stop", {"tables": ["public.orders"]})
    assert (code, failure) == (409, {"error": "refused: public.orders is not captured", "next": "add it"})


@pytest.mark.parametrize(
    ("error", "code"), [(UnreachableError("no brokers", "start them"), 503), (NotInTimeError("no answer", "wait"), 504)]
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


def test_a_gap_is_healed_on_request(port: int, pipeline: Pipeline) -> None:
    assert post(port, "/v1/snapshots/heal", {})[0] == post(port, "/v1/snapshots/heal", {"all": True})[0] == 200
    assert [(one.action, one.all_rows, one.requested_by) for one in pipeline.signals] == [
        ("heal", False, "oncall"),
        ("heal", True, "oncall"),
    ]


def test_dead_letters_are_replayed_and_discarded(port: int, stores: Stores) -> None:
    some = {"sink": "search", "tables": ["public.orders"], "keys": ["7"]}
    answer = {"answer": "capture publishes 2 rows of public.orders again", "tables": ["public.orders"]}
    assert post(port, "/v1/dead-letters/replay", some) == (200, answer)
    assert post(port, "/v1/dead-letters/replay", {"sink": "search"})[1]["answer"].endswith("has no such dead letters")
    code, body = post(port, "/v1/dead-letters/discard", some)
    assert (code, body["answer"]) == (200, "3 dead letters of sink search are discarded")
    assert stores.asked == [
        ("replay", "search", ("public.orders",), ("7",), "oncall"),
        ("replay", "search", (), (), "oncall"),
        ("discard", "search", ("public.orders",), ("7",)),
    ]


def test_a_store_is_rebuilt_rolled_back_and_left_alone(port: int, stores: Stores) -> None:
    assert post(port, "/v1/sinks/search/rebuild", {})[1]["answer"].startswith("requested")
    assert post(port, "/v1/sinks/search/rollback", "")[0] == 200
    assert post(port, "/v1/sinks/search/cancel", "")[0] == 200
    stores.is_new = False
    assert post(port, "/v1/sinks/search/rebuild", {})[1]["answer"] == "a rebuild is under way already"
    assert stores.asked == [("rebuild", "search"), ("rollback", "search"), ("cancel", "search"), ("rebuild", "search")]


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("no sink x", "name one"), 404), (WatershedError("a snapshot is running", "wait until it ends"), 409)],
)
def test_what_can_not_be_done_to_a_store_is_said(error: WatershedError, code: int, port: int, stores: Stores) -> None:
    stores.fails = error
    for path, body in (("/v1/sinks/x/rebuild", "{}"), ("/v1/dead-letters/replay", '{"sink": "x"}')):
        assert post(port, path, body) == (code, {"error": error.message, "next": error.hint})


# ---- the record of operations


def test_an_operation_is_recorded_before_it_begins_and_with_its_result(port: int, pipeline: Pipeline) -> None:
    post(port, "/v1/tables/stop", {"tables": ["public.orders"]})
    (begun_id, begun), (ended_id, ended) = pipeline.audit.entries
    assert begun_id == ended_id and begun.result == ""
    assert (ended.who, ended.role, ended.address, ended.action) == ("oncall", "operate", "127.0.0.1", "stop_table")
    assert (ended.path, ended.arguments) == ("/v1/tables/stop", {"tables": ["public.orders"]})
    assert ended.result == '200: {"answer":"done","tables":["public.orders"]}'
    assert 0 <= ended.at_us == begun.at_us


def test_without_its_record_an_operation_is_not_done(port: int, pipeline: Pipeline, stores: Stores) -> None:
    pipeline.audit.fails = WatershedError("there is no topic shop.audit", "create it")
    said = "not done, because its audit record can't be written: there is no topic shop.audit"
    for path in ("/v1/snapshots/pause", "/v1/sinks/search/rebuild"):
        assert post(port, path, {}) == (503, {"error": said, "next": "create it"})
    assert pipeline.signals == stores.asked == []


def test_a_refused_user_is_recorded_and_refused_whether_or_not_that_can_be_written(
    port: int, pipeline: Pipeline
) -> None:
    assert post(port, "/v1/sinks/search/rebuild", {}, READ)[0] == 403
    ((_, record),) = pipeline.audit.entries
    assert (record.who, record.role, record.path, record.result[:4]) == (
        "viewer", "read", "/v1/sinks/search/rebuild", "403:")  # fmt: skip
    pipeline.audit.fails = UnreachableError("no brokers", "start them")
    assert post(port, "/v1/sinks/search/rebuild", {}, READ)[0] == 403
    assert post(port, "/v1/sinks/search/rebuild", {}, None)[0] == 401, "of nobody there is no record"
    assert len(pipeline.audit.entries) == 1


def test_whoever_is_refused_again_and_again_keeps_no_operator_from_work(port: int, pipeline: Pipeline) -> None:
    brokers_answer = threading.Event()
    write = pipeline.audit.write

    def slow(identity: str, record: AuditRecord) -> None:
        assert record.who == "oncall" or brokers_answer.wait(30)
        write(identity, record)

    pipeline.audit.audit._write = slow
    with ThreadPoolExecutor(30) as others:
        asked = [others.submit(post, port, "/v1/tables/stop", {}, READ) for _ in range(30)]
        try:
            eventually(lambda: sum(one.done() for one in asked) >= 10, 10.0, "too many are waiting")
            assert post(port, "/v1/snapshots/pause", {})[0] == 200
        finally:
            brokers_answer.set()
        assert {one.result()[0] for one in asked} == {403}


def test_a_refused_path_of_any_length_makes_a_short_record(port: int, pipeline: Pipeline) -> None:
    assert post(port, f"/v1/{'x' * 20_000}", {}, READ)[0] == 403
    ((_, record),) = pipeline.audit.entries
    assert len(record.encode()) < 2_000


def test_a_client_that_leaves_in_its_request_has_asked_for_nothing(
    port: int, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    head = f"POST /v1/tables/stop HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {OPERATE}\r\n"
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"{head}Content-Length: 40\r\n\r\n{{".encode())
    eventually(lambda: pipeline.audit.said == [("oncall", "stop_table", "400")], 10.0, "the request has ended")
    assert pipeline.signals == [] and "Exception" not in caplog.text


def test_an_operation_whose_client_has_left_is_done_and_recorded(
    port: int, pipeline: Pipeline, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_left = threading.Event()
    operate = pipeline.operate

    def late(record: SignalRecord) -> SignalAnswer:
        assert has_left.wait(10)
        return operate(record)

    monkeypatch.setattr(pipeline, "operate", late)
    with running(http_server(pipeline.application(), HttpConfig(users=USERS), pipeline.audit.audit)) as other:
        head = f"POST /v1/snapshots/pause HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {OPERATE}\r\n"
        with socket.create_connection(("127.0.0.1", other)) as client:
            client.sendall(f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
            eventually(lambda: pipeline.audit.said, 10.0, "it is recorded before it begins")
        has_left.set()
        eventually(lambda: pipeline.audit.said[-1] == ("oncall", "pause", "200"), 10.0, "it is recorded with its end")
    assert [one.action for one in pipeline.signals] == ["pause"] and "Exception" not in caplog.text


def get(port: int, path: str, token: str | None = READ) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_operations_are_listed_the_newest_first(pipeline: Pipeline) -> None:
    audit = pipeline.audit.audit
    with running(http_server(pipeline.application(audit), HttpConfig(users=USERS), audit)) as port:
        post(port, "/v1/snapshots/pause", {})
        post(port, "/v1/tables/stop", {"tables": ["public.orders"]})
        pipeline.audit.entries.pop()  # the process ended before the result was written
        code, found = get(port, "/v1/audit")
        newest, oldest = found["operations"]
        assert (code, newest["action"], oldest["action"]) == (200, "stop_table", "pause")
        assert newest["result"].startswith("not known") and oldest["result"].startswith("200")
        assert set(newest) == {"at", "who", "role", "action", "path", "arguments", "result", "address"}
        assert len(get(port, "/v1/audit?last=1")[1]["operations"]) == 1
        assert get(port, "/v1/audit?last=0")[0] == 400
        assert get(port, "/v1/audit", None)[0] == 401
        pipeline.audit.fails = UnreachableError("no brokers", "start them")
        assert get(port, "/v1/audit")[0] == 503
