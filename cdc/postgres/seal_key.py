"""The key that seals the outbox's messages, read from the source."""

import psycopg
from psycopg import sql

from cdc.model.errors import SourceError
from cdc.model.events import TableId
from cdc.outbox.seal import KEY_BYTES, SealKey
from cdc.postgres.connection import SourceConnection, says_lost


@says_lost()
def read_seal_key(connection: SourceConnection, function: TableId) -> SealKey:
    """Returns the key of the function that publishes without a table. Raises SourceError with the next step,
    ConnectionLost."""
    table = sql.Identifier(function.schema, "outbox_key")
    try:
        rows = connection.execute(sql.SQL("SELECT secret FROM {}").format(table)).fetchall()
    except psycopg.errors.UndefinedTable as error:
        raise SourceError(
            f"there is no function {function} to publish events",
            f"cdc outbox migrate --schema {function.schema}; or remove outbox.messages from the configuration",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"the role may not read {function.schema}.outbox_key, which it needs to verify messages",
            f"cdc outbox migrate --schema {function.schema} --capture <role>",
        ) from error
    if len(rows) != 1 or len(rows[0][0]) != KEY_BYTES:
        raise SourceError(f"{function.schema}.outbox_key does not hold exactly one key", "restore it from a backup")
    return SealKey(rows[0][0])
