"""What lines of a re-read say, and which failures pass; tests/integration/test_reread.py asks servers."""

import psycopg
import pytest

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConnectionLost, SourceError
from cdc.ports.row_reader import RequestedRow, RowsRequest, Unreadable
from cdc.postgres import toast_reader
from cdc.postgres.catalog import Publication
from cdc.postgres.chunk_table import TableUnlikeError
from cdc.postgres.toast_reader import PostgresRowReader, _failure, _rows
from tests.support.holes import SCHEMA


def wanted(*xids: int) -> RowsRequest:
    rows = tuple(RequestedRow((SCHEMA.topic, b"%d" % n), (str(n),), xid, xid) for n, xid in enumerate(xids))
    return RowsRequest(SCHEMA, ("big", "huge"), rows)


def test_rows_come_in_their_order_with_null_and_with_what_is_not_there() -> None:
    found, is_ours = _rows(
        wanted(7, 7, 7), [b"0\t7\t0\t0\tB\t\\\\x00", b"1\t\\N\t1\t\\N\t\\N\t\\N", b"2\t7\t2\t2\t\\N\t"]
    )
    assert found == [(b"B", b"\\x00"), None, (None, b"")]
    assert not is_ours  # who deleted the row may not have reached the disk


def test_a_row_that_the_received_transaction_wrote_last_is_flushed_another_may_not_be() -> None:
    assert _rows(wanted(7, 8), [b"0\t7\t0\t0\ta\tb", b"1\t8\t1\t1\ta\tb"])[1]
    assert not _rows(wanted(7, 8), [b"0\t7\t0\t0\ta\tb", b"1\t9\t1\t1\ta\tb"])[1]


def test_of_rows_that_the_index_takes_for_equal_the_one_with_the_very_key_counts() -> None:
    rows = [b"0\t5\t0\t00\tanother\tx", b"0\t7\t0\t0\tB\ty", b"0\t5\t0\t+0\tanother\tz"]
    lines = [*rows, b"1\t7\t1\t+1\tanother\tx"]
    assert _rows(wanted(7, 7), lines) == ([(b"B", b"y"), None], False)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLost("gone"),
        psycopg.errors.LockNotAvailable("locked"),
        psycopg.errors.QueryCanceled("cancelled"),
        psycopg.OperationalError("no SQLSTATE: the connection is gone"),
    ],
)
def test_what_passes_is_asked_again(error: Exception) -> None:
    assert _failure(error) is None


@pytest.mark.parametrize(
    "error",
    [
        TableUnlikeError("table public.pages was altered"),
        SourceError("row security hides rows"),
        psycopg.errors.UndefinedColumn("secret"),
        psycopg.errors.InsufficientPrivilege("secret"),
        KeyError("secret"),
    ],
)
def test_what_stays_is_not_and_is_told_without_values(error: Exception) -> None:
    answer = _failure(error)
    assert isinstance(answer, Unreadable)
    assert "secret" not in answer.reason and answer.reason


def test_a_server_that_hangs_gathers_no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toast_reader, "READ_S_MAX", 0.0)
    monkeypatch.setattr(toast_reader, "LATE_S_MAX", 0.0)
    source = SourceConfig.model_validate({"dsn": "host=/nowhere", "tables": (str(SCHEMA.table),)})
    publication = Publication("p", True, True, True, "1", {}, {}, {})
    reader = PostgresRowReader(source, publication)
    monkeypatch.setattr(reader._worker, "start", lambda: None)  # its thread is in the first question
    for _ in range(5):
        assert reader.read(wanted(7), 1_000, lambda: None) is None
    assert reader._worker.requests.qsize() == 1
