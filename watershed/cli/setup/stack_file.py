"""The configuration for the servers of `cdc stack`, and the writing of new files."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from cdc.model.errors import ConfigError
from watershed.cli.setup.new_file import yaml_text
from watershed.devstack.endpoints import VARIABLES

EXAMPLE_TABLE: Final = "public.orders"


def stack_configuration(addresses: Mapping[str, str], given: Collection[str], tables: Sequence[str]) -> str:
    """Returns YAML. `addresses`: by service. `given`: services that the environment names, whose addresses may hold
    passwords: the file names the variable instead. `tables`: what can be captured now; none: an example."""
    found = {
        service: '"${' + VARIABLES[service] + '}"' if service in given else yaml_text(address)
        for service, address in addresses.items()
    }
    lines = [
        "# Written by `cdc stack up --write-config`. `cdc config schema` lists all keys.",
        "source:",
        f"  dsn: {found['postgres']}",
        "  tables:",
        *(f"    - {yaml_text(table)}" for table in tables),
    ]
    if not tables:
        lines.append(f"    - {EXAMPLE_TABLE}  # the database has no table with a key yet: create it, or name others")
    lines += [
        "kafka:",
        f"  bootstrap_servers: {found['kafka']}",
        "topics:",
        "  prefix: shop",
        "  replication_factor: 1",
        "sinks:                         # cdc sink run NAME…",
    ]
    if "opensearch" in found:
        lines += ["  search:", f"    url: {found['opensearch']}"]
    if "redis" in found:
        lines += ["  cache:", f"    url: {found['redis']}"]
    lines += [
        "  warehouse:",
        "    catalog_uri: jdbc:sqlite:.watershed/warehouse/catalog.db",
        "    location: .watershed/warehouse/tables",
    ]
    return "\n".join(lines) + "\n"


def require_new(file: Path, other: str) -> None:
    """Raises ConfigError for a file that exists. `other`: how to name another one."""
    if file.exists():
        raise ConfigError(f"{file} exists and is not overwritten", f"name {other}, or remove it")


def write_new(file: Path, text: str) -> None:
    """Raises ConfigError if the file exists or can't be written."""
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise ConfigError(f"can't write {file}: {error.strerror}", "name a file in a folder that exists") from error
