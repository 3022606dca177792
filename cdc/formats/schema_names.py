"""Names in Avro and Protobuf, which have letters, digits and `_`: others are adjusted as Debezium does. Pure."""

import re
from collections.abc import MutableMapping
from typing import Final

from cdc.config.format_options import NameAdjustment
from cdc.model.errors import ConfigError

_VALID_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch


def adjusted_schema_name(name: str) -> str:
    """Returns a full name that Avro accepts: Debezium's SchemaNameAdjuster.AVRO."""
    first = re.sub(r"[^A-Za-z_]", "_", name[:1]) + (name[:1] if name[:1].isdigit() else "")
    return first + re.sub(r"[^A-Za-z0-9_.]", "_", name[1:])


def adjusted_field_name(name: str, mode: NameAdjustment) -> str:
    """Returns the field's name in this mode of `field.name.adjustment.mode`, as Debezium's adjusters make it."""
    if mode == "none":
        return name
    if mode == "avro":
        prefix = "_" if name[:1].isdigit() else ""
        return prefix + re.sub(r"[^A-Za-z0-9_]", "_", name)
    units = _utf16(name)
    first = units[0] if re.fullmatch("[A-Za-z]", units[0]) else _escaped(units[0])
    return first + "".join(unit if re.fullmatch("[A-Za-z0-9]", unit) else _escaped(unit) for unit in units[1:])


def _utf16(text: str) -> list[str]:
    """Java's characters: code units."""
    encoded = text.encode("utf-16-be")
    return [chr(int.from_bytes(encoded[i : i + 2])) for i in range(0, len(encoded), 2)]


def _escaped(unit: str) -> str:
    digits = f"{ord(unit):x}"
    return f"_u{'00' if len(digits) <= 2 else ''}{digits}"


def mode_of(struct: str, mode: NameAdjustment) -> NameAdjustment:
    """Returns the mode for a struct of this name: only fields of columns are adjusted, as in Debezium."""
    return mode if struct.endswith((".Key", ".Value")) else "none"


def field_name(original: str, originals: MutableMapping[str, str], where: str, mode: NameAdjustment, form: str) -> str:
    """Returns the name of a column's field. `originals`: column by field, of the struct so far; the column is added.
    `where`: the table. `form`: Avro or Protobuf. Raises ConfigError for a name that it can't hold, and for one that
    another column's field has."""
    name = adjusted_field_name(original, mode)
    if not _VALID_NAME(name):
        raise ConfigError(
            f"table {where}: {form} can't hold the name of column {original}",
            "set format.field.name.adjustment.mode to avro or avro_unicode, or leave the column out with "
            "source.exclude_columns",
        )
    if (other := originals.setdefault(name, original)) != original:
        raise ConfigError(
            f"table {where}: columns {other} and {original} would both be field {name} in {form}",
            "set format.field.name.adjustment.mode to avro_unicode, or leave one out with source.exclude_columns",
        )
    return name
