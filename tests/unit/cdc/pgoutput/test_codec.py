"""Rows as JSON, what stops capture, and that the generated code takes the usual rows itself."""

import json

import pytest

from cdc.config.columns import ColumnChoice
from cdc.model.errors import MalformedValueError, ProtocolError, UnsupportedChangeError
from cdc.model.events import Column, TableId
from cdc.pgoutput.codec import IncompleteChange, RowChange, RowCodec
from cdc.pgoutput.messages import NULL, UNCHANGED, TupleValue
from tests.support import wire

OID = 16385
COLUMNS = (
    Column("b", 25, -1, "text", False),
    Column("a", 20, -1, "bigint", False),
    Column("note", 25, -1, "text", True),
    Column("ok", 16, -1, "boolean", True),
)
ROW: list[TupleValue] = [b"x", b"1", "Zoë".encode(), b"t"]
ROW_JSON = '{"b":"x","a":1,"note":"Zoë","ok":true}'
KEY_JSON = '{"a":1,"b":"x"}'
COMMIT_LSN = 0x16_B374_D848


def codec(identity: str = "d") -> RowCodec:
    return RowCodec(*wire.schema_and_relation(COLUMNS, ["a", "b"], identity=identity))


def changed(made: RowCodec, message: bytes, offset: int, *position: int) -> RowChange | IncompleteChange:
    """The row change by the generated code or, if that leaves it to the exact path, by that."""
    return made.usual_change(message, offset) or made.exact_change(message, offset, *position)


def change(message: bytes, identity: str = "d") -> tuple[str, ...] | IncompleteChange:
    """The row change as strings, and that a frame before it makes no difference."""
    found = changed(codec(identity), message, 0, COMMIT_LSN, 3)
    assert changed(codec(identity), b"frame" + message, 5, COMMIT_LSN, 3) == found
    if isinstance(found, IncompleteChange):
        return found
    return tuple(part.encode("latin-1").decode() for part in found)


def old_key(*, a: bytes = b"1", b: bytes = b"x") -> list[TupleValue]:
    return [b, a, NULL, NULL]


def test_an_insert_is_the_new_row_and_its_key_in_key_order() -> None:
    assert change(wire.insert(OID, ROW)) == ("c", "null", ROW_JSON, KEY_JSON, KEY_JSON)


def test_an_update_without_old_tuple_has_no_before() -> None:
    assert change(wire.update(OID, ROW)) == ("u", "null", ROW_JSON, KEY_JSON, KEY_JSON)


def test_a_key_only_old_tuple_gives_the_key_columns_and_no_nulls_for_the_rest() -> None:
    moved = change(wire.update(OID, ROW, old_key(a=b"7")))
    assert moved == ("u", '{"b":"x","a":7}', ROW_JSON, '{"a":7,"b":"x"}', KEY_JSON)
    assert change(wire.delete(OID, old_key())) == ("d", '{"b":"x","a":1}', "null", KEY_JSON, KEY_JSON)


def test_a_full_old_tuple_gives_the_whole_old_row() -> None:
    old: list[TupleValue] = [b"x", b"1", NULL, b"f"]
    before = '{"b":"x","a":1,"note":null,"ok":false}'
    assert change(wire.update(OID, ROW, old, b"O"), "f") == ("u", before, ROW_JSON, KEY_JSON, KEY_JSON)
    assert change(wire.delete(OID, old, b"O"), "f") == ("d", before, "null", KEY_JSON, KEY_JSON)


def test_an_identity_index_wider_than_the_key_is_known_of_the_old_row() -> None:
    schema, relation = wire.schema_and_relation(COLUMNS, ["a", "b"], identity="i", identity_columns=["a", "b", "note"])
    message = wire.delete(OID, [b"x", b"1", b"n", NULL])
    found = changed(RowCodec(schema, relation), message, 0, 0, 0)
    assert isinstance(found, tuple)
    assert found[1] == '{"b":"x","a":1,"note":"n"}'


def test_a_value_that_was_not_sent_comes_from_the_old_row() -> None:
    new = [*ROW[:2], UNCHANGED, b"f"]
    message = wire.update(OID, new, ROW, b"O")
    assert codec("f").usual_change(message, 0) is None
    after = '{"b":"x","a":1,"note":"Zoë","ok":false}'
    assert change(message, "f") == ("u", ROW_JSON, after, KEY_JSON, KEY_JSON)


