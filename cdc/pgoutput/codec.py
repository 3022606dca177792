"""Converts one relation's rows, in pgoutput messages and COPY lines, to JSON text, without an object for each column.

A RowCodec is made when a relation message arrives. It writes Python source for that relation, a straight line over
its columns with names, key and value encoders folded in, and works on a latin-1 view of the message (see `values`).
The generated code handles the usual case only: texts and nulls, every length within the message. Anything else it
leaves to the exact path, which uses `decoder` and returns either the row (a large value that was not sent is taken from
the old row, or is a hole) or an error with column and offset. Both paths give the same bytes, which a differential
property test checks.
"""

import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json import JSONDecoder
from types import CodeType
from typing import Any, Final, Literal, NamedTuple

from cdc.model.errors import (
    NEXT_AFTER_ALTER,
    NEXT_AFTER_STOP,
    MalformedValueError,
    ProtocolError,
    UnconvertibleError,
    UnsupportedChangeError,
)
from cdc.model.events import Position, TableSchema
from cdc.model.lsn import Lsn
from cdc.model.sql_names import sql_name
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import NULL, UNCHANGED, Absent, Delete, Insert, Relation, Tuple, TupleValue, Update
from cdc.pgoutput.relations import captured_columns, relation_differs, sent_places
from cdc.pgoutput.values import ColumnEncoding, Encoder, boolean, encoder_for, integer, json_name, quote

_U32 = struct.Struct(">I")
_HEAD_BYTES = 8  # message type 1, relation oid 4, tuple kind 1, column count 2
_NEW_HEAD_BYTES = 3  # tuple kind 1, column count 2
_FULL = "f"


# (op, before, after, old key, new key), JSON as latin-1 view of UTF-8. A plain tuple, because one is made for each row.
# `before` is the known part of the old row, or "null"; `after` is "null" for a delete. Keys are objects of the key
# columns, in key order; they differ only if an update changed the key.
RowChange = tuple[Literal["c", "u", "d"], str, str, str, str]


LEFT_OUT: Final = ""  # the value of a column that records don't have


@dataclass(frozen=True, slots=True)
class IncompleteChange:
    """An update of a row whose large (TOAST) values are neither in the new tuple nor in an old one."""

    before: str  # this and both keys as in RowChange
    columns: tuple[str | None, ...]  # JSON as latin-1 view of each of the schema's columns; None: a hole
    key: tuple[str, ...]  # the key columns' texts as PostgreSQL prints them, in key order
    old_key: str
    new_key: str


class RowSurroundings(NamedTuple):
    """The texts around the rows of a batch, as latin-1 view: head, row, middle, seq, to_index, index, tail."""

    topic: str
    head: str
    middle: str
    to_index: str
    tail: str


class _Unusual(Exception):  # noqa: N818 - not an error: the generated code leaves the message to the exact path
    pass


_LEFT_TO_EXACT_PATH = (_Unusual, MalformedValueError, IndexError, struct.error)


