"""The comparison at the end: every row and column of each store's tables with the source."""

from collections.abc import Callable
from contextlib import closing

from cdc.config.config_file import Config
from cdc.model.errors import WatershedError
from watershed.demo.stores import STORES, stored_rows
from watershed.verify.comparison import SourceRows, compare
from watershed.verify.model import TableResult
from watershed.verify.table_rows import TableReader
from watershed.verify.verifier import table_lineages


def compare_stores(
    config: Config, see_log: Callable[[], str], show: Callable[[str], None]
) -> dict[str, list[TableResult]]:
    """Compares each store's tables with the source, which is read once, in one transaction. `see_log`: what to read if
    a table was not captured; `show` gets the phase.
    """
    lineages = table_lineages(config)
    found: dict[str, list[TableResult]] = {store: [] for store in STORES}
    with closing(TableReader(config.source)) as reader:
        for table in config.source.stored_table_ids:
            if table not in lineages:
                raise WatershedError(f"the control topic has no schema of {table}", see_log())
            shape = reader.shape(table)
            with SourceRows(table, shape.columns, shape.key, reader.rows(shape)) as source:
                for store in STORES:
                    show(f"comparing {table} with the {store}")
                    rows = stored_rows(store, config, lineages[table])
                    found[store].append(compare(store, source, rows, added=lineages[table].added))
    return found
