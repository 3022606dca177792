"""Expressions of computed columns beside PostgreSQL: for random expressions over awkward values both have the same
value of the same type, or neither has one."""

import json
import unicodedata
from random import Random
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from cdc.model.events import Column, TableId, TableSchema
from cdc.pgoutput.values import encoder_for
from sinks.shaping.expressions import computing
from sinks.shaping.expressions.expression import Expression
from sinks.shaping.expressions.functions import FUNCTIONS
from sinks.shaping.expressions.types import TYPES, ComputationError, ExpressionError
from tests.integration.test_row_conditions import read_rows

pytestmark = pytest.mark.long

# column → (type oid, modifier, its SQL, values)
COLUMNS: Final[dict[str, tuple[int, int, str, tuple[str, ...]]]] = {
    "id": (20, -1, "bigint", ("0",)),
    "flag": (16, -1, "boolean", ("TRUE", "FALSE")),
    "small": (21, -1, "smallint", ("0", "1", "-1", "7", "32767", "-32768")),
    "whole": (23, -1, "integer", ("0", "1", "-1", "3", "-7", "2147483647", "-2147483648")),
    "large": (20, -1, "bigint", ("0", "2", "-5", "9223372036854775807", "-9223372036854775808")),
    "exact": (1700, -1, "numeric", ("0", "0.000", "1.50", "-0.001", "123456789.987654321", "9999.5", "1e40", "1e-30")),
    "price": (1700, (12 << 16 | 2) + 4, "numeric(12,2)", ("0", "12.50", "-0.01", "9999999999.99", "2.00")),
    "name": (
        25,
        -1,
        'text COLLATE "pg_c_utf8"',
        ("''", "'a'", "'B'", "'äöü ß'", "' it''s '", "'12'", "'-7.5'", "' 3 '", "'yes'"),
    ),
    "other": (1043, -1, 'varchar(20) COLLATE "pg_c_utf8"', ("''", "'a,b,,c'", "'Ab'", "'xyzzy'", "'a'", "'%'")),
    "day": (1082, -1, "date", ("'2024-02-29'", "'0001-01-01'", "'9999-12-31'", "'1970-01-01'", "'2021-01-03'")),
    "at": (1114, -1, "timestamp", ("'2024-02-29 12:34:56.789'", "'0001-01-01'", "'1969-12-31 23:59:59.999999'")),
    "moment": (1184, -1, "timestamptz", ("'2024-02-29 12:00:00+02'", "'1970-01-01 00:00:00+00'")),
}
SCHEMA: Final = TableSchema(
    TableId("public", "mixed"),
    1,
    16_385,
    tuple(
        Column(name, oid, modifier, said, name != "id", "b", oid) for name, (oid, modifier, said, _) in COLUMNS.items()
    ),
    ("id",),
    "t",
)
ROWS: Final = 25
EXPRESSIONS: Final = 4000


