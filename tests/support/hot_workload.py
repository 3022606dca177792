"""A workload that changes rows in every chunk of a table, with commits that become visible long after they are logged.

The table is a queue whose tail is inserted, updated and deleted, with changed keys, a composite key and a text key, and
now and then TRUNCATE. Many transactions change a block of neighbouring rows, so a chunk that is read while one of them
is frozen contains rows of it."""

import random
import threading
from types import TracebackType
from typing import Any, Final, LiteralString, Self

import psycopg

from tests.support.waiting import eventually

QUEUE, PLACES, PARTS, NOTES = "public.queue", "public.places", "public.parts", "public.notes"
TABLES = (QUEUE, PLACES, PARTS, NOTES)

SCHEMA: LiteralString = """
CREATE TABLE queue (id bigserial PRIMARY KEY, state text NOT NULL, tries int NOT NULL DEFAULT 0, payload jsonb);
CREATE TABLE places (place int PRIMARY KEY, who text NOT NULL, moves int NOT NULL DEFAULT 0);
CREATE TABLE parts (box int, part int, amount numeric(10,2) NOT NULL, note text, PRIMARY KEY (box, part));
CREATE TABLE notes (name text PRIMARY KEY, body text, seen timestamptz);
"""

QUEUE_ROWS: Final = 250  # about: the oldest beyond go
PLACE_COUNT: Final = 300  # half of them taken
BOXES: Final = 40
PARTS_MAX: Final = 8  # in a box
NOTE_COUNT: Final = 200
TRUNCATE_CHANCE: Final = 0.004  # of a transaction
_CONFLICTS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