def test_a_key_value_that_was_not_sent_comes_from_the_old_key() -> None:
    after = change(wire.update(OID, [UNCHANGED, *ROW[1:]], old_key()))
    assert after == ("u", '{"b":"x","a":1}', ROW_JSON, KEY_JSON, KEY_JSON)


@pytest.mark.parametrize(
    ("message", "identity", "before"),
    [
        (wire.update(OID, [*ROW[:2], UNCHANGED, NULL]), "d", "null"),
        (wire.update(OID, [*ROW[:2], UNCHANGED, NULL], old_key()), "d", '{"b":"x","a":1}'),
        # Null is no large value.
        (
            wire.update(OID, [*ROW[:2], UNCHANGED, NULL], [*ROW[:2], NULL, NULL], b"O"),
            "f",
            '{"b":"x","a":1,"note":null,"ok":null}',
        ),
    ],
)
def test_a_value_that_is_nowhere_is_a_hole(message: bytes, identity: str, before: str) -> None:
    assert change(message, identity) == IncompleteChange(
        before, ('"x"', "1", None, "null"), ("1", "x"), KEY_JSON, KEY_JSON
    )


def test_a_moved_row_has_the_hole_under_its_new_key() -> None:
    message = wire.update(OID, [b"x", b"2", UNCHANGED, b"t"], old_key())
    moved = IncompleteChange('{"b":"x","a":1}', ('"x"', "2", None, "true"), ("2", "x"), KEY_JSON, '{"a":2,"b":"x"}')
    assert change(message) == moved


@pytest.mark.parametrize(
    ("message", "identity"),
    [
        (wire.update(OID, ROW, [*ROW[:2], UNCHANGED, NULL], b"O"), "f"),
        (wire.insert(OID, [*ROW[:2], UNCHANGED, NULL]), "d"),
    ],
)
def test_old_rows_and_inserted_ones_are_whole(message: bytes, identity: str) -> None:
    with pytest.raises(ProtocolError, match="column note was left out of a row that must be complete"):
        change(message, identity)


def test_a_keys_value_that_is_nowhere_stops_capture_with_table_column_position_and_next_step() -> None:
    with pytest.raises(UnsupportedChangeError) as stop:
        change(wire.update(OID, [UNCHANGED, *ROW[1:]]))
    assert stop.value.message.startswith("public.customers at 16/B374D848#3, column b: ")
    assert "ALTER TABLE public.customers REPLICA IDENTITY FULL" in stop.value.hint


def test_the_next_step_quotes_names_that_need_it() -> None:
    schema, relation = wire.schema_and_relation(COLUMNS, ["a", "b"], table=TableId("public", 'Or"der'))
    with pytest.raises(UnsupportedChangeError) as stop:
        changed(RowCodec(schema, relation), wire.update(OID, [UNCHANGED, *ROW[1:]]), 0, 0, 0)
    assert 'ALTER TABLE public."Or""der" REPLICA' in stop.value.hint


def test_columns_are_read_back_from_the_row_that_was_made_of_them() -> None:
    made, columns = codec(), ('"x"', "-1", '"a\\"b\\u0001,é"', "null")
    row = made.row_of(columns)
    assert made.columns_of("[" + row + ",1", 1) == (columns, len(row) + 1)
    assert made.row_of([*columns[:2], None, "true"]) == '{"b":"x","a":-1,"ok":true}'
    for other in ("null", '{"b":"x"}', row.replace("note", "mote"), row[:-1], row[:-1] + ',"more":1}', '{"b":'):
        assert made.columns_of(other, 0) is None


def test_a_value_that_was_read_is_encoded_as_its_column_is() -> None:
    assert codec().column("a", b"7") == "7"
    assert codec().column("note", None) == "null"
    with pytest.raises(MalformedValueError):
        codec().column("a", b"seven")
    with pytest.raises(ValueError, match="not in"):
        codec().column("nothing", b"7")


