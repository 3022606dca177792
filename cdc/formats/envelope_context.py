"""The values that all records of one run share."""

from dataclasses import dataclass

from cdc.config.format_options import READABLE, FormatOptions


@dataclass(frozen=True, slots=True)
class EnvelopeContext:
    prefix: str
    database: str
    epoch: int
    connector_version: str
    format: FormatOptions = READABLE
    promises_utf8: bool = False  # the server converts every text to UTF-8: its database is not in SQL_ASCII
