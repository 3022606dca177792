"""Measures the rows per second of decoding and encoding in one process, in comparison with the plain path of the tests
(whole messages, dicts, json.dumps). Run: python -m tests.bench.codec [seconds for each shape]

Rows are narrow: ten columns of common types, 100 rows in a transaction. Both paths alternate on the same messages, so
that a busy machine slows both.
"""

import sys
import time
from collections.abc import Callable, Sequence

from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.model.events import Column
from cdc.pgoutput.messages import NULL, TupleValue
from tests.property.oracle import Oracle
from tests.support import wire

ROWS_PER_TRANSACTION = 100
TRANSACTIONS = 20
OID = 16385
FRAME = 25  # XLogData header

COLUMNS = (
    Column("id", 20, -1, "bigint", False),
    Column("customer_id", 23, -1, "integer", False),
    Column("status", 16500, -1, "order_status", False, "e"),
    Column("email", 25, -1, "text", False),
    Column("note", 25, -1, "text", True),
    Column("total", 1700, 786438, "numeric(12,2)", False),
    Column("weight", 701, -1, "double precision", True),
    Column("gift", 16, -1, "boolean", True),
    Column("placed_at", 1184, -1, "timestamp with time zone", False),
    Column("due", 1082, -1, "date", True),
)
CONTEXT = EnvelopeContext("shop", "shop", 1, "0.1.0")


def row(i: int, *, plain: bool) -> list[TupleValue]:
    values: list[str | None] = [
        str(1_000_000 + i),
        str(i % 977),
        ("new", "paid", "packed", "shipped")[i % 4],
        f"customer{i % 977}@example.com",
        "left at the neighbour's door" if plain else (None, 'says "ring twice"', "Grüße, und läuten")[i % 3],
        f"{i % 5000}.{i % 100:02}",
        f"{i % 90}.25",
        "t" if i % 3 else "f",
        f"2026-01-{i % 28 + 1:02} 12:{i % 60:02}:07.{i % 899999 + 100001}+00",
        f"2026-02-{i % 28 + 1:02}",
    ]
    return [wire.text(value) for value in values]


def frames(make: Callable[[int], bytes]) -> list[bytes]:
    return [wire.xlog_data(make(i), 24_026_000 + 200 * i) for i in range(ROWS_PER_TRANSACTION * TRANSACTIONS)]


def key_only(values: Sequence[TupleValue]) -> list[TupleValue]:
    return [values[0], *[NULL] * (len(values) - 1)]


SHAPES: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "insert": ("d", lambda i: wire.insert(OID, row(i, plain=True))),
    "insert, nulls and quotes": ("d", lambda i: wire.insert(OID, row(i, plain=False))),
    "update": ("d", lambda i: wire.update(OID, row(i, plain=True))),
    "update, key moved": ("d", lambda i: wire.update(OID, row(i, plain=True), key_only(row(i + 1, plain=True)))),
    "update FULL": ("f", lambda i: wire.update(OID, row(i, plain=True), row(i, plain=True), b"O")),
    "delete": ("d", lambda i: wire.delete(OID, key_only(row(i, plain=True)))),
}


def run_stream(encoder: TableEncoder | Oracle, messages: Sequence[bytes], now_us: int) -> None:
    seq = 0
    for start in range(0, len(messages), ROWS_PER_TRANSACTION):
        encoder.start_transaction(24_026_100 + start, 1_767_323_079_990_123, 560, 24_025_000)
        for index, message in enumerate(messages[start : start + ROWS_PER_TRANSACTION]):
            for _, value, _ in encoder.encode(message, FRAME, 24_026_000, index, seq, now_us):
                seq += value is not None


def rates(
    fast: Callable[[int], None], plain: Callable[[int], None], row_count: int, seconds: float
) -> tuple[float, float]:
    """Returns the best rows per second of both paths, that of the least disturbed round."""
    best = [0.0, 0.0]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for i, run in enumerate((fast, plain)):
            began = time.process_time()
            run(time.time_ns() // 1000)
            best[i] = max(best[i], row_count / (time.process_time() - began))
    return best[0], best[1]


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    print(f"{'shape':28}{'rows/s':>10}{'plain path':>12}{'ratio':>8}")
    for name, (identity, make) in SHAPES.items():
        schema, relation = wire.schema_and_relation(COLUMNS, ["id"], identity=identity)
        encoder, oracle = TableEncoder(schema, relation, CONTEXT), Oracle(schema, relation, CONTEXT)
        messages = frames(make)
        fast, plain = rates(
            lambda now: run_stream(encoder, messages, now),  # noqa: B023
            lambda now: run_stream(oracle, messages, now),  # noqa: B023
            len(messages),
            seconds,
        )
        print(f"{name:28}{fast:>10,.0f}{plain:>12,.0f}{fast / plain:>8.1f}")
    schema, relation = wire.schema_and_relation(COLUMNS, ["id"])
    encoder, oracle = TableEncoder(schema, relation, CONTEXT), Oracle(schema, relation, CONTEXT)
    encoder.start_snapshot(24_026_100, 1_767_323_079_990_123)
    oracle.start_snapshot(24_026_100, 1_767_323_079_990_123)
    rows = [[None if v is NULL else v.decode() for v in row(i, plain=True)] for i in range(2000)]  # type: ignore[union-attr]
    lines = [wire.copy_line(values) for values in rows]

    def copy_fast(now_us: int) -> None:
        for i, line in enumerate(lines):
            encoder.copy_row(line, 24_026_100, i, i, now_us)

    def copy_plain(now_us: int) -> None:
        for i, values in enumerate(rows):
            oracle.copy_row(values, 24_026_100, i, i, now_us)

    fast, plain = rates(copy_fast, copy_plain, len(lines), seconds)
    print(f"{'COPY row':28}{fast:>10,.0f}{plain:>12,.0f}{fast / plain:>8.1f}")


if __name__ == "__main__":
    main()
