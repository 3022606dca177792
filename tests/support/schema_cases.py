"""Schema changes, each on a table of its own: the statements, and the effect that is expected."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg

ROWS: Final = 30

_TABLE: LiteralString = "CREATE TABLE {t} (id int PRIMARY KEY, a text NOT NULL DEFAULT 'x', n int, m mood)"
_FILL: LiteralString = "INSERT INTO {t} SELECT i, 'a' || i, i, 'calm' FROM generate_series(1, 30) AS i"
_PARTS: LiteralString = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a text, n int) PARTITION BY RANGE (id);"
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (11);"
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (11) TO (21);"
    "CREATE TABLE {t}_3 PARTITION OF {t} FOR VALUES FROM (21) TO (1000);"
)
_FILL_PARTS: LiteralString = "INSERT INTO {t} SELECT i, 'a' || i, i FROM generate_series(1, 30) AS i"


@dataclass(frozen=True)
class Case:
    """`{t}` stands for the table."""

    name: LiteralString
    change: LiteralString  # in one transaction
    then: LiteralString = "UPDATE {t} SET a = a || '!' WHERE id % 5 = 0; DELETE FROM {t} WHERE id = 3"
    make: LiteralString = _TABLE
    fill: LiteralString = _FILL
    reads_again: bool | None = None  # whether all rows must be read again; None: either way
    stops: str | None = None  # a pattern: what the table's stop says; None: every row is there in the end

    @property
    def table(self) -> str:
        return f"public.{self.name}"


# What tells of it first, the stream or the catalog, says it in its own words.
_NO_KEY: Final = "has no key|is not in the replica identity"
_GONE: Final = "does not exist|it is called"
_OTHER_KEY: Final = r"its key is \(number\), but its records have \(id\)|dropped or renamed"
_OTHER_TYPE: Final = "key column id is text|type of key column"

TYPES: LiteralString = "CREATE TYPE mood AS ENUM ('calm', 'glad')"

CASES: Final = (
    Case("add_null", "ALTER TABLE {t} ADD b text", "UPDATE {t} SET b = 'b' WHERE id < 5", reads_again=False),
    Case("add_default", "ALTER TABLE {t} ADD b text DEFAULT 'b'", "DELETE FROM {t} WHERE id = 3", reads_again=True),
    Case("add_default_quiet", "ALTER TABLE {t} ADD b int NOT NULL DEFAULT 7", "", reads_again=True),
    Case("add_random", "ALTER TABLE {t} ADD b uuid DEFAULT gen_random_uuid()", reads_again=True),
    Case("add_serial", "ALTER TABLE {t} ADD b serial", reads_again=True),
    Case("drop_column", "ALTER TABLE {t} DROP n", reads_again=True),
    Case("rename_column", "ALTER TABLE {t} RENAME n TO number", reads_again=True),
    Case("widen", "ALTER TABLE {t} ALTER n TYPE bigint", "INSERT INTO {t} (id, n) VALUES (99, 3000000000)"),
    Case("widen_key", "ALTER TABLE {t} ALTER id TYPE bigint", "INSERT INTO {t} (id, n) VALUES (3000000000, 1)"),
    Case("retype", "ALTER TABLE {t} ALTER n TYPE text USING 'n' || n", "INSERT INTO {t} (id, n) VALUES (99, 'many')"),
    Case("compute", "ALTER TABLE {t} ALTER n TYPE int USING n + 1000", "", reads_again=True),
    Case("label_added", "ALTER TYPE mood ADD VALUE 'wild'", "UPDATE {t} SET m = 'wild' WHERE id < 4"),
    Case("not_null", "ALTER TABLE {t} ALTER n SET NOT NULL", reads_again=False),
    Case("defaults", "ALTER TABLE {t} ALTER a SET DEFAULT 'y'", "INSERT INTO {t} (id) VALUES (99)", reads_again=False),
    Case("identity_full", "ALTER TABLE {t} REPLICA IDENTITY FULL", reads_again=False),
    Case(
        "there_and_back",
        "INSERT INTO {t} (id) VALUES (41); ALTER TABLE {t} ADD b int; INSERT INTO {t} (id, b) VALUES (42, 1);"
        "ALTER TABLE {t} DROP b; INSERT INTO {t} (id) VALUES (43); ALTER TABLE {t} ADD b text DEFAULT 'b';"
        "INSERT INTO {t} (id) VALUES (44)",
        reads_again=True,
    ),
    Case("truncated", "TRUNCATE {t}; ALTER TABLE {t} ADD b int DEFAULT 1", "INSERT INTO {t} (id) VALUES (1), (2)"),
    Case("renamed_back", "ALTER TABLE {t} RENAME TO {t}_old; ALTER TABLE {t}_old RENAME TO {t}", reads_again=False),
    Case(
        "anew",
        "DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, other text); INSERT INTO {t} VALUES (1, 'o'), (77, 'o')",
        "INSERT INTO {t} VALUES (78, 'new')",
        reads_again=True,
    ),
    Case(
        "swapped",
        "CREATE TABLE {t}_new (LIKE {t} INCLUDING ALL); INSERT INTO {t}_new SELECT * FROM {t} WHERE id > 10;"
        "ALTER TABLE {t} RENAME TO {t}_old; ALTER TABLE {t}_new RENAME TO {t}",
        reads_again=True,
    ),
    Case(
        "key_and_back",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey; ALTER TABLE {t} ADD PRIMARY KEY (id); ALTER TABLE {t} ADD b text",
    ),
    Case(
        "was_generated",
        "ALTER TABLE {t} ADD b int GENERATED ALWAYS AS (n * 2) STORED; ALTER TABLE {t} ALTER b DROP EXPRESSION",
        reads_again=True,
    ),
    Case("detached", "ALTER TABLE {t} DETACH PARTITION {t}_2", make=_PARTS, fill=_FILL_PARTS, reads_again=True),
    Case("part_dropped", "DROP TABLE {t}_2", make=_PARTS, fill=_FILL_PARTS, reads_again=True),
    Case("part_truncated", "TRUNCATE {t}_2", make=_PARTS, fill=_FILL_PARTS, reads_again=True),
    Case(
        "attached",
        "CREATE TABLE {t}_4 (n int, id int NOT NULL, a text); INSERT INTO {t}_4 VALUES (1, 1001, 'a'), (2, 1002, 'a');"
        "ALTER TABLE {t} ATTACH PARTITION {t}_4 FOR VALUES FROM (1000) TO (2000)",
        "UPDATE {t} SET id = 5 + id WHERE id = 1001; UPDATE {t} SET id = 1500 WHERE id = 30",
        make=_PARTS,
        fill=_FILL_PARTS,
        reads_again=True,
    ),
    Case(
        "part_added",
        "CREATE TABLE {t}_4 PARTITION OF {t} FOR VALUES FROM (1000) TO (2000)",
        "INSERT INTO {t} VALUES (1001, 'a', 1)",
        make=_PARTS,
        fill=_FILL_PARTS,
        reads_again=None,
    ),
    Case(
        "part_column",
        "ALTER TABLE {t} ADD b int DEFAULT 9; ALTER TABLE {t} DROP n",
        make=_PARTS,
        fill=_FILL_PARTS,
        reads_again=True,
    ),
    Case(
        "part_default",
        "ALTER TABLE {t} ADD b int DEFAULT 9",
        "",
        make=_PARTS,
        fill=_FILL_PARTS,
        reads_again=True,
    ),
    Case(
        "part_aside",
        "ALTER TABLE {t} DETACH PARTITION {t}_2; UPDATE {t}_2 SET a = 'aside' WHERE id < 15;"
        "DELETE FROM {t}_2 WHERE id = 20; ALTER TABLE {t} ATTACH PARTITION {t}_2 FOR VALUES FROM (11) TO (21)",
        make=_PARTS,
        fill=_FILL_PARTS,
        reads_again=True,
    ),
    Case(
        "part_passing",
        "CREATE TABLE {t}_4 PARTITION OF {t} FOR VALUES FROM (1000) TO (2000); INSERT INTO {t} VALUES (1001, 'a', 1);"
        "DROP TABLE {t}_4",
        "UPDATE {t} SET a = a || '!' WHERE id = 7",
        make=_PARTS,
        fill=_FILL_PARTS,
        reads_again=True,
    ),
    Case(
        "name_and_back",
        "ALTER TABLE {t} RENAME n TO number; UPDATE {t} SET a = 'while' WHERE id < 5;"
        "ALTER TABLE {t} RENAME number TO n",
        "",
        reads_again=True,
    ),
    # Types whose values are stored alike, and read otherwise.
    Case(
        "reads_otherwise",
        "SET LOCAL timezone = 'UTC'; ALTER TABLE {t} ALTER at TYPE timestamptz",
        "",
        make="CREATE TABLE {t} (id int PRIMARY KEY, at timestamp)",
        fill="INSERT INTO {t} SELECT i, '2026-01-01' FROM generate_series(1, 30) AS i",
        reads_again=True,
    ),
    Case(
        "composite",
        "ALTER TYPE {t}_type ADD ATTRIBUTE more int",
        "",
        make="CREATE TYPE {t}_type AS (x int, y mood); CREATE TABLE {t} (id int PRIMARY KEY, c {t}_type[])",
        fill="INSERT INTO {t} SELECT i, ARRAY['(1,calm)', NULL]::{t}_type[] FROM generate_series(1, 30) AS i",
        reads_again=True,
    ),
    Case(
        "label_within",
        "ALTER TYPE {t}_label RENAME VALUE 'p' TO 'other'",
        "",
        make="CREATE TYPE {t}_label AS ENUM ('p', 'q'); CREATE TYPE {t}_range AS RANGE (subtype = {t}_label);"
        "CREATE TABLE {t} (id int PRIMARY KEY, r {t}_range)",
        fill="INSERT INTO {t} SELECT i, '[p,q]' FROM generate_series(1, 30) AS i",
        reads_again=True,
    ),
    Case(
        "label_and_back",
        "ALTER TYPE {t}_label RENAME VALUE 'p' TO 'other'; INSERT INTO {t} VALUES (31, 'other');"
        "ALTER TYPE {t}_label RENAME VALUE 'other' TO 'p'",
        "",
        make="CREATE TYPE {t}_label AS ENUM ('p', 'q'); CREATE TABLE {t} (id int PRIMARY KEY, m {t}_label)",
        fill="INSERT INTO {t} SELECT i, 'p' FROM generate_series(1, 30) AS i",
        reads_again=True,
    ),
    Case(
        "added_twice",
        "ALTER TABLE {t} ADD b text; UPDATE {t} SET b = 'b' WHERE id < 9; ALTER TABLE {t} DROP b;"
        "ALTER TABLE {t} ADD b text",
        "",
        reads_again=True,
    ),
    # Who inherits has no key, hence could not be updated if it were published.
    Case(
        "inherited",
        "INSERT INTO {t}_heir VALUES (1, 'heir'); UPDATE {t} SET a = 'all'; ALTER TABLE {t}_heir NO INHERIT {t};"
        "DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, a text); ALTER TABLE {t}_heir INHERIT {t};"
        "INSERT INTO {t} VALUES (5, 'anew'), (6, 'anew')",
        "DELETE FROM {t}_heir; UPDATE {t} SET a = a || '!'",
        make="CREATE TABLE {t} (id int PRIMARY KEY, a text); CREATE TABLE {t}_heir () INHERITS ({t})",
        fill="INSERT INTO {t} SELECT i, 'a' FROM generate_series(1, 30) AS i",
        reads_again=True,
    ),
    Case("dropped", "DROP TABLE {t}", "", stops="does not exist|was dropped"),
    Case(
        "key_lost",
        "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
        "INSERT INTO {t} VALUES (99)",
        stops=_NO_KEY,
    ),
    Case(
        "identity_nothing",
        "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
        "INSERT INTO {t} VALUES (99)",
        stops=_NO_KEY,
    ),
    Case(
        "renamed",
        "ALTER TABLE {t} RENAME TO {t}_gone",
        "INSERT INTO {t}_gone VALUES (99)",
        stops="does not exist|it is called|was renamed",
    ),
    Case(
        "key_renamed",
        "ALTER TABLE {t} RENAME id TO number",
        "",
        stops=_OTHER_KEY,
    ),
    Case(
        "key_retyped",
        "ALTER TABLE {t} ALTER id TYPE text",
        "",
        stops=_OTHER_TYPE,
    ),
)


def run(connection: psycopg.Connection, case: Case, statements: LiteralString) -> None:
    """In one transaction."""
    with connection.transaction():
        connection.execute(statements.replace("{t}", case.name))


def make(connection: psycopg.Connection, cases: Iterable[Case]) -> None:
    """Their tables, with rows; TYPES are there."""
    for case in cases:
        run(connection, case, case.make)
        run(connection, case, case.fill)
