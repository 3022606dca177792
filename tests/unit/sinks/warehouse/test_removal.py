"""The statement that removes rows of the warehouse, and its repetition."""

import pytest

from cdc.model.events import Column
from sinks.errors import SinkError
from sinks.warehouse.engine import Conflict
from sinks.warehouse.naming import TableLocation
from sinks.warehouse.removal import removal, remove

PLACE = TableLocation(rows=("shop", "public", "goods"), deleted=("shop", "public__deleted", "goods"))
KEY = [
    Column("id", 20, -1, "bigint", nullable=False),
    Column("name", 25, -1, "text", nullable=False),
    Column("at", 1184, -1, "timestamp with time zone", nullable=False),
]


class Engine:
    def __init__(self, conflicts: int) -> None:
        self.conflicts = conflicts
        self.statements: list[str] = []

    def table_properties(self, table: tuple[str, ...]) -> dict[str, str] | None:
        return {} if table == PLACE.rows else None

    def run(self, statement: str) -> None:
        self.statements.append(statement)
        if len(self.statements) <= self.conflicts:
            raise Conflict


def test_rows_are_named_by_key_and_version() -> None:
    key = {"id": 1, "name": "it's \\ ; DROP", "at": "2026-01-02T03:04:05Z"}
    assert removal(PLACE.rows, KEY, [(key, 7), (key | {"id": 2}, 8)]) == (
        "DELETE FROM `watershed`.`shop`.`public`.`goods` WHERE "
        r"(`id` = CAST('1' AS bigint) AND `name` = CAST('it\'s \\ ; DROP' AS string) AND "
        "`at` = CAST('2026-01-02T03:04:05Z' AS timestamp) AND ws_version = 7) OR "
        r"(`id` = CAST('2' AS bigint) AND `name` = CAST('it\'s \\ ; DROP' AS string) AND "
        "`at` = CAST('2026-01-02T03:04:05Z' AS timestamp) AND ws_version = 8)"
    )


def test_another_writers_commit_repeats_it() -> None:
    engine = Engine(2)
    remove(engine, PLACE, KEY[:1], [({"id": number}, 7) for number in range(201)])  # type: ignore[arg-type]
    assert len(engine.statements) == 4, "three attempts of the first 200 rows, one of the last"
    with pytest.raises(SinkError, match="other writers"):
        remove(Engine(1_000), PLACE, KEY[:1], [({"id": 1}, 7)])  # type: ignore[arg-type]
