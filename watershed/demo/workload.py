"""Runs the shop: loads its first rows, then runs several clients that change them at a steady rate until they are
stopped.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg

from cdc.model.errors import SourceError, WatershedError
from cdc.model.lsn import Lsn, parse_lsn
from watershed.demo.rows import COLUMNS, TABLES, Stock
from watershed.demo.shopper import Shopper, Statements

CLIENT_COUNT = 3
BACKLOG_S_MAX = 1.0  # after a stall a client does not catch up on more than this
STOP_TIMEOUT_S = 30.0


def create_shop(dsn: str, stock: Stock) -> int:
    """Creates the tables in an empty database and fills them. Returns the number of rows."""
    count = 0
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(Path(__file__).with_name("shop.sql").read_bytes())
        for table in TABLES:
            with cursor.copy(f"COPY {table} ({', '.join(COLUMNS[table])}) FROM STDIN".encode()) as copy:
                for values in stock.rows(table):
                    copy.write_row(values)
                    count += 1
    execute(dsn, "ANALYZE")
    return count


def execute(dsn: str, statement: str) -> None:
    """Runs a statement on the shop, as an application would."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def flushed_lsn(dsn: str) -> Lsn:
    """Returns an LSN above everything that was committed before the call."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        ((lsn,),) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
    return parse_lsn(lsn)


class Worker(threading.Thread):
    """A thread whose error is raised by check(), in the thread that can report it."""

    def __init__(self, what: str, work: Callable[[], None]) -> None:
        super().__init__(name=what, daemon=True)
        self._work = work
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised by check()
            self._error = error

    def check(self) -> None:
        """Raises WatershedError if the thread has failed."""
        if self._error is not None:
            what = " ".join(str(self._error).split())
            raise WatershedError(f"{self.name} failed: {what}", "see PostgreSQL's log") from self._error

    def end(self) -> None:
        """Waits for the end of the thread, if it was started."""
        if self.ident is not None:
            self.join(STOP_TIMEOUT_S)


class Workload:
    """Runs clients in separate threads. It can be started once; stop() ends it without interrupting a transaction."""

    def __init__(self, dsn: str, stock: Stock, *, rate: float) -> None:
        """`rate`: committed row changes per second of all clients together."""
        self._dsn = dsn
        self._interval_s = CLIENT_COUNT / rate  # between two row changes of one client
        self._stopping = threading.Event()
        self._counts = [0] * CLIENT_COUNT  # committed row changes, each written by its own thread
        shoppers = [Shopper(stock, client, CLIENT_COUNT) for client in range(CLIENT_COUNT)]
        self._clients = [Worker(f"shop client {n}", partial(self._run, n, one)) for n, one in enumerate(shoppers)]

    @property
    def rows(self) -> int:
        """The number of row changes committed so far."""
        return sum(self._counts)

    def start(self) -> None:
        for client in self._clients:
            client.start()

    def check(self) -> None:
        """Raises WatershedError if a client has failed."""
        for client in self._clients:
            client.check()

    def stop(self) -> Lsn:
        """Ends the clients after their current transactions. Returns an LSN above everything that they committed.
        Raises WatershedError if a client has failed.
        """
        self.halt()
        self.check()
        return flushed_lsn(self._dsn)

    def halt(self) -> None:
        """Ends the clients without a result or an error, for a run that is given up."""
        self._stopping.set()
        for client in self._clients:
            client.end()

    def _run(self, client: int, shopper: Shopper) -> None:
        due = time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True, application_name=f"shop client {client}") as connection:
            while not self._stopping.wait(max(0.0, due - time.monotonic())):
                transaction = shopper.next()
                run_statements(connection, transaction.statements, commits=transaction.commits)
                self._counts[client] += transaction.rows
                due = max(due, time.monotonic() - BACKLOG_S_MAX) + max(1, transaction.rows) * self._interval_s


def run_statements(connection: psycopg.Connection, statements: Statements, *, commits: bool = True) -> None:
    """Runs the statements in one transaction. Raises SourceError if one finds no row where rows were planned."""
    with connection.transaction(force_rollback=not commits):
        for statement in statements:
            cursor = connection.execute(statement.text.encode(), statement.values)
            if statement.rows and cursor.rowcount == 0:
                raise SourceError(f"no row: {statement.text}", "end other programs that change the shop's tables")
