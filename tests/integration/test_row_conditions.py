"""Row conditions beside PostgreSQL's own WHERE: the same rows, for random conditions over awkward values."""

import json
from random import Random
from typing import Any, Final

import psycopg
from psycopg import sql

from cdc.model.events import Column, TableId, TableSchema
from cdc.pgoutput.values import encoder_for
from sinks.shaping.condition import RowCondition

# column → (type oid, its SQL, literals that are also among its values)
COLUMNS: Final[dict[str, tuple[int, str, tuple[str, ...]]]] = {
    "id": (20, "bigint", ("1", "30", "-9223372036854775808")),
    "flag": (16, "boolean", ("TRUE", "FALSE")),
    "small": (21, "smallint", ("-32768", "0", "7", "7.5")),
    "exact": (1700, "numeric", ("0", "1.50", "1e40", "-0.001", "7")),
    "rough": (701, "double precision", ("0", "0.1", "1e300", "-2.5", "7")),
    "single": (700, "real", ("0.1", "0.5", "16777217", "7")),
    "name": (25, 'text COLLATE "C"', ("''", "'a'", "'B'", "'ä'", "'it''s'", "'a '")),
    "short": (1043, 'varchar(9) COLLATE "C"', ("'a'", "'Zoë'")),
    "padded": (1042, 'char(4) COLLATE "C"', ("'a'", "'ab  '")),
    "day": (1082, "date", ("'2024-02-29'", "'0001-01-01'", "'infinity'", "'-infinity'")),
    "at": (1114, "timestamp", ("'2024-02-29 12:00:00.5'", "'2024-02-29'", "'infinity'")),
    "moment": (1184, "timestamptz", ("'2024-02-29 12:00:00+02:00'", "'2024-02-29T10:00:00Z'", "'-infinity'")),
    "token": (2950, "uuid", ("'123e4567-e89b-12d3-a456-426614174000'", "'00000000-0000-0000-0000-000000000000'")),
}
# Values that have no literal here.
MORE: Final[dict[str, tuple[str, ...]]] = {
    "small": ("32767",),
    "exact": ("'NaN'", "'Infinity'", "'-Infinity'"),
    "rough": ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'"),
    "single": ("'NaN'", "0.3"),
    "day": ("'0044-03-15 BC'", "'12024-01-01'"),
    "at": ("'0044-03-15 01:02:03 BC'", "'12024-01-01 00:00:00'"),
    "moment": ("'0044-03-15 01:02:03+00 BC'", "'2024-02-29 10:00:00.000001+00'"),
}
COMPARABLE: Final = (("small", "id"), ("exact", "small"), ("rough", "exact"), ("name", "short"), ("padded", "short"))
SCHEMA: Final = TableSchema(
    TableId("public", "mixed"),
    1,
    16385,
    tuple(Column(name, oid, -1, said, name != "id", "b", oid) for name, (oid, said, _) in COLUMNS.items()),
    ("id",),
    "t",
)
ROWS: Final = 60
CONDITIONS: Final = 400


def draw_condition(random: Random, depth: int = 0) -> str:
    roll = random.random()
    if depth < 3 and roll < 0.4:
        joined = random.choice((" AND ", " OR ")).join(
            draw_condition(random, depth + 1) for _ in range(random.randint(2, 3))
        )
        return f"({joined})"
    if depth < 3 and roll < 0.5:
        return f"NOT {draw_condition(random, depth + 1)}"
    name = random.choice([*COLUMNS])
    literals = COLUMNS[name][2]
    operator = random.choice(("=", "<>", "<", "<=", ">", ">=", "!="))
    match random.randrange(6):
        case 0:
            return f"{name} IS {random.choice(('', 'NOT '))}NULL"
        case 1:
            wanted = ", ".join(random.sample(literals, random.randint(1, len(literals))))
            return f"{name} {random.choice(('', 'NOT '))}IN ({wanted})"
        case 2:
            left, right = random.choice(COMPARABLE)
            return f"{left} {operator} {right}"
        case 3:
            return "flag"
        case 4:
            return f"{random.choice(literals)} {operator} {name}"
        case _:
            return f"{name} {operator} {random.choice(literals)}"


def read_rows(connection: psycopg.Connection, schema: TableSchema) -> list[dict[str, Any]]:
    """Returns the rows of table mixed as records have them."""
    encoders = [encoder_for(column) for column in schema.columns]
    rows = []
    with connection.cursor() as cursor, cursor.copy("COPY mixed TO STDOUT") as copy:
        for values in copy.rows():
            encoded = [
                None if value is None else json.loads(encode(str(value).encode().decode("latin-1")).encode("latin-1"))
                for value, encode in zip(values, encoders, strict=True)
            ]
            rows.append(dict(zip((column.name for column in schema.columns), encoded, strict=True)))
    return rows


def test_the_same_rows_meet_a_condition_here_and_in_postgresql(fresh_database: str) -> None:
    random = Random(17)
    with psycopg.connect(fresh_database, autocommit=True, options="-c timezone=UTC -c datestyle=ISO") as connection:
        columns = ", ".join(f"{name} {message}" for name, (_, message, _) in COLUMNS.items())
        connection.execute(f"CREATE TABLE mixed ({columns})")
        for number in range(ROWS):
            drawn = [
                "NULL" if random.random() < 0.15 else random.choice((*literals, *MORE.get(name, ())))
                for name, (_, _, literals) in COLUMNS.items()
            ]
            drawn[2] = "NULL" if drawn[2] == "7.5" else drawn[2]
            drawn[0] = str(number)
            connection.execute(f"INSERT INTO mixed VALUES ({', '.join(drawn)})")
        rows = read_rows(connection, SCHEMA)
        assert len(rows) == ROWS
        counts = set()
        for _ in range(CONDITIONS):
            text = draw_condition(random)
            statement = sql.SQL("SELECT id FROM mixed WHERE {}").format(sql.SQL(text))
            wanted = {key for (key,) in connection.execute(statement).fetchall()}
            condition = RowCondition(text, SCHEMA)
            found = {row["id"] for row in rows if condition.decide(row, frozenset())}
            assert found == wanted, text
            counts.add(len(wanted))
        assert len(counts) > 20, "conditions tell rows apart"
