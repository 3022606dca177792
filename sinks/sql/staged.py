"""The records of a transactional sink's batch, which its tasks stage in the database, and which the driver then merges
in one transaction. They are as the tasks read them, in pieces (spark_jobs/source/piece.py), so their number has no
limit but the database's disk, and no process holds more than one piece.

A task may run twice, and one that was given up may still stage. So each attempt has rows of its own, and the driver
reads those of the attempts that Spark has accepted. It knows how many there are: an unlogged table is empty after a
crash of the server, and another job empties it for a batch of its own.
"""

from sqlalchemy import Connection, select
from sqlalchemy.schema import CreateTable

from sinks.errors import SinkError
from sinks.sql.server import LostTable, SqlServer
from sinks.sql.tables import OwnTables


class StagedPieces:
    """The staged pieces of one generation of a sink."""

    def __init__(self, server: SqlServer, own: OwnTables) -> None:
        self._server = server
        self._own = own
        self._table = own.staged

    def begin(self, batch: str) -> None:
        """Makes room for a batch; what was staged for others is deleted."""

        def begin(connection: Connection) -> None:
            connection.execute(CreateTable(self._table, if_not_exists=True))
            connection.execute(self._table.delete().where(self._table.c.batch != batch))

        self._server.transaction(begin)

    def add(self, batch: str, task: int, attempt: int, number: int, content: bytes) -> None:
        """Stages a piece. `number`: of the attempt's pieces, from 0."""
        row = {"batch": batch, "task": task, "attempt": attempt, "number": number, "content": content}

        def add(connection: Connection) -> None:
            # A transaction is repeated if its answer was lost.
            connection.execute(self._server.dialect.insert(self._table).on_conflict_do_nothing(), row)

        try:
            self._server.transaction(add)
        except LostTable:
            raise _lost() from None

    def piece(self, batch: str, task: int, attempt: int, number: int) -> bytes:
        """Returns a staged piece. Raises SinkError if it is gone."""
        table = self._table
        wanted = select(table.c.content).where(
            table.c.batch == batch, table.c.task == task, table.c.attempt == attempt, table.c.number == number
        )
        try:
            found = self._server.transaction(lambda connection: connection.execute(wanted).scalar())
        except LostTable:
            found = None
        if found is None:
            raise _lost()
        return bytes(found)

    def lock(self) -> None:
        """Waits for another job's transaction, and keeps others waiting until this one ends."""
        sink = self._own.sink
        try:
            self._server.transaction(lambda connection: connection.execute(sink.update().values(id=sink.c.id)))
        except LostTable:
            raise _lost() from None

    def clear(self, batch: str) -> None:
        """Deletes what was staged for the batch."""
        gone = self._table.delete().where(self._table.c.batch == batch)
        self._server.transaction(lambda connection: connection.execute(gone))


def _lost() -> SinkError:
    return SinkError(
        "SQL store: records that the sink has staged are gone: the server crashed, or another job began",
        "nothing to do: the sink stages them again",
    )
