"""A workload of updates that leave large values unchanged, in tables of every replica identity that can be captured."""

import random
from typing import Any, Final, LiteralString

import psycopg

PAGES, CODED, WHOLE, PAIRS, PARTED = "public.pages", "public.coded", "public.whole", "public.pairs", "public.parted"
TABLES: Final = (PAGES, CODED, WHOLE, PAIRS, PARTED)

# Built-in types of which a value can be out of line (xml is not: the packaged servers are built without it), and kinds
# of types that users make.
TYPES: Final[dict[str, LiteralString]] = {
    "text": "repeat('Zoë ', 2000)",
    "varchar": "repeat('x', 5000)::varchar",
    "character(3000)": "repeat('x', 3000)::char(3000)",
    "bytea": "decode(repeat('00ff', 3000), 'hex')",
    "json": "to_json(repeat('j\"', 3000))",
    "jsonb": "jsonb_build_object('a', repeat('b', 5000), 'n', 1.50)",
    "numeric": "(repeat('9', 12000) || '.5')::numeric",
    "bit varying": "repeat('10', 20000)::bit varying",
    "int4[]": "(SELECT array_agg(n) FROM generate_series(1, 2000) AS n)",
    "text[]": "ARRAY[repeat('a,', 2000), NULL, '{\"']",
    "polygon": "(SELECT ('(' || string_agg('(' || n || ',0)', ',') || ')')::polygon FROM generate_series(1, 500) AS n)",
    "path": "(SELECT ('[' || string_agg('(' || n || ',0)', ',') || ']')::path FROM generate_series(1, 500) AS n)",
    "tsvector": "(SELECT string_agg('w' || n, ' ') FROM generate_series(1, 1000) AS n)::tsvector",
    "numrange": "numrange(1, repeat('9', 9000)::numeric)",
    "nummultirange": "nummultirange(numrange(1, repeat('9', 9000)::numeric))",
    "pair": "ROW(1, repeat('p', 5000))::pair",
    "long_text": "repeat('domain', 1000)::long_text",
    "long_text[]": "ARRAY[repeat('domain', 1000)]::long_text[]",
}

# EXTERNAL is out of line above some 2 KB, and not compressed before.
SCHEMA: LiteralString = """
CREATE TABLE pages (id int PRIMARY KEY, n int NOT NULL, body text, raw bytea, doc json);
ALTER TABLE pages ALTER body SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL, ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE coded (code text NOT NULL, part int NOT NULL, n int NOT NULL, body text);
CREATE UNIQUE INDEX coded_key ON coded (code, part);
ALTER TABLE coded REPLICA IDENTITY USING INDEX coded_key;
ALTER TABLE coded ALTER body SET STORAGE EXTERNAL, ALTER code SET STORAGE EXTERNAL;
CREATE TABLE whole (id int PRIMARY KEY, n int NOT NULL, body text);
ALTER TABLE whole ALTER body SET STORAGE EXTERNAL;
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE pairs (a int, b text COLLATE "C", n int NOT NULL, body text, PRIMARY KEY (b, a));
ALTER TABLE pairs ALTER body SET STORAGE EXTERNAL;
CREATE TABLE parted (id int, region text, n int NOT NULL, body text, PRIMARY KEY (region, id))
  PARTITION BY LIST (region);
CREATE TABLE parted_eu PARTITION OF parted FOR VALUES IN ('eu');
CREATE TABLE parted_rest PARTITION OF parted DEFAULT;
ALTER TABLE parted_eu ALTER body SET STORAGE EXTERNAL;
ALTER TABLE parted_rest ALTER body SET STORAGE EXTERNAL;
"""

KEYS: Final = 40  # of each table: clients meet
# Longer than a row may be in its page: out of line, and a key's text still fits into an index.
LARGE: LiteralString = "repeat(md5(random()::text), 80)"
_CONFLICTS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


def fill(connection: psycopg.Connection) -> None:
    """Existing rows."""
    for statement in _FILL:
        connection.execute(statement, (KEYS,))
    connection.execute("ANALYZE pages, coded, whole, pairs, parted")


_FILL: Final[tuple[LiteralString, ...]] = (
    f"INSERT INTO pages SELECT n, 0, {LARGE}, convert_to({LARGE}, 'UTF8'), to_json({LARGE})"
    " FROM generate_series(1, %s::int) AS n",
    # Of some rows the key itself is out of line.
    "INSERT INTO coded SELECT CASE n %% 4 WHEN 0 THEN repeat(md5(n::text), 40) ELSE 'code ' || n END, n %% 3, 0,"
    f" {LARGE} FROM generate_series(1, %s::int) AS n",
    f"INSERT INTO whole SELECT n, 0, {LARGE} FROM generate_series(1, %s::int) AS n",
    f"INSERT INTO pairs SELECT n, 'b' || n %% 5, 0, {LARGE} FROM generate_series(1, %s::int) AS n",
    f"INSERT INTO parted SELECT n, CASE n %% 2 WHEN 0 THEN 'eu' ELSE 'us' END, 0, {LARGE}"
    " FROM generate_series(1, %s::int) AS n",
)