class Drawing:
    """Draws expressions of a family of types, as text, sometimes without parentheses and sometimes of a wrong type."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._depth = 0

    def draw(self, family: str) -> str:
        self._depth += 1
        leaf = self._depth > 4 or self._random.random() < 0.15
        text = self._leaf(family) if leaf else self._inner(family)
        self._depth -= 1
        return f"({text})" if self._random.random() < 0.4 else text

    def _leaf(self, family: str) -> str:
        choose = self._random.choice
        if self._random.random() < 0.05:
            return "NULL"
        match family:
            case "number":
                literals = ("0", "1", "-3", "2147483648", "0.5", "100.00", "1e3", ".25", "-0.0", "7")
                return choose(("small", "whole", "large", "exact", "price", *literals))
            case "text":
                return choose(("name", "other", "'a'", "''", "' x '", "'aB'", "'12.50'"))
            case "boolean":
                return choose(("flag", "TRUE", "FALSE", "flag IS NULL"))
            case "date":
                return choose(("day", "DATE '2024-12-30'", "at::date"))
        return choose(("at", "TIMESTAMP '2020-01-01 10:00:00.25'", "day::timestamp", "moment AT TIME ZONE 'UTC'"))

    def _inner(self, family: str) -> str:
        shared = (self._case, self._coalesce, self._nullif, self._extreme)
        own = {
            "number": (self._arithmetic,) * 5 + (self._number_function,) * 4 + (self._field, self._number_cast),
            "text": (self._text_function,) * 6 + (self._joined, self._text_cast),
            "boolean": (self._comparison,) * 4 + (self._logic,) * 3 + (self._boolean_other,),
            "date": (self._date,),
            "timestamp": (self._truncated,),
        }[family]
        return self._random.choice((*shared, *own))(family)

    def _case(self, family: str) -> str:
        draw = self.draw
        otherwise = f" ELSE {draw(family)}" if self._random.random() < 0.7 else ""
        if self._random.random() < 0.3:
            kind = self._random.choice(("number", "text"))
            return f"CASE {draw(kind)} WHEN {draw(kind)} THEN {draw(family)}{otherwise} END"
        return f"CASE WHEN {draw('boolean')} THEN {draw(family)}{otherwise} END"

    def _coalesce(self, family: str) -> str:
        return f"coalesce({self.draw(family)}, {self.draw(family)})"

    def _nullif(self, family: str) -> str:
        return f"nullif({self.draw(family)}, {self.draw(family)})"

    def _extreme(self, family: str) -> str:
        return f"{self._random.choice(('greatest', 'least'))}({self.draw(family)}, {self.draw(family)})"

    def _arithmetic(self, _: str) -> str:
        if self._random.random() < 0.1:
            return f"- {self.draw('number')}"
        return f"{self.draw('number')} {self._random.choice('+-*/%')} {self.draw('number')}"

    def _number_function(self, _: str) -> str:
        number, text, count = self.draw("number"), self.draw("text"), self._count()
        return self._random.choice(
            (
                f"abs({number})",
                f"round({number}, {count})",
                f"round({number})",
                f"trunc({number}, {count})",
                f"ceil({number})",
                f"floor({number}::numeric)",
                f"mod({number}, {self.draw('number')})",
                f"length({text})",
                f"position({text} IN {self.draw('text')})",
                f"strpos({text}, 'a')",
                "day - DATE '2000-01-01'",
            )
        )

    def _field(self, _: str) -> str:
        family = self._random.choice(("date", "timestamp"))
        return f"extract({self._random.choice(computing.FIELDS)} FROM {self.draw(family)})"

    def _number_cast(self, _: str) -> str:
        kind = self._random.choice(("smallint", "integer", "bigint", "numeric", "numeric(8,2)", "numeric(3)"))
        source = self.draw(self._random.choice(("number", "number", "text", "boolean")))
        return f"CAST({source} AS {kind})"

    def _text_function(self, _: str) -> str:
        text, second, count = self.draw("text"), self.draw("text"), self._count()
        return self._random.choice(
            (
                f"trim({text})",
                f"trim({self._random.choice(('LEADING', 'TRAILING', 'BOTH'))} {second} FROM {text})",
                f"ltrim({text}, 'a ')",
                f"rtrim({text})",
                f"replace({text}, {second}, 'z')",
                f"substring({text} FROM {count} FOR {self._count()})",
                f"substr({text}, {count})",
                f"left({text}, {count})",
                f"right({text}, {count})",
                f"split_part({text}, {self._random.choice((',', 'a', ''))!r}, {count})",
                f"concat({text}, {self.draw('number')}, {self.draw('boolean')})",
                f"concat_ws({text}, {second}, {self.draw('number')})",
                f"lower({text}) || upper({second})",
            )
        )

    def _joined(self, _: str) -> str:
        return f"{self.draw('text')} || {self.draw(self._random.choice(('text', 'number', 'boolean')))}"

    def _text_cast(self, _: str) -> str:
        return f"CAST({self.draw(self._random.choice(('number', 'boolean')))} AS text)"

    def _comparison(self, _: str) -> str:
        family, draw = self._random.choice(("number", "number", "text", "date", "timestamp", "boolean")), self.draw
        operator = self._random.choice(("=", "<>", "<", "<=", ">", ">=", "!="))
        return self._random.choice(
            (
                f"{draw(family)} {operator} {draw(family)}",
                f"{draw(family)} {self._random.choice(('', 'NOT '))}IN ({draw(family)}, {draw(family)})",
                f"{draw(family)} {self._random.choice(('', 'NOT '))}BETWEEN {draw(family)} AND {draw(family)}",
                f"{draw(family)} IS {self._random.choice(('', 'NOT '))}DISTINCT FROM {draw(family)}",
                f"{draw(family)} IS {self._random.choice(('', 'NOT '))}NULL",
            )
        )

    def _logic(self, _: str) -> str:
        if self._random.random() < 0.3:
            return f"NOT {self.draw('boolean')}"
        return f"{self.draw('boolean')} {self._random.choice(('AND', 'OR'))} {self.draw('boolean')}"

    def _boolean_other(self, _: str) -> str:
        return self._random.choice(
            (
                f"{self.draw('boolean')} IS {self._random.choice(('TRUE', 'NOT TRUE', 'FALSE', 'UNKNOWN'))}",
                f"starts_with({self.draw('text')}, {self.draw('text')})",
                f"CAST({self.draw('text')} AS boolean)",
            )
        )

    def _date(self, _: str) -> str:
        return f"{self.draw('date')} {self._random.choice('+-')} {self._random.choice(('1', '30', 'small', 'whole'))}"

    def _truncated(self, _: str) -> str:
        return f"date_trunc('{self._random.choice((*computing.TRUNCATIONS,))}', {self.draw('timestamp')})"

    def _count(self) -> str:
        return self._random.choice(("0", "1", "2", "-1", "3", "small", "whole"))


def drawn_row(random: Random, number: int) -> str:
    values = ["NULL" if random.random() < 0.12 else random.choice(values) for *_, values in COLUMNS.values()]
    return ", ".join([str(number), *values[1:]])


def printed(column: Column, text: str | None) -> Any:
    """PostgreSQL's text of a value in the form of records."""
    return None if text is None else json.loads(encoder_for(column)(text.encode().decode("latin-1")).encode("latin-1"))


