"""Record keys and the values of key columns, both ways. What PostgreSQL makes of the texts is in test_chunk_keys."""

import pytest

from cdc.model.events import Column
from cdc.pgoutput.record_keys import RecordKeys
from tests.support import wire

ELEMENTS = {1001: 17, 1007: 23, 1009: 25}


def keys_of(*columns: tuple[str, int, str]) -> RecordKeys:
    made = [
        Column(name, oid, -1, type_name, False, element_oid=ELEMENTS.get(oid, 0)) for name, oid, type_name in columns
    ]
    schema, _ = wire.schema_and_relation(
        [*made, Column("more", 25, -1, "text", True)], [name for name, _, _ in columns]
    )
    return RecordKeys(schema)


@pytest.mark.parametrize(
    ("oid", "type_name", "printed", "key", "read"),
    [
        (23, "integer", "-7", b'{"k":-7}', "-7"),
        (20, "bigint", "9223372036854775807", b'{"k":9223372036854775807}', "9223372036854775807"),
        (701, "double precision", "1e+20", b'{"k":1e+20}', "1e+20"),
        (701, "double precision", "-Infinity", b'{"k":"-Infinity"}', "-Infinity"),
        (16, "boolean", "t", b'{"k":true}', "true"),
        (16, "boolean", "f", b'{"k":false}', "false"),
        (1700, "numeric", "1.00", b'{"k":"1.00"}', "1.00"),
        (25, "text", 'ä"\\\n', '{"k":"ä\\"\\\\\\n"}'.encode(), 'ä"\\\n'),
        (17, "bytea", "\\x00ff", b'{"k":"AP8="}', "\\x00ff"),
        (1082, "date", "2024-01-31", b'{"k":"2024-01-31"}', "2024-01-31"),
        (1114, "timestamp", "2024-01-31 12:00:00.5", b'{"k":"2024-01-31T12:00:00.5"}', "2024-01-31T12:00:00.5"),
        (1184, "timestamptz", "2024-01-31 12:00:00+00", b'{"k":"2024-01-31T12:00:00Z"}', "2024-01-31T12:00:00Z"),
        (1184, "timestamptz", "infinity", b'{"k":"infinity"}', "infinity"),
        (1007, "integer[]", "{1,NULL}", b'{"k":[1,null]}', '{"1",NULL}'),
        (1009, "text[]", '{{"a b",c}}', b'{"k":[["a b","c"]]}', '{{"a b","c"}}'),
        (1001, "bytea[]", '{"\\\\x00ff"}', b'{"k":["AP8="]}', '{"\\\\x00ff"}'),
    ],
)
def test_a_value_goes_into_a_record_key_and_comes_back(
    oid: int, type_name: str, printed: str, key: bytes, read: str
) -> None:
    records = keys_of(("k", oid, type_name))
    assert records.encode((printed,)) == key
    assert records.texts(key) == (read,)


def test_columns_keep_the_order_of_the_key() -> None:
    records = keys_of(("region", 25, "text"), ("id", 23, "integer"))
    assert records.encode(("eu", "17")) == b'{"region":"eu","id":17}'
    assert records.texts(b'{"region":"eu","id":17}') == ("eu", "17")
    assert records.texts(b'{"id":17,"region":"eu"}') is None


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"x",
        b"17",
        b"[1]",
        b'{"other":1}',
        b'{"k":1,"more":2}',
        b'{"k":null}',
        b'{"k":{}}',
        b'{"k":"\\u0000"}',
        b"\xff",
    ],
)
def test_what_is_no_key_of_these_columns_is_none(key: bytes) -> None:
    assert keys_of(("k", 25, "text")).texts(key) is None