class RowCodec:
    """Turns the rows of one relation, as `schema` publishes it, into JSON text.

    Raises UnsupportedChangeError if the relation is not the one that the schema describes (see relation_differs).
    """

    def __init__(self, schema: TableSchema, relation: Relation, forms: Sequence[ColumnEncoding] | None = None) -> None:
        """`forms`: of the schema's columns, in order; None: those of profile `readable`. Key columns are never left
        out."""
        if difference := relation_differs(schema, relation):
            raise UnsupportedChangeError(
                f"{schema.table} was altered: {difference}", NEXT_AFTER_ALTER, table=schema.table, is_held=False
            )
        self._table = schema.table
        self._relation = relation
        self._names = tuple(column.name for column in schema.columns)
        forms = forms or [ColumnEncoding(encoder_for(column)) for column in schema.columns]
        self._encoders = {i: form.encode for i, form in enumerate(forms) if form.encode is not None}
        self._unknown = {i: form.unknown for i, form in enumerate(forms) if form.unknown is not None}
        self._shown = tuple(self._encoders)
        self._key = tuple(self._names.index(name) for name in schema.key)
        assert set(self._key) <= set(self._shown), "a key is never left out"
        self._sent = sent_places(relation)
        is_key = [column.is_key for column in captured_columns(relation)]
        self._identity = tuple(i for i in self._shown if is_key[i])
        self._known_of_old = tuple(i for i in self._shown if i in self._identity or i in self._unknown)

        self._read_row, self._read_identity, self._read_fields, self._make_records = _generate(self)
        is_full = relation.replica_identity == _FULL
        self._read_old = self._read_row if is_full else self._read_identity
        oid, count = relation.oid.to_bytes(4), len(self._sent).to_bytes(2)
        old_kind = b"O" if is_full else b"K"
        self._insert_head = b"I" + oid + b"N" + count
        self._update_head = b"U" + oid + b"N" + count
        self._update_old_head = b"U" + oid + old_kind + count
        self._new_head = b"N" + count
        self._delete_head = b"D" + oid + old_kind + count

    def exact_change(self, message: bytes, offset: int, commit_lsn: int, tx_index: int) -> RowChange | IncompleteChange:
        """Returns the row change in `message[offset:]`, which starts at its I, U or D byte, by the exact path.

        Raises ProtocolError for bytes that are not a row message of this relation, or a value that its type does not
        print; UnsupportedChangeError for a key that is null or not in the log. Both name table, column and position;
        `commit_lsn` and `tx_index` serve only that.
        """
        return _Exact(self, Position(Lsn(commit_lsn), tx_index)).change(memoryview(message)[offset:])

    def usual_change(self, message: bytes, offset: int) -> RowChange | None:
        """Does the same by the generated code. Returns None if that leaves the message to the exact path."""
        try:
            text = str(message, "latin-1")
            if message.startswith(self._insert_head, offset):
                row, key, end = self._read_row(message, text, offset + _HEAD_BYTES)
                if end == len(message):
                    return "c", "null", row, key, key
            elif message.startswith(self._update_head, offset):
                row, key, end = self._read_row(message, text, offset + _HEAD_BYTES)
                if end == len(message):
                    return "u", "null", row, key, key
            elif message.startswith(self._update_old_head, offset):
                before, old_key, end = self._read_old(message, text, offset + _HEAD_BYTES)
                if message.startswith(self._new_head, end):
                    row, key, end = self._read_row(message, text, end + _NEW_HEAD_BYTES)
                    if end == len(message):
                        return "u", before, row, old_key, key
            elif message.startswith(self._delete_head, offset):
                before, old_key, end = self._read_old(message, text, offset + _HEAD_BYTES)
                if end == len(message):
                    return "d", before, "null", old_key, old_key
        except _LEFT_TO_EXACT_PATH:
            pass
        return None

    def copy(self, line: bytes, commit_lsn: int, tx_index: int) -> tuple[str, str]:
        """Returns (row, key) of a line of `COPY (SELECT <the schema's columns, in order>) TO STDOUT` in text format,
        with or without its newline. Raises like `exact_change`."""
        try:
            fields = _copy_fields(line)
            if len(fields) == len(self._names):
                return self._read_fields(fields)
        except (_Unusual, MalformedValueError):
            pass
        return _Exact(self, Position(Lsn(commit_lsn), tx_index)).copy(line)

    def copy_all(
        self, lines: Sequence[bytes], around: RowSurroundings, seq: int, index: int
    ) -> list[TopicRecord] | None:
        """Returns a record for each of these lines of COPY, without newlines, by the generated code; `seq` and `index`:
        of the first one, the others' follow on. Returns None if it leaves a line to `copy`, which says what is wrong
        with it."""
        text = str(b"\n".join(lines), "latin-1")
        texts = text.split("\n")
        if len(texts) != len(lines) or "\r" in text:
            return None
        rows = map(_unescaped_fields, texts) if "\\" in text else map(_split, texts)
        try:
            return self._make_records(rows, *around, seq, index)
        except (_Unusual, MalformedValueError, ValueError):  # ValueError: the number of fields, or not UTF-8
            return None

    # ---- rows with holes, column by column

    def row_of(self, columns: Sequence[str | None]) -> str:
        """Returns the JSON object of columns as IncompleteChange has them, without those that are None or LEFT_OUT."""
        members = zip(self._names, columns, strict=True)
        return "{" + ",".join(f"{json_name(name)}:{value}" for name, value in members if value) + "}"

    def columns_of(self, row: str, start: int) -> tuple[tuple[str, ...], int] | None:
        """Reads the object at `row[start:]`, the reverse of `row_of`. Returns each column's JSON and the end of the
        object; None if it is not an object of exactly these columns."""
        columns = [LEFT_OUT] * len(self._names)
        end = start
        for i in self._shown:
            opening = f"{',' if i != self._shown[0] else '{'}{json_name(self._names[i])}:"
            if not row.startswith(opening, end):
                return None
            begin = end + len(opening)
            try:
                end = json_end(row, begin)
            except ValueError:
                return None
            columns[i] = row[begin:end]
        return (tuple(columns), end + 1) if row.startswith("}", end) else None

    def column(self, name: str, value: bytes | None) -> str:
        """Converts a value's text as PostgreSQL prints it, None for NULL, to JSON. Raises MalformedValueError, and
        ValueError for an unknown column."""
        return "null" if value is None else self._encoders[self._names.index(name)](value.decode("latin-1"))


