"""Random queries over the shop's tables, as users write them: joins, derived tables, LATERAL, WITH, correlated
subqueries, EXISTS and IN, conditions with OR and NOT, aggregates and groups, UNION and its like, constants in the key.
Most have their equalities where a view needs them."""

import random
from typing import Final

from tests.support.view_tables import Query

COLUMNS: Final = {
    "customers": {"int": ["id"], "text": ["name", "region"]},
    "orders": {"int": ["id", "customer_id"], "text": []},
    "lines": {"int": ["order_id", "no"], "text": ["sku"]},
}
KEYS: Final = {"customers": ["id"], "orders": ["id"], "lines": ["order_id", "no"]}
EQUAL: Final = [  # what the tables are mostly joined by
    ("customers", "id", "orders", "customer_id"),
    ("orders", "id", "lines", "order_id"),
    ("customers", "id", "customers", "id"),
    ("customers", "region", "customers", "region"),
    ("orders", "customer_id", "orders", "customer_id"),
    ("lines", "sku", "lines", "sku"),
    ("customers", "name", "lines", "sku"),
]


def random_query(seed: int) -> Query:
    """The same query for the same seed."""
    return _Generator(seed).query()


class _Generator:
    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._aliases = 0

    def query(self) -> Query:
        self._aliases = 0
        kind = self._chance.random()
        if kind < 0.2:
            return self._of_parts() if self._is(0.5) else self._over_parts()
        return self._grouped() if kind < 0.5 else self._plain()

    def _plain(self) -> Query:
        source, inside, with_ = self._source()
        key = [(alias, column) for alias, table in inside for column in KEYS.get(table, ["k"])]
        if self._is(0.15) and len(key) > 1:
            key.remove(self._chance.choice(key))
        outputs = [f"{alias}.{column} AS k{number}" for number, (alias, column) in enumerate(key)]
        outputs += [f"{self._value(inside)} AS v{number}" for number in range(self._chance.randint(0, 3))]
        distinct = "DISTINCT " if self._is(0.15) else ""
        where = self._where(inside)
        return Query(
            f"{with_}SELECT {distinct}{', '.join(outputs)} FROM {source}{where}", [f"k{n}" for n in range(len(key))]
        )

    def _grouped(self) -> Query:
        source, inside, with_ = self._source()
        keys = [self._key_of_group(inside) for _ in range(self._chance.randint(1, 2))]
        outputs = [f"{one} AS k{number}" for number, one in enumerate(keys)]
        outputs += [f"{self._aggregate(inside)} AS v{number}" for number in range(self._chance.randint(1, 2))]
        having = f" HAVING {self._aggregate(inside)} > {self._chance.randint(0, 3)}" if self._is(0.2) else ""
        groups = ", ".join(str(number + 1) for number in range(len(keys)))
        text = f"{with_}SELECT {', '.join(outputs)} FROM {source}{self._where(inside)} GROUP BY {groups}{having}"
        return Query(text, [f"k{n}" for n in range(len(keys))])

    def _of_parts(self) -> Query:
        """Parts that a constant of the key tells apart; one part alone is one row."""
        parts: list[str] = []
        for kind in "abc"[: self._chance.choice([1, 2, 2, 3])]:
            source, inside = self._part_source()
            names = ("kind", "k0", "v0") if not parts or self._is(0.5) else ("other", "id", "n")
            key = f"{self._key_of_group(inside)}::text AS {names[1]}"
            value = f"{self._aggregate(inside)} AS {names[2]}"
            where = self._where(inside)
            parts.append(f"SELECT '{kind}' AS {names[0]}, {key}, {value} FROM {source}{where} GROUP BY 2")
            if self._is(0.1):
                return Query(f"SELECT '{kind}' AS kind, {value} FROM {source}{where}", ["kind"])
        return Query(f" {self._chance.choice(['UNION', 'UNION ALL'])} ".join(parts), ["kind", "k0"])

    def _over_parts(self) -> Query:
        """Groups of the rows of several parts, alone or joined to a table."""
        operation = self._chance.choice(["UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT"])
        parts = [self._part(is_first=number == 0) for number in range(self._chance.choice([2, 2, 3]))]
        rows = f" {operation} ".join(parts)
        if self._is(0.4):
            side = self._chance.choice(["JOIN", "LEFT JOIN"])
            text = f"SELECT c.id AS k0, count(x.v) AS v0 FROM customers c {side} ({rows}) x ON x.k = c.id GROUP BY 1"
        else:
            text = f"SELECT x.k AS k0, count(*) AS v0, sum(x.v) AS v1 FROM ({rows}) x GROUP BY 1"
        return Query(text, ["k0"])

    def _part(self, *, is_first: bool) -> str:
        """A SELECT of two integers; the names of the first part's columns count."""
        source, inside = self._part_source()
        (alias, table), (other, other_table) = inside[0], inside[-1]
        names = (" AS k", " AS v") if is_first or self._is(0.3) else ("", " AS other")
        columns = f"{self._column(alias, table, 'int')}{names[0]}, {self._column(other, other_table, 'int')}{names[1]}"
        return f"SELECT {columns} FROM {source}{self._where(inside)}"

    def _part_source(self) -> tuple[str, list[tuple[str, str]]]:
        while True:
            source, inside, with_ = self._source()
            if not with_:
                return source, inside

    # ---- FROM

    def _source(self) -> tuple[str, list[tuple[str, str]], str]:
        """The text, the tables by alias, and a WITH."""
        with_ = ""
        first, table = self._table()
        inside = [(first, table)]
        text = f"{table} {first}"
        if self._is(0.1):
            with_, text = f"WITH w AS (SELECT * FROM {table}{self._simple_where(table)}) ", f"w {first}"
        for _ in range(self._chance.choice([0, 1, 1, 2])):
            text = self._joined(text, inside)
        return text, inside, with_

    def _joined(self, text: str, inside: list[tuple[str, str]]) -> str:
        alias, table = self._table()
        kind = self._chance.random()
        if kind < 0.12 and not any(known == "derived" for _, known in inside):
            return self._derived(text, inside)
        if kind < 0.2:
            outer = self._chance.choice(inside)
            equality = self._equality([outer], (alias, table))
            inside.append((alias, table))
            inner = f"SELECT {alias}.* FROM {table} {alias} WHERE {equality}"
            side = self._chance.choice(["CROSS JOIN LATERAL ({}) {}", "LEFT JOIN LATERAL ({}) {} ON true"])
            return f"{text} {side.format(inner, alias)}"
        equality = self._equality(inside, (alias, table))
        inside.append((alias, table))
        if kind < 0.3 and table == "orders":
            other = self._alias()
            inside.append((other, "lines"))
            nested = f"({table} {alias} JOIN lines {other} ON {other}.order_id = {alias}.id)"
            return f"{text} LEFT JOIN {nested} ON {equality}"
        extra = f" {self._chance.choice(['AND', 'AND', 'OR'])} {self._condition(inside)}" if self._is(0.25) else ""
        side = self._chance.choice(["JOIN", "JOIN", "LEFT JOIN"])
        return f"{text} {side} {table} {alias} ON {equality}{extra}"

    def _derived(self, text: str, inside: list[tuple[str, str]]) -> str:
        alias, inner = self._alias(), self._alias()
        table = self._chance.choice(list(COLUMNS))
        column = self._chance.choice(COLUMNS[table]["int"])
        outer, outer_table = self._chance.choice(inside)
        of_outer = self._chance.choice(COLUMNS[outer_table]["int"])
        inside.append((alias, "derived"))
        body = f"SELECT {inner}.{column} AS k, count(*) AS n FROM {table} {inner}"
        body += f"{self._simple_where(table, inner)} GROUP BY 1"
        side = self._chance.choice(["JOIN", "LEFT JOIN"])
        return f"{text} {side} ({body}) {alias} ON {alias}.k = {outer}.{of_outer}"

    # ---- conditions

    def _where(self, inside: list[tuple[str, str]]) -> str:
        parts = [self._condition(inside) for _ in range(self._chance.choice([0, 0, 1, 1, 2]))]
        if not parts:
            return ""
        return " WHERE " + f" {self._chance.choice(['AND', 'AND', 'AND', 'OR'])} ".join(parts)

    def _condition(self, inside: list[tuple[str, str]]) -> str:
        kind = self._chance.random()
        alias, table = self._chance.choice(inside)
        number = self._column(alias, table, "int")
        if kind < 0.2:
            return f"{number} {self._chance.choice(['<', '>', '<>', '='])} {self._chance.randint(1, 6)}"
        if kind < 0.3:
            return f"{number} IS {self._chance.choice(['NULL', 'NOT NULL'])}"
        if kind < 0.38:
            return f"NOT ({self._condition(inside)})"
        if kind < 0.45:
            return f"({self._condition(inside)} {self._chance.choice(['AND', 'OR'])} {self._condition(inside)})"
        inner, inner_table = self._table()
        column = self._chance.choice(COLUMNS[inner_table]["int"])
        if kind < 0.6:
            where = self._simple_where(inner_table, inner)
            is_in = self._chance.choice(["IN", "NOT IN"])
            return f"{number} {is_in} (SELECT {inner}.{column} FROM {inner_table} {inner}{where})"
        if kind < 0.85:
            equality = self._equality([(alias, table)], (inner, inner_table))
            more = f" AND {self._condition([*inside, (inner, inner_table)])}" if self._is(0.4) else ""
            is_not = self._chance.choice(["", "NOT "])
            return f"{is_not}EXISTS (SELECT 1 FROM {inner_table} {inner} WHERE {equality}{more})"
        other, other_table = self._chance.choice(inside)
        return f"{number} = {self._column(other, other_table, 'int')}"

    def _simple_where(self, table: str, alias: str = "") -> str:
        if not self._is(0.4):
            return ""
        column = self._chance.choice(COLUMNS[table]["int"])
        place = f"{alias}.{column}" if alias else column
        return f" WHERE {place} {self._chance.choice(['<', '>', '<>'])} {self._chance.randint(1, 6)}"

    def _equality(self, inside: list[tuple[str, str]], new: tuple[str, str]) -> str:
        alias, table = new
        found = [
            f"{alias}.{mine} = {known}.{other}"
            for known, known_table in inside
            for one, first, two, second in EQUAL
            for mine_table, mine, other_table, other in ((one, first, two, second), (two, second, one, first))
            if mine_table == table and other_table == known_table
        ]
        known, known_table = self._chance.choice(inside)
        if not found or self._is(0.1):
            found = [f"{self._column(alias, table, 'int')} = {self._column(known, known_table, 'int')}"]
        text = self._chance.choice(found)
        if self._is(0.1):
            left, _, right = text.partition(" = ")
            return (
                self._chance.choice([f"{right} = {left}", f"({left}) = {right}", f"{left} + 0 = {right}"])
                if "region" not in text and "name" not in text and "sku" not in text
                else text
            )
        return text

    # ---- values

    def _value(self, inside: list[tuple[str, str]]) -> str:
        kind = self._chance.random()
        alias, table = self._chance.choice(inside)
        if kind < 0.35 or table == "derived":
            return self._column(alias, table, "int")
        inner, inner_table = self._table()
        equality = self._equality([(alias, table)], (inner, inner_table))
        column = self._column(inner, inner_table, "int")
        more = f" AND {self._condition([*inside, (inner, inner_table)])}" if self._is(0.4) else ""
        if kind < 0.6:
            return f"(SELECT count(*) FROM {inner_table} {inner} WHERE {equality}{more})"
        if kind < 0.66:
            again, again_table = self._table()
            same = self._equality([(alias, table)], (again, again_table))
            operation = self._chance.choice(["UNION", "UNION ALL", "EXCEPT"])
            rows = (
                f"SELECT {column} AS v FROM {inner_table} {inner} WHERE {equality}{more} {operation} "
                f"SELECT {self._column(again, again_table, 'int')} FROM {again_table} {again} WHERE {same}"
            )
            return f"(SELECT jsonb_agg(x.v ORDER BY x.v) FROM ({rows}) x)"
        if kind < 0.75:
            nested = self._value([*inside, (inner, inner_table)]) if self._is(0.5) else column
            return f"(SELECT max(({nested})::text) FROM {inner_table} {inner} WHERE {equality}{more})"
        if kind < 0.9:
            return (
                f"(SELECT jsonb_agg(x.v ORDER BY x.v) FROM (SELECT {column} AS v FROM {inner_table} {inner} "
                f"WHERE {equality}{more} ORDER BY {column} LIMIT 2) x)"
            )
        smallest = f"SELECT min({column}) FROM {inner_table} {inner} WHERE {equality}{more}"
        return f"coalesce(({smallest}), {self._column(alias, table, 'int')})"

    def _aggregate(self, inside: list[tuple[str, str]]) -> str:
        alias, table = self._chance.choice(inside)
        column = self._column(alias, table, "int")
        filter_ = f" FILTER (WHERE {self._condition(inside)})" if self._is(0.2) else ""
        return (
            self._chance.choice(
                ["count(*)", f"count({column})", f"sum({column})", f"max({column})", f"count(DISTINCT {column})"]
            )
            + filter_
        )

    def _key_of_group(self, inside: list[tuple[str, str]]) -> str:
        alias, table = self._chance.choice(inside)
        kind = self._chance.choice(["int", "int", "text"])
        column = self._column(alias, table, kind if COLUMNS.get(table, {}).get(kind) else "int")
        if self._is(0.2):
            return f"coalesce({column}::text, '-')"
        return column

    def _column(self, alias: str, table: str, kind: str) -> str:
        if table == "derived":
            return f"{alias}.{self._chance.choice(['k', 'n'])}"
        return f"{alias}.{self._chance.choice(COLUMNS[table][kind])}"

    def _table(self) -> tuple[str, str]:
        return self._alias(), self._chance.choice(list(COLUMNS))

    def _alias(self) -> str:
        self._aliases += 1
        return f"a{self._aliases}"

    def _is(self, probability: float) -> bool:
        return self._chance.random() < probability