class HoleClient:
    """One session's transactions."""

    def __init__(self, connection: psycopg.Connection, seed: int) -> None:
        self._connection = connection
        self._random = random.Random(seed)

    def transaction(self) -> bool:
        """One transaction; whether it committed."""
        chance = self._random
        try:
            with self._connection.transaction():
                if chance.random() < 0.2:
                    # Visible at once, and in the log a moment later: the other way round than a frozen commit.
                    self._connection.execute("SET LOCAL synchronous_commit = off")
                elif chance.random() < 0.2:
                    self._connection.execute("SET LOCAL synchronous_commit = local")
                for _ in range(chance.choice((1, 1, 2, 4))):
                    statement = chance.choices(_STATEMENTS, _WEIGHTS)[0]
                    with self._connection.transaction(force_rollback=chance.random() < 0.05):
                        self._execute(statement)
                if chance.random() < 0.05:
                    raise psycopg.Rollback
        except _CONFLICTS:
            return False
        return True

    def _execute(self, statement: LiteralString) -> None:
        numbers: dict[str, Any] = {
            "id": self._random.randrange(1, KEYS + 1),
            "to": self._random.randrange(1, KEYS + 1),
            "rows": self._random.choice((1, 1, 1, 8)),
            "n": self._random.randrange(10**9),
        }
        self._connection.execute(statement, numbers)


_WEIGHTED: Final[tuple[tuple[int, LiteralString], ...]] = (
    # What leaves a hole.
    (12, "UPDATE pages SET n = %(n)s WHERE id BETWEEN %(id)s AND %(id)s + %(rows)s"),
    (6, "UPDATE coded SET n = %(n)s WHERE part = %(id)s %% 3 AND code LIKE '%%' || %(id)s %% 10"),
    (4, "UPDATE whole SET n = %(n)s WHERE id = %(id)s"),
    (6, "UPDATE pairs SET n = %(n)s WHERE a = %(id)s"),
    (6, "UPDATE parted SET n = %(n)s WHERE id BETWEEN %(id)s AND %(id)s + %(rows)s"),
    # A hole beside a large value that is there; null is another thing.
    (5, f"UPDATE pages SET n = %(n)s, body = {LARGE} WHERE id = %(id)s"),
    (2, "UPDATE pages SET raw = NULL, n = %(n)s WHERE id = %(id)s"),
    (2, f"UPDATE pages SET raw = convert_to({LARGE}, 'UTF8'), doc = NULL WHERE id = %(id)s"),
    (4, f"UPDATE pairs SET body = {LARGE}, n = %(n)s WHERE a = %(id)s"),
    (2, f"UPDATE parted SET body = {LARGE} WHERE id = %(id)s"),
    # A large value changed earlier in the transaction.
    (4, f"UPDATE pages SET body = {LARGE}, doc = to_json({LARGE}) WHERE id = %(id)s"),
    (1, f"UPDATE coded SET body = {LARGE} WHERE part = %(id)s %% 3 AND n %% 2 = 0"),
    # A key that moves and takes its large values along, to where nothing is.
    (5, "UPDATE pages SET id = %(to)s + 100, n = %(n)s WHERE id = %(id)s"),
    (4, "UPDATE pages SET id = %(to)s WHERE id = %(id)s + 100"),
    (3, "UPDATE coded SET part = part + 3, n = %(n)s WHERE part < 6 AND code = 'code ' || %(id)s"),
    (2, "UPDATE coded SET code = code || 'x' WHERE length(code) < 1500 AND part = %(id)s %% 3 AND n %% 7 = 0"),
    (3, "UPDATE pairs SET b = 'b' || %(to)s WHERE a = %(id)s"),
    (3, "UPDATE whole SET id = %(to)s + 100 WHERE id = %(id)s"),
    (2, "UPDATE whole SET id = %(to)s WHERE id = %(id)s + 100"),
    (3, "UPDATE parted SET region = 'r' || %(to)s WHERE id = %(id)s"),  # to another partition: a delete and an insert
    # Rows that go, and others that come to their keys.
    (3, "DELETE FROM pages WHERE id = %(id)s"),
    (4, f"INSERT INTO pages SELECT n, 0, {LARGE}, NULL, to_json({LARGE})"
        " FROM generate_series(%(id)s::int, %(id)s + 4) AS n ON CONFLICT (id) DO UPDATE SET n = pages.n + 1"),
    (2, "DELETE FROM pairs WHERE a = %(id)s"),
    (3, f"INSERT INTO pairs VALUES (%(id)s, 'b' || %(id)s, 1, {LARGE})"
        " ON CONFLICT (b, a) DO UPDATE SET n = pairs.n + 1"),
    (2, f"INSERT INTO whole VALUES (%(id)s, 1, {LARGE}) ON CONFLICT (id) DO UPDATE SET n = whole.n + 1"),
)  # fmt: skip
_STATEMENTS: Final = [statement for _, statement in _WEIGHTED]
_WEIGHTS: Final = [weight for weight, _ in _WEIGHTED]