def fill(connection: psycopg.Connection) -> None:
    """Existing rows; the planner knows how many, so that tables are split into ranges."""
    connection.execute("INSERT INTO queue (state) SELECT 'new' FROM generate_series(1, %s::int)", (QUEUE_ROWS,))
    connection.execute(
        "INSERT INTO places SELECT 2 * n, 'first ' || n FROM generate_series(0, %s::int - 1) AS n", (PLACE_COUNT // 2,)
    )
    connection.execute(
        "INSERT INTO parts SELECT box, part, box / 7.0 FROM generate_series(0, %s::int - 1) AS box,"
        " generate_series(1, %s::int) AS part",
        (BOXES, PARTS_MAX),
    )
    connection.execute(
        "INSERT INTO notes SELECT md5(n::text), 'note ' || n, now() FROM generate_series(0, %s::int - 1) AS n",
        (NOTE_COUNT,),
    )
    connection.execute("ANALYZE queue, places, parts, notes")


class HotClient:
    """One session's transactions."""

    def __init__(self, connection: psycopg.Connection, seed: int) -> None:
        self._connection = connection
        self._random = random.Random(seed)
        self._count = 0

    def transaction(self) -> bool:
        """One transaction; whether it committed."""
        chance = self._random
        self._count += 1
        try:
            with self._connection.transaction():
                if chance.random() < 0.2:
                    # Visible at once, and in the log a moment later: the other way round than a frozen commit.
                    self._connection.execute("SET LOCAL synchronous_commit = off")
                if chance.random() < TRUNCATE_CHANCE:
                    self._truncate()
                for _ in range(chance.choice((0, 1)) if chance.random() < 0.1 else chance.choice((1, 1, 2))):
                    chance.choices((self._queue, self._places, self._parts, self._notes), (5, 3, 2, 2))[0]()
                if chance.random() < 0.05:
                    raise psycopg.Rollback
        except _CONFLICTS:
            return False
        return True

    def _execute(self, statement: LiteralString, *parameters: Any) -> None:
        self._connection.execute(statement, parameters or None)

    def _queue(self) -> None:
        chance = self._random
        self._execute(
            "INSERT INTO queue (state, payload) SELECT 'new', jsonb_build_object('n', n, 'by', %s::text)"
            " FROM generate_series(1, %s::int) AS n",
            f"{self._count}",
            chance.randrange(1, 6),
        )
        match chance.randrange(4):
            case 0 | 1:  # the newest are worked at
                self._execute(
                    "UPDATE queue SET state = 'tried', tries = tries + 1"
                    " WHERE id IN (SELECT id FROM queue ORDER BY id DESC OFFSET %s LIMIT %s FOR UPDATE SKIP LOCKED)",
                    chance.randrange(20),
                    chance.randrange(1, 12),
                )
            case 2:  # or done with at once
                self._execute(
                    "DELETE FROM queue"
                    " WHERE id IN (SELECT id FROM queue ORDER BY id DESC OFFSET %s LIMIT %s FOR UPDATE SKIP LOCKED)",
                    chance.randrange(20),
                    chance.randrange(1, 5),
                )
            case _:
                self._execute(
                    "DELETE FROM queue WHERE id IN (SELECT id FROM queue WHERE id < (SELECT id FROM queue"
                    " ORDER BY id DESC OFFSET %s LIMIT 1) ORDER BY id LIMIT 12 FOR UPDATE SKIP LOCKED)",
                    QUEUE_ROWS,
                )

    def _places(self) -> None:
        """A key moves to where nothing is, a neighbour is renamed."""
        place, free = self._random.randrange(PLACE_COUNT), self._random.randrange(PLACE_COUNT)
        self._execute(
            "UPDATE places SET place = %s, moves = moves + 1"
            " WHERE place = (SELECT place FROM places WHERE place >= %s ORDER BY place LIMIT 1)"
            " AND NOT EXISTS (SELECT FROM places WHERE place = %s)",
            free,
            place,
            free,
        )
        self._execute(
            "UPDATE places SET who = %s WHERE place BETWEEN %s AND %s", f"who {self._count}", place, place + 12
        )

    def _parts(self) -> None:
        box, chance = self._random.randrange(BOXES), self._random
        match chance.randrange(4):
            case 0:
                self._execute("DELETE FROM parts WHERE box = %s", box)
            case 1:  # all keys of a box move, to where nothing is or nowhere
                self._execute("UPDATE parts SET part = part + 100 WHERE box = %s AND part < 100", box)
                self._execute("DELETE FROM parts WHERE box = %s AND part < 104", box)
            case _:
                self._execute(
                    "INSERT INTO parts SELECT %s::int, part, part * 1.25, %s::text"
                    " FROM generate_series(1, %s::int) AS part"
                    " ON CONFLICT (box, part) DO UPDATE SET amount = parts.amount + 1, note = EXCLUDED.note",
                    box,
                    f"by {self._count}",
                    PARTS_MAX,
                )

    def _notes(self) -> None:
        chance = self._random
        numbers = [chance.randrange(NOTE_COUNT) for _ in range(3)]
        self._execute(
            "INSERT INTO notes SELECT md5(n::text), %s::text, now() FROM generate_series(%s::int, %s::int) AS n"
            " ON CONFLICT (name) DO UPDATE SET body = EXCLUDED.body",
            f"body {self._count}",
            numbers[0],
            numbers[0] + 5,
        )
        self._execute("DELETE FROM notes WHERE name = md5(%s::text)", numbers[1])
        self._execute(
            "UPDATE notes SET name = name || %s WHERE name LIKE md5(%s::text) || %s", "~", str(numbers[2]), "%"
        )

    def _truncate(self) -> None:
        """Some are alone in their transaction, some have rows before and behind them."""
        match self._random.randrange(4):
            case 0:
                self._execute("TRUNCATE queue")
                self._execute("INSERT INTO queue (state) SELECT 'refilled' FROM generate_series(1, %s::int)", 120)
            case 1:
                self._execute("UPDATE places SET who = 'last' WHERE place < 20")
                self._execute("TRUNCATE places")
                self._execute("INSERT INTO places SELECT n, 'again' FROM generate_series(0, 298, 2) AS n")
            case 2:
                self._execute("TRUNCATE parts, notes")
            case _:
                self._execute("TRUNCATE notes")
                self._execute(
                    "INSERT INTO notes SELECT md5(n::text), 'again' FROM generate_series(0, %s::int - 1) AS n",
                    NOTE_COUNT,
                )


class FrozenCommits:
    """While entered, the server now and then keeps commits from becoming visible for a moment, though they are in the
    log: they wait for a standby that does not exist. For the whole server, so not beside other tests on it."""

    def __init__(
        self,
        superuser_dsn: str,
        seed: int,
        *,
        frozen_s: tuple[float, float] = (0.05, 0.3),
        thawed_s: tuple[float, float] = (0.02, 0.2),
    ) -> None:
        self._dsn = superuser_dsn
        self._random = random.Random(seed)
        self._frozen_s = frozen_s
        self._thawed_s = thawed_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None
        self.count = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                try:
                    while not self._over.wait(self._random.uniform(*self._thawed_s)):
                        self.count += 1
                        connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                        connection.execute("SELECT pg_reload_conf()")
                        self._over.wait(self._random.uniform(*self._frozen_s))
                        thaw(connection)
                finally:
                    thaw(connection)
        except (psycopg.Error, AssertionError) as error:
            self._error = error


def thaw(connection: psycopg.Connection) -> None:
    """By a superuser. Also what a process that was killed has left frozen."""
    connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
    connection.execute("SELECT pg_reload_conf()")
    eventually(
        lambda: connection.execute("SHOW synchronous_standby_names").fetchone() == ("",), 10.0, "commits are visible"
    )
