"""Templates of keys and document ids, such as `user:{id}`: filled with a row's values, and checked so that two rows
never have the same text. Pure.

`{{` and `}}` stand for braces, as in `user:{{public.users}}:{id}` for a Redis Cluster. All placeholders but the last
are followed by a separator. In the values before it `%` and the separator's first character are percent-encoded, so
that ("a:b", "c") and ("a", "b:c") differ; the last value is not encoded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from cdc.model.events import TableId, TableSchema
from sinks.contract import Json
from sinks.errors import RefusedError
from sinks.records import encode_json

_TOKEN: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_INTEGERS: Final = frozenset({20, 21, 23, 26})
_ANY: Final = frozenset({"any"})
_DIGITS: Final = frozenset("-0123456789")
_HEXADECIMAL: Final = frozenset("0123456789abcdef-")
_UUID: Final = 2950

# One character of the text: the set of possible characters, and whether it may be repeated any number of times.
Part = tuple[frozenset[str], bool]


@dataclass(frozen=True, slots=True)
class Template:
    """`literals` surround the values of `columns`: there is one more of them."""

    text: str
    literals: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Parses a template. Raises RefusedError, which begins with `where`, for other text."""
        literals, columns, end, problem = [""], [], 0, None
        for token in _TOKEN.finditer(text):
            literals[-1] += text[end : token.start()]
            end = token.end()
            if token[1] is not None:
                columns.append(token[1])
                literals.append("")
            elif len(token[0]) == 2:
                literals[-1] += token[0][0]
            else:
                columns.append("")  # a brace without another
        literals[-1] += text[end:]
        if "" in columns:
            problem = "each { needs a column's name and a }"
        elif not columns:
            problem = "it names no column"
        elif any(not literal or literal[0] in "%0123456789abcdefABCDEF" for literal in literals[1:-1]):
            problem = "two columns must be separated by a text that is neither a hexadecimal digit nor %"
        if problem:
            raise RefusedError(f"{where}: template {text!r} can't be used: {problem}", "write it as in user:{id}")
        return cls(text, tuple(literals), tuple(columns))

    def render(self, row: Mapping[str, Json]) -> str | None:
        """Returns the text for this row; None if one of the columns is NULL."""
        values = [row[column] for column in self.columns]
        return None if None in values else self.fill([value_text(value) for value in values])

    def fill(self, values: Sequence[str]) -> str:
        """Returns the text for these values, in the order of the columns."""
        if len(values) == 1:
            return f"{self.literals[0]}{values[0]}{self.literals[1]}"
        parts = [self.literals[0]]
        for value, literal in zip(values[:-1], self.literals[1:-1], strict=True):
            parts += (_encoded(value, literal[0]), literal)
        return "".join([*parts, values[-1], self.literals[-1]])

    def check_columns(self, schema: TableSchema, where: str) -> None:
        """Raises RefusedError for a column that the table does not have."""
        unknown = next((name for name in self.columns if all(name != column.name for column in schema.columns)), None)
        if unknown is not None:
            names = ", ".join(column.name for column in schema.columns)
            raise RefusedError(
                f"{where}: template {self.text!r} names column {unknown}, which {schema.table} does not have",
                f"its columns are {names}",
            )

    def check_only_key(self, schema: TableSchema, where: str) -> None:
        """Raises RefusedError for a column outside the key: a delete does not know its value."""
        self.check_columns(schema, where)
        other = next((name for name in self.columns if name not in schema.key), None)
        if other is not None:
            raise RefusedError(
                f"{where}: template {self.text!r} names column {other}, which is not part of the key of "
                f"{schema.table}: a delete does not contain it",
                f"use the key's columns ({', '.join(schema.key)}), or choose other ones in source.key_columns",
            )

    def check_unique(self, schema: TableSchema, where: str) -> None:
        """Raises RefusedError if two rows could have the same text."""
        self.check_only_key(schema, where)
        lacking = [name for name in schema.key if name not in self.columns]
        if lacking:
            raise RefusedError(
                f"{where}: template {self.text!r} is not unique: it lacks {', '.join(lacking)} of the key of "
                f"{schema.table}",
                f"name every column of the key: {', '.join(schema.key)}",
            )

    def parts(self, schema: TableSchema) -> list[Part]:
        """Returns the parts of which texts of this template consist, for `overlap`."""
        oids = {column.name: column.base_type_oid or column.type_oid for column in schema.columns}
        made: list[Part] = [(frozenset(character), False) for character in self.literals[0]]
        for column, literal in zip(self.columns, self.literals[1:], strict=True):
            oid = oids[column]
            kind = _DIGITS if oid in _INTEGERS else _HEXADECIMAL if oid == _UUID else _ANY
            made.append((kind, True))
            made += [(frozenset(character), False) for character in literal]
        return made


def parts_beginning(text: str) -> list[Part]:
    """Returns parts for any text that begins with this one, for `overlap`."""
    return [*((frozenset(character), False) for character in text), (_ANY, True)]


def overlap(left: Sequence[Part], right: Sequence[Part]) -> bool:
    """Says whether a text may match both templates. It knows only the characters of types, so it may say yes for
    templates that are apart, but never no for templates that are not."""
    seen: set[tuple[int, int]] = set()
    waiting = [(0, 0)]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        i, j = at
        if i == len(left) and j == len(right):
            return True
        if i < len(left) and left[i][1]:
            waiting.append((i + 1, j))
        if j < len(right) and right[j][1]:
            waiting.append((i, j + 1))
        if i < len(left) and j < len(right) and _share_a_character(left[i][0], right[j][0]):
            waiting.append((i if left[i][1] else i + 1, j if right[j][1] else j + 1))
    return False


def check_apart(
    table: TableId, own: Mapping[str, list[Part]], others: Mapping[tuple[TableId, str], list[Part]], where: str
) -> None:
    """Raises RefusedError if two templates (text → parts) of one store could make the same text."""
    texts = list(own)
    for number, text in enumerate(texts):
        clash = next((other for other in texts[:number] if overlap(own[text], own[other])), None)
        owner = table
        if clash is None:
            found = next((key for key, parts in others.items() if key[0] != table and overlap(own[text], parts)), None)
            if found is None:
                continue
            owner, clash = found
        raise RefusedError(
            f"{where}: templates {text!r} of {table} and {clash!r} of {owner} can produce the same text",
            "begin each with a different text",
        )


def value_text(value: Json) -> str:
    """Returns a value inside a key: a text as it is, anything else as JSON."""
    return value if type(value) is str else encode_json(value).decode()


def _encoded(value: str, separator: str) -> str:
    codes = "".join(f"%{byte:02X}" for byte in separator.encode())
    return value.replace("%", "%25").replace(separator, codes)


def _share_a_character(left: frozenset[str], right: frozenset[str]) -> bool:
    return left is _ANY or right is _ANY or not left.isdisjoint(right)
