"""Names in the search index. Pure.

| name                                  | kind  | what it is                                              |
|---------------------------------------|-------|---------------------------------------------------------|
| `<prefix>.<schema>.<table>`           | alias | what readers search: a filter hides deleted rows, but   |
|                                       |       | not from a GET by id                                    |
| `<prefix>.<schema>.<table>.documents` | index | the documents, deleted ones too                         |
| `….documents.v<number>`               | index | instead, since a field had to change its type; number   |
|                                       |       | is the version of the schema that changed it            |
| `….documents.own`                     | alias | what the sink's job writes to                           |
| `<prefix>.watershed`                  | index | the generation, and the identity of each prepared index |
| `<prefix>.watershed.serving`          | alias | the marker of the generation that readers see           |

A generation that is built beside the serving one has a slot, `g<number>`: it is part of the names of its marker and of
its indexes (`<prefix>.watershed.g7`, `….documents.g7`), and stays so when readers are moved to it.

A table's shape may name alias and index otherwise. Names are in lower case; what OpenSearch does not allow in a name
becomes `_`. Two tables that would share a name are refused when the second is prepared.
"""

import re
from collections.abc import Mapping
from typing import Final

from cdc.config.store_shapes import SearchShape, shape_of
from cdc.model.errors import RefusedError
from cdc.model.events import TableId

NAME_BYTES_MAX: Final = 255
_DEFAULT_SHAPE: Final = SearchShape()
_ILLEGAL = re.compile(r'[\\/*?"<>|,#:\s\x00-\x1f]')


class SearchNames:
    """The names of one prefix. Raises RefusedError for a prefix that no index name can begin with."""

    def __init__(self, prefix: str, shapes: Mapping[str, SearchShape] | None = None, slot: str = "") -> None:
        self._shapes = shapes or {}
        self._ending = f".{slot}" if slot else ""
        self.slot = slot
        self.prefix = _legal(prefix)
        if not self.prefix or self.prefix[0] in "-_+.":
            raise RefusedError(
                f"an index name can't begin with {prefix!r}",
                "set the sink's index_prefix to a name that begins with a letter or a digit",
            )
        self.marker = f"{self.prefix}.watershed{self._ending}"
        self.serving = f"{self.prefix}.watershed.serving"

    def in_slot(self, slot: str) -> "SearchNames":
        """The names of another generation of the same store."""
        return SearchNames(self.prefix, self._shapes, slot)

    def slot_of(self, marker: str) -> str:
        """The slot of the generation whose marker has this name."""
        return marker.removeprefix(f"{self.prefix}.watershed").removeprefix(".")

    def own(self, table: TableId) -> str:
        """The alias through which the sink's job writes to the table's index, whether readers see it or not."""
        return _checked(f"{self.index(table)}.own", table)

    def alias(self, table: TableId) -> str:
        """What readers use."""
        return self._filled(self.shape(table).alias or "{prefix}.{schema}.{table}", table)

    def index(self, table: TableId) -> str:
        """What holds the documents. Raises RefusedError when the name gets too long."""
        template, alias = self.shape(table).index, self.alias(table)
        index = self._filled(template, table) if template else f"{alias}.documents"
        if index == alias:
            raise RefusedError(
                f"search index: alias and index of table {table} would both be named {alias}",
                "set another alias or index in the table's shape",
            )
        return _checked(f"{index}{self._ending}", table)

    def shape(self, table: TableId) -> SearchShape:
        """The options of the table's index."""
        return shape_of(self._shapes, table, _DEFAULT_SHAPE)

    def _filled(self, template: str, table: TableId) -> str:
        name = _legal(template.format(prefix=self.prefix, schema=_legal(table.schema), table=_legal(table.name)))
        if name[:1] in ("", "-", "_", "+", ".") or name == f"{self.prefix}.watershed":
            raise RefusedError(
                f"search index: {name!r}, made of {template!r} for {table}, can't be a name",
                "set alias and index of the table's shape to names that begin with a letter or a digit",
            )
        return name

    def moved(self, table: TableId, version: int) -> str:
        """What holds them instead, from this version of the schema on. Raises RefusedError when it gets too long."""
        return _checked(f"{self.index(table)}.v{version}", table)

    def moved_pattern(self, table: TableId) -> str:
        """All of the latter, and perhaps others."""
        return f"{self.index(table)}.v*"


def _checked(name: str, table: TableId) -> str:
    if len(name.encode()) > NAME_BYTES_MAX:
        raise RefusedError(
            f"the index name of table {table} would be longer than {NAME_BYTES_MAX} bytes",
            "set a shorter index_prefix in the sink's section",
        )
    return name


def _legal(name: str) -> str:
    return _ILLEGAL.sub("_", name.lower())
