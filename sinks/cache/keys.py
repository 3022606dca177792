"""Names of the cache's keys, and the text form of versions in it. Pure.

| key                                  | type   | holds                                                           |
|--------------------------------------|--------|-----------------------------------------------------------------|
| `<prefix>:watershed`                 | hash   | `generation`, the server's `run_id`, `table:<schema>.<table>`   |
|                                      |        | for each prepared table                                         |
| `<prefix>:<schema>.<table>:`         | set    | the row ids of the table's live rows, and the empty string,     |
|                                      |        | which shows that the table's keys were not deleted as a group   |
| `<prefix>:<schema>.<table>:<row id>` | hash   | a live row: `v`, `doc`; a deleted one: `v`, `d`, and it expires |

`v` is the version in 19 digits, `doc` the row as a JSON object, the row id is sinks.reduction.document_id. Letters,
digits, `_`, `-` and `~` of schema and table stand as they are; the rest is percent-encoded as in the control topic, so
that no two tables share keys.
"""

from typing import Final

from cdc.model.events import TableId
from cdc.records.control import table_key

VERSION_FIELD: Final = "v"
DOCUMENT_FIELD: Final = "doc"
DELETED_FIELD: Final = "d"
PREPARED: Final = ""  # the member of each table's set that is no row id


class CacheKeys:
    """The keys of one prefix."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.generation = f"{prefix}:watershed"

    def table(self, table: TableId) -> str:
        """The key of the set of the table's live rows, with which every row's key of this table begins. Row ids are
        never empty."""
        return f"{self._prefix}:{table_key(table)}:"

    def table_field(self, table: TableId) -> str:
        """The field of the generation's hash which says that the table was prepared."""
        return f"table:{table_key(table)}"

    def table_of_field(self, field: str) -> str | None:
        """The key of the table's set for a field that table_field made; None for other fields."""
        marker, colon, name = field.partition(":")
        return f"{self._prefix}:{name}:" if marker == "table" and colon else None


def version_text(version: int) -> str:
    """A version as Lua can compare it: its numbers are doubles, exact to 2^53 only; equal-length digits sort right."""
    return f"{version:019d}"
