"""Changes rows at a steady rate, and measures the time from a sampled commit until the store shows it."""

import time
from typing import Any, Final, LiteralString, NamedTuple

import psycopg

SAMPLE_S_MAX: Final = 60.0
POLL_S: Final = 0.01
UPDATE: LiteralString = "UPDATE {} SET counter = counter + 1, changed_at = now() WHERE id = %s"
MARK: LiteralString = "UPDATE {} SET note = %s, changed_at = now() WHERE id = %s"


READY_S_MAX = 900.0  # the load is warm, however long that was asked to take


def write_changes(dsn: str, tables: list[str], rows: int, rate: float, stop: Any, results: Any) -> None:
    """Commits changes of single rows, `rate` per second over all tables, until `stop` is set. Puts the actual rate into
    `results`.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        begun, count = time.monotonic(), 0
        while not stop.is_set():
            due = begun + count / rate - time.monotonic()
            if due > 0:
                time.sleep(due)
            statement = psycopg.sql.SQL(UPDATE).format(psycopg.sql.Identifier(tables[count % len(tables)]))
            connection.execute(statement, (1000 + count * 7919 % (rows - 1000),))
            count += 1
        results.put(("writer", count / (time.monotonic() - begun)))


class SampledRow(NamedTuple):
    """A row whose changes are timed, and the store that must show them."""

    store: str  # cache or search
    address: str
    prefix: str
    table: str
    key: int


def sample(dsn: str, row: SampledRow, ready: Any, stop: Any, results: Any) -> None:
    """Changes one row repeatedly, and waits each time until the store shows it. Puts the seconds of each wait, and the
    number of changes that did not appear, into `results`.
    """
    shows = reader(row)
    seconds: list[float] = []
    lost = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        statement = psycopg.sql.SQL(MARK).format(psycopg.sql.Identifier(row.table))
        ready.wait(READY_S_MAX)
        while not stop.is_set():
            mark = f"sample {time.time_ns()}"
            connection.execute(statement, (mark, row.key))
            committed = time.monotonic()
            while not shows(mark):
                if time.monotonic() - committed > SAMPLE_S_MAX:
                    lost += 1
                    break
                time.sleep(POLL_S)
            else:
                seconds.append(time.monotonic() - committed)
            time.sleep(0.02)
    results.put((f"{row.store} {row.key}", (seconds, lost)))


def reader(row: SampledRow) -> Any:
    """Returns a function that returns whether the store's row has this text as its note."""
    if row.store == "cache":
        import redis

        client = redis.Redis.from_url(row.address)
        return lambda mark: mark.encode() in (client.hget(f"{row.prefix}:public.{row.table}:{row.key}", "doc") or b"")
    from opensearchpy import OpenSearch

    search = OpenSearch(row.address)

    def shows(mark: str) -> bool:
        found = search.get(index=f"{row.prefix}.public.{row.table}", id=str(row.key), ignore=404)
        return bool(found.get("_source", {}).get("note") == mark)

    return shows
