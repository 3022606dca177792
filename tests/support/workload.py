"""A workload that changes a few tables in every way that a row can change, reproducible from a seed.

The tables have the types of the shop, a composite key, and names that must be quoted. Clients use the same keys, so
transactions wait for each other, fail, and commit in another order than they began."""

import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, LiteralString, Protocol, Self

import psycopg

ACCOUNTS, LINES, WEIRD = "public.accounts", "public.lines", 'public.we.ird "T" 漢'
TABLES = (ACCOUNTS, LINES, WEIRD)

SCHEMA: LiteralString = """
CREATE TYPE mood AS ENUM ('calm', 'it''s "fine"', 'élan');
CREATE TABLE accounts (
  id int PRIMARY KEY, owner text NOT NULL, balance numeric(12,2) NOT NULL, is_open boolean, opened timestamptz,
  seen timestamp, tags text[], scores int[], extra jsonb, mood mood, ref uuid, rate float8, raw bytea, day date
);
CREATE TABLE lines (
  order_id int, line_no int, qty int NOT NULL, price numeric(10,2), note text, PRIMARY KEY (order_id, line_no)
);
CREATE TABLE "we.ird ""T"" 漢" (k text PRIMARY KEY, "v V" text, n smallint);
ALTER TABLE "we.ird ""T"" 漢" REPLICA IDENTITY FULL;
"""

KEYS = 300  # of each table: few enough that clients meet
_TEXTS = ("", "x", "Zoë", 'a "quoted" \\ one', "tab\tand\nline", "漢字", "\\N", "null", "🙂", "'", "a,b;{}")
_CONFLICTS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


