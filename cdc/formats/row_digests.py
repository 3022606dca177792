"""Digests of rows, to find out whether a topic has exactly the row that a table has. Pure.

Compared is what consumers read: `after` as the encoder writes it, in the present schema version. A record of another
version, or without one of the columns, is not equal to any row.

A digest is Python's hash of the bytes: 64 bits of SipHash with a random key of the process. So it means something
within one process only, nobody can look for two rows with the same one, and of 10^8 differing rows one is taken for
equal with a probability of 10^-11.
"""

from typing import Final

from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.model.errors import WatershedError
from cdc.model.events import TableSchema
from cdc.pgoutput.relations import relation_of

OTHER_FORM: Final = 0
"""The digest of a record that is not a row in the present schema version."""


class RowDigests:
    """Digests of one table's rows. Thread-safe."""

    def __init__(self, schema: TableSchema, context: EnvelopeContext) -> None:
        self._encoder = TableEncoder(schema, relation_of(schema), context)

    def of_line(self, line: bytes) -> tuple[bytes, int] | None:
        """Returns the record key and the digest of a line of COPY; None if no record can be made of it."""
        try:
            key, row = self._encoder.copied(line)
        except WatershedError:
            return None
        return key, hash(row)

    def of_value(self, value: bytes) -> int:
        """Returns the digest of the row in a record's value, which is not a delete's."""
        row = self._encoder.row_in(value)
        return hash(row) if row else OTHER_FORM
