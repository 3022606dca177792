"""Telemetry of a sink: spans of what readers see, events of lineage, and their place in the sink's thread."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
from structlog.testing import capture_logs

from cdc.config.config_file import Config, load_config
from cdc.model.events import TableId
from cdc.model.sink_records import SinkRecord
from cdc.telemetry.process import Telemetry
from cdc.telemetry.spans import Span
from sinks.errors import SinkError
from sinks.schema_history import SchemaHistory
from spark_jobs.applied import Offsets
from spark_jobs.batches import Batches, BatchReport, OnReport
from spark_jobs.lineage import PRODUCER, SinkRun
from spark_jobs.observing import RUNNING_S, ObservedRun, SinkObserver
from tests.support.functions import install
from tests.support.sink_job import write_config
from tests.unit.spark_jobs.records import TOPIC, schema

TABLE = TableId("public", "a")
SECRET = "hunter2hunter2"
KAFKA = "kafka://127.0.0.1:1"


class Recorded:
    """Implements Telemetry."""

    has_spans = True
    has_lineage = True

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.events: list[Mapping[str, Any]] = []

    def record(self, span: Span) -> None:
        self.spans.append(span)

    def send_lineage(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        return [event["eventType"] for event in self.events]


class Scripted:
    """Implements Batches: passes `meanwhile` on, and returns the last report."""

    is_live = True

    def __init__(self, *reports: BatchReport) -> None:
        self.reports = list(reports)
        self.asked: list[object] = []

    def set_tables(self, schema_histories: Mapping[str, SchemaHistory]) -> None:
        self.asked.append(schema_histories)

    def set_open_dead_letters(self, open_dead_letters: Mapping[str, int]) -> None:
        self.asked.append(open_dead_letters)

    def find_topics(self) -> Mapping[str, Any]:
        return {}

    def run(self, micro_batch: Any, end_offsets: Offsets, on_report: OnReport) -> BatchReport:  # noqa: ARG002
        for report in self.reports[:-1]:
            assert on_report(report)
        return self.reports[-1]


class Bench:
    def __init__(self, folder: Path, section: Mapping[str, Any] | None = None) -> None:
        sinks = {"cache": section or {"url": f"redis://:{SECRET}@127.0.0.1:6379"}}
        self.config: Config = load_config(write_config(folder, "127.0.0.1:1", "shop", sinks, tables=["public.a"]))
        self.telemetry = Recorded()
        self.now_s = 0.0
        self.histories = {TABLE: SchemaHistory((schema(),))}
        self.published: list[SinkRecord] = []

    def begin(self) -> ObservedRun:
        observer = SinkObserver(cast("Telemetry", self.telemetry), self.config, lambda: self.now_s)
        section = self.config.sinks["cache"]
        return observer.begin(SinkRun("r-1", "cache", 3, "serving", section, lambda: self.histories))

    def apply(self, run: ObservedRun, batches: Batches, record: SinkRecord) -> None:
        observed = run.batches(batches)
        observed.run(None, {}, lambda _: True)
        run.publishing(self.published.append)(record)


def record(lsn: int = 0x100, written: int = 0, stale: int = 0) -> SinkRecord:
    return SinkRecord(
        sink="cache",
        generation=3,
        end_offsets={},
        applied_lsn=lsn,
        epoch=1,
        commit_ts_us=1_000_000,
        applied_ts_us=2_000_000,
        sweeps={},
        written=written,
        stale=stale,
        dead_letters=2,
    )


def report(records: int = 5, topic: str = TOPIC) -> BatchReport:
    return BatchReport({topic: {0: 9}}, {topic: {0: 0}}, records=records, written=records, write_s=0.25)


def test_what_readers_see_becomes_a_span(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run = bench.begin()
    bench.apply(run, Scripted(report(5), report(3)), record(written=7, stale=1))
    (span,) = bench.telemetry.spans
    assert (span.name, span.kind, span.error) == ("apply cache", "consumer", "")
    assert 0 <= span.ended_us - span.begun_us < 60_000_000
    delay_ms = span.attributes["watershed.delay_ms"]
    assert isinstance(delay_ms, float) and delay_ms > 0
    assert {name: value for name, value in span.attributes.items() if name != "watershed.delay_ms"} == {
        "watershed.sink": "cache",
        "watershed.sink.type": "cache",
        "watershed.generation": 3,
        "watershed.role": "serving",
        "watershed.applied_lsn": "0/100",
        "watershed.epoch": 1,
        "watershed.records": 8,
        "watershed.rows.written": 7,
        "watershed.rows.stale": 1,
        "watershed.dead_letters": 2,
        "watershed.tables": ["public.a"],
        "watershed.table_count": 1,
    }
    assert bench.published == [record(written=7, stale=1)]


def test_a_position_that_moves_without_rows_is_no_span(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run = bench.begin()
    bench.apply(run, Scripted(report()), record(0x100, written=5))
    bench.apply(run, Scripted(BatchReport()), record(0x200, written=5))
    bench.apply(run, Scripted(report()), record(0x300, written=9))
    assert [one.attributes["watershed.rows.written"] for one in bench.telemetry.spans] == [5, 4]
    assert [one.attributes["watershed.applied_lsn"] for one in bench.telemetry.spans] == ["0/100", "0/300"]


def test_batches_are_passed_on(tmp_path: Path) -> None:
    bench, batches = Bench(tmp_path), Scripted(report())
    observed = bench.begin().batches(batches)
    observed.set_tables({})
    observed.set_open_dead_letters({"k": 1})
    assert (observed.is_live, batches.asked, observed.find_topics()) == (True, [{}, {"k": 1}], {})
    assert observed.run(None, {}, lambda _: True) is batches.reports[-1]


def test_a_run_is_reported_from_its_start_to_its_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run = bench.begin()
    for number in (1, 2, 3):
        bench.apply(run, Scripted(report()), record(0x100 * number, written=5 * number))
    bench.now_s = RUNNING_S
    bench.apply(run, Scripted(report()), record(0x400, written=20))
    run.end(None)
    assert bench.telemetry.kinds == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    assert {event["run"]["runId"] for event in bench.telemetry.events} == {"r-1"}
    start, first, second, _ = bench.telemetry.events
    assert (start["job"]["namespace"], start["job"]["name"]) == ("shop", "shop.cache")
    assert start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    (source,), (target,) = start["inputs"], start["outputs"]
    assert (source["namespace"], source["name"]) == (KAFKA, "shop.public.a")
    assert (target["namespace"], target["name"]) == ("redis://127.0.0.1:6379", "shop:public.a:<row id>")
    assert target["facets"]["schema"]["fields"] == [{"name": "id", "type": "bigint"}]
    assert target["facets"]["columnLineage"]["fields"]["id"]["inputFields"] == [
        {
            "namespace": KAFKA,
            "name": "shop.public.a",
            "field": "id",
            "transformations": [{"type": "DIRECT", "subtype": "IDENTITY", "description": "", "masking": False}],
        }
    ]
    assert first["run"]["facets"]["watershed"]["appliedLsn"] == "0/100"
    assert second["run"]["facets"]["watershed"]["written"] == 20
    assert second["outputs"][0]["facets"] == {}, "the columns are those of the first event"
    assert SECRET not in str(bench.telemetry.events)


def test_a_table_that_is_altered_is_described_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    run = bench.begin()
    bench.histories = {TABLE: SchemaHistory((schema(), schema(version=2)))}
    bench.apply(run, Scripted(report()), record(written=1))
    assert "schema" in bench.telemetry.events[-1]["outputs"][0]["facets"]


def test_each_facet_says_who_made_it_and_by_which_schema(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.begin().end(SinkError("cache: no answer", "start it"))
    found: list[Mapping[str, Any]] = []
    for event in bench.telemetry.events:
        assert event["producer"] == PRODUCER
        assert event["schemaURL"].startswith("https://openlineage.io/spec/2-0-2/")
        places = [event["run"], event["job"], *event["inputs"], *event["outputs"]]
        found += [facet for place in places for facet in place["facets"].values()]
    assert len(found) > 6
    assert all(facet["_producer"] == PRODUCER and "#/$defs/" in facet["_schemaURL"] for facet in found)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SinkError(f"cache: {SECRET} does not answer", "start it"), "cache: ********** does not answer"),
        (OSError("row (1, 'private') was refused"), "OSError"),
    ],
)
def test_an_error_is_reported_without_secrets_and_values(tmp_path: Path, error: Exception, text: str) -> None:
    bench = Bench(tmp_path)
    run = bench.begin()
    run.end(error)
    (span,) = bench.telemetry.spans
    assert (span.name, span.error, span.attributes["watershed.generation"]) == ("apply cache", text, 3)
    assert bench.telemetry.kinds == ["START", "FAIL"]
    assert bench.telemetry.events[-1]["run"]["facets"]["errorMessage"]["message"] == text


def test_an_error_of_telemetry_does_not_reach_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    run = bench.begin()

    def fail(_: Span) -> NoReturn:
        raise RuntimeError("a defect")

    monkeypatch.setattr(bench.telemetry, "record", fail)
    with capture_logs() as logs:
        bench.apply(run, Scripted(report()), record(written=1))
        run.end(OSError("x"))
    assert [one["log_level"] for one in logs] == ["error", "error"]
    assert len(bench.published) == 1


def test_columns_follow_through_a_mapping(tmp_path: Path) -> None:
    mapping = {"public.a": {"rename": {"id": "number"}, "constants": {"origin": "shop"}}}
    bench = Bench(tmp_path, {"url": "redis://127.0.0.1:6379", "mapping": mapping})
    bench.begin()
    fields = bench.telemetry.events[0]["outputs"][0]["facets"]["columnLineage"]["fields"]
    assert fields["number"]["inputFields"][0]["field"] == "id"
    assert fields["origin"] == {"inputFields": []}
    names = [one["name"] for one in bench.telemetry.events[0]["outputs"][0]["facets"]["schema"]["fields"]]
    assert names == ["number", "origin"]


def test_a_functions_columns_follow_from_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = """
from cdc.config.row_functions import RowFunction
EVEN = RowFunction(lambda row: {"even": row["id"] % 2 == 0}, ("id",), {"even": "boolean"}, version="1")
"""
    install(tmp_path / "packages", monkeypatch, {"even": "functions_of_tests:EVEN"}, module)
    mapping = {"public.a": {"function": "even"}}
    bench = Bench(tmp_path, {"url": "redis://127.0.0.1:6379", "mapping": mapping})
    bench.begin()
    (source,) = bench.telemetry.events[0]["outputs"][0]["facets"]["columnLineage"]["fields"]["even"]["inputFields"]
    assert (source["field"], source["transformations"][0]["subtype"]) == ("id", "TRANSFORMATION")
