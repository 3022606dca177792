"""The fence: a writer that is paused anywhere between its check and its commit neither loses a change nor brings an
older row back. And versions of deleted rows are forgotten after a while."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection

from cdc.model.events import pack_version
from sinks.contract import Change, Outcome, Result
from sinks.errors import RefusedError, SinkError
from sinks.sql.sink import SqlSink, _parts
from tests.conformance.tables import CUSTOMERS, LABELS, ORDER_LINES
from tests.support.waiting import eventually
from tests.unit.sinks.sql.conftest import Open

V = pack_version(1, 100)
OLDER = [CUSTOMERS.upsert(V + number, id=number, name="older") for number in (1, 2, 3, 4)]
NEWER = [
    CUSTOMERS.upsert(V + 11, id=1, name="newer"),
    CUSTOMERS.delete(V + 12, id=2),
    CUSTOMERS.update(V + 13, ["photo"], id=3, name="newer"),
]
AT_THE_END = {1: "newer", 3: "newer", 4: "older"}


def names(sink: SqlSink) -> dict[int, Any]:
    return {row.key["id"]: row.row["name"] for row in sink.rows(CUSTOMERS.id)}


class Pause:
    """Holds a writer until it is told to go on."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.goes_on = threading.Event()

    def __call__(self) -> None:
        self.is_reached.set()
        assert self.goes_on.wait(60)


