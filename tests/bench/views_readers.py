"""The targets in which `tests.bench.views` keeps nested documents, and plain clients that read one of them."""

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from opensearchpy import OpenSearch

from tests.support.captured import Captured
from watershed.devstack.endpoints import Endpoints

VIEW: Final = "documents"

ReadDocument = Callable[[int], str]  # the document of this id as text; empty if there is none


def target(kind: str, endpoints: Endpoints, folder: Path) -> dict[str, Any]:
    """Returns the section of the view's target."""
    if kind == "search":
        return {"type": "search", "url": endpoints.opensearch_url}
    return {
        "type": "warehouse",
        "catalog_uri": f"jdbc:sqlite:{folder}/lake/catalog.db",
        "location": f"{folder}/lake/tables",
    }


def _from_search(endpoints: Endpoints, captured: Captured) -> ReadDocument:
    search, index = OpenSearch(endpoints.opensearch_url), f"{captured.name}_{VIEW}.views.{VIEW}"
    return lambda key: json.dumps(search.get(index=index, id=str(key), ignore=404))


def _from_warehouse(_: Endpoints, captured: Captured) -> ReadDocument:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.expressions import EqualTo

    lake = captured.folder / "lake"

    def read(key: int) -> str:
        database, tables = f"sqlite:///{lake}/catalog.db", (lake / "tables").as_uri()
        with closing(SqlCatalog("watershed", uri=database, warehouse=tables, init_catalog_tables="false")) as catalog:
            table = catalog.load_table((f"{captured.name}_{VIEW}", "views", VIEW))
            return str(table.scan(row_filter=EqualTo(term="id", value=key)).to_arrow().to_pylist())

    return read


READERS: Final[Mapping[str, Callable[[Endpoints, Captured], ReadDocument]]] = {
    "search": _from_search,
    "warehouse": _from_warehouse,
}
