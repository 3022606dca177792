"""A table whose rows, keys and columns change at random, so that comparisons of it meet every kind of change."""

import random
from typing import Any, Final, LiteralString

import psycopg

from tests.support.drift import Background

WILD: Final = "public.wild"
# Two rows may exchange their codes, so that lookup keys by code move between rows.
SCHEMA: LiteralString = """
CREATE TABLE wild (id bigint PRIMARY KEY, code text NOT NULL, n numeric, big text,
                   UNIQUE (code) DEFERRABLE INITIALLY DEFERRED);
"""
IDS: Final = 400
PAUSE_S: Final = 0.02
BIG_CHARS: Final = 3_000  # stored out of line, so that an update of other columns does not repeat it


def shapes(prefix: str) -> dict[str, Any]:
    """Returns shapes of a cache with lookup keys by code."""
    return {WILD: {"lookups": [f"{prefix}/wild/{{code}}"]}}


class WildLoad(Background):
    """Random transactions of one writer, some of which are rolled back, from entering to leaving."""

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__()
        self.transactions = 0
        self.truncations = 0
        self.alterations = 0
        self._dsn = dsn
        self._chance = random.Random(seed)

    def _run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("ALTER TABLE wild DISABLE TRIGGER USER")
            while not self._ended.wait(PAUSE_S):
                try:
                    with connection.transaction(force_rollback=self._chance.random() < 0.1):
                        for _ in range(self._chance.choice((1, 1, 2, 5))):
                            self._change(connection)
                except (
                    psycopg.errors.UniqueViolation,  # a key was moved onto another row
                    psycopg.errors.ObjectInUse,  # codes were exchanged in the same transaction
                    psycopg.errors.DeadlockDetected,
                    psycopg.errors.UndefinedColumn,  # another writer has altered the table
                ):
                    continue
                self.transactions += 1

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        one, other = chance.randrange(IDS), chance.randrange(IDS)
        match chance.choices(range(8), (30, 30, 10, 10, 12, 1, 0.01, 0.01))[0]:
            case 0:
                big = "".join(chance.choices("abcdefgh", k=BIG_CHARS)) if chance.random() < 0.3 else None
                connection.execute(
                    "INSERT INTO wild (id, code, n, big) VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE "
                    "SET n = excluded.n, big = coalesce(excluded.big, wild.big)",
                    (one, f"code {one}-{self.transactions}", chance.random(), big),
                )
            case 1:
                connection.execute("UPDATE wild SET n = n + 1 WHERE id = %s", (one,))
            case 2:
                connection.execute("UPDATE wild SET id = %s WHERE id = %s", (other, one))
            case 3:
                connection.execute(
                    "UPDATE wild AS a SET code = b.code FROM wild AS b "
                    "WHERE (a.id, b.id) IN ((%(one)s, %(other)s), (%(other)s, %(one)s))",
                    {"one": one, "other": other},
                )
            case 4:
                connection.execute("DELETE FROM wild WHERE id = %s", (one,))
            case 5:
                connection.execute("UPDATE wild SET n = -n WHERE id BETWEEN %s AND %s", (one, one + 100))
            case 6:
                connection.execute("TRUNCATE wild")
                self.truncations += 1
            case _:
                self._alter(connection)

    def _alter(self, connection: psycopg.Connection[Any]) -> None:
        """Add a column, or drop the one that was added before."""
        self.alterations += 1
        if self.alterations % 2:
            connection.execute("ALTER TABLE wild ADD COLUMN IF NOT EXISTS extra int")
        else:
            connection.execute("ALTER TABLE wild DROP COLUMN IF EXISTS extra")
