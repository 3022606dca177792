"""What is known of each captured table beside its rows: whether it is captured now, and its catalog's facts.

The facts are those by which a change of rows without row events is noticed. They are recorded, so that a change is
noticed whose time capture slept through.
"""

from typing import Literal, Self

from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from cdc.records.control import OfTable, Record, table_key

TABLE_KEY = "table/"


class ColumnFacts(Record):
    """A row of pg_attribute."""

    number: int  # attnum: a column keeps it when it is renamed
    name: str
    changed_in: str  # xmin: the transaction that last altered it
    has_missing: bool  # it was added with a default, which rows from before are read with
    form: str = ""  # what the text of its values depends on: type, attributes of composites; "": not known
    strayed: bool = False  # since then the stream had it under another name, or with values that read otherwise


class StorageFacts(Record):
    """Where rows of the table lie: the table itself, or a leaf of its partitions."""

    oid: int
    file: int  # pg_relation_filenode: another one when the table was rewritten or truncated
    is_met: bool = False  # known from the stream only, which has rows of it
    attached: str = ""  # xmin of its rows in pg_inherits, up to the root: others when it was detached meanwhile


class TableFacts(Record):
    """As the catalog had them at one moment."""

    oid: int
    columns: tuple[ColumnFacts, ...]
    storage: tuple[StorageFacts, ...]
    generated: str  # of generated columns, what changes with their expressions
    others: str  # a digest of all else that may change what is published: kind, identity, indexes, enums, names
    attributes: int = 0  # numbers given to columns so far; 0: not known
    labels: tuple[str, ...] = ()  # oid and xmin of the labels of its enums, also of those within other types


class TableRecord(OfTable):
    """In state, key `table/<table>`."""

    status: Literal["captured", "stopped"]
    message: str = ""  # why it is stopped
    next: str = ""  # and what to do
    is_held: bool = False  # stopped until an operator starts it; else it joins again when the catalog allows it
    changed_us: int  # µs since 1970
    facts: TableFacts | None = None  # None: the catalog's next look tells

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


def table_state_key(table: TableId) -> str:
    return f"{TABLE_KEY}{table_key(table)}"


def table_record(topics: Topics, record: TableRecord) -> TopicRecord:
    """For state."""
    return TopicRecord(topics.state, table_state_key(record.table).encode(), record.encode())
