"""Names in the search index. Pure.

| name                                  | kind  | purpose                                                 |
|---------------------------------------|-------|---------------------------------------------------------|
| `<prefix>.<schema>.<table>`           | alias | readers search through it: a filter hides deleted rows, |
|                                       |       | but not from a GET by id                                |
| `<prefix>.<schema>.<table>.documents` | index | the documents, deleted ones too                         |
| `….documents.v<number>`               | index | its replacement after a field's type changed; number is |
|                                       |       | the version of the schema that changed it               |
| `….documents.own`                     | alias | the sink's job writes through it                        |
| `<prefix>.watershed`                  | index | the generation, and the identity of each prepared index |
| `<prefix>.watershed.serving`          | alias | the marker of the generation that readers see           |

A generation that is built beside the serving one has a slot, `g<number>`: it is part of the names of its marker and of
its indexes (`<prefix>.watershed.g7`, `….documents.g7`). The names stay when readers are moved to it. An index that a
generation has adopted from the one before keeps its name, and has the new generation's `….own` alias.

A table's shape may set other names for alias and index. Names are in lower case; characters that OpenSearch does not
allow in a name become `_`. When two tables would share a name, the second one that is prepared is refused.
"""

import re
from collections.abc import Mapping
from typing import Final

from cdc.config.store_shapes import SearchShape, shape_of
from cdc.model.events import TableId
from sinks.errors import RefusedError

NAME_BYTES_MAX: Final = 255
_DEFAULT_SHAPE: Final = SearchShape()
_ILLEGAL = re.compile(r'[\\/*?"<>|,#:\s\x00-\x1f]')


class SearchNames:
    """The names of one prefix. Raises RefusedError for a prefix that can't be the beginning of an index name."""

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
        """Returns the names of another generation of the same store."""
        return SearchNames(self.prefix, self._shapes, slot)

    def slot_of(self, marker: str) -> str:
        """Returns the slot of the generation whose marker has this name."""
        return marker.removeprefix(f"{self.prefix}.watershed").removeprefix(".")

    def own(self, table: TableId) -> str:
        """Returns the alias through which the sink's job writes to the table's index, whether readers see it or not."""
        return _checked(f"{self.index(table)}.own", table)

    def alias(self, table: TableId) -> str:
        """Returns the alias that readers use."""
        return self._filled(self.shape(table).alias or "{prefix}.{schema}.{table}", table)

    def index(self, table: TableId) -> str:
        """Returns the index that holds the documents. Raises RefusedError if the name is too long."""
        template, alias = self.shape(table).index, self.alias(table)
        index = self._filled(template, table) if template else f"{alias}.documents"
        if index == alias:
            raise RefusedError(
                f"search index: alias and index of table {table} would both be named {alias}",
                "set another alias or index in the table's shape",
            )
        return _checked(f"{index}{self._ending}", table)

    def shape(self, table: TableId) -> SearchShape:
        """Returns the options of the table's index."""
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
        """Returns the index that holds the documents from this version of the schema on. Raises RefusedError if the
        name is too long.
        """
        return _checked(f"{self.index(table)}.v{version}", table)

    def moved_pattern(self, table: TableId) -> str:
        """Returns a pattern that matches all indexes that `moved` names, and perhaps others."""
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
