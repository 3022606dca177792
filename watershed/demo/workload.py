"""Runs the shop: loads its first rows, then runs several clients that change them at a steady rate until they are
stopped.
"""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import psycopg

from cdc.model.errors import SourceError, WatershedError
from cdc.model.lsn import Lsn, parse_lsn
from watershed.demo.rows import TABLES, Stock
from watershed.demo.shopper import Shopper, Statements

CLIENT_COUNT = 3
BACKLOG_S_MAX = 1.0  # after a stall a client does not catch up on more than this
STOP_TIMEOUT_S = 30.0


def create_shop(dsn: str, stock: Stock) -> None:
    """Creates the tables in an empty database and fills them."""
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(Path(__file__).with_name("shop.sql").read_bytes())
        for table in TABLES:
            with cursor.copy(f"COPY {table} FROM STDIN".encode()) as copy:
                for values in stock.rows(table):
                    copy.write_row(values)
    execute(dsn, "ANALYZE")


def execute(dsn: str, statement: str) -> None:
    """Runs a statement on the shop, as an application would."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def flushed_lsn(dsn: str) -> Lsn:
    """Returns an LSN above everything that was committed before the call."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        ((lsn,),) = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
    return parse_lsn(lsn)


def require_success(work: Future[None], what: str) -> None:
    """Raises WatershedError if what another thread does has failed."""
    if work.done() and (error := work.exception()) is not None:
        raise WatershedError(f"{what} failed: {' '.join(str(error).split())}", "see PostgreSQL's log") from error


class Workload:
    """Runs clients in separate threads. It can be started once; stop() ends it without interrupting a transaction."""

    def __init__(self, dsn: str, stock: Stock, *, rate: float) -> None:
        """`rate`: committed row changes per second of all clients together."""
        self._dsn = dsn
        self._interval_s = CLIENT_COUNT / rate  # between two row changes of one client
        self._stopping = threading.Event()
        self._counts = [0] * CLIENT_COUNT  # committed row changes, each written by its own thread
        self._shoppers = [Shopper(stock, client, CLIENT_COUNT) for client in range(CLIENT_COUNT)]
        self._threads = ThreadPoolExecutor(CLIENT_COUNT, "shop client")
        self._clients: list[Future[None]] = []  # none before the start

    @property
    def rows(self) -> int:
        """The number of row changes committed so far."""
        return sum(self._counts)

    def start(self) -> None:
        self._clients = [self._threads.submit(self._run, *client) for client in enumerate(self._shoppers)]

    def check(self) -> None:
        """Raises WatershedError if a client has failed."""
        for number, client in enumerate(self._clients):
            require_success(client, f"shop client {number}")

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
        wait(self._clients, STOP_TIMEOUT_S)

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
