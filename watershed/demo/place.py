"""The demo's folder and the configuration file in it."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from cdc.model.errors import ConfigError
from watershed.demo.rows import TABLES
from watershed.demo.shop_views import with_views
from watershed.demo.stores import SCHEMA
from watershed.devstack.endpoints import Endpoints
from watershed.devstack.state import LOCK_FILE, take_lock

PREFIX = "shop"
_MARKER = "made-by-cdc-demo"
_EVENT_TYPE = {"table.fields.additional.placement": "type:header:eventType"}


@contextmanager
def demo_folder(folder: Path) -> Iterator[Path]:
    """Locks and empties the demo's folder while it is used, and yields it. Files of an earlier demo are deleted. Raises
    ConfigError for a folder with other files, StackError while another demo uses it.
    """
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARKER).exists():
        raise ConfigError(f"{folder} has files that the demo did not create", "name another folder with --folder")
    lock = take_lock(folder)
    try:
        (folder / _MARKER).touch()
        for entry in folder.iterdir():
            if entry.name in (LOCK_FILE, _MARKER):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        (folder / "logs").mkdir()
        yield folder
    finally:
        lock.release()


def free_port(wanted: int) -> int:
    """Returns the wanted port if nobody has it, otherwise one that nobody has now."""
    for port in (wanted, 0):
        try:
            with socket.create_server(("127.0.0.1", port)) as listener:
                return int(listener.getsockname()[1])
        except OSError:
            continue
    raise ConfigError("no port of 127.0.0.1 is free", "end the programs that use them")


def write_config(folder: Path, endpoints: Endpoints, *, has_views: bool = False) -> Path:
    """Writes the configuration file with which capture and sinks are started. Users can use it, too, while the servers
    run.
    """
    content: dict[str, Any] = {
        "source": {
            "dsn": endpoints.dsn,
            "tables": [f"{SCHEMA}.{table}" for table in TABLES],
            "publication": PREFIX,
            "slot": PREFIX,
        },
        # Events of both kinds go to one topic; their type is in a header, where consumers expect it.
        "outbox": {"tables": [{"table": "cdc.outbox", **_EVENT_TYPE}], "messages": _EVENT_TYPE},
        "kafka": {"bootstrap_servers": endpoints.bootstrap_servers},
        "topics": {"prefix": PREFIX, "partitions": 2},
        "http": {"port": free_port(8480), "sink_port": free_port(8481), "view_port": free_port(8482)},
        "sinks": {
            "search": {"url": endpoints.opensearch_url},
            "cache": {"url": endpoints.redis_url},
            "warehouse": {
                "catalog_uri": f"jdbc:sqlite:{folder / 'warehouse' / 'catalog.db'}",
                "location": str(folder / "warehouse" / "tables"),
            },
        },
        # A batch of the warehouse takes seconds of processor for each table, whatever its size, so batches are rare.
        "spark": {"checkpoint_location": str(folder / "checkpoints"), "warehouse_trigger_ms": 20_000},
    }
    if has_views:
        content = with_views(content, endpoints)
    path = folder / "watershed.yml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    path.chmod(0o600)  # addresses may hold passwords
    return path
