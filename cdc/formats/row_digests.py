"""Digests of rows, to find out whether a topic has exactly the row that a table has. Pure.

Compared is what consumers read: `after` as the encoder writes it, in the present schema version. A record of an earlier
version counts as what the schemas say of it: without dropped columns, with the constants of added ones. Where they do
not say it (a column was renamed or got another type, or was dropped and somebody needed the rows), or if the record
lacks a column of its own, it is not equal to any row.

A digest is Python's hash of the bytes: 64 bits of SipHash with a random key of the process. So it means something
within one process only, nobody can look for two rows with the same one, and of 10^8 differing rows one is taken for
equal with a probability of 10^-11.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from cdc.formats.records import EnvelopeContext, TableEncoder, schema_version_of
from cdc.model.errors import WatershedError
from cdc.model.events import Column, TableSchema
from cdc.pgoutput.relations import relation_of

OTHER_FORM: Final = 0
"""The digest of a record that is not a row, or of which the present schema version does not say which."""


class RowDigests:
    """Digests of one table's rows. Thread-safe."""

    def __init__(self, schema: TableSchema, context: EnvelopeContext, versions: Sequence[TableSchema] = ()) -> None:
        """`versions`: of the schema, in any order, as they are recorded; others than `schema` may be missing."""
        self._encoder = TableEncoder(schema, relation_of(schema), context)
        known = {schema.version: schema} | {one.version: one for one in versions if one.version <= schema.version}
        self._earlier = {
            version: (TableEncoder(known[version], relation_of(known[version]), context), places)
            for version in known.keys() - {schema.version}
            if (places := _places([known.get(number) for number in range(version, schema.version + 1)])) is not None
        }

    def of_line(self, line: bytes) -> tuple[bytes, int] | None:
        """Returns the record key and the digest of a line of COPY; None if no record can be made of it."""
        try:
            key, row = self._encoder.copied(line)
        except WatershedError:
            return None
        return key, hash(row)

    def of_value(self, value: bytes) -> int:
        """Returns the digest of the row in a record's value, which is not a delete's."""
        row = self._encoder.row_in(value) or self._converted(value)
        return hash(row) if row else OTHER_FORM

    def _converted(self, value: bytes) -> bytes:
        """Returns `after` of a record of an earlier version as it would be in the present one; empty if that is not
        known."""
        encoder, places = self._earlier.get(schema_version_of(value), (None, ()))
        columns = encoder.columns_of(value) if encoder is not None else None
        if columns is None:
            return b""
        made = [place if isinstance(place, str) else columns[place] for place in places]
        return self._encoder.row_of(made).encode("latin-1")


def _places(versions: Sequence[TableSchema | None]) -> list[int | str] | None:
    """Returns where each column of the last version is in rows of the first one: its place, or its value as a latin-1
    view of JSON. None if a version is not known, or what became of a column."""
    known = [schema for schema in versions if schema is not None]
    if len(known) < len(versions):
        return None
    found: dict[str, int | str] = {column.name: place for place, column in enumerate(known[0].columns)}
    for older, newer in pairwise(known):
        had = {column.name: column for column in older.columns}
        have = {column.name: column for column in newer.columns}
        if any(_form(had[name]) != _form(have[name]) for name in had.keys() & have.keys()):
            return None
        if not had.keys() - have.keys() <= set(known[-1].dropped):
            return None
        filled = {name: value.encode().decode("latin-1") for name, value in newer.filled}
        found |= {name: filled.get(name, "null") for name in have.keys() - had.keys()}
    return [found[column.name] for column in known[-1].columns]


def _form(column: Column) -> Column:
    return replace(column, nullable=True, labels=())
