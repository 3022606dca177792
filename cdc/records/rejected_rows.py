"""Rows that a store rejected: the records of a sink's topic of dead letters, `<prefix>.dead-letter.<sink>`.

The topic is compacted, with one partition. A record's key names table and row; a tombstone says that the store took a
later version of the row, that the row is gone, or that an operator discarded the letter.
"""

from typing import Any

from cdc.model.events import TableId
from cdc.records.control import U64, OfTable, table_key


class RejectedRow(OfTable):
    """One row, at the newest version that the store rejected. What the store holds of the row is older."""

    key: dict[str, Any]  # column → value, as in the record's key
    version: U64
    reason: str
    topic: str  # of the record
    partition: int
    offset: int
    commit_lsn: int | None = None
    rejected_us: int  # µs since 1970
    row: dict[str, Any] | None = None  # the source's, where the sink keeps rows and it is not too large


def letter_key(table: TableId, row_id: str) -> str:
    """`row_id`: as stores name the row."""
    return f"{table_key(table)}/{row_id}"


def letters_table(key: str) -> str:
    """The table key in a record's key."""
    return key.partition("/")[0]