def fill(connection: psycopg.Connection, rows: int) -> None:
    """Existing rows, in all tables; keys above those that clients use."""
    connection.execute(
        "INSERT INTO accounts SELECT n, 'owner ' || n, n / 7.0, n %% 3 = 0, now(), NULL, ARRAY['a', NULL, 'b\"' || n],"
        " NULL, jsonb_build_object('n', n), 'calm', gen_random_uuid(), n / 3.0, decode(md5(n::text), 'hex'), NULL"
        "  FROM generate_series(%s::int, %s::int) AS n",
        (KEYS + 1, KEYS + rows),
    )
    connection.execute(
        "INSERT INTO lines SELECT n, 1, n, 1.5, NULL FROM generate_series(%s::int, %s::int) AS n",
        (KEYS + 1, KEYS + rows // 2),
    )


class Transactions(Protocol):
    """One session's."""

    def transaction(self) -> bool:
        """One transaction; whether it committed."""


class Client:
    """Transactions of every kind."""

    def __init__(self, connection: psycopg.Connection, seed: int) -> None:
        self._connection = connection
        self._random = random.Random(seed)

    def transaction(self) -> bool:
        """One transaction; whether it committed."""
        chance = self._random
        try:
            with self._connection.transaction():
                for _ in range(chance.choice((1, 1, 2, 3, 6))):
                    self._part()
                if chance.random() < 0.12:
                    raise psycopg.Rollback
        except _CONFLICTS:
            return False
        return True

    def _part(self) -> None:
        """A statement, now and then in a savepoint that is rolled back."""
        statement = self._random.choices(_STATEMENTS, _WEIGHTS)[0]
        if self._random.random() < 0.2:
            with self._connection.transaction(force_rollback=self._random.random() < 0.5):
                statement(self._connection, self._random)
        else:
            statement(self._connection, self._random)


Statement = Callable[[psycopg.Connection, random.Random], Any]


def _values(chance: random.Random) -> tuple[Any, ...]:
    """Of all columns of accounts but the key."""

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.25 else value

    return (
        chance.choice(_TEXTS),
        chance.randrange(-(10**6), 10**6) / 100,
        maybe(chance.random() < 0.5),
        maybe(f"2024-02-{chance.randrange(1, 29):02} 12:00:00.{chance.randrange(10**6)}+02"),
        maybe(chance.choice(("2024-01-31 23:59:59.5", "infinity", "0044-03-15 12:00:00 BC", "12024-01-01"))),
        maybe([chance.choice((*_TEXTS, None)) for _ in range(chance.randrange(4))]),
        maybe([chance.randrange(-5, 5) for _ in range(chance.randrange(3))]),
        maybe('{"a": [1, 2.50, "x\\u00e9"], "b": null}'),
        maybe(chance.choice(("calm", 'it\'s "fine"', "élan"))),
        maybe(f"{chance.getrandbits(128):032x}"),
        maybe(chance.choice((0.1, 1e300, -2.5e-9, 3.0, float("nan"), float("inf"), float("-inf")))),
        maybe(chance.randbytes(chance.randrange(5))),
        maybe(chance.choice(("2024-02-29", "infinity", "0001-01-01 BC"))),
    )


_COLUMNS = "owner, balance, is_open, opened, seen, tags, scores, extra, mood, ref, rate, raw, day"
_PLACES = (
    "%s, %s, %s, %s::timestamptz, %s::timestamp, %s::text[], %s::int[], %s::jsonb, %s::mood, %s::uuid, %s, %s, %s::date"
)


def _upsert_account(c: psycopg.Connection, chance: random.Random) -> None:
    c.execute(
        f"INSERT INTO accounts (id, {_COLUMNS}) VALUES (%s, {_PLACES}) ON CONFLICT (id) DO UPDATE SET ({_COLUMNS}) ="
        " (EXCLUDED.owner, EXCLUDED.balance, EXCLUDED.is_open, EXCLUDED.opened, EXCLUDED.seen, EXCLUDED.tags,"
        " EXCLUDED.scores, EXCLUDED.extra, EXCLUDED.mood, EXCLUDED.ref, EXCLUDED.rate, EXCLUDED.raw, EXCLUDED.day)",
        (chance.randrange(KEYS), *_values(chance)),
    )


def _update_account(c: psycopg.Connection, chance: random.Random) -> None:
    c.execute(
        f"UPDATE accounts SET ({_COLUMNS}) = ROW ({_PLACES}) WHERE id = %s", (*_values(chance), chance.randrange(KEYS))
    )


def _delete_account(c: psycopg.Connection, chance: random.Random) -> None:
    c.execute("DELETE FROM accounts WHERE id = %s", (chance.randrange(KEYS),))


def _move_account(c: psycopg.Connection, chance: random.Random) -> None:
    """A changed primary key; mostly to where nothing is, else the transaction fails."""
    c.execute(
        "UPDATE accounts SET id = %s, owner = owner || '!' WHERE id = %s",
        (chance.randrange(KEYS), chance.randrange(KEYS)),
    )


def _recreate_account(c: psycopg.Connection, chance: random.Random) -> None:
    """The same key deleted, created, deleted and created within a transaction."""
    key = chance.randrange(KEYS)
    for _ in range(2):
        c.execute("DELETE FROM accounts WHERE id = %s", (key,))
        c.execute("INSERT INTO accounts (id, owner, balance) VALUES (%s, %s, 0)", (key, chance.choice(_TEXTS)))


def _insert_lines(c: psycopg.Connection, chance: random.Random) -> None:
    c.execute(
        "INSERT INTO lines SELECT %s, n, n * 2, 9.99, %s FROM generate_series(1, %s) AS n ON CONFLICT DO NOTHING",
        (chance.randrange(KEYS), chance.choice(_TEXTS), chance.randrange(1, 30)),
    )


def _update_lines(c: psycopg.Connection, chance: random.Random) -> None:
    low = chance.randrange(KEYS)
    c.execute("UPDATE lines SET qty = qty + 1 WHERE order_id BETWEEN %s AND %s", (low, low + 3))


def _move_lines(c: psycopg.Connection, chance: random.Random) -> None:
    """Many keys at once, to places that are free."""
    low = chance.randrange(KEYS)
    c.execute("UPDATE lines SET line_no = line_no + 1000 WHERE order_id = %s", (low,))


def _delete_lines(c: psycopg.Connection, chance: random.Random) -> None:
    c.execute("DELETE FROM lines WHERE order_id = %s", (chance.randrange(KEYS),))


def _upsert_weird(c: psycopg.Connection, chance: random.Random) -> None:
    c.execute(
        'INSERT INTO "we.ird ""T"" 漢" VALUES (%s, %s, %s) ON CONFLICT (k) DO UPDATE SET "v V" = EXCLUDED."v V"',
        (chance.choice(_TEXTS), chance.choice(_TEXTS), chance.randrange(100)),
    )


def _change_weird(c: psycopg.Connection, chance: random.Random) -> None:
    c.execute('UPDATE "we.ird ""T"" 漢" SET n = n + 1 WHERE k = %s', (chance.choice(_TEXTS),))
    c.execute('DELETE FROM "we.ird ""T"" 漢" WHERE k = %s', (chance.choice(_TEXTS),))
    c.execute('UPDATE "we.ird ""T"" 漢" SET k = k || %s WHERE k = %s', ("~", chance.choice(_TEXTS)))


_WEIGHED: Sequence[tuple[Statement, int]] = (
    (_upsert_account, 10),
    (_update_account, 8),
    (_delete_account, 4),
    (_move_account, 3),
    (_recreate_account, 2),
    (_insert_lines, 4),
    (_update_lines, 4),
    (_move_lines, 1),
    (_delete_lines, 2),
    (_upsert_weird, 2),
    (_change_weird, 2),
)
_STATEMENTS = [statement for statement, _ in _WEIGHED]
_WEIGHTS = [weight for _, weight in _WEIGHED]


class Workload:
    """Several clients at once, until stopped or done. Use it in a with statement; an error of a client is raised at the
    end."""

    def __init__(
        self,
        dsn: str,
        *,
        seed: int,
        clients: int = 3,
        transactions: int | None = None,
        pause_s: float = 0.0,
        outlives_server: bool = False,
        client: Callable[[psycopg.Connection, int], Transactions] = Client,
    ) -> None:
        """`transactions` of each client; None: until the end of the with statement. `pause_s` after each. A client
        whose server goes away ends with an error, or connects again. `client`: of a session and a seed."""
        self._dsn = dsn
        self._client = client
        self._seed = seed
        self._transactions = transactions
        self._clients = clients
        self._pause_s = pause_s
        self._outlives_server = outlives_server
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(clients)
        self.committed = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._running = [self._pool.submit(self._run, self._seed * 1000 + number) for number in range(self._clients)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None or self._transactions is None:
            self._stop.set()
        for running in self._running:
            running.result()
        self._pool.shutdown()

    def _run(self, seed: int) -> None:
        count = 0
        while not self._is_over(count):
            try:
                with psycopg.connect(self._dsn, autocommit=True) as connection:
                    client = self._client(connection, seed + count)
                    while not self._is_over(count):
                        count += 1
                        if client.transaction():
                            with self._lock:
                                self.committed += 1
            except psycopg.OperationalError:
                if not self._outlives_server:
                    raise

    def _is_over(self, count: int) -> bool:
        return self._stop.wait(self._pause_s) or count == self._transactions