_json = JSONDecoder()


def json_end(text: str, start: int) -> int:
    """Returns the end of the JSON value that begins at `start`. Raises ValueError if none ends."""
    return _json.raw_decode(text, start)[1]


class _Exact:
    """The exact path for one message: decodes all of it, then returns the row or raises the error."""

    def __init__(self, codec: RowCodec, position: Position) -> None:
        self._codec = codec
        self._position = str(position)

    def change(self, message: memoryview) -> RowChange | IncompleteChange:
        codec = self._codec
        decoded = decode(message, self._position)
        if not isinstance(decoded, Insert | Update | Delete) or decoded.relation_oid != codec._relation.oid:
            raise self._refused("the message is not a row of this table")
        if isinstance(decoded, Insert):
            after, key = self._row(self._captured(decoded.new))
            return "c", "null", after, key, key
        if decoded.old is not None:
            if (decoded.old_kind == "O") != (codec._relation.replica_identity == _FULL):
                raise self._refused(f"old tuple of kind {decoded.old_kind} does not fit the replica identity")
            old = self._captured(decoded.old)
            before, old_key = self._row(old) if decoded.old_kind == "O" else self._identity_row(old)
            if isinstance(decoded, Delete):
                return "d", before, "null", old_key, old_key
            return self._update(before, old_key, self._filled(self._captured(decoded.new), old))
        assert isinstance(decoded, Update)
        return self._update("null", None, self._captured(decoded.new))

    def copy(self, line: bytes) -> tuple[str, str]:
        try:
            fields = _copy_fields(line)
        except _Unusual:
            raise self._refused("the line is not COPY's text format") from None
        self._check_width(fields, len(self._codec._names))
        return self._row(tuple(NULL if field is None else field.encode("latin-1") for field in fields))

    def _filled(self, new: Tuple, old: Tuple) -> Tuple:
        """Returns the new tuple, with values that were not sent taken from the old one if it has them."""
        return tuple(
            previous if value is UNCHANGED and previous is not NULL else value
            for value, previous in zip(new, old, strict=True)
        )

    def _update(self, before: str, old_key: str | None, values: Tuple) -> RowChange | IncompleteChange:
        """Updates are the only changes whose row may have holes, though not in its key."""
        shown = self._codec._encoders
        if not any(value is UNCHANGED and i in shown for i, value in enumerate(values)):
            after, key = self._row(values)
            return "u", before, after, old_key or key, key
        is_key = self._codec._key
        columns = tuple(
            LEFT_OUT if i not in shown else None if value is UNCHANGED and i not in is_key else self._value(i, value)
            for i, value in enumerate(values)
        )
        texts = tuple(self._text(i, values[i]) for i in is_key)
        new_key = self._key_object({i: column or "" for i, column in enumerate(columns)})
        return IncompleteChange(before, columns, texts, old_key or new_key, new_key)

    def _text(self, i: int, value: TupleValue) -> str:
        assert not isinstance(value, Absent), "other values were refused"
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError:
            raise self._refused(f"column {self._codec._names[i]} is not UTF-8") from None

    def _captured(self, values: Tuple) -> Tuple:
        """Returns the values of the schema's columns in a tuple of the stream."""
        sent = self._codec._sent
        self._check_width(values, len(sent))
        return tuple(value for value, i in zip(values, sent, strict=True) if i is not None)

    def _row(self, values: Tuple) -> tuple[str, str]:
        encoded = self._encoded(values, self._codec._shown)
        return self._object(self._codec._shown, encoded), self._key_object(encoded)

    def _identity_row(self, values: Tuple) -> tuple[str, str]:
        encoded = self._codec._unknown | self._encoded(values, self._codec._identity)
        return self._object(self._codec._known_of_old, encoded), self._key_object(encoded)

    def _encoded(self, values: Tuple, wanted: Collection[int]) -> dict[int, str]:
        """Returns the JSON text of these columns."""
        return {i: self._value(i, values[i]) for i in wanted}

    def _value(self, i: int, value: TupleValue) -> str:
        name = self._codec._names[i]
        if value is NULL:
            if i in self._codec._key:
                raise self._unpublished(
                    f"{self._place(name)} is NULL, but it is part of the record key",
                    "a record key must be NOT NULL: give such rows a value",
                )
            return "null"
        if value is UNCHANGED:
            if i not in self._codec._key:
                raise self._refused(f"column {name} was left out of a row that must be complete")
            # Servers since February 2022 log a key's large value with each update.
            raise self._unpublished(
                f"{self._place(name)}: the row was updated without the large (TOAST) value of its key, which is not in "
                "the log",
                f"ALTER TABLE {sql_name(*self._codec._table)} REPLICA IDENTITY FULL, or a newer minor version of "
                "PostgreSQL",
            )
        try:
            return self._codec._encoders[i](str(value, "latin-1"))
        except UnconvertibleError as error:
            raise self._unpublished(f"{self._place(name)}: {error.message}", error.hint) from None
        except MalformedValueError as error:
            raise ProtocolError(f"{self._place(name)}: {error.message}", error.hint) from None

    def _object(self, columns: Sequence[int], encoded: Mapping[int, str]) -> str:
        names = self._codec._names
        return "{" + ",".join(f"{json_name(names[i])}:{encoded[i]}" for i in columns) + "}"

    def _key_object(self, encoded: Mapping[int, str]) -> str:
        return self._object(self._codec._key, encoded)

    def _check_width(self, values: Sequence[object], width: int) -> None:
        if len(values) != width:
            raise self._refused(f"{len(values)} columns, the relation has {width}")

    def _unpublished(self, what: str, remedy: str) -> UnsupportedChangeError:
        table = self._codec._table
        return UnsupportedChangeError(what, f"{remedy}; {NEXT_AFTER_STOP.format(table=table)}", table=table)

    def _place(self, column: str) -> str:
        return f"{self._codec._table} at {self._position}, column {column}"

    def _refused(self, what: str) -> ProtocolError:
        return ProtocolError(
            f"{self._codec._table} at {self._position}: {what}",
            "the stream is damaged: nothing after this is published",
        )


