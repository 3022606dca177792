"""Runs the shop: loads its first rows, then runs several clients that change them at a steady rate until they are
stopped.
"""

import threading
import time
from pathlib import Path

import psycopg
from psycopg import sql

from cdc.model.errors import SourceError
from cdc.model.lsn import Lsn, parse_lsn
from watershed.demo.rows import COLUMNS, TABLES, Stock
from watershed.demo.shopper import Shopper, Transaction

CLIENT_COUNT = 3
BACKLOG_S_MAX = 1.0  # after a stall a client does not catch up on more than this
STOP_TIMEOUT_S = 30.0


def create_shop(dsn: str, stock: Stock) -> int:
    """Creates the tables in an empty database and fills them. Returns the number of rows. Raises SourceError."""
    schema = Path(__file__).with_name("shop.sql").read_text(encoding="utf-8")
    try:
        with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute(schema.encode())
            count = 0
            for table in TABLES:
                columns = sql.SQL(", ").join(map(sql.Identifier, COLUMNS[table]))
                with cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table), columns)) as copy:
                    for values in stock.rows(table):
                        copy.write_row(values)
                        count += 1
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("ANALYZE")
    except psycopg.Error as error:
        raise SourceError(f"the shop's tables can't be created: {error}", "use an empty database") from error
    return count


def flushed_lsn(dsn: str) -> Lsn:
    """Returns an LSN above everything that was committed before the call."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row
    return parse_lsn(row[0])


class Workload:
    """Runs clients in separate threads. It can be started once; stop() ends it without interrupting a transaction."""

    def __init__(self, dsn: str, stock: Stock, *, rate: float) -> None:
        """`rate`: committed row changes per second of all clients together."""
        self._dsn = dsn
        self._interval_s = CLIENT_COUNT / rate  # between two row changes of one client
        self._stopping = threading.Event()
        self._counts = [0] * CLIENT_COUNT  # committed row changes, each written by its own thread
        self._transactions = [0] * CLIENT_COUNT
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(
                target=self._run, args=(client, Shopper(stock, client, CLIENT_COUNT)), name=f"client {client}"
            )
            for client in range(CLIENT_COUNT)
        ]

    @property
    def rows(self) -> int:
        """The number of row changes committed so far."""
        return sum(self._counts)

    @property
    def transactions(self) -> int:
        """The number of transactions so far, including those that were rolled back."""
        return sum(self._transactions)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raises SourceError if a client has failed."""
        if self._errors:
            error = self._errors[0]
            raise SourceError(
                f"a client of the shop failed: {' '.join(str(error).split())}", "see PostgreSQL's log"
            ) from error

    def stop(self) -> Lsn:
        """Ends the clients after their current transactions. Returns an LSN above everything that they committed.
        Raises SourceError if a client has failed.
        """
        self.halt()
        self.check()
        return flushed_lsn(self._dsn)

    def halt(self) -> None:
        """Ends the clients without a result or an error, for a run that is given up."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_TIMEOUT_S)

    def _run(self, client: int, shopper: Shopper) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True, application_name=f"shop client {client}") as connection:
                self._shop(connection, client, shopper)
        except BaseException as error:  # noqa: BLE001 - handed to check(), in the thread that can report it
            self._errors.append(error)

    def _shop(self, connection: psycopg.Connection, client: int, shopper: Shopper) -> None:
        due = time.monotonic()
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            transaction = shopper.next()
            run_transaction(connection, transaction)
            self._counts[client] += transaction.rows
            self._transactions[client] += 1
            due = max(due, time.monotonic() - BACKLOG_S_MAX) + max(1, transaction.rows) * self._interval_s


def run_transaction(connection: psycopg.Connection, transaction: Transaction) -> None:
    """Runs the transaction as it was planned. Raises SourceError if a statement finds no row where rows were
    planned.
    """
    with connection.transaction(force_rollback=not transaction.commits):
        for statement in transaction.statements:
            cursor = connection.execute(statement.text.encode(), statement.values)
            if statement.rows and cursor.rowcount == 0:
                raise SourceError(
                    f"{transaction.kind} found no row: {statement.text}",
                    "end other programs that change the shop's tables",
                )
