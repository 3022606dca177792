"""What a store's table, and a topic, are called in OpenLineage: the namespace of the server, and a name in it.

The names follow OpenLineage's naming conventions for Kafka, PostgreSQL, files and S3. There is none for search indexes
and Redis, whose names are made alike.
"""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig, StoreConfig, WarehouseConfig
from cdc.model.events import TableId
from sinks.places import reader_names


class Dataset(NamedTuple):
    namespace: str
    name: str


def topic_dataset(bootstrap_servers: str, topic: str) -> Dataset:
    """Returns a topic's name. Of several brokers the first one counts."""
    return Dataset(f"kafka://{_host(bootstrap_servers.partition(',')[0].strip(), 9092)}", topic)


def store_dataset(section: StoreConfig, prefix: str, table: TableId) -> Dataset:
    """Returns what readers of the store call the table. `prefix`: the topic prefix. Raises RefusedError for a table
    that the store can't name."""
    names = reader_names(section, prefix, table)
    match section:
        case SearchConfig():
            return Dataset(f"opensearch://{_host(section.addresses[0], 9200)}", names["alias"])
        case CacheConfig():
            return Dataset(f"redis://{_host(section.url.get_secret_value(), 6379)}", names["key"])
        case SqlConfig():
            return _sql(section.url.get_secret_value(), names["table"])
        case WarehouseConfig():
            return _file(f"{section.location.rstrip('/')}/{names['table'].replace('.', '/')}")
    return Dataset(section.type, str(table))


def _sql(url: str, table: str) -> Dataset:
    path = unquote(urlsplit(url).path)
    if url.startswith("sqlite"):
        return _file(f"{path.removeprefix('/')}/{table}")
    qualified = table if "." in table else f"public.{table}"
    return Dataset(f"postgres://{_host(url, 5432)}", f"{path.strip('/')}.{qualified}")


def _file(location: str) -> Dataset:
    scheme, separator, rest = location.partition("://")
    if not separator:
        return Dataset("file", str(Path(location.removeprefix("file:")).absolute()))
    authority, _, path = rest.partition("/")
    if scheme == "file":
        return Dataset("file", f"/{path}")
    return Dataset(f"{'s3' if scheme == 's3a' else scheme}://{authority}", path)


def _host(address: str, default_port: int) -> str:
    """Returns host and port of an address; user and password are left out. Of several hosts the first one counts."""
    first = address.rpartition("://")[2].partition("/")[0].rpartition("@")[2].partition(",")[0]
    try:
        parts = urlsplit(f"//{first}")
        name, port = parts.hostname or "localhost", parts.port or default_port
    except ValueError:  # an unquoted password may be in it: it is not shown
        return f"unknown:{default_port}"
    return f"{f'[{name}]' if ':' in name else name}:{port}"
