"""Rows that a store rejected: the records of a sink's dead-letter topic, `<prefix>.dead-letter.<sink>`.

The topic is compacted, with one partition. A record's key names table and row; a tombstone says that the store took a
later version of the row, that the row is deleted, or that an operator discarded the dead letter.
"""

from typing import Any

from cdc.model.control import U64, PerTableRecord, table_key
from cdc.model.events import TableId


class RejectedRow(PerTableRecord):
    """One row, at the newest version that the store rejected. The store has an older version or none."""

    key: dict[str, Any]  # column → value, as in the record's key
    version: U64
    reason: str
    topic: str  # of the record
    partition: int
    offset: int
    commit_lsn: int | None = None
    rejected_us: int  # µs since 1970
    row: dict[str, Any] | None = None  # the source's row, if the sink keeps rows and it is not too large


def letter_key(table: TableId, row_id: str) -> str:
    """Returns the record's key. `row_id`: the row's id in stores."""
    return f"{table_key(table)}/{row_id}"


def letters_table(key: str) -> str:
    """Returns the table's part of a record's key."""
    return key.partition("/")[0]
