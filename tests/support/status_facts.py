"""Builds observations for tests of the status, without servers: each shows only what matters."""

from dataclasses import replace
from typing import Any

from cdc.config.config_file import Config
from cdc.model.comparisons import ComparisonRecord, RunRecord
from cdc.model.condition import Condition
from cdc.model.events import TableId
from cdc.model.job_records import QueryRecord, SinkErrorRecord
from cdc.model.sink_records import SinkRecord
from cdc.model.table_state import TableRecord
from tests.support.pipeline_records import position, published, sink
from watershed.client.source_facts import SlotFacts, SourceEnd, SourceFacts
from watershed.status.compute import Moment, status_of
from watershed.status.facts import Reading, TopicFacts
from watershed.status.fill_progress import FillProgress
from watershed.status.history import ObservationHistory
from watershed.status.model import Status
from watershed.status.view_facts import ViewFacts

ORDERS = TableId("public", "orders")
TOPIC = "shop.public.orders"
MIB = 1024 * 1024


VIEW = {"base": "copy", "sql": "SELECT id FROM orders", "key": ["id"], "target": {"type": "topic"}}


def config(
    verify: dict[str, Any] | None = None, views: tuple[str, ...] = (), event_logs: tuple[str, ...] = (), **http: Any
) -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "postgresql://nobody@localhost/none", "tables": ["public.orders", "public.notes"]},
            "kafka": {"bootstrap_servers": "localhost:1"},
            "topics": {"prefix": "shop"},
            "sinks": {
                "search": {"url": "http://localhost:1"},
                "warehouse": {"catalog_uri": "jdbc:sqlite:x", "location": "y"},
                "copy": {"type": "sql", "url": "postgresql://nobody@localhost/copy"},
            },
            "views": dict.fromkeys(views, VIEW),
            "event_logs": {name: {"base": "copy", "topics": ["outbox.event.order"]} for name in event_logs},
            "outbox": {"tables": [{"table": "cdc.outbox"}]} if event_logs else {},
            "verify": verify or {},
            "http": http,
        }
    )


def slot(**fields: Any) -> SlotFacts:
    wanted: dict[str, Any] = {
        "is_active": True,
        "restart_lsn": 900,
        "confirmed_lsn": 1000,
        "wal_status": "reserved",
        "safe_wal_bytes": None,
        "invalidation": None,
    }
    return SlotFacts(**(wanted | fields))


def source(flush_lsn: int = 1000, **fields: Any) -> SourceFacts:
    wanted: dict[str, Any] = {
        "database": "shop",
        "version": "18.1",
        "timeline": 1,
        "slot": slot(),
        "slot_wal_bytes_max": None,
        "has_publication": True,
    }
    return SourceFacts(flush_lsn=flush_lsn, **(wanted | fields))


def topics(lsn: int = 1000, *, ends: int = 0, sinks: tuple[SinkRecord, ...] = (), **fields: Any) -> TopicFacts:
    """Published up to `lsn`, which lies below offset `ends` of the topic of orders."""
    wanted: dict[str, Any] = {
        "position": position(lsn),
        "progress": published(lsn, {TOPIC: (ends,)}),
        "tables": {ORDERS: TableRecord.captured(ORDERS, None, 1)},
        "sinks": sinks,
    }
    return TopicFacts(**(wanted | fields))


def applied(lsn: int = 1000, offset: int = 0, **fields: Any) -> SinkRecord:
    return sink(1, lsn, {TOPIC: (offset,)}).model_copy(update=fields)


def reading(found: SourceFacts | None = None, topics_found: TopicFacts | None = None, **fields: Any) -> Reading:
    wanted: dict[str, Any] = {
        "source": found or source(),
        "source_error": None,
        "topics": topics_found or topics(),
        "topics_error": None,
    }
    # A server that refused has said nothing else.
    nothing = {"source": None, "topics": TopicFacts()}
    wanted |= {name: none for name, none in nothing.items() if fields.get(f"{name}_error") is not None}
    return Reading(**(wanted | fields))


