"""The tables that a sink has made in a warehouse, and their removal with their files."""

import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceNotEmptyError, NoSuchNamespaceError, NoSuchTableError

from cdc.config.stores import WarehouseConfig
from cdc.model.events import TableId
from sinks.errors import SinkError
from sinks.warehouse.catalog import CatalogPlace, catalog_place
from sinks.warehouse.properties import DELETED_KEYS, GENERATION, listed_tables

Name = tuple[str, ...]


def warehouse_contents(
    section: WarehouseConfig, prefix: str, tables: Collection[TableId], *, removes: bool
) -> list[str]:
    """Returns the names of the sink's tables, which say in their properties that they are; with `removes`, they are
    dropped with all their files, histories too. Tables that somebody else made stay, and their namespaces. Raises
    SinkError."""
    del tables
    place = catalog_place(section, prefix)
    if not place.is_there():
        return []
    try:
        with place.opened() as catalog:
            namespaces = [found for root in _roots(catalog, place) for found in _below(catalog, root)]
            found = [name for namespace in namespaces for name in catalog.list_tables(namespace)]
            own = [name for name in found if _is_own(catalog, name)]
            if removes:
                for name in own:
                    _remove(catalog, place, name)
                for namespace in reversed(namespaces):
                    with suppress(NamespaceNotEmptyError, NoSuchNamespaceError):
                        catalog.drop_namespace(namespace)
            return [".".join(name) for name in own]
    except NoSuchNamespaceError:  # the catalog's database has no tables yet
        return []
    except OSError as error:
        raise SinkError(
            f"warehouse: files can't be removed: {error.strerror or type(error).__name__}",
            "give this user the right to delete them, then run the same command again",
        ) from error


def _roots(catalog: Catalog, place: CatalogPlace) -> list[Name]:
    """Returns the sink's namespace, and those of generations that rebuilds have left. A catalog without namespaces in
    namespaces has a database for each schema of the source instead; the sink's own is known from its list of tables."""
    namespace = place.namespace
    if place.is_flat:
        with suppress(NoSuchNamespaceError):
            tables = listed_tables(catalog.load_namespace_properties((namespace,)))
            names = [place.place(table) for table in tables]
            return [*dict.fromkeys(one[:-1] for name in names for one in (name.rows, name.deleted)), (namespace,)]
        return []
    slot = re.compile(re.escape(namespace) + r"__g\d+")
    others = [one for one in catalog.list_namespaces() if len(one) == 1 and slot.fullmatch(one[0])]
    return [(namespace,), *others]


def _below(catalog: Catalog, namespace: Name) -> Iterator[Name]:
    """Yields the namespace and those in it, each before those below it."""
    try:
        inner = catalog.list_namespaces(namespace)
    except NoSuchNamespaceError:
        return
    yield namespace
    for one in inner:
        yield from _below(catalog, one)


def _is_own(catalog: Catalog, name: Name) -> bool:
    """Says whether the sink made the table. One whose metadata is gone is in the catalog's list only."""
    try:
        noted = catalog.load_table(name).properties
    except (NoSuchTableError, FileNotFoundError):
        return True
    return GENERATION in noted or DELETED_KEYS in noted


def _remove(catalog: Catalog, place: CatalogPlace, name: Name) -> None:
    try:
        location = catalog.load_table(name).location()
        catalog.purge_table(name)
    except FileNotFoundError:
        catalog.drop_table(name)
        return
    parts = urlsplit(location)
    # Of a folder of this machine also what no snapshot names any more.
    if parts.scheme == "file" and location.startswith(place.location.rstrip("/") + "/"):
        shutil.rmtree(Path(unquote(parts.path)), ignore_errors=True)
