"""The page of one table: its description, one row, and the stream of its changes, over the server's own socket."""

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pytest

from cdc.config.http_settings import HttpConfig
from cdc.model.errors import UnreachableError, WatershedError
from cdc.model.events import Column, TableId, TableSchema
from tests.support.http_server import running
from tests.support.waiting import eventually
from tests.unit.watershed.http.test_access import READ, USERS
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http.bounded_work import WAITING_MAX
from watershed.http.change_streams import LIVE, STREAMS_MAX, ChangeStreams
from watershed.http.server import http_server
from watershed.http.table_reads import LAST, TableReads
from watershed.status.table_records import PublishedRecord
from watershed.verify.one_table import UnknownTableError

EVIL = "a/row.b"
ORDERS = TableSchema(
    TableId("public", "orders"),
    4,
    1,
    (Column("id", 20, -1, "bigint", nullable=False), Column("region", 25, -1, "text", nullable=False)),
    ("id",),
    "shop.public.orders",
)


def record(number: int) -> PublishedRecord:
    return PublishedRecord(0, number, {"id": number}, "u", 1, 0x10, 1, {"id": number, "email": "*****"})


class Tables:
    """Has two tables, of which one is named to confuse."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.fails: WatershedError | None = None
        self.following = 0
        self.is_settled: bool | None = None
        self.new: list[PublishedRecord] = []
        self.is_away = False
        self.breaks: Exception | None = None

    def schema(self, table: TableId) -> TableSchema:
        if self.fails is not None:
            raise self.fails
        if table == ("public", EVIL):
            return TableSchema(TableId(*table), 4, 1, ORDERS.columns, ("id", "region"), "shop.public.a_row.b")
        if table != ORDERS.table:
            raise UnknownTableError(f"table {table} is not in source.tables", "tables are: public.orders")
        return ORDERS

    def description(self, table: TableId) -> Mapping[str, Any]:
        self.goes_on.wait(10)
        return {"table": str(self.schema(table).table)}

    def row(self, schema: TableSchema, key: bytes, records: int, *, is_settled: bool) -> Mapping[str, Any]:
        self.asked.append((schema.table, json.loads(key), records))
        self.is_settled = is_settled
        self.goes_on.wait(10)
        return {"table": str(schema.table), "source": {"price": float("nan")}}

    # ---- a topic

    @contextmanager
    def follow(self, schema: TableSchema, key: bytes | None) -> Iterator["Tables"]:
        self.asked.append((schema.table, key and json.loads(key)))
        self.following += 1
        try:
            yield self
        finally:
            self.following -= 1

    def begin(self, count: int) -> list[PublishedRecord]:
        self.asked.append(count)
        if self.fails is not None:
            raise self.fails
        return [record(number) for number in range(2)]

    def require_answer(self) -> None:
        if self.is_away:
            raise UnreachableError("the leader does not answer", "start it")

    def poll(self, wait_s: float, records_max: int = 1) -> list[PublishedRecord]:
        del records_max
        threading.Event().wait(min(wait_s, 0.01))
        if self.breaks is not None:
            raise self.breaks
        found, self.new = self.new, []
        return found


@pytest.fixture
def tables() -> Tables:
    return Tables()


@contextmanager
def served(tables: Tables, http: HttpConfig | None = None, heartbeat_s: float = 0.05) -> Iterator[int]:
    http = http or HttpConfig()
    reads = TableReads(http, tables, ChangeStreams(tables.follow, heartbeat_s))
    with running(http_server(Pipeline().application(reads), http)) as port:
        yield port


@pytest.fixture
def port(tables: Tables) -> Iterator[int]:
    with served(tables) as made:
        yield made


def opened(port: int, path: str, headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", f"/v1/tables/{path}", headers=headers or {})
    return connection.getresponse()


def get(port: int, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, dict[str, Any]]:
    answer = opened(port, path, headers)
    return answer.status, json.loads(answer.read())


def lines(answer: http.client.HTTPResponse, count: int) -> list[str]:
    """The first lines of a stream that are not empty."""
    found: list[str] = []
    while len(found) < count and (line := answer.readline().decode()):
        if line.strip():
            found.append(line.rstrip("\n"))
    return found


def test_a_table_is_described(port: int) -> None:
    assert get(port, "public.orders") == (200, {"table": "public.orders"})


def test_a_name_with_dots_and_slashes_is_one_name(port: int, tables: Tables) -> None:
    name = quote(f"public.{EVIL}", safe="")
    assert get(port, name) == (200, {"table": f"public.{EVIL}"})
    key = quote('[1, "eu"]')
    assert get(port, f"{name}/row?key={key}")[0] == 200
    assert tables.asked == [(("public", EVIL), {"id": 1, "region": "eu"}, 0)]


def test_a_row_is_asked_for_by_its_key_and_its_topic_only_on_request(port: int, tables: Tables) -> None:
    code, found = get(port, "public.orders/row?key=7")
    assert (code, found["source"]) == (200, {"price": "nan"}), "JSON has no NaN"
    assert get(port, "public.orders/row?key=7&records=3")[0] == 200
    assert tables.asked == [(ORDERS.table, {"id": 7}, 0), (ORDERS.table, {"id": 7}, 3)]
    assert tables.is_settled
    assert get(port, "public.orders/row?key=7&wait=false")[0] == 200
    assert not tables.is_settled
    code, found = get(port, "public.orders/row?key=7&wait=no")
    assert (code, found["error"]) == (400, "wait='no' is neither true nor false")


@pytest.mark.parametrize(
    ("path", "code", "error"),
    [
        ("orders", 400, "'orders' is not schema.table"),
        ("public.none", 404, "table public.none is not in source.tables"),
        ("public.none/row?key=1", 404, "table public.none is not in source.tables"),
        ("public.none/changes", 404, "table public.none is not in source.tables"),
        ("public.orders/rows", 404, "a table has no 'rows'"),
        ("public.orders/row", 400, "key is missing"),
        ("public.orders/row?key=x", 400, "'x' is no key of public.orders: a value is none of its column's type"),
        ("public.orders/row?key=7&records=x", 400, "records='x' is no number from 0 to 100"),
        ("public.orders/changes?key=x", 400, "'x' is no key of public.orders"),
        ("public.orders/changes?last=201", 400, "last='201' is no number from 0 to 200"),
        ("public.orders/changes?last=-1", 400, "last='-1' is no number"),
    ],
)
def test_what_can_not_be_answered_says_why_and_what_next(port: int, path: str, code: int, error: str) -> None:
    found, body = get(port, path)
    assert found == code and body["error"].startswith(error) and body["next"]


def test_servers_that_do_not_answer_are_said(port: int, tables: Tables) -> None:
    tables.fails = UnreachableError("Kafka: no broker answers", "start it")
    for path in ("public.orders", "public.orders/row?key=7", "public.orders/changes"):
        assert get(port, path) == (503, {"error": "Kafka: no broker answers", "next": "start it"})


def test_of_a_hundred_requests_at_once_some_wait_and_the_others_are_refused(port: int, tables: Tables) -> None:
    tables.goes_on.clear()
    with ThreadPoolExecutor(100) as clients:
        waiting = [clients.submit(get, port, "public.orders") for _ in range(100)]
        refused = 100 - WAITING_MAX
        eventually(lambda: sum(one.done() for one in waiting) == refused, 10.0, "the others are refused")
        tables.goes_on.set()
        codes = sorted(one.result()[0] for one in waiting)
    assert codes == [200] * WAITING_MAX + [429] * refused
    assert get(port, "public.orders")[0] == 200


def test_values_are_for_users_or_for_this_machine(tables: Tables) -> None:
    with served(tables, HttpConfig(host="0.0.0.0", insecure=True)) as port:  # noqa: S104
        assert get(port, "public.orders")[0] == 200
        for path in ("row?key=7", "changes"):
            code, body = get(port, f"public.orders/{path}")
            assert code == 403 and "without users" in body["error"] and "http.users" in body["next"]
    with served(tables) as port:
        assert get(port, "public.orders/row?key=7", {"Sec-Fetch-Site": "same-origin"})[0] == 200
        assert get(port, "public.orders/row?key=7", {"Sec-Fetch-Site": "cross-site"})[0] == 403
    with served(tables, HttpConfig(users=USERS)) as port:
        assert get(port, "public.orders/row?key=7")[0] == 401
        assert get(port, "public.orders/row?key=7", {"Authorization": f"Bearer {READ}"})[0] == 200


# ---- the stream


def test_a_stream_has_the_last_changes_then_those_that_arrive(port: int, tables: Tables) -> None:
    answer = opened(port, "public.orders/changes?key=1")
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    first = lines(answer, 3)
    assert first[0].startswith(":")
    assert json.loads(first[1].removeprefix("data: ")) == record(0).as_json()
    tables.new = [record(7)]
    found = next(line for line in iter(lambda: lines(answer, 1)[0], "") if not line.startswith(":"))
    assert json.loads(found.removeprefix("data: "))["offset"] == 7
    assert tables.asked == [(ORDERS.table, {"id": 1}), LAST]
    answer.close()


def test_a_quiet_stream_has_heartbeats(port: int) -> None:
    answer = opened(port, "public.orders/changes")
    assert lines(answer, 6)[3:] == [LIVE.strip(), ": heartbeat", ": heartbeat"]
    answer.close()


def test_a_stream_whose_client_leaves_ends(port: int, tables: Tables) -> None:
    answer = opened(port, "public.orders/changes")
    lines(answer, 1)
    assert tables.following == 1
    answer.close()
    eventually(lambda: tables.following == 0, 5.0, "nothing follows the topic any more")
    assert not [one for one in threading.enumerate() if one.name.startswith("http: changes")]


def test_there_are_a_few_streams_at_once(port: int, tables: Tables) -> None:
    answers = [opened(port, "public.orders/changes") for _ in range(STREAMS_MAX)]
    code, body = get(port, "public.orders/changes")
    assert code == 429 and body["error"].startswith(f"{STREAMS_MAX} streams") and body["next"]
    for answer in answers:
        answer.close()
    eventually(lambda: tables.following == 0, 5.0, "all have ended")
    assert opened(port, "public.orders/changes").status == 200


def test_a_stream_that_breaks_says_why_and_ends(port: int, tables: Tables) -> None:
    answer = opened(port, "public.orders/changes")
    tables.breaks = UnreachableError("Kafka: no broker answers", "start it")
    text = answer.read().decode()
    assert text.endswith('event: error\ndata: {"error": "Kafka: no broker answers", "next": "start it"}\n\n')
    eventually(lambda: tables.following == 0, 5.0, "nothing follows the topic any more")


def test_a_quiet_stream_notices_that_the_brokers_are_away(port: int, tables: Tables) -> None:
    answer = opened(port, "public.orders/changes")
    tables.is_away = True
    assert "the leader does not answer" in answer.read().decode()


def test_a_stream_with_a_defect_ends_too(port: int, tables: Tables) -> None:
    answer = opened(port, "public.orders/changes")
    tables.breaks = KeyError("defect")
    assert "the stream has failed: 'defect'" in answer.read().decode()
    eventually(lambda: tables.following == 0, 5.0, "nothing follows the topic any more")


def test_a_question_for_the_head_of_a_stream_opens_none(port: int, tables: Tables) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("HEAD", "/v1/tables/public.orders/changes")
    assert connection.getresponse().status == 200
    assert tables.following == 0 and tables.asked == []
    connection.close()
