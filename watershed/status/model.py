"""The status of a pipeline as people and machines see it. Times are seconds, sizes are bytes, LSNs are as PostgreSQL
prints them; null means not known."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Part = Literal["source", "brokers", "capture", "table", "sink", "view"]


class Node(BaseModel):
    model_config = ConfigDict(frozen=True)


class Problem(Node):
    """A condition that prevents a part of the pipeline from working (error), or deserves attention (warning)."""

    part: Part
    name: str  # of the table, sink or view; otherwise empty
    severity: Literal["error", "warning"]
    message: str
    next: str


class WalBudget(Node):
    """The WAL that the slot retains, and the time that is left if capture confirms nothing from now on."""

    retained_bytes: int | None = None
    limit_bytes: int | None = None  # the smaller of max_slot_wal_keep_size and http.wal_bytes_max; null: neither is set
    remaining_bytes: int | None = None
    rate_bytes_per_second: float | None = None  # at which the source writes WAL
    seconds_left: float | None = None


class SlotStatus(Node):
    name: str
    exists: bool
    is_active: bool
    wal_status: str | None
    restart_lsn: str | None
    confirmed_lsn: str | None
    budget: WalBudget


class SourceStatus(Node):
    is_reachable: bool
    database: str | None = None
    version: str | None = None
    timeline: int | None = None
    lsn: str | None = None  # the end of the durable log
    slot: SlotStatus | None = None


class BrokerStatus(Node):
    is_reachable: bool


class CaptureStatus(Node):
    """The progress of capture, from the position record; every process that answers reports the same."""

    state: str  # of the answering process if it is capture; else from the position record and the slot
    epoch: int | None = None
    seq: int | None = None  # records published in this epoch
    lsn: str | None = None  # everything that committed before is published
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    silent_seconds: float | None = None  # since the position moved
    last_commit_unix_seconds: float | None = None
    lost_events: int  # ranges of the log whose events were not published after a gap, and not settled since


class SnapshotStatus(Node):
    status: str  # waiting, running, paused, done, cancelled, failed
    rows: int  # published, or compared with the topic
    rows_total: int  # estimated; 0: not known
    rows_published: int | None = None  # those of the compared that differ, deletes included; null: none is compared
    rows_per_second: float
    seconds_left: float | None
    message: str


class TableStatus(Node):
    table: str
    # Not streaming: it is captured, but no process streams from the slot.
    state: Literal["streaming", "not streaming", "snapshotting", "stopped", "not captured"]
    message: str  # why it is stopped
    next: str
    starts_by_itself: bool
    dead_letters: int
    skipped: int
    owed: str = ""  # why rows that are committed may be missing from the topic; empty: none are
    snapshot: SnapshotStatus | None


class RunStatus(Node):
    """One comparison of a store with the source."""

    begun_unix_seconds: float
    seconds: float
    applied_lsn: str  # what the store had applied when it ended
    is_scheduled: bool  # by verify.every
    is_repair: bool
    is_sample: bool
    tables: int  # that were compared whole
    rows: int
    drift: dict[str, int]  # kind of difference → rows; of a repair those that are left
    undecided: int
    repaired: int
    not_compared: dict[str, str]  # table → why


class ComparisonStatus(Node):
    """The results of comparisons of a store with the source."""

    drift_rows: int  # that differed when their tables were compared last, and were not repaired
    drift: dict[str, int]  # table → such rows
    runs: tuple[RunStatus, ...]  # the newest first


class QueryStatus(Node):
    """What Spark says about a sink's query, and about its last batch that has ended; null before one has."""

    failures: int  # queries that ended with an error since the sink's process started
    ended_unix_seconds: float | None = None
    batch: int | None = None
    batch_seconds: float | None = None
    overhead_seconds: float | None = None  # of it, in which Spark planned and logged, and nothing was written
    rows: int | None = None  # of the DataFrame; each is a piece of many records
    records: int | None = None
    bytes: int | None = None
    records_per_second: float | None = None
    shortage: str = ""  # why it waits for batches of other queries
    next: str = ""


class SinkStatus(Node):
    """The progress of a sink's newest generation, from its record in the progress topic."""

    sink: str
    type: str  # search, cache, warehouse, sql, or that of another package; empty: not known
    generation: int
    epoch: int
    applied_lsn: str
    lag_bytes: int | None  # behind the source, or behind what is published if the source does not answer
    lag_records: int  # offsets below the published end; transaction markers count
    lag_seconds: float | None  # null also if nothing is applied yet
    unread_seconds: float | None  # upper bound of the age of the oldest record that it has not read; 0: none
    is_catching_up: bool = False  # records wait for longer than they do while it keeps pace
    patience_seconds: float = 0.0  # for which it may publish nothing although records wait
    freshness_seconds: float | None  # from the newest applied commit until it was readable; by two clocks
    silent_seconds: float | None  # since its record changed
    waiting_seconds: float  # for which records have been seen to wait for it
    written: int  # since its job started
    stale: int
    dead_letters: int  # rows that the store rejected, and of which it has taken no later version
    owed: dict[str, str] = {}  # table → why the store may lack rows up to the applied position
    refused: dict[str, str] = {}  # table that is owed for a record that can't be read → the next step
    state: str  # of the job in the answering process; empty: it runs elsewhere
    error: str  # the last one, until the sink's position has moved
    next: str
    comparison: ComparisonStatus | None = None  # null: the store was never compared
    query: QueryStatus | None = None  # null: Spark has not reported one of this generation


class ViewStatus(Node):
    """A view, or an event log, as its base describes it. The values are null while the base does not answer."""

    view: str
    base: str  # the sink that keeps the tables of the query
    target: str  # search, cache, sql, warehouse, topic; of a log: event log
    state: str  # unknown: not observed yet; unreachable: the base; otherwise that of ViewFacts
    is_kept: bool | None = None  # some process keeps the view at the moment
    waiting_changes: int | None = None  # changes of base tables that have not been traced to keys yet
    oldest_change_seconds: float | None = None  # the age of the oldest of them; 0: none waits
    waiting_keys: int | None = None  # view rows that are to be computed
    waiting_seconds: float = 0.0  # for which changes, keys or a filling have been seen to wait
    behind_records: int | None = None  # records of its topics that an event log has not loaded; null for a view
    rejected_rows: int | None = None  # that the target does not take, or the query can't compute; of a log: records
    silent_seconds: float | None = None  # since rows were written last
    failing_seconds: float  # since it has had an error, or its base has not answered
    error: str
    next: str


class Status(Node):
    prefix: str
    unix_seconds: float
    source: SourceStatus
    brokers: BrokerStatus
    capture: CaptureStatus
    tables: tuple[TableStatus, ...]
    sinks: tuple[SinkStatus, ...]
    views: tuple[ViewStatus, ...] = ()
    problems: tuple[Problem, ...]

    def errors(self, parts: frozenset[Part], names: frozenset[str] | None = None) -> tuple[Problem, ...]:
        """Returns the errors that concern these parts of the pipeline; of sinks and views only the named ones (None:
        all)."""
        return tuple(
            problem
            for problem in self.problems
            if problem.severity == "error"
            and problem.part in parts
            and (problem.part not in ("sink", "view") or names is None or problem.name in names)
        )