# ---- COPY text format (PostgreSQL manual, COPY, "Text Format")

_escapes = re.compile(r"\\(.?)", re.DOTALL).sub
_ESCAPED = {"\\": "\\", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _copy_fields(line: bytes) -> list[str | None]:
    """Returns the fields of a line, unescaped, None for NULL. Raises _Unusual for text that COPY TO does not print."""
    text = str(line, "latin-1")
    if text.endswith("\n"):
        text = text[:-1]
    if "\n" in text or "\r" in text:
        raise _Unusual
    return _unescaped_fields(text)


def _split(text: str) -> list[str]:
    return text.split("\t")


def _unescaped_fields(text: str) -> list[str | None]:
    fields: list[Any] = text.split("\t")
    if "\\" in text:
        for i, field in enumerate(fields):
            if "\\" in field:
                fields[i] = None if field == "\\N" else _escapes(_unescape, field)
    return fields


def _unescape(escape: re.Match[str]) -> str:
    character = _ESCAPED.get(escape[1])
    if character is None:
        raise _Unusual
    return character


# ---- generated code

_ReadTuple = Callable[[bytes, str, int], tuple[str, str, int]]  # message, its view, offset → row, key, end
_ReadFields = Callable[[list[str | None]], tuple[str, str]]
_MakeRecords = Callable[..., list[TopicRecord]]  # rows, the fields of RowSurroundings, seq, index

# Generated code for the usual value of an encoder, without a call.
_INLINE: dict[Encoder, str] = {
    integer: 'v if v.isdecimal() and v[0] != "0" else integer(v)',
    boolean: '"true" if v == "t" else boolean(v)',
    quote: "quote(v)",
}


def _generate(codec: RowCodec) -> tuple[_ReadTuple, _ReadTuple, _ReadFields, _MakeRecords]:
    """Returns functions that read a whole tuple, a key-only old tuple, and the fields of a COPY line, and one that
    makes the records of many COPY lines."""
    source = [
        *_tuple_reader(codec, "read_row", codec._shown, codec._shown),
        *_tuple_reader(codec, "read_identity", codec._identity, codec._known_of_old),
        *_fields_reader(codec),
        *_records_maker(codec),
    ]
    namespace: dict[str, Any] = {"u32": _U32.unpack_from, "Unusual": _Unusual}
    namespace |= {"new": tuple.__new__, "TopicRecord": TopicRecord}
    namespace |= {"integer": integer, "boolean": boolean, "quote": quote}
    namespace |= {f"e{i}": encoder for i, encoder in codec._encoders.items()}
    # The source contains no text from outside: names are written as escapes of each character (_literal).
    exec(_compiled("\n".join(source)), namespace)  # noqa: S102
    return namespace["read_row"], namespace["read_identity"], namespace["read_fields"], namespace["make_records"]


@lru_cache(maxsize=1_000)
def _compiled(source: str) -> CodeType:
    """Caches compiled code: each session describes the same relations again, and compiling takes most of the time
    here."""
    return compile(source, "<codec of a relation>", "exec")


def _tuple_reader(codec: RowCodec, function: str, wanted: Sequence[int], members: Sequence[int]) -> list[str]:
    """`wanted`: columns that are read. `members`: columns of the object; members that are not read are unknown."""
    lines = [f"def {function}(b, s, p):"]
    for i in codec._sent:
        if i is not None and i in wanted:
            lines += [
                "    if b[p] == 116:",
                "        q = p + 5",
                "        p = q + u32(b, p + 1)[0]",
                "        v = s[q:p]",
                f"        j{i} = {_expression(codec, i)}",
            ]
            if i not in codec._key:
                lines += ["    elif b[p] == 110:", "        p += 1", f'        j{i} = "null"']
        else:
            lines += ["    if b[p] == 110 or b[p] == 117:", "        p += 1"]
            lines += ["    elif b[p] == 116:", "        p += 5 + u32(b, p + 1)[0]"]
        lines += ["    else:", "        raise Unusual"]
    unknown = {i: codec._unknown[i] for i in members if i not in wanted}
    return [*lines, f"    return {_object_source(codec, members, unknown)}, {_object_source(codec, codec._key)}, p"]


def _fields_reader(codec: RowCodec) -> list[str]:
    lines = ["def read_fields(f):"]
    for i in codec._shown:
        lines += [f"    v = f[{i}]", "    if v is not None:", f"        j{i} = {_expression(codec, i)}", "    else:"]
        lines += ["        raise Unusual" if i in codec._key else f'        j{i} = "null"']
    return [*lines, f"    return {_object_source(codec, codec._shown)}, {_object_source(codec, codec._key)}"]


def _records_maker(codec: RowCodec) -> list[str]:
    """A loop over rows in one function: for a narrow row, calls would take as long as its columns."""
    lines = ["def make_records(rows, topic, head, middle, to_index, tail, seq, index):"]
    lines += [
        "    made = []",
        "    add = made.append",
        "    for " + "".join(f"f{i}, " for i in range(len(codec._names))),
    ]
    lines[-1] += "in rows:"
    for i in codec._shown:
        lines += [f"        v = f{i}", "        if v is not None:", f"            j{i} = {_expression(codec, i)}"]
        lines += ["        else:", "            raise Unusual" if i in codec._key else f'            j{i} = "null"']
    value = f"{{head}}{_members_source(codec, codec._shown)}{{middle}}{{seq}}{{to_index}}{{index}}{{tail}}"
    return [
        *lines,
        f"        s = f'{value}'",
        '        b = s.encode("latin-1")',
        "        if not s.isascii():",
        "            b.decode()",  # raises unless it is UTF-8; see require_utf8 in cdc/formats/records.py
        f"        k = {_object_source(codec, codec._key)}",
        '        add(new(TopicRecord, (topic, k.encode("latin-1"), b, None, None)))',
        "        seq += 1",
        "        index += 1",
        "    return made",
    ]


def _expression(codec: RowCodec, i: int) -> str:
    return _INLINE.get(codec._encoders[i], f"e{i}(v)")


def _object_source(codec: RowCodec, columns: Sequence[int], constant: Mapping[int, str] | None = None) -> str:
    """Returns the source of an f-string that makes the JSON object of these columns. `constant`: columns with a
    fixed text."""
    return f"f'{_members_source(codec, columns, constant)}'"


def _members_source(codec: RowCodec, columns: Sequence[int], constant: Mapping[int, str] | None = None) -> str:
    """Returns the inside of this f-string."""
    constant = constant or {}
    members = (
        _literal(f"{json_name(codec._names[i])}:") + (_literal(constant[i]) if i in constant else f"{{j{i}}}")
        for i in columns
    )
    return _literal("{") + _literal(",").join(members) + _literal("}")


def _literal(view: str) -> str:
    """Returns text for use inside an f-string's quotes: only letters, digits and blanks are not escaped."""
    return "".join(c if c.isascii() and (c.isalnum() or c in " _,:") else f"\\x{ord(c):02x}" for c in view)
