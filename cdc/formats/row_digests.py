"""Digests of rows, to find out whether a topic has exactly the row that a table has. Pure.

Compared is what consumers read: `after` as the encoder writes it, in the present schema version. A record of another
version, or without one of the columns, is not equal to any row.
"""

from hashlib import blake2b
from typing import Final

from cdc.formats.records import EnvelopeContext, TableEncoder
from cdc.model.errors import WatershedError
from cdc.model.events import TableSchema
from cdc.pgoutput.relations import relation_of

DIGEST_BYTES: Final = 16
OTHER_FORM: Final = b""
"""The digest of a record that is not a row in the present schema version."""


class RowDigests:
    """Digests of one table's rows. Thread-safe."""

    def __init__(self, schema: TableSchema, context: EnvelopeContext) -> None:
        self._encoder = TableEncoder(schema, relation_of(schema), context)

    def of_line(self, line: bytes) -> tuple[bytes, bytes] | None:
        """Returns the record key and the digest of a line of COPY; None if no record can be made of it."""
        try:
            key, row = self._encoder.copied(line)
        except WatershedError:
            return None
        return key, _digest(row)

    def of_value(self, value: bytes) -> bytes:
        """Returns the digest of the row in a record's value, which is not a delete's."""
        row = self._encoder.row_in(value)
        return _digest(row) if row else OTHER_FORM


def _digest(row: bytes) -> bytes:
    return blake2b(row, digest_size=DIGEST_BYTES).digest()
