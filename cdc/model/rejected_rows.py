"""Rows that a store rejected: the records of a sink's dead-letter topic, `<prefix>.dead-letter.<sink>`.

The topic is compacted, with one partition. A record's key names generation, table and row: a generation that is built
beside the serving one rejects rows of its own. A tombstone says that the store took a later version of the row, that
the row, the table or the generation is gone, or that an operator discarded the dead letter.
"""

from typing import Any
from urllib.parse import unquote

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


def dead_letter_key(generation: int, table: TableId, row_id: str) -> str:
    """Returns the record's key. `generation`: of the sink's store; `row_id`: the row's id in it."""
    return f"{generation}/{table_key(table)}/{row_id}"


def dead_letter_generation(key: str) -> int | None:
    """Returns the generation that a record's key names; None for a key of another form."""
    generation = key.partition("/")[0]
    return int(generation) if generation.isdecimal() else None


def dead_letter_table(key: str) -> TableId:
    """Returns the table that a record's key names."""
    schema, _, name = key.split("/", 2)[1].partition(".")
    return TableId(unquote(schema), unquote(name))
