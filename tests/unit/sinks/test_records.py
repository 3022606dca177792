"""Records of a table's topic become changes; everything else is refused with its coordinates."""

import re
from dataclasses import replace
from typing import Any

import orjson
import pytest

from cdc.model.events import Column, TableId, TableSchema, pack_version
from sinks.contract import Change, SourceOperation
from sinks.errors import SinkError
from sinks.records import UnknownSchemaError, decode_json, encode_json, ordinary_change, read_record
from sinks.schema_history import SchemaHistory

TOPIC = "shop.public.order_lines"
SCHEMA = TableSchema(
    table=TableId("public", "order_lines"),
    version=3,
    oid=16_400,
    columns=tuple(Column(name, 25, -1, "text", True) for name in ("order_id", "line_no", "remark")),
    key=("order_id", "line_no"),
    topic=TOPIC,
)
SCHEMA_HISTORY = SchemaHistory((SCHEMA,))
KEY = b'{"order_id":7,"line_no":1}'
ROW = {"order_id": 7, "line_no": 1, "remark": "ünï\n"}
VERSION = pack_version(2, 17)
AT_US = 1_767_323_079_990_123


def envelope(**changed: Any) -> dict[str, Any]:
    source = {"schema": "public", "table": "order_lines", "epoch": 2, "seq": 17, "schema_version": 3, "ts_us": AT_US}
    return {"before": None, "after": ROW, "source": source, "op": "c"} | changed


def read(value: Any, key: bytes | None = KEY, headers: list[tuple[str, bytes | None]] | None = None) -> Change:
    content = value if value is None or isinstance(value, bytes) else orjson.dumps(value)
    ordinary = ordinary_change(SCHEMA, key, content)
    try:
        change = read_record({TOPIC: SCHEMA_HISTORY}, TOPIC, 3, 99, key, content, headers)
    except SinkError:
        assert ordinary is None
        raise
    assert ordinary in (None, change)
    return change


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_a_row_record_is_its_after_block_at_its_version(op: str) -> None:
    change = read(envelope(op=op))
    assert change == Change(
        SCHEMA.table, {"order_id": 7, "line_no": 1}, VERSION, ROW, 3, origin=SourceOperation(op, AT_US)
    )
    assert ordinary_change(SCHEMA, KEY, orjson.dumps(envelope(op=op))) == change


def holed(op: str, unchanged: object = ("remark",), row: object = None) -> dict[str, Any]:
    source = {"schema": "public", "table": "order_lines", "epoch": 2, "seq": 17, "schema_version": 3, "ts_us": AT_US}
    return envelope(op=op, after=row or {"order_id": 7, "line_no": 1}, source=source | {"unchanged": unchanged})


def test_a_row_that_lacks_large_values_says_which() -> None:
    key = {"order_id": 7, "line_no": 1}
    assert read(holed("u")) == Change(
        SCHEMA.table, key, VERSION, key, 3, frozenset({"remark"}), SourceOperation("u", AT_US)
    )


def test_a_row_that_moved_here_and_is_not_whole_is_not_known_yet() -> None:
    origin = SourceOperation("c", AT_US)
    assert read(holed("c")) == Change(SCHEMA.table, {"order_id": 7, "line_no": 1}, VERSION, None, 3, origin=origin)


@pytest.mark.parametrize("unchanged", ["remark", [7], ["line_no"], [], ["remark", "more"]])
def test_a_list_that_does_not_fit_the_row_is_refused(unchanged: object) -> None:
    with pytest.raises(SinkError, match=r"lists as unchanged something|does not have the columns"):
        read(holed("u", unchanged))


def test_a_delete_has_no_row_whatever_it_knows_of_the_old_one() -> None:
    assert read(envelope(op="d", before=ROW, after=None)) == Change(
        SCHEMA.table, {"order_id": 7, "line_no": 1}, VERSION, None, 3, origin=SourceOperation("d", AT_US)
    )


def test_a_tombstone_has_the_version_of_its_header() -> None:
    headers = [("other", None), ("watershed.version", str(VERSION).encode())]
    assert read(None, headers=headers) == Change(SCHEMA.table, {"order_id": 7, "line_no": 1}, VERSION, None, None)


def test_the_largest_version_is_read() -> None:
    largest = (1 << 63) - 1
    assert read(None, headers=[("watershed.version", str(largest).encode())]).version == largest


OLDER = replace(SCHEMA, version=2, columns=(*SCHEMA.columns[:2], Column("gone", 25, -1, "text", True)))


def read_older(row: dict[str, Any], op: str = "u", *versions: TableSchema, **source: Any) -> Change:
    value = envelope(after=row, op=op)
    value["source"] = value["source"] | {"schema_version": 2} | source
    return read_record({TOPIC: SchemaHistory.of([*versions, SCHEMA])}, TOPIC, 3, 99, KEY, orjson.dumps(value), None)


def test_a_row_of_an_older_schema_is_in_the_newest_ones_shape() -> None:
    change = read_older({"order_id": 7, "line_no": 1, "gone": "x"}, "u", OLDER)
    assert change.row == {"order_id": 7, "line_no": 1, "remark": None}
    assert change.schema_version == 2


