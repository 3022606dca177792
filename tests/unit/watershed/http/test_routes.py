"""Each route, over the server's own thread and socket."""

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from cdc.config.http_settings import HttpConfig
from cdc.model.control import SignalAnswer, SignalRecord, TopicState
from cdc.model.errors import ConfigError, UnreachableError, WatershedError
from cdc.model.sink_records import SinkRecord
from tests.support.http_audit import RecordedAudit
from tests.support.http_server import HttpServer, free_port, running
from tests.support.pipeline_records import position
from tests.support.status_facts import Clock, applied, config, full_status, reading, source, source_end, topics
from tests.support.waiting import eventually
from watershed.client.applied import Positions
from watershed.client.dead_letters import DeadLetter
from watershed.http.change_streams import ChangeStreams, following
from watershed.http.comparisons import Comparisons
from watershed.http.dead_letters import DeadLetterReader
from watershed.http.long_history import HoursOfHistory
from watershed.http.operations import Operations
from watershed.http.pipelines import OtherPipelines
from watershed.http.process_reads import ProcessReads
from watershed.http.routes import CAPTURE, Routed, Scope, application, sinks_scope, views_scope
from watershed.http.server import http_server, listening_socket
from watershed.http.signals import signal_operations
from watershed.http.store_operations import PipelineStores, store_operations
from watershed.http.table_reads import PipelineTables, TableReads
from watershed.http.waits import Waits
from watershed.status.model import Status
from watershed.status.trend import Trend

ORDERS = "public.orders"


class Pipeline:
    """What the server is asked about. Capture and the sink have one table."""

    def __init__(self, scope: Scope = CAPTURE) -> None:
        self.scope = scope
        self.status: Status = full_status()
        self.end = source_end(10_000)
        self.records: tuple[SinkRecord, ...] = (applied(500),)
        self.position = position(500)
        self.asked = 0
        self.fails: WatershedError | None = None
        self.signals: list[SignalRecord] = []
        self.answer = SignalAnswer(is_accepted=True, message="done", tables=("public.orders",))

        self.trend = Trend()
        self.audit = RecordedAudit()

    def application(self, *parts: Routed) -> Starlette:
        letters = DeadLetterReader(config(), self.read_dead_letters)
        return application(
            lambda: self.status,
            self.scope,
            Waits(lambda: self.end, self.last),
            self.trend.recent,
            letters,
            Operations(signal_operations(self.operate), self.audit.audit),
            *parts,
        )

    def read_dead_letters(self, sinks: Sequence[str]) -> list[DeadLetter]:
        raise UnreachableError(f"Kafka: can't read the letters of {', '.join(sinks)}", "start it")

    def operate(self, record: SignalRecord) -> SignalAnswer:
        if self.fails is not None:
            raise self.fails
        self.signals.append(record)
        return self.answer

    def last(self) -> Positions:
        self.asked += 1
        topics = {f"shop.{ORDERS}": TopicState(topic_id="orders")}
        shown = {name: state.identity for name, state in topics.items()}
        records = tuple(record.model_copy(update={"shown": shown}) for record in self.records)
        return Positions(records, self.position.model_copy(update={"topics": topics}), prefix="shop")


@pytest.fixture
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    return Pipeline(getattr(request, "param", CAPTURE))


@pytest.fixture
def server(pipeline: Pipeline) -> Iterator[HttpServer]:
    with running(http_server(pipeline.application(), HttpConfig())) as port:
        yield HttpServer(port)


def test_a_process_that_answers_is_alive(server: HttpServer) -> None:
    assert server.get("/healthz") == (200, '{"is_alive":true}')


def test_readiness_is_the_code_and_the_reasons(server: HttpServer, pipeline: Pipeline) -> None:
    assert server.reasons() == []
    pipeline.status = Clock().status(reading(source(slot=None)))
    code, body = server.get("/readyz")
    assert code == 503
    found = json.loads(body)
    assert [reason["message"] for reason in found["reasons"]] == ["replication slot watershed does not exist any more"]
    assert found["reasons"][0]["next"]


def test_a_job_is_not_ready_before_each_of_its_sinks_has_published_a_position() -> None:
    status = full_status().model_copy(update={"problems": ()})  # of sink search
    assert sinks_scope(frozenset({"search"})).reasons(status) == ()
    (reason,) = sinks_scope(frozenset({"search", "warehouse"})).reasons(status)
    assert (reason.name, reason.message) == ("warehouse", "warehouse has not published a position yet")
    assert "cdc sink run" in reason.next
    assert views_scope(frozenset({"documents"})).reasons(status) == ()


