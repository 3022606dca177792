"""Measures the rate at which a store takes the same rows from its plain client, in bulk, without the guard by
version.
"""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, LiteralString

PIPELINE_ROWS: Final = 1000
BULK_ROWS: Final = 2000
_FIELDS: Final = {"amount": {"type": "double"}}  # others have them by themselves


PLAIN_TABLE: LiteralString = """
CREATE TABLE IF NOT EXISTS plain (
  id bigint PRIMARY KEY, customer_id int, status text, amount numeric, note text, is_gift boolean,
  changed_at timestamptz, counter int, city text, country text
)
"""
PLAIN_UPSERT: LiteralString = """
INSERT INTO plain SELECT * FROM json_populate_recordset(NULL::plain, %s)
ON CONFLICT (id) DO UPDATE SET (customer_id, status, amount, note, is_gift, changed_at, counter, city, country) =
  (EXCLUDED.customer_id, EXCLUDED.status, EXCLUDED.amount, EXCLUDED.note, EXCLUDED.is_gift, EXCLUDED.changed_at,
   EXCLUDED.counter, EXCLUDED.city, EXCLUDED.country)
"""


def document(number: int) -> dict[str, Any]:
    """Returns a row of the benchmark's table in the form in which a sink stores it."""
    return {
        "id": number,
        "customer_id": number % 9973,
        "status": ("new", "paid", "packed", "shipped")[number % 4],
        "amount": f"{number % 500000 / 100:.2f}",
        "note": f"a note of some words {number:032x}",
        "is_gift": number % 3 == 0,
        "changed_at": "2026-01-01T00:00:00Z",
        "counter": 0,
        "city": f"city {number % 997}",
        "country": "NL",
    }


def _parts(rows: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def write_redis(url: str, rows: Sequence[int]) -> None:
    """Writes by pipelines of HSET with redis-py."""
    import redis

    client = redis.Redis.from_url(url)
    for part in _parts(rows, PIPELINE_ROWS):
        pipeline: Any = client.pipeline(transaction=False)
        for number in part:
            text = json.dumps(document(number), separators=(",", ":"))
            pipeline.hset(f"plain:public.orders:{number}", mapping={"v": f"{number:019d}", "doc": text})
        pipeline.execute()


def write_postgresql(url: str, rows: Sequence[int]) -> None:
    """Writes by INSERT statements of 1,000 rows that replace the rows of the same key, a transaction each."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PLAIN_TABLE)
        for part in _parts(rows, PIPELINE_ROWS):
            connection.execute(PLAIN_UPSERT, (json.dumps([document(number) for number in part]),))


def write_opensearch(url: str, rows: Sequence[int]) -> None:
    """Writes by `_bulk` requests with opensearch-py, without a refresh."""
    from opensearchpy import OpenSearch

    # A server whose heap is full for a moment answers 429.
    client = OpenSearch(url, timeout=60, max_retries=20, retry_on_status=(429,))
    # The server makes no index by itself; this one may be there. Fields get the types that the sink's index has.
    client.indices.create(index="plain", body={"mappings": {"properties": _FIELDS}}, params={"ignore": 400})
    for part in _parts(rows, BULK_ROWS):
        lines = (
            line
            for number in part
            for line in (json.dumps({"index": {"_id": str(number)}}), json.dumps(document(number)))
        )
        answer = client.bulk(body="\n".join(lines) + "\n", index="plain")
        assert not answer["errors"]


def write_iceberg(folder: str, rows: Sequence[int]) -> None:
    """Appends 100,000 rows at a time with PyIceberg: files and a commit each, without looking up keys."""
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("plain", uri=f"sqlite:///{folder}/plain.db", warehouse=f"file://{folder}/plain")
    catalog.create_namespace_if_not_exists("plain")
    table: Any = None
    for part in _parts(rows, 100_000):
        data = pa.Table.from_pylist([document(number) for number in part])
        table = table or catalog.create_table_if_not_exists("plain.orders", schema=data.schema)
        table.append(data)
    catalog.close()


def rows_per_second(write: Callable[[str, Sequence[int]], None], address: str, rows: int, processes: int) -> float:
    """Returns the rate of `processes` clients that share the rows. Their start is not counted."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes + 1)
    parts = [range(number, rows, processes) for number in range(processes)]
    clients = [context.Process(target=_client, args=(write, address, part, ready)) for part in parts]
    for client in clients:
        client.start()
    ready.wait(60)
    begun = time.monotonic()
    for client in clients:
        client.join()
    assert all(client.exitcode == 0 for client in clients)
    return rows / (time.monotonic() - begun)


def _client(write: Callable[[str, Sequence[int]], None], address: str, rows: Sequence[int], ready: Any) -> None:
    if write is not write_iceberg:
        write(address, rows[:1])  # connects
    ready.wait(60)
    write(address, rows)
