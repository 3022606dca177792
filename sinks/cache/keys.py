"""Names of the cache's keys, and the text form of versions in it. Pure.

| key                                  | type   | holds                                                           |
|--------------------------------------|--------|-----------------------------------------------------------------|
| `<prefix>:watershed`                 | hash   | `generation`, the server's `run_id`, `table:<schema>.<table>`   |
|                                      |        | for each prepared table; `rebuilding`, the generation of a      |
| | | rebuild that is not finished; `save_position` and `rebuilding_note`, the |
|                                      |        | positions of both                                               |
| `<prefix>:<schema>.<table>:`         | hash   | the version of each live row, by the text of its primary key,   |
|                                      |        | with the row's lookup keys; in the field SHAPE the shape of the |
|                                      |        | table's keys, which shows that they were not deleted as a group |
| `<prefix>:<schema>.<table>.met`      | hash   | the primary keys of the rows that a rebuild has written         |
| `<prefix>:<schema>.<table>.deleted:…`| string | the version of a deleted row; it expires                        |
| `<prefix>:<schema>.<table>.deleted:` | string | empty; exists as long as the version of any deleted row         |
| `<prefix>:<schema>.<table>:<row id>` | hash   | a live row, unless the table's shape has a key template         |

Versions have 19 digits; the row id is sinks.reduction.document_id. Letters, digits, `_`, `-` and `~` of schema and
table are kept; all other characters are percent-encoded as in the control topic, so that no two tables share keys.

In a Redis Cluster `{<schema>.<table>}` stands for `<schema>.<table>` in these keys: this hash tag puts all keys of a
table into one hash slot, so that one script can write them. The tag of a prefix that has one counts instead.
"""

from typing import Final
from urllib.parse import unquote

from cdc.config.stores import CacheConfig
from cdc.model.control import table_key
from cdc.model.events import TableId

# A row of a table without a configured shape is a hash of these fields. APPLY contains their names, too.
VERSION_FIELD: Final = "v"
DOCUMENT_FIELD: Final = "doc"
REBUILDING: Final = "rebuilding"  # a field of the generation's hash
NOTE: Final = "note"  # another: see sinks.contract.Sink.note
REBUILDING_NOTE: Final = "rebuilding_note"  # that of a rebuild
# Fields that can't be primary keys, because PostgreSQL's texts contain no NUL.
SHAPE: Final = "\0"
KEY_COLUMNS: Final = "\0key"  # the names of the primary key's columns, in its order, as JSON
# in a cluster: how many notes followed writes of the table (sinks/cache/saved_position.py)
NOTE_COUNT: Final = "\0notes"
VERSION_DIGITS: Final = 19


class CacheKeys:
    """The names of all keys that begin with one prefix."""

    def __init__(self, prefix: str, in_cluster: bool = False) -> None:
        self.prefix = prefix
        self.in_cluster = in_cluster
        self.generation = f"{prefix}:watershed"

    def table(self, table: TableId) -> str:
        """Returns the key of the hash of the table's versions. The key of every row that has no template begins with
        it, and goes on with the row id, which is never empty.
        """
        return f"{self._beginning(table)}:"

    def deleted(self, table: TableId) -> str:
        """Returns the beginning of the keys that hold the versions of deleted rows."""
        return f"{self._beginning(table)}.deleted:"

    def met(self, table: TableId) -> str:
        """Returns the key of the hash of the rows that a rebuild has written."""
        return f"{self._beginning(table)}.met"

    def table_field(self, table: TableId) -> str:
        """Returns the field of the generation's hash that marks the table as prepared."""
        return f"table:{table_key(table)}"

    def table_of_field(self, field: str) -> TableId | None:
        """Returns the table for a field that table_field made; None for other fields."""
        marker, colon, name = field.partition(":")
        if marker != "table" or not colon:
            return None
        schema, _, table = name.partition(".")
        return TableId(unquote(schema), unquote(table))

    def _beginning(self, table: TableId) -> str:
        name = table_key(table)
        return f"{self.prefix}:{{{name}}}" if self.in_cluster else f"{self.prefix}:{name}"


def cache_keys(config: CacheConfig, prefix: str) -> CacheKeys:
    """Returns the keys of the section's cache. `prefix`: the topic prefix."""
    return CacheKeys(prefix if config.key_prefix is None else config.key_prefix, config.in_cluster)


def hash_tag(text: str) -> str | None:
    """Returns the part of a key that alone decides its hash slot in a cluster; None if the whole key does."""
    start = text.find("{")
    end = text.find("}", start + 1)
    return text[start + 1 : end] if 0 <= start < end - 1 else None


def version_text(version: int) -> str:
    """Returns a version in a form that Lua compares correctly. Lua's numbers are doubles, exact to 2^53 only; strings
    of digits of equal length sort like the numbers.
    """
    return f"{version:0{VERSION_DIGITS}d}"
