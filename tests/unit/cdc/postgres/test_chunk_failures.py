"""Which failures pass, and what is said of them."""

import psycopg
import pytest
from psycopg import errors

from cdc.model.errors import ConnectionLost, SourceError, UnreachableError
from cdc.model.events import TableId, TableSchema
from cdc.ports.chunk_reader import Chunk, DescribeTable, TransactionBarrier
from cdc.postgres.chunk_failures import failed
from cdc.postgres.chunk_table import TableAlteredError

SCHEMA = TableSchema(TableId("public", "things"), 1, 1, (), ("id",), "t")
BEGIN = DescribeTable("n", SCHEMA, 1)


def chunk(where: str | None = None) -> Chunk:
    return Chunk("n", SCHEMA, "shape", None, None, where, 1, 1)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("the connection is closed"),
        errors.AdminShutdown("terminating connection"),
        errors.QueryCanceled("canceling statement"),
        errors.SerializationFailure("could not serialize"),
        errors.DeadlockDetected("deadlock detected"),
        errors.TooManyConnections("too many clients"),
        errors.LockNotAvailable("canceling statement due to lock timeout"),
        ConnectionLost("gone"),
        UnreachableError("away"),
        TableAlteredError("replaced"),
    ],
)
def test_what_another_attempt_may_heal_is_not_permanent(error: Exception) -> None:
    failure = failed(chunk(), error)
    assert (failure.nonce, failure.is_permanent) == ("n", False)


@pytest.mark.parametrize(
    "error",
    [
        errors.SyntaxError("syntax error"),
        errors.UndefinedColumn("no such column"),
        errors.InsufficientPrivilege("permission denied for table things"),
        errors.DivisionByZero("division by zero"),
        errors.DataCorrupted("invalid page"),
        SourceError("the table was altered"),
        ValueError("ours"),
    ],
)
def test_what_no_attempt_heals_is_permanent(error: Exception) -> None:
    failure = failed(chunk(), error)
    assert failure.is_permanent
    assert failure.error.hint or isinstance(error, SourceError)


def test_a_lock_that_was_not_granted_names_the_table() -> None:
    error = failed(BEGIN, errors.LockNotAvailable("x")).error
    assert "public.things is locked" in error.message


def test_missing_rights_have_their_grant() -> None:
    assert "GRANT SELECT ON public.things" in failed(BEGIN, errors.InsufficientPrivilege("denied")).error.hint


def test_a_fence_that_fails_has_no_table() -> None:
    assert failed(TransactionBarrier("f"), errors.AdminShutdown("x")) is not None
    assert "the database" in failed(TransactionBarrier("f"), errors.InternalError_("x")).error.message


@pytest.mark.parametrize("error", [errors.InvalidTextRepresentation, ValueError, errors.UniqueViolation])
def test_values_are_never_told(error: type[Exception]) -> None:
    failure = failed(chunk("v::int > 0"), error('invalid input: "secret"'))
    assert "secret" not in str(failure.error)


def test_a_row_whose_text_the_server_cannot_send_is_named_with_the_way_out() -> None:
    found = failed(chunk(), errors.ProgramLimitExceeded("out of memory"))
    assert found.is_permanent
    assert "table public.things can't be read: the text of a row, or of a value, is above 1 GiB" in found.error.message
    assert "make the value smaller" in found.error.hint


def test_a_condition_that_fails_is_to_be_corrected() -> None:
    assert "correct the condition" in failed(chunk("nix"), errors.UndefinedColumn("x")).error.hint
    assert "correct the condition" not in failed(chunk(), errors.UndefinedColumn("x")).error.hint


def test_a_range_whose_ends_are_no_values_of_the_key_is_to_be_corrected() -> None:
    assert "or the range" in failed(chunk(), errors.InvalidTextRepresentation("x")).error.hint
