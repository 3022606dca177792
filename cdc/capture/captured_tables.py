"""The tables that one session captures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdc.model.events import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class CapturedTables:
    """The tables of one session."""

    schemas: Sequence[TableSchema]
    # Table → LSN from which it is captured, for tables that were added later. Transactions that commit before it are
    # not published, and may have another schema.
    since: Mapping[TableId, int] = field(default_factory=dict)
    leaving: Sequence[TableSchema] = ()  # no longer configured, but part of the half published transaction
