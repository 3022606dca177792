"""The tables that one session captures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdc.model.events import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class CapturedTables:
    """The tables of one session."""

    schemas: Sequence[TableSchema]
    # Of tables that joined later, where in the log: what commits before is not published, nor need it be of the
    # table's present schema.
    since: Mapping[TableId, int] = field(default_factory=dict)
    leaving: Sequence[TableSchema] = ()  # captured no more, but for the half published transaction
