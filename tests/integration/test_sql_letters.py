"""Seventeen rows of five kinds that a database refuses, among 10^5: they alone are dead letters, and are replayed."""

import json
import secrets
from pathlib import Path
from random import Random
from typing import Final

import psycopg
import pytest

from tests.conformance.stores import url_of
from tests.conftest import INTERPRETED, KafkaBroker, PostgresServer, new_database
from tests.support.captured import Captured, under_capture
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually

TABLE: Final = "CREATE TABLE things (id bigint PRIMARY KEY, amount int, label text, kind text, note text, size int)"
# What the owners of the target have added, and take back. The other two kinds are types of the configuration.
CONSTRAINTS: Final = """
CREATE TABLE kinds (name text PRIMARY KEY); INSERT INTO kinds VALUES ('a'), ('b');
ALTER TABLE public.things ADD CONSTRAINT kinds FOREIGN KEY (kind) REFERENCES kinds,
    ADD CONSTRAINT amounts CHECK (amount >= 0), ALTER label SET NOT NULL
"""
REMOVED: Final = "ALTER TABLE public.things DROP CONSTRAINT kinds, DROP CONSTRAINT amounts, ALTER label DROP NOT NULL"
POISON: Final = (
    "UPDATE things SET amount = -1 WHERE id = %s",
    "UPDATE things SET label = NULL WHERE id = %s",
    "UPDATE things SET kind = 'none' WHERE id = %s",
    "UPDATE things SET note = repeat('n', 30) WHERE id = %s",
    "UPDATE things SET size = 40000 WHERE id = %s",
)
REPAIR: Final = "UPDATE things SET note = 'short', size = 1 WHERE length(note) > 20 OR size > 32767"
ROWS: Final = 100_000
INSERT: Final = "INSERT INTO things SELECT n, n % 100, 'l' || n, 'a', 'note', 1 FROM generate_series(0, 99999) n"
POISONED: Final = 17
DEADLINE_S: Final = 240.0


@pytest.mark.long
def test_exactly_the_refused_rows_are_letters_until_they_are_replayed(
    postgres: PostgresServer, kafka: KafkaBroker, tmp_path: Path
) -> None:
    numbers = sorted(Random(17).sample(range(ROWS), POISONED))
    name = f"t{secrets.token_hex(5)}"
    with (
        new_database(postgres) as target,
        new_database(postgres) as dsn,
        under_capture(postgres, kafka, dsn, name, tmp_path, TABLE, ["public.things"]) as made,
        psycopg.connect(target, autocommit=True) as store,
    ):
        types = {"note": "varchar(20)", "size": "smallint"}
        made.settings = {
            "sinks": {"report": {"type": "sql", "url": url_of(target), "shapes": {"public.things": {"types": types}}}},
            "spark": {"checkpoint_location": str(tmp_path / "checkpoints"), "options": INTERPRETED},
        }
        made.start()
        with SinkJob(made.config(), "report", log_level="info") as job:
            made.await_caught_up()
            job.wait_applied(made.progress(), "report")
            store.execute(CONSTRAINTS)
            made.query(INSERT)
            for at, number in enumerate(numbers):
                made.query(POISON[at % len(POISON)], number)
            record = job.wait_applied(made.log_end(), "report", deadline_s=DEADLINE_S)["report"]
            # The row as it was inserted is there; its update is refused.
            assert (record.dead_letters, listed(made)) == (POISONED, numbers)
            assert difference(made, store) == numbers
            # Two kinds are put right in the source, the others in the target.
            made.query(REPAIR)
            store.execute(REMOVED)
            kept = [number for at, number in enumerate(numbers) if at % len(POISON) < 3]
            eventually(lambda: listed(made) == kept, DEADLINE_S, lambda: f"the others are closed: {listed(made)}")
            made.cdc("dlq", "replay", "report", "--table", "public.things")
            eventually(lambda: listed(made) == [], DEADLINE_S, lambda: f"no letter is open: {listed(made)}")
            assert difference(made, store) == []
            assert job.terminate()[0] == 0


def listed(made: Captured) -> list[int]:
    letters = json.loads(made.cdc("dlq", "list", "--json"))["dead_letters"]
    return sorted(int(letter["key"]["id"]) for letter in letters)


def difference(made: Captured, store: "psycopg.Connection[tuple[object, ...]]") -> list[int]:
    """The ids of rows that are not the same on both sides."""
    rows = "SELECT to_jsonb(t)::text, id FROM things t"
    source, held = dict(made.query(rows)), {str(text): key for text, key in store.execute(rows).fetchall()}
    return sorted({key for text, key in {**source, **held}.items() if (text in source) != (text in held)})