def paused_before_the_fence(sink: SqlSink, pause: Pause, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = sink.fence

    def paused(connection: Connection, form: Any) -> None:
        pause()
        fence(connection, form)

    monkeypatch.setattr(sink, "fence", paused)


def paused_before_the_commit(sink: SqlSink, pause: Pause, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = sink._server.transaction

    def paused(work: Callable[[Connection], Any]) -> Any:
        def whole(connection: Connection) -> Any:
            done = work(connection)
            pause()
            return done

        return transaction(whole)

    monkeypatch.setattr(sink._server, "transaction", paused)


@pytest.mark.promise(2)
def test_an_older_writer_that_wakes_up_before_the_fence_is_stale(
    open_sink: Open, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    if url.startswith("sqlite"):
        pytest.skip("its transactions that write begin one after the other")
    older, newer, pause = open_sink(), open_sink(), Pause()
    for sink in (older, newer):
        sink.prepare(CUSTOMERS.schema)
    newer.apply([CUSTOMERS.upsert(V, id=3, name="first", photo="YQ==")])
    paused_before_the_fence(older, pause, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(older.apply, OLDER)
        assert pause.is_reached.wait(60)
        assert {result.outcome for result in newer.apply(NEWER)} == {Outcome.WRITTEN}
        pause.goes_on.set()
        outcomes = [result.outcome for result in running.result()]
    assert outcomes == [Outcome.STALE] * 3 + [Outcome.WRITTEN]
    assert names(newer) == AT_THE_END


@pytest.mark.promise(2)
def test_a_newer_writer_waits_for_an_older_one_between_check_and_commit(
    open_sink: Open, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    older, newer, pause = open_sink(), open_sink(), Pause()
    for sink in (older, newer):
        sink.prepare(CUSTOMERS.schema)
    paused_before_the_commit(older, pause, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(older.apply, OLDER)
        assert pause.is_reached.wait(60)
        second = pool.submit(newer.apply, NEWER)
        if not url.startswith("sqlite"):
            waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            with psycopg.connect(url, autocommit=True) as connection:
                eventually(lambda: connection.execute(waiting.encode()).fetchone(), 30, "the newer writer waits")
        assert not second.done()
        pause.goes_on.set()
        assert {result.outcome for result in (*first.result(), *second.result())} == {Outcome.WRITTEN}
    assert names(newer) == AT_THE_END


def test_a_writer_that_stays_away_with_the_fence_loses_it(
    open_sink: Open, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """The server ends its transaction; when it wakes up it does its work again, and finds it stale."""
    if url.startswith("sqlite"):
        pytest.skip("a process that is stopped in a transaction holds up the others")
    older, newer, pause = open_sink(), open_sink(), Pause()
    for sink in (older, newer):
        sink.prepare(CUSTOMERS.schema)
    newer.apply([CUSTOMERS.upsert(V, id=3, name="first", photo="YQ==")])
    server = older._server
    assert "SET idle_in_transaction_session_timeout = '60s'" in server.dialect.settings
    soon = (*server.dialect.settings, "SET idle_in_transaction_session_timeout = '300ms'")
    monkeypatch.setattr(server, "dialect", replace(server.dialect, settings=soon))
    server.close()  # connections are made anew
    paused_before_the_commit(older, pause, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(older.apply, OLDER)
        assert pause.is_reached.wait(60)
        assert {result.outcome for result in newer.apply(NEWER)} == {Outcome.WRITTEN}
        pause.goes_on.set()
        outcomes = [result.outcome for result in running.result()]
    assert outcomes == [Outcome.STALE] * 3 + [Outcome.WRITTEN]
    assert names(newer) == AT_THE_END


def test_a_writer_with_another_schema_does_not_pass_the_fence(open_sink: Open) -> None:
    zombie, sink = open_sink(), open_sink()
    zombie.prepare(LABELS.schema)
    newest = replace(LABELS.schema, version=2, columns=LABELS.schema.columns[:1])
    sink.prepare(newest, [LABELS.schema])
    with pytest.raises(SinkError, match=r"public\.labels was prepared with a later schema"):
        zombie.apply([LABELS.upsert(V, name="a", uses=1)])
    with pytest.raises(SinkError, match="later schema"):
        zombie.prepare(LABELS.schema)
    assert list(sink.rows(LABELS.id)) == []


def test_versions_of_deleted_rows_go_after_a_while_and_no_others(open_sink: Open) -> None:
    sink = open_sink()
    sink.prepare(LABELS.schema)
    sink.apply([LABELS.upsert(V, name="a"), LABELS.delete(V + 1, name="b")])
    sink.purge({LABELS.id}, before_s=1.0)
    assert [result.outcome for result in sink.apply([LABELS.upsert(V, name="b")])] == [Outcome.STALE]
    sink.purge({LABELS.id}, before_s=2**40)
    changes = [LABELS.upsert(V, name="a"), LABELS.upsert(V, name="b")]
    assert [result.outcome for result in sink.apply(changes)] == [Outcome.STALE, Outcome.WRITTEN]


@pytest.mark.promise(2)
def test_seventeen_poisoned_rows_of_five_kinds_among_a_hundred_thousand(open_sink: Open, url: str) -> None:
    """Exactly these are refused, each with its reason, and the others are written. Without the cause they are taken."""
    if url.startswith("sqlite"):
        pytest.skip("a refusal by the server's types and constraints")
    shape = {"types": {"line_no": "smallint", "remark": "varchar(12)", "quantity": "numeric(6,2)"}}
    sink = open_sink(shapes={"public.order_lines": shape})
    sink.prepare(ORDER_LINES.schema)
    table = "public.order_lines"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {table} ADD CHECK (order_id <> 50000 OR line_no < 4)".encode())
        connection.execute(f"CREATE UNIQUE INDEX taken ON {table} (remark) WHERE remark LIKE 'only%'".encode())
    changes = [
        ORDER_LINES.upsert(V + number, order_id=number // 8, line_no=number % 8, quantity=number % 100, remark="r")
        for number in range(100_000)
    ]

    def with_values(number: int, **values: Any) -> Change:
        row = changes[number].row
        assert row is not None
        return ORDER_LINES.upsert(V + number, **row | values)

    kinds: dict[str, tuple[list[int], dict[str, Any]]] = {
        "column remark: its type varchar(12) refuses the value (StringDataRightTruncation)": (
            [3, 4, 5, 99_999],
            {"remark": "longer than twelve"},
        ),
        "column quantity: its type numeric(6,2) refuses the value (NumericValueOutOfRange)": (
            [777, 20_000, 20_001, 20_002],
            {"quantity": 1_000_000},
        ),
        "column line_no: its type smallint refuses the value (NumericValueOutOfRange)": (
            [1_000, 2_000, 90_000],
            {"line_no": 40_000},
        ),
        "the table refuses the row (UniqueViolation)": ([30_001, 30_002], {"remark": "only one"}),
    }
    changes[30_000] = with_values(30_000, remark="only one")
    poisoned: dict[int, str] = {}
    for message, (numbers, values) in kinds.items():
        for number in numbers:
            changes[number] = with_values(number, **values)
            poisoned[number] = message
    for number in range(4):  # the row's check
        at = 400_000 + 4 + number
        changes.append(ORDER_LINES.upsert(V + at, order_id=50_000, line_no=4 + number))
        poisoned[len(changes) - 1] = "the table refuses the row (CheckViolation)"
    results = sink.apply(changes)
    refused = {number: result.reason for number, result in enumerate(results) if result.outcome is Outcome.REJECTED}
    assert len(poisoned) == 17 and refused == poisoned
    assert sum(1 for _ in sink.rows(ORDER_LINES.id)) == len(changes) - 17
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP INDEX taken; ALTER TABLE {table} DROP CONSTRAINT order_lines_check".encode())
    again = sink.apply([changes[number] for number in poisoned])
    outcomes = [result.outcome for result in again]
    assert outcomes.count(Outcome.WRITTEN) == 6 and outcomes.count(Outcome.REJECTED) == 11


def test_a_sweep_that_a_constraint_holds_up_is_refused(open_sink: Open, url: str) -> None:
    if url.startswith("sqlite"):
        pytest.skip("does not look at references by itself")
    sink = open_sink()
    sink.prepare(LABELS.schema)
    sink.apply([LABELS.upsert(V, name="a")])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE mine (label text REFERENCES public.labels); INSERT INTO mine VALUES ('a')")
    with pytest.raises(RefusedError, match=r"public\.labels .* can't be deleted \(ForeignKeyViolation\)"):
        sink.sweep(LABELS.id, V + 1)
    assert sum(1 for _ in sink.rows(LABELS.id)) == 1


def test_a_value_that_sqlite_would_store_as_another_is_refused(open_sink: Open, url: str) -> None:
    sink = open_sink()
    sink.prepare(LABELS.schema)
    values = ["many", 1 << 70, [1], 7]
    results = sink.apply([LABELS.upsert(V + number, name=f"{number}", uses=uses) for number, uses in enumerate(values)])
    assert [result.outcome for result in results] == [Outcome.REJECTED] * 3 + [Outcome.WRITTEN]
    assert all(result.reason.startswith("column uses: ") for result in results[:3])


def test_a_sweep_leaves_rows_at_its_floor_and_wins_against_those_below(open_sink: Open) -> None:
    sink = open_sink()
    sink.prepare(CUSTOMERS.schema)
    sink.apply([CUSTOMERS.upsert(V + number, id=number, name=str(number)) for number in (1, 2, 3)])
    assert sink.sweep(CUSTOMERS.id, V + 2) == 1
    assert names(sink) == {2: "2", 3: "3"}
    for version, outcome in ((V + 2, Outcome.STALE), (V + 3, Outcome.WRITTEN)):
        (result,) = sink.apply([CUSTOMERS.upsert(version, id=1, name="again")])
        assert result.outcome == outcome
    assert names(sink) == {1: "again", 2: "2", 3: "3"}


@pytest.mark.parametrize(
    ("limits", "parts", "rejected"),
    [
        ({}, [[0, 1, 2, 3, 4]], []),
        ({"STAGE_ROWS_MAX": 2}, [[0, 1], [2, 3], [4]], []),
        ({"STAGE_BYTES_MAX": 25_000}, [[0, 1], [2, 3, 4]], []),
        ({"STAGE_BYTES_MAX": 5_000}, [[0], [1], [2], [3], [4]], []),
        ({"ROW_BYTES_MAX": 5_000}, [[4]], [0, 1, 2, 3]),
    ],
)
def test_changes_are_written_in_parts_and_a_row_that_is_too_large_is_rejected(
    open_sink: Open,
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    parts: list[list[int]],
    rejected: list[int],
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(f"sinks.sql.sink.{name}", limit)
    sink = open_sink()
    sink.prepare(CUSTOMERS.schema)
    large = [CUSTOMERS.upsert(V, id=number, name="x" * 10_000) for number in range(4)]
    changes = [*large, CUSTOMERS.upsert(V, id=4, name="x" * 100)]
    results = [Result(Outcome.STALE)] * 5
    made = _parts(sink.form(CUSTOMERS.id), sink.server.dialect, changes, range(5), results)
    assert [[one.number for one in part] for part in made] == parts
    assert [number for number, result in enumerate(results) if result.outcome is Outcome.REJECTED] == rejected