def test_expressions_have_the_values_that_postgresql_computes(fresh_database: str) -> None:
    random, counts = Random(38), {"same": 0, "neither": 0, "refused": 0, "refused there": 0, "null": 0}
    type_names = {one.oid: one.name for one in TYPES}
    with psycopg.connect(fresh_database, autocommit=True, options="-c timezone=UTC -c datestyle=ISO") as connection:
        columns = ", ".join(f"{name} {said}" for name, (_, _, said, _) in COLUMNS.items())
        connection.execute(f"CREATE TABLE mixed ({columns})")
        for number in range(ROWS):
            connection.execute(f"INSERT INTO mixed VALUES ({drawn_row(random, number)})")
        rows = read_rows(connection, SCHEMA)
        drawing = Drawing(random)
        for _ in range(EXPRESSIONS):
            text = drawing.draw(random.choice(("number", "number", "text", "boolean", "date", "timestamp")))
            try:
                expression = Expression(text, SCHEMA)
            except ExpressionError:
                counts["refused"] += 1
                continue
            column = expression.column("made")
            for row in random.sample(rows, 4):
                statement = sql.SQL(
                    "SELECT pg_typeof(v)::oid, v::text FROM (SELECT {} AS v FROM mixed WHERE id = {}) s"
                )
                try:
                    found = connection.execute(statement.format(sql.SQL(text), row["id"])).fetchone()
                except psycopg.DataError as error:
                    found, problem = None, error
                except psycopg.ProgrammingError:
                    counts["refused there"] += 1  # IS UNKNOWN of a text, IS … IS: they have no other value there
                    continue
                try:
                    value = expression.value(row)
                except ComputationError as error:
                    assert found is None or _is_beyond(str(error)), (text, row, found, error)
                    counts["neither"] += 1
                    continue
                assert found is not None, (text, row, value, problem)
                oid, shown = found
                assert type_names[25 if oid in (1043, 705) else oid] == expression.type.name, (text, oid)
                shown = {"true": "t", "false": "f"}.get(shown, shown) if oid == 16 else shown
                assert value == printed(column, shown), (text, row, value, shown)
                counts["null" if value is None else "same"] += 1
    assert counts["same"] > EXPRESSIONS and counts["neither"] > 50, counts
    assert counts["refused"] < EXPRESSIONS * 0.4 and counts["refused there"] < EXPRESSIONS * 0.05, counts


def _is_beyond(reason: str) -> bool:
    """Says whether it is a value that PostgreSQL has and expressions lack."""
    return reason.startswith(("a date outside", "column day", "column at", "numbers can be rounded"))


def test_the_documented_examples(fresh_database: str) -> None:
    with psycopg.connect(fresh_database, autocommit=True, options="-c timezone=UTC -c datestyle=ISO") as connection:
        for function in FUNCTIONS.values():
            column = Expression(function.example, SCHEMA).column("made")
            statement = sql.SQL("SELECT ({})::text").format(sql.SQL(function.example))
            (shown,) = connection.execute(statement).fetchone() or (None,)
            shown = shown[0] if shown is not None and column.type_name == "boolean" else shown
            assert printed(column, shown) == function.result, function.example


def test_small_and_capital_letters(fresh_database: str) -> None:
    """As in the collation pg_c_utf8 of PostgreSQL 17 and newer, for the characters that Python's Unicode has."""
    characters = [chr(code) for code in range(1, 0x20000) if unicodedata.category(chr(code))[0] in "L"]
    with psycopg.connect(fresh_database, autocommit=True) as connection:
        statement = 'SELECT c, lower(c COLLATE "pg_c_utf8"), upper(c COLLATE "pg_c_utf8") FROM unnest(%s::text[]) c'
        for character, small, capital in connection.execute(statement, [characters]).fetchall():
            if "Cn" in map(unicodedata.category, (small, capital)):
                continue  # of a newer Unicode
            assert (computing.lower(character), computing.upper(character)) == (small, capital), hex(ord(character))