def comparison(at_s: float = 1e6, drift: dict[str, int] | None = None, **fields: Any) -> ComparisonRecord:
    """Returns the comparisons of search, with one scheduled run that began at that time, in seconds since 1970."""
    run = RunRecord(begun_us=round(at_s * 1e6), seconds=4.0, applied_lsn=500, is_scheduled=True, tables=1, rows=9)
    return ComparisonRecord(sink="search", runs=(run.model_copy(update=fields),), drift=drift or {})


def standing(status: str = "running", **fields: Any) -> FillProgress:
    wanted: dict[str, Any] = {"what": "table", "name": "public.orders", "done": 50, "total": 200, "per_s": 10.0}
    return FillProgress(status=status, **(wanted | fields))


def sink_error(name: str = "search", at_s: float = 1e6, **fields: Any) -> SinkErrorRecord:
    """Published at that time, seconds since 1970."""
    wanted: dict[str, Any] = {"message": f"{name}: the store is away", "next": "start the store", "is_final": False}
    return SinkErrorRecord(sink=name, at_us=round(at_s * 1e6), **(wanted | fields))


def query(**fields: Any) -> QueryRecord:
    """The figures of search's query, whose last batch took two seconds."""
    wanted: dict[str, Any] = {"sink": "search", "generation": 1, "batch": 4, "batch_ms": 2000, "task_ms": 1500}
    counts = {"rows": 3, "records": 500, "bytes": 9000, "ended_us": 5_000_000, "failures": 1}
    return QueryRecord(**(wanted | counts | fields))


def view_facts(**fields: Any) -> ViewFacts:
    """A view that follows its base."""
    wanted: dict[str, Any] = {"name": "documents", "state": "serving", "is_kept": True, "applied_s": 1.5}
    return ViewFacts(**(wanted | fields))


def condition(part: str = "capture", **fields: Any) -> Condition:
    wanted: dict[str, Any] = {
        "name": "",
        "state": "retrying",
        "message": "Kafka: away",
        "next": "start it",
        "is_failure": True,
    }
    return Condition(part=part, **(wanted | fields))  # type: ignore[arg-type]


class Clock:
    """Moments, and a history that lives through them."""

    def __init__(self, settings: Config | None = None) -> None:
        self.config = settings or config()
        self.history = ObservationHistory()
        self.now_s = 0.0

    def status(self, observed: Reading, after_s: float = 1.0) -> Status:
        """So much later."""
        self.now_s += after_s
        return status_of(self.config, observed, self.history, Moment(self.now_s, round((1e6 + self.now_s) * 1e6)))


def full_status() -> Status:
    """A status in which everything is known."""
    clock = Clock(config(views=("documents",), wal_bytes_max=10 * MIB))
    views = {"documents": view_facts(changes=30, oldest_s=2.25, keys=4, rejected=1)}
    record = applied(500, 3, written=7, stale=2, commit_ts_us=1, applied_ts_us=2)
    topics_found = topics(
        ends=10,
        sinks=(record,),
        snapshots={ORDERS: standing()},
        dead_letters={ORDERS: 2},
        skipped={ORDERS: 1},
        comparisons={"search": comparison(drift={"public.orders": 5})},
        queries=(query(),),
    )
    assert topics_found.progress is not None
    topics_found = replace(topics_found, progress=topics_found.progress.model_copy(update={"commit_ts_us": 1}))
    clock.status(reading(source(1000), topics_found, views=views))
    return clock.status(reading(source(2000), topics_found, views=views))


def source_end(insert_lsn: int, timeline: int = 1, system_identifier: str = "1", database: str = "shop") -> SourceEnd:
    """Of the source that `tests.support.pipeline_records.position` names."""
    return SourceEnd(system_identifier, database, timeline, insert_lsn, 8192, 16 * MIB)