@pytest.mark.parametrize("pipeline", [sinks_scope(frozenset({"warehouse"}))], indirect=True)
def test_the_metric_of_readiness_is_that_of_readyz(server: HttpServer) -> None:
    assert server.get("/readyz")[0] == 503
    assert "watershed_ready 0.0" in server.get("/metrics")[1]


def test_the_status_is_the_whole_and_its_parts(server: HttpServer, pipeline: Pipeline) -> None:
    assert Status.model_validate(server.json("/v1/status")) == pipeline.status
    assert [table["table"] for table in server.json("/v1/tables")["tables"]] == ["public.orders", "public.notes"]
    assert [sink["sink"] for sink in server.json("/v1/sinks")["sinks"]] == ["search"]
    assert server.json("/v1/sinks/search")["lag_records"] == 7
    (view,) = server.json("/v1/views")["views"]
    assert server.json("/v1/views/documents") == view
    assert (view["state"], view["waiting_changes"], view["rejected_rows"]) == ("serving", 30, 1)


def test_what_there_is_not_is_a_clear_answer(server: HttpServer) -> None:
    code, body = server.get("/v1/sinks/none")
    assert code == 404
    assert json.loads(body) == {"error": "no sink 'none' has published a position", "next": "there are: search"}
    code, body = server.get("/v1/views/none")
    assert code == 404
    assert json.loads(body) == {"error": "the configuration has no view 'none'", "next": "there are: documents"}
    code, body = server.get("/nowhere")
    assert (code, json.loads(body)["next"]) == (404, "GET /openapi.json has all routes")


def test_metrics_say_what_is_known(server: HttpServer, pipeline: Pipeline) -> None:
    code, text = server.get("/metrics")
    assert code == 200
    assert 'watershed_sink_lag_records{sink="search"} 7.0' in text
    assert 'watershed_table_state{state="snapshotting",table="public.orders"} 1.0' in text
    assert "watershed_ready 1.0" in text
    away = UnreachableError("Kafka is away", "start it")
    pipeline.status = Clock().status(reading(topics_error=away))
    text = server.get("/metrics")[1]
    assert "watershed_brokers_up 0.0" in text
    assert "watershed_ready 0.0" in text
    assert "\nwatershed_capture_lag_bytes" not in text, "what is not known has no sample"


def test_a_wait_is_answered_when_the_store_shows_the_lsn(server: HttpServer, pipeline: Pipeline) -> None:
    assert server.json("/v1/sinks/search?wait_for=0/1F4")["sink"] == "search"
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(server.get("/v1/sinks?wait_for=0/3E8", 30.0)[0]))
    thread.start()
    before = pipeline.asked
    eventually(lambda: pipeline.asked > before + 5, 20.0, "the request waits")
    assert server.get("/healthz")[0] == 200, "who waits holds up nobody"
    assert answers == []
    pipeline.records = (applied(1000),)
    thread.join(10.0)
    assert answers == [200]


def test_a_wait_for_several_sinks_is_answered_when_all_show_the_lsn(server: HttpServer, pipeline: Pipeline) -> None:
    pipeline.records = (applied(500), applied(400, sink="cache"))
    assert server.json("/v1/wait?lsn=0/1F4&sink=search") == {"is_shown": True, "lsn": "0/1F4", "sinks": ["search"]}
    for query in ("lsn=0/1F4&sink=search&sink=cache", "lsn=0/1F4"):
        code, body = server.get(f"/v1/wait?{query}&timeout=0.1")
        assert (code, json.loads(body)["epoch"]) == (504, pipeline.position.epoch)
        assert "cache: it is at 0/190" in body
    pipeline.records = (applied(500), applied(600, sink="cache"))
    assert server.json("/v1/wait?lsn=0/1F4")["sinks"] == ["cache", "search"]


def test_a_wait_that_is_continued_ends_when_another_epoch_has_begun(server: HttpServer, pipeline: Pipeline) -> None:
    """Its LSN is of the history that the first question was about."""
    code, body = server.get("/v1/wait?lsn=0/3E8&timeout=0")
    assert code == 504
    epoch = json.loads(body)["epoch"]
    pipeline.records = (applied(1000),)
    assert server.json(f"/v1/wait?lsn=0/3E8&epoch={epoch}")["is_shown"]
    pipeline.position = pipeline.position.model_copy(update={"epoch": epoch + 1})
    assert server.get(f"/v1/wait?lsn=0/3E8&epoch={epoch}")[0] == 409