def test_a_row_of_an_older_schema_has_that_ones_columns() -> None:
    with pytest.raises(SinkError, match=r"does not have the columns of public\.order_lines, schema version 2"):
        read_older({"order_id": 7, "line_no": 1}, "u", OLDER)


def test_a_row_of_a_schema_that_is_not_known_any_more_is_read_by_name() -> None:
    assert read_older({"order_id": 7, "line_no": 1, "remark": "r", "other": 1}).row == ROW | {"remark": "r"}


def test_a_moved_row_that_lacks_only_what_is_gone_since_is_whole() -> None:
    change = read_older({"order_id": 7, "line_no": 1}, "c", OLDER, unchanged=["gone"])
    assert change.row == {"order_id": 7, "line_no": 1, "remark": None}
    assert not change.unchanged


@pytest.mark.parametrize(
    "number", ["18446744073709551616", "-9223372036854775809", "123456789012345678901234567890", "9223372036854775807"]
)
def test_a_long_integer_stays_an_integer(number: str) -> None:
    for value in (number, f"[[null, {number}]]"):
        content = orjson.dumps(envelope(after=ROW | {"remark": "@"})).replace(b'"@"', value.encode())
        row = read(content).row
        assert row is not None
        assert row["remark"] == (int(number) if value is number else [[None, int(number)]])
        assert encode_json(row["remark"]).decode() == value.replace(" ", "")


def test_a_large_float_stays_a_float() -> None:
    for text in ("1e+300", "-1.5e+22", "0.1", "1.5"):
        assert decode_json(text.encode()) == float(text)


SOURCE = envelope()["source"]
REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": (b"\x00\x01", "its value is not JSON"),
    "not UTF-8": (b'{"after":"\xff"}', "its value is not JSON"),
    "empty": (b"", "its value is not JSON"),
    "an array": ([1], "its value is not a JSON object"),
    "no source": ({"after": ROW, "op": "c"}, "no source block"),
    "another table": (envelope(source=SOURCE | {"table": "customers"}), "another table than public.order_lines"),
    "no epoch": (envelope(source={k: v for k, v in SOURCE.items() if k != "epoch"}), "no epoch and seq"),
    "seq as text": (envelope(source=SOURCE | {"seq": "17"}), "no epoch and seq"),
    "seq as truth": (envelope(source=SOURCE | {"seq": True}), "no epoch and seq"),
    "seq too large": (envelope(source=SOURCE | {"seq": 1 << 48}), "no epoch and seq"),
    "epoch zero": (envelope(source=SOURCE | {"epoch": 0}), "no epoch and seq"),
    "no schema version": (envelope(source=SOURCE | {"schema_version": None}), "no schema_version"),
    "a later schema": (envelope(source=SOURCE | {"schema_version": 4}), "schema version 4 of public.order_lines"),
    "no after": (envelope(after=None), "its after block is missing"),
    "a column left out": (envelope(after={"order_id": 7, "line_no": 1}), "does not have the columns"),
    "a truncate": (envelope(op="t"), "its operation 't' is not"),
    "no op": (envelope(op=None), "it has no op"),
}


@pytest.mark.parametrize(("value", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_value_that_is_no_change_is_refused_with_its_coordinates(value: Any, message: str) -> None:
    with pytest.raises(SinkError, match=re.escape(message)) as caught:
        read(value)
    assert f"{TOPIC}, partition 3, offset 99" in caught.value.message
    assert caught.value.hint
    assert "ünï" not in str(caught.value), "no values in errors"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "it has no key"),
        (b"7", "its key is not a JSON object"),
        (b"{", "its key is not JSON"),
        (b'{"order_id":7}', "its key does not have the columns (order_id, line_no)"),
        (b'{"line_no":1,"order_id":7}', "its key does not have the columns (order_id, line_no)"),
        (b'{"order_id":7,"line_no":null}', "its key holds a null"),
    ],
)
def test_a_key_that_is_not_the_tables_is_refused(key: bytes | None, message: str) -> None:
    with pytest.raises(SinkError, match=re.escape(message)):
        read(envelope(), key=key)


@pytest.mark.parametrize("content", [None, b"", b"-1", b"1.5", b" 1", b"9" * 19, b"1" * 20, "¹".encode()])
def test_a_header_that_is_no_version_is_refused(content: bytes | None) -> None:
    with pytest.raises(SinkError, match=r"its header watershed\.version is not a version"):
        read(None, headers=[("watershed.version", content)])


@pytest.mark.parametrize("headers", [None, [], [("version", b"1")]])
def test_a_tombstone_without_version_is_refused(headers: list[tuple[str, bytes | None]] | None) -> None:
    with pytest.raises(SinkError, match="tombstone without the header"):
        read(None, headers=headers)


def test_a_topic_without_schema_may_get_one_later() -> None:
    with pytest.raises(UnknownSchemaError, match="no schema record in the control topic names this topic"):
        read_record({}, TOPIC, 0, 0, KEY, None, None)