def test_a_null_in_the_key_stops_capture() -> None:
    for message in (wire.insert(OID, [b"x", NULL, *ROW[2:]]), wire.delete(OID, [NULL, b"1", NULL, NULL])):
        with pytest.raises(UnsupportedChangeError, match="is NULL, but it is part of the record key"):
            change(message)
    with pytest.raises(UnsupportedChangeError, match="column b is NULL"):
        codec().copy(b"\\N\t1\t\\N\tt\n", COMMIT_LSN, 3)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (wire.insert(OID + 1, ROW), "not a row of this table"),
        (wire.truncate([OID]), "not a row of this table"),
        (wire.insert(OID, ROW[:3]), "3 columns, the relation has 4"),
        (wire.insert(OID, [*ROW, NULL]), "5 columns, the relation has 4"),
        (wire.update(OID, ROW, ROW[:1]), "1 columns, the relation has 4"),
        (wire.delete(OID, old_key(), b"O"), "old tuple of kind O does not fit the replica identity"),
        (wire.insert(OID, [b"x", b"1x", *ROW[2:]]), "column a: a value is not an integer"),
        (wire.insert(OID, ROW)[:-1], "byte 34: a value needs 1 bytes, 0 are left"),
        (wire.insert(OID, ROW) + b"n", "byte 35: 1 bytes too many"),
        (b"", "a message type needs 1 bytes"),
    ],
)
def test_bytes_that_are_no_row_of_the_relation_are_refused(message: bytes, text: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        change(message)
    assert text in refusal.value.message
    assert "16/B374D848#3" in refusal.value.message


def test_a_length_that_hides_the_next_column_is_refused() -> None:
    inner = b"y" + wire.value_bytes(b"2")
    message = wire.insert(OID, [b"x", b"1", inner, b"t"])  # a value that looks like the next column is fine
    found = change(message)
    assert isinstance(found, tuple)
    assert json.loads(found[2])["note"] == "yt\0\0\0\x012"
    with pytest.raises(ProtocolError):
        change(message.replace(len(inner).to_bytes(4), b"\0\0\0\1"))


@pytest.mark.parametrize(
    ("message", "identity"),
    [
        (wire.insert(OID, ROW), "d"),
        (wire.insert(OID, [b'"', b"-1", NULL, NULL]), "d"),
        (wire.update(OID, ROW), "f"),
        (wire.update(OID, ROW, old_key()), "d"),
        (wire.update(OID, ROW, ROW, b"O"), "f"),
        (wire.delete(OID, old_key()), "i"),
        (wire.delete(OID, ROW, b"O"), "f"),
    ],
)
def test_usual_rows_are_read_by_the_generated_code(message: bytes, identity: str) -> None:
    assert codec(identity).usual_change(message, 0) == changed(codec(identity), message, 0, 0, 0)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (b"x\t1\tZo\xc3\xab\tt\n", ROW_JSON),
        (b"x\t1\tZo\xc3\xab\tt", ROW_JSON),
        (b"x\t1\t\\N\t\\N\n", '{"b":"x","a":1,"note":null,"ok":null}'),
        (b"\\\\N\t1\t\t\\N", r'{"b":"\\N","a":1,"note":"","ok":null}'),
        (b"\\b\\f\\n\\r\\t\\v\t1\t\\\\n\t\\N", r'{"b":"\b\f\n\r\t\u000b","a":1,"note":"\\n","ok":null}'),
    ],
)
def test_a_copy_line_is_unescaped(line: bytes, row: str) -> None:
    found, key = codec().copy(line, COMMIT_LSN, 3)
    assert found.encode("latin-1").decode() == row
    assert json.loads(key) == {name: json.loads(row)[name] for name in ("a", "b")}


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"x\t1\t\\N", b"x\t1\t\\N\tt\tmore", b"x\t1\tn\nx\tt", b"x\t1\tn\rx\tt"),
        *(b"x\t1\tn\\\tt", b"x\t1\t\\q\tt", b"x\t1\t\\x41\tt", b"x\t1\ta\\N\tt", b"x\t1\tn\tt\\", b"x\t1\tn\tmaybe"),
    ],
)
def test_what_copy_does_not_print_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"public\.customers at 16/B374D848#3"):
        codec().copy(line, COMMIT_LSN, 3)


def test_names_with_every_character_are_only_names() -> None:
    names = ["'", '"', "\\", "{j0}", "}}", "{", "\n", "f'{exit()}'", "\\N{DASH}", "ë😀", "a\x01", "%s", "'''", "#"]
    columns = [Column(name, 25, -1, "text", True) for name in names]
    schema, relation = wire.schema_and_relation(columns, names[::-1])
    values: list[TupleValue] = [str(i).encode() for i in range(len(names))]
    message = wire.insert(OID, values)
    found = RowCodec(schema, relation).usual_change(message, 0)
    assert found is not None
    row = {name: str(i) for i, name in enumerate(names)}
    assert found[2] == json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode().decode("latin-1")
    assert json.loads(found[3].encode("latin-1")) == row