@pytest.mark.parametrize(
    ("query", "code", "says"),
    [
        ("/v1/sinks/search?wait_for=0/3E8&timeout=0.1", 504, "LSN 0/3E8 was not shown in 0.1 s"),
        ("/v1/sinks/none?wait_for=0/1", 404, "no sink 'none' has published a position; there are: search"),
        ("/v1/sinks/search?wait_for=soon", 404, "not an LSN"),
        ("/v1/sinks/search?wait_for=0/FFFFFF", 404, "is beyond the end of the source's WAL, 0/2710"),
        ("/v1/sinks/search?wait_for=0/1&timeline=2", 404, "belongs to timeline 2, but the source is on timeline 1"),
        ("/v1/sinks/search?wait_for=0/1&timeout=soon", 400, "timeout, timeline and epoch are numbers"),
        ("/v1/sinks/search?wait_for=0/1&timeout=1000", 400, "timeout is not between 0 and 300 s"),
        ("/v1/wait?lsn=0/3E8&sink=search&timeout=0.1", 504, "LSN 0/3E8 was not shown in 0.1 s"),
        ("/v1/wait?lsn=0/1&sink=search&sink=none", 404, "no sink 'none' has published a position"),
        ("/v1/wait?lsn=0/1&sink=search&epoch=7", 409, "epoch 7, to which the LSN belongs, has ended"),
        ("/v1/wait?lsn=0/1&epoch=x", 400, "timeout, timeline and epoch are numbers"),
        ("/v1/wait?sink=search", 400, "lsn is missing"),
    ],
)
def test_a_wait_that_cannot_be_answered_is_told_why(server: HttpServer, query: str, code: int, says: str) -> None:
    found, body = server.get(query)
    answer = json.loads(body)
    assert (found, says in answer["error"]) == (code, True), body
    assert answer["next"]


def test_the_history_has_samples_and_problems(server: HttpServer, pipeline: Pipeline) -> None:
    assert server.json("/v1/history") == {"interval_seconds": 5.0, "samples": [], "problems": []}
    pipeline.trend.observe(pipeline.status)
    found = server.json("/v1/history")
    assert [sample["sinks"]["search"]["written"] for sample in found["samples"]] == [7]
    assert {one["problem"]["part"] for one in found["problems"]} == {"table", "sink", "view"}
    assert not any(one["is_over"] for one in found["problems"])


def test_dead_letters_that_cannot_be_read_are_told_why(server: HttpServer, pipeline: Pipeline) -> None:
    assert server.json("/v1/dead-letters") == {"sinks": []}
    record = applied(500, dead_letters=3)
    pipeline.status = Clock().status(reading(topics_found=topics(sinks=(record,))))
    code, body = server.get("/v1/dead-letters")
    assert (code, json.loads(body)) == (503, {"error": "Kafka: can't read the letters of search", "next": "start it"})


def test_openapi_describes_every_route(pipeline: Pipeline, tmp_path: Path) -> None:
    audit = pipeline.audit.audit
    comparisons = Comparisons(config, tmp_path, audit.note)
    reads = TableReads(HttpConfig(), PipelineTables(config), ChangeStreams(following(config)))
    more = Operations([*store_operations(PipelineStores(config)), *comparisons.operations()], audit)
    own = ProcessReads(HttpConfig(), config, tmp_path)
    others = HoursOfHistory(None, "shop"), OtherPipelines(HttpConfig(), full_status)
    application = pipeline.application(more, comparisons, audit, reads, own, *others)
    with running(http_server(application, HttpConfig())) as port:
        found = HttpServer(port).json("/openapi.json")
    routes = {
        (route.path, method.lower())
        for route in application.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    } - {("/openapi.json", "get"), ("/", "get")}
    one = "/v1/tables/{table}"
    described = {(path, method) for path, methods in found["paths"].items() for method in methods}
    assert (routes - {("/v1/tables/{rest:path}", "get")}) | {
        (one, "get"),
        (f"{one}/row", "get"),
        (f"{one}/changes", "get"),
    } == described
    named = set(_references(found))
    assert named <= {f"#/components/schemas/{name}" for name in found["components"]["schemas"]}
    assert {"#/components/schemas/Status", "#/components/schemas/HealRequest"} <= named


def _references(node: object) -> Iterator[str]:
    match node:
        case dict():
            for name, value in node.items():
                if name == "$ref":
                    yield value
                else:
                    yield from _references(value)
        case list():
            for value in node:
                yield from _references(value)


def test_a_port_in_use_is_refused_with_the_next_step() -> None:
    port = free_port()
    with listening_socket("127.0.0.1", port, "http.sink_port"), pytest.raises(ConfigError) as refused:
        listening_socket("127.0.0.1", port, "http.sink_port")
    assert f"port {port}: Address already in use" in refused.value.message
    assert "CDC__HTTP__SINK_PORT, or --http-port" in refused.value.hint
