"""The tables that are captured, the state of each: whether it is captured or stopped, and facts from the catalog.

The facts show that rows changed without row events. They are recorded so that a change is also noticed that happened
while capture was down.
"""

from typing import Literal, Self

from pydantic import Field

from cdc.model.control import PerTableRecord, Record
from cdc.model.errors import WatershedError
from cdc.model.events import TableId


class ColumnFacts(Record):
    """A row of pg_attribute."""

    number: int  # attnum: a column keeps it when it is renamed
    name: str
    changed_in: str  # xmin: the transaction that last altered it
    has_missing: bool  # it was added with a default, which is the value in older rows
    form: str = ""  # everything that the text of its values depends on: type, attributes of composites; "": not known
    strayed: bool = False  # since the poll the stream had it with another name, or with values that read differently


class StorageFacts(Record):
    """A relation that holds rows of the table: the table itself, or a leaf of its partitions."""

    oid: int
    file: int  # pg_class.relfilenode: another one after the table was rewritten or truncated
    is_met: bool = False  # known from the stream only, which has rows of it
    attached: str = ""  # xmin of its rows in pg_inherits, from the root: others if it was detached meanwhile
    toast: int = 0  # oid of the table of its large values, 0 without one: another one after each rewrite, not TRUNCATE


class TableFacts(Record):
    """Facts about a table that the catalog had at one moment."""

    oid: int
    columns: tuple[ColumnFacts, ...]
    storage: tuple[StorageFacts, ...]
    generated: str  # a digest of the expressions of generated columns
    others: str  # a digest of everything else that may change records: kind, identity, indexes, enums, names
    attributes: int = 0  # numbers given to columns so far; 0: not known
    labels: tuple[str, ...] = ()  # oid and xmin of the labels of its enums, also of those within other types
    row_type: str = ""  # xmin of its row type: another one after the table was renamed or moved to another schema
    # What the stream has announced since: columns that were added with a constant, with the value as in
    # TableSchema.filled; and whether there were columns of which no later facts say what became of them.
    announced: dict[str, str] = Field(default_factory=dict)
    is_unclear: bool = False


class SelectionRecord(Record):
    """The tables of which the configuration in force consists, and its patterns, with which it began."""

    KEY = "selection"
    include: tuple[str, ...]  # source.tables
    exclude: tuple[str, ...]  # source.exclude_tables
    tables: tuple[str, ...]  # schema.table: those that are named, then those that patterns take


class TableRecord(PerTableRecord):
    """The record of a table in state."""

    KEY = "table/"
    status: Literal["captured", "stopped"]
    message: str = ""  # why it is stopped
    next: str = ""  # the next step
    is_held: bool = False  # stopped until an operator starts it; else it is added again when the catalog allows it
    changed_us: int  # µs since 1970
    facts: TableFacts | None = None  # None: the next catalog poll provides them

    @classmethod
    def captured(cls, table: TableId, facts: TableFacts | None, now_us: int) -> Self:
        return cls(table_schema=table.schema, table_name=table.name, status="captured", changed_us=now_us, facts=facts)

    @classmethod
    def stopped(cls, table: TableId, why: WatershedError, now_us: int, *, is_held: bool) -> Self:
        return cls(
            table_schema=table.schema,
            table_name=table.name,
            status="stopped",
            message=why.message,
            next=why.hint,
            is_held=is_held,
            changed_us=now_us,
        )
