"""Checks that a warehouse's catalog and location can be used, before a job uses them. Nothing is written."""

import os
from contextlib import suppress
from pathlib import Path

from pyiceberg.exceptions import NoSuchNamespaceError

from cdc.config.warehouse_catalog import is_s3
from sinks.errors import SinkError
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.object_store import file_system


def check_place(place: CatalogPlace) -> str:
    """Returns where the tables will be. Raises SinkError where the catalog does not answer, or the location can't be
    written (a folder) or read (an object store)."""
    folders = [] if place.database is None else [place.database.parent]
    if place.location.startswith("file://"):
        folders.append(Path(place.location.removeprefix("file://")))
    for folder in folders:
        _check_folder(folder)
    if is_s3(place.location):
        _check_bucket(place)
    if place.catalog is None:
        return place.location
    # A catalog on PostgreSQL has no tables of its own before the first job.
    with suppress(NoSuchNamespaceError), place.opened() as catalog:
        catalog.list_namespaces()
    return f"{place.location}, in the {place.catalog.type} catalog"


def _check_folder(folder: Path) -> None:
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise SinkError(
            f"warehouse: {folder} can't be written: {existing} is not a folder that this user may write to",
            f"mkdir -p {folder}, and give it to the user that runs `cdc sink run`",
        )


def _check_bucket(place: CatalogPlace) -> None:
    bucket = place.location.partition("://")[2].partition("/")[0]
    try:
        system, _ = file_system(place.location, place.s3)
        is_there = system.get_file_info(bucket).type.name == "Directory"
    except OSError as error:
        reason = (str(error).splitlines() or [""])[0]
        raise SinkError(
            f"warehouse: the object store of bucket {bucket} does not answer as expected: {reason}",
            "check the sink's s3: endpoint, region, path_style and keys",
        ) from error
    if not is_there:
        raise SinkError(f"warehouse: there is no bucket {bucket}", "create it, or correct the sink's location")
