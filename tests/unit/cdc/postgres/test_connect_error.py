"""The error of a failed connection: the server's message without libpq's question, and the step that helps."""

import pytest
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from cdc.postgres.connection import connect_error

SOURCE = SourceConfig(dsn=SecretStr("host=a"), standby_dsn=SecretStr("host=b"), tables=("public.items",))
REFUSED = 'connection to server at "127.0.0.1", port 5999 failed: '


@pytest.mark.parametrize(
    ("words", "message", "step"),
    [
        (
            f"connection failed: {REFUSED}Connection refused\n"
            "\tIs the server running on that host and accepting TCP/IP connections?",
            f"can't connect to PostgreSQL: {REFUSED}Connection refused",
            "check source.dsn and that the server runs",
        ),
        (
            f'{REFUSED}FATAL:  password authentication failed for user "a"',
            f'the server refuses the connection: {REFUSED}FATAL: password authentication failed for user "a"',
            "correct the user in source.dsn, and the password in PGPASSWORD, ~/.pgpass or source.dsn",
        ),
        (
            f"{REFUSED}FATAL:  permission denied to start WAL sender",
            f"the role may not replicate: {REFUSED}FATAL: permission denied to start WAL sender",
            "as a superuser: ALTER ROLE <role> REPLICATION; -- on Amazon RDS: GRANT rds_replication TO <role>",
        ),
    ],
)
def test_the_message_ends_with_the_cause(words: str, message: str, step: str) -> None:
    error = connect_error(words, SOURCE)
    assert (error.message, error.hint) == (message, step)


def test_the_step_names_the_option_of_the_server() -> None:
    error = connect_error("connection failed: refused", SOURCE.log_server)
    assert error.hint == "check source.standby_dsn and that the server runs"
