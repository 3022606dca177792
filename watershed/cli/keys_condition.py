"""The SQL condition that selects rows by their keys, so that capture publishes them again. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.model.errors import WatershedError
from cdc.model.events import TableSchema

KEYS_MAX: Final = 5_000  # keys in one condition
_BYTEA: Final = 17


def keys_condition(schema: TableSchema, keys: Sequence[Mapping[str, Any]]) -> str:
    """Returns the condition. Raises WatershedError for too many keys, and for keys without a form as text."""
    hint = f"cdc snapshot start --table {schema.table} publishes all rows of the table again"
    if len(keys) > KEYS_MAX:
        raise WatershedError(f"{len(keys)} rows of {schema.table} are too many for one condition", hint)
    for column in schema.columns:
        if column.name in schema.key and (column.element_oid or (column.base_type_oid or column.type_oid) == _BYTEA):
            raise WatershedError(
                f"rows of {schema.table} can't be selected by key: key column {column.name} has type "
                f"{column.type_name}",
                hint,
            )
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.key)
    values = ", ".join("(" + ", ".join(_literal(key[name]) for name in schema.key) + ")" for key in keys)
    return f"({names}) IN ({values})"


def _literal(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
