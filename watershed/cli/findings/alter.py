"""Findings of `cdc check` about what ALTER TABLE costs: whether all rows are published again, and for whom."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from cdc.config.config_file import Config
from cdc.model.events import TableId
from cdc.model.findings import Finding

OPTION: Final = "snapshot.after_alter"
_SOME_COLUMN: Final = ""  # one that no mapping names
_CHANGES: Final = {
    "DROP COLUMN": ((_SOME_COLUMN,), ()),
    "ADD COLUMN with a constant default": ((), (_SOME_COLUMN,)),
}
_NAMES_MAX: Final = 5


def alter_findings(config: Config) -> Iterator[Finding]:
    """Yields a finding for each change of a table and each reason for which its rows are, or are not, published again.
    A sink that capture has not in its configuration may be another reason."""
    tables = [table for table in config.source.table_ids if not config.source.is_outbox(table)]
    for change, (dropped, added) in _CHANGES.items():
        by_reason: dict[str | None, list[TableId]] = defaultdict(list)
        for table in tables:
            by_reason[config.why_published_again(table, dropped, added)].append(table)
        for why, concerned in by_reason.items():
            what = "no row is published again" if why is None else f"all rows are published again: {why}"
            yield Finding(OPTION, "ok", f"after {change} in {_named(concerned)} {what}")


def _named(tables: list[TableId]) -> str:
    names = ", ".join(map(str, tables[:_NAMES_MAX]))
    return f"{names} and {len(tables) - _NAMES_MAX:,} more" if len(tables) > _NAMES_MAX else names
