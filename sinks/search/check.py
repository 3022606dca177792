"""Findings of `cdc check` about a search index, before anything is written."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final

from cdc.config.stores import SearchConfig
from cdc.model.events import TableId, TableSchema
from cdc.model.findings import Finding
from sinks.check import ONE_ATTEMPT, held
from sinks.errors import SinkError
from sinks.search.product import Product, supported_versions
from sinks.search.server import SearchServer
from sinks.search.sink import SearchSink

_DISK: Final = "cluster.routing.allocation.disk."
_UNITS: Final = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "pb": 1 << 50}
# Limits for large disks, of which 5 % are much: in bytes, all three or none.
_LIMITS_IN_BYTES: Final = (
    f'PUT /_cluster/settings {{"persistent": {{"{_DISK}watermark.low": "3gb", "{_DISK}watermark.high": "2gb", '
    f'"{_DISK}watermark.flood_stage": "1gb"}}}}'
)


def search_findings(name: str, section: SearchConfig, prefix: str, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
    """Yields the findings. `schemas`: of the tables as the index gets them. Raises SinkError for a server that can't be
    used."""
    about = f"store {name}"
    with closing(SearchSink.open(section, prefix, ONE_ATTEMPT, name)) as sink:
        yield _product(about, sink.server.product)
        yield Finding(about, "ok", held(sink.generation))
        owners: dict[str, TableId] = {}
        for schema in schemas:
            try:
                names = sink.check(schema)
            except SinkError as error:
                yield Finding.failed(about, error)
                continue
            other = next((owners[one] for one in names if one in owners), None)
            if other is not None:
                yield Finding(
                    about,
                    "fail",
                    f"tables {other} and {schema.table} would share the index {names[0]} or the alias {names[1]}",
                    f"set another index or alias for one of them in shapes of the sink {name}",
                )
            owners |= dict.fromkeys(names, schema.table)
        yield from _disks(about, sink.server)


def _product(about: str, product: Product) -> Finding:
    if product.is_supported:
        return Finding(about, "ok", f"{product} answers")
    return Finding(
        about,
        "warn",
        f"{product} answers, which is not among the supported versions ({supported_versions()})",
        "nothing to do if the sink works; otherwise use one of these versions",
    )


def _disks(about: str, server: SearchServer) -> Iterator[Finding]:
    """Yields a finding for each node whose disk is so full that its indexes take no writes."""
    try:
        settings = server.call(lambda client: client.cluster.get_settings(include_defaults=True, flat_settings=True))
        nodes = server.call(lambda client: client.nodes.stats(metric="fs"))["nodes"].values()
    except SinkError:
        return  # a user that may write indexes need not be permitted to see these
    known: dict[str, Any] = {}
    for kind in ("defaults", "persistent", "transient"):
        known |= settings.get(kind, {})
    limit = known.get(f"{_DISK}watermark.flood_stage")
    if limit is None or str(known.get(f"{_DISK}threshold_enabled", "true")) != "true":
        return
    for node in nodes:
        disk = node["fs"]["total"]
        if disk.get("total_in_bytes") and disk["available_in_bytes"] < _free_bytes_min(limit, disk["total_in_bytes"]):
            yield Finding(
                about,
                "fail",
                f"the disk of node {node['name']} has {disk['available_in_bytes']:,} free bytes, which is beyond the "
                f"watermark flood_stage ({limit}): its indexes become read-only",
                f"free space on it or add a node; for a large disk, limits in bytes can help: {_LIMITS_IN_BYTES}",
            )


def _free_bytes_min(limit: str, total_bytes: int) -> float:
    """Returns how many bytes must be free, from a limit such as 95%, 0.95 or 1gb."""
    text = limit.strip().lower()
    if text.endswith("%"):
        return (1 - float(text[:-1]) / 100) * total_bytes
    number = text.rstrip("bkmgtp")
    unit = text[len(number) :]
    return float(number) * _UNITS[unit] if unit else (1 - float(number)) * total_bytes
