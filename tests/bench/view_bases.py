"""Measures stores for the tables of a view. Each gets the same changes of a shop's customers, orders and order lines,
and computes the nested documents of the customers that they concern: PostgreSQL as it is shipped, Redis with sets as
indexes, and Spark SQL over Iceberg tables.

    python -m tests.bench.view_bases --json
    python -m tests.bench.view_bases --sizes 500 --counts 1 100 --rounds 5 --bases postgresql redis

A round's time is that from the beginning of the write until all documents are computed; nothing is written to a
target. Every document is compared with one that Python computes from the same changes. The benchmark starts its own
servers in a temporary folder, one base after the other. The last line of standard output is one JSON object.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from rich.console import Console

from tests.bench.snapshot import percentile
from tests.bench.view_bases_postgresql import PostgresqlBase
from tests.bench.view_bases_redis import RedisBase
from tests.bench.view_bases_rounds import SHARES, measure
from tests.bench.view_bases_shop import Shop
from tests.bench.view_bases_spark import IcebergBase, empty_batches, session
from watershed.devstack.stack import Stack

BASES: Final = ("postgresql", "redis", "iceberg")
Open = Callable[[int], Any]  # an empty base for so many customers, which `close` ends


@contextmanager
def postgresql(folder: Path) -> Iterator[Open]:
    with Stack(folder / "stack", given={}) as stack:
        endpoints = stack.start("postgres")

        def open_base(size: int) -> PostgresqlBase:
            name = f"base_{size}"
            superuser = make_conninfo(endpoints.superuser_dsn, dbname="watershed")
            with psycopg.connect(superuser, autocommit=True) as connection:
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER watershed").format(sql.Identifier(name)))
            return PostgresqlBase(make_conninfo(endpoints.dsn, dbname=name))

        yield open_base


@contextmanager
def in_redis(folder: Path) -> Iterator[Open]:
    with Stack(folder / "stack", given={}) as stack:
        url = stack.start("redis").redis_url
        yield lambda _: RedisBase(url)


@contextmanager
def iceberg(folder: Path) -> Iterator[Open]:
    with session() as spark:

        def open_base(size: int) -> IcebergBase:
            place = folder / str(size)
            place.mkdir()
            return IcebergBase(spark, place)

        yield open_base


OPENERS: Final = {"postgresql": postgresql, "redis": in_redis, "iceberg": iceberg}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 20_000], help="numbers of customers")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 10, 100, 1000], help="changes in a round")
    parser.add_argument("--rounds", type=int, default=40, help="that are measured for each number of changes")
    parser.add_argument("--spark-rounds", type=int, default=8, help="the same for Iceberg, where a round takes seconds")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=BASES, help="that are measured")
    parser.add_argument("--json", action="store_true", help="print no progress")
    arguments = parser.parse_args()
    console = Console(stderr=True, quiet=arguments.json)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="watershed-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may run under another account than ours
        for kind in arguments.bases:
            rounds = arguments.spark_rounds if kind == "iceberg" else arguments.rounds
            place = folder / kind
            place.mkdir()
            with OPENERS[kind](place) as open_base:
                for size in arguments.sizes:
                    with closing(open_base(size)) as base:
                        values = measure(base, Shop(size), arguments.counts, rounds)
                    found.setdefault(kind, {})[f"customers_{size}"] = values
                    console.print(kind, size, values, highlight=False)
        if "iceberg" in arguments.bases:
            with session() as spark:
                times = sorted(empty_batches(spark, folder))
            found["empty_batch_ms"] = {name: round(percentile(times, share) * 1000) for name, share in SHARES.items()}
            console.print("empty micro-batch", found["empty_batch_ms"], highlight=False)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