def test_a_table_of_1600_columns_works() -> None:
    columns = [Column(f"c{i}", 20, -1, "bigint", True) for i in range(1600)]
    schema, relation = wire.schema_and_relation(columns, ["c1599"])
    message = wire.insert(OID, [str(i).encode() for i in range(1600)])
    found = RowCodec(schema, relation).usual_change(message, 0)
    assert found is not None
    assert json.loads(found[2]) == {f"c{i}": i for i in range(1600)}
    assert found[3] == '{"c1599":1599}'


# ---- columns that are left out: the server sends them all the same

_LEFT_OUT = ("large", "note")


def without(identity: str) -> tuple[RowCodec, RowCodec]:
    """Of a relation of which columns are left out, and of the same that never had them."""
    columns = (Column("large", 25, -1, "text", True), *COLUMNS)
    kept = tuple(column for column in columns if column.name not in _LEFT_OUT)
    schema, plain = wire.schema_and_relation(kept, ["a", "b"], identity=identity)
    _, sent = wire.schema_and_relation(columns, ["a", "b"], identity=identity)
    choice = ColumnChoice(exclude=tuple(f"public.customers.{name}" for name in _LEFT_OUT))
    return RowCodec(schema, choice.marked(sent)), RowCodec(schema, plain)


@pytest.mark.parametrize("large", [b"x" * 300, NULL, UNCHANGED, b"\xff"])
@pytest.mark.parametrize("identity", ["d", "f"])
def test_columns_that_are_left_out_leave_no_trace(large: TupleValue, identity: str) -> None:
    made, plain = without(identity)
    kind, known = (b"O", [large, *ROW]) if identity == "f" else (b"K", [NULL, *old_key()])
    moved = [*known]
    moved[2] = b"7"
    whole: list[TupleValue] = [large, *ROW]

    def kept(values: list[TupleValue]) -> list[TupleValue]:
        return [value for i, value in enumerate(values) if i not in (0, 3)]

    for message, same in (
        (wire.insert(OID, [NULL, *ROW]), wire.insert(OID, kept([NULL, *ROW]))),
        (wire.update(OID, whole), wire.update(OID, kept(whole))),
        (wire.update(OID, whole, moved, kind), wire.update(OID, kept(whole), kept(moved), kind)),
        (wire.delete(OID, known, kind), wire.delete(OID, kept(known), kind)),
    ):
        found = made.usual_change(message, 0)
        if identity == "d" or large is not UNCHANGED:
            assert found is not None, "it is no reason to leave the generated code"
        assert made.exact_change(message, 0, COMMIT_LSN, 3) == changed(plain, same, 0, COMMIT_LSN, 3) == found


def test_a_hole_beside_columns_that_are_left_out_is_the_same() -> None:
    columns = (*COLUMNS, Column("more", 25, -1, "text", True))
    schema, _ = wire.schema_and_relation((*COLUMNS[:2], *COLUMNS[3:], columns[-1]), ["a", "b"])
    _, sent = wire.schema_and_relation(columns, ["a", "b"])
    made = RowCodec(schema, ColumnChoice(exclude=(".*note",)).marked(sent))
    hole = changed(made, wire.update(OID, [b"x", b"1", UNCHANGED, b"t", UNCHANGED]), 0, COMMIT_LSN, 3)
    assert isinstance(hole, IncompleteChange)
    assert hole.columns == ('"x"', "1", "true", None)
    assert (made.row_of(hole.columns), hole.new_key) == ('{"b":"x","a":1,"ok":true}', KEY_JSON)


def test_a_row_without_the_columns_that_are_left_out_is_refused() -> None:
    made, _ = without("d")
    with pytest.raises(ProtocolError, match="3 columns, the relation has 5"):
        changed(made, wire.insert(OID, [b"x", b"1", b"t"]), 0, COMMIT_LSN, 3)


def test_existing_rows_are_read_without_them() -> None:
    made, _ = without("d")
    assert made.copy(b"x\t1\tt\n", COMMIT_LSN, 0) == ('{"b":"x","a":1,"ok":true}', KEY_JSON)
