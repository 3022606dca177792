"""Masks of text that must not leave the source in clear: cut, hidden, or replaced by a keyed hash.

Only columns of text are masked, and none of a key: a mask that can't be applied is refused, and nothing is sent in
clear. NULL stays NULL. Texts are latin-1 views, as in cdc.pgoutput.values; a character is one of the UTF-8 text.
"""

import hmac
from collections.abc import Callable
from typing import Final

from cdc.config.masking import Mask
from cdc.formats.kinds import value_type
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableSchema

# text, char(n), varchar, name; of extensions citext.
_TEXT_OIDS: Final = frozenset({19, 25, 1042, 1043})
_TEXT_NAMES: Final = frozenset({"citext"})
_NEXT_STEP: Final = "correct section masking; to leave a column out, name it in source.exclude_columns"


def masks_of(schema: TableSchema, masks: tuple[Mask, ...]) -> dict[str, Mask]:
    """Returns the masks of this table, by column. Raises ConfigError for a column that does not exist or can't be
    masked."""
    columns = {column.name: column for column in schema.columns}
    found: dict[str, Mask] = {}
    for mask in masks:
        if mask.table != schema.table:
            continue
        column = columns.get(mask.column)
        if column is None:
            raise ConfigError(f"masking names column {mask.column}, which table {mask.table} does not have", _NEXT_STEP)
        named = f"column {mask.column} of table {mask.table}"
        if column.name in schema.key:
            raise ConfigError(f"{named} is part of its key: it can't be masked", _NEXT_STEP)
        if not is_text(column):
            raise ConfigError(f"{named} has type {column.type_name}: only text can be masked", _NEXT_STEP)
        found[column.name] = mask
    return found


def masked(mask: Mask) -> Callable[[str], str]:
    match mask.action:
        case "truncate":
            return lambda text: _cut(text, mask.length)
        case "asterisks":
            return lambda _: "*" * mask.length
        case "hash":
            return lambda text: hmac.digest(mask.key, text.encode("latin-1"), "sha256").hex()


def _cut(text: str, length: int) -> str:
    if text.isascii() or len(text) <= length:
        return text[:length]
    # Bytes that are not UTF-8 pass through here as they are: the encoder refuses them.
    characters = text.encode("latin-1").decode("utf-8", "surrogateescape")[:length]
    return characters.encode("utf-8", "surrogateescape").decode("latin-1")


def is_text(column: Column) -> bool:
    """Says whether the column holds text, the only values that can be masked."""
    of = value_type(column)
    return not column.element_oid and (of.oid in _TEXT_OIDS or of.name in _TEXT_NAMES)
