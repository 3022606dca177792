"""The generated codec against the plain oracle: the same bytes for every row, and the same refusals."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cdc.errors import WatershedError
from cdc.events import Column, TableId
from cdc.formats.debezium import EnvelopeContext, TableEncoder
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import NULL, UNCHANGED, Binary, TupleValue
from tests import wire
from tests.property.oracle import Oracle

OID = 16385
CONTEXT = EnvelopeContext('sh"op', "dätabase", 3, "0.1.0")

# ---- values

# Without NUL, which PostgreSQL's text can't hold, and without surrogates, which are not UTF-8.
any_text = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), max_size=20)
spiteful_text = st.text(st.sampled_from('t\x00\x00\x01n u"\\{},;NULL[]:=\n\t\r\x7f\x80ë€😀'), max_size=12)


def array_text(items: Any, quoting: Callable[[str], bool]) -> str:
    """An array literal; `quoting` says which elements to quote, beyond those that must be."""
    if isinstance(items, list):
        return "{" + ",".join(array_text(item, quoting) for item in items) + "}"
    assert items is None or isinstance(items, str)
    if items is None:
        return "NULL"
    must = items == "" or items.upper() == "NULL" or any(c in '{}"\\, \t\n\r\v\f' for c in items)
    return '"' + items.replace("\\", "\\\\").replace('"', '\\"') + '"' if must or quoting(items) else items


def arrays_of(element: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    flat = st.lists(st.none() | element, min_size=1, max_size=4)
    square = st.lists(st.lists(st.none() | element, min_size=2, max_size=2), min_size=1, max_size=3)
    return (
        st.just("{}")
        | (flat | square).map(lambda items: array_text(items, lambda _: False))
        | st.tuples(flat, st.integers(-3, 3)).map(
            lambda a: f"[{a[1]}:{a[1] + len(a[0]) - 1}]={array_text(a[0], lambda _: True)}"
        )
    )


integers = st.integers(-(2**63), 2**63 - 1).map(str) | st.sampled_from(["0", "-1", "9223372036854775807"])
floats = st.floats(allow_nan=False, allow_infinity=False).map(lambda f: repr(f).removesuffix(".0")) | st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "-0", "1e+20", "1e-07", "5e-324", "1.7976931348623157e+308"]
)
numerics = st.decimals(allow_nan=False, allow_infinity=False).map(lambda d: f"{d:f}") | st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "0.00", "1" * 100 + "." + "9" * 100]
)
dates = st.dates().map(str) | st.sampled_from(["infinity", "-infinity", "4713-01-01 BC", "5874897-12-31"])
naive = st.datetimes().map(lambda d: str(d).rstrip("0") if "." in str(d) else str(d))
times = naive | st.sampled_from(["infinity", "-infinity", "0044-03-15 12:00:00 BC", "294276-12-31 23:59:59.999999"])
zoned = naive.map(lambda t: t + "+00") | st.sampled_from(
    ["infinity", "-infinity", "0044-03-15 12:00:00.5+00 BC", "10000-01-01 00:00:00+00"]
)
bytea = st.binary(max_size=8).map(lambda b: f"\\x{b.hex()}")

# type oid, type name, kind, base type oid, what PostgreSQL prints
TYPES: list[tuple[int, str, str, int, st.SearchStrategy[str]]] = [
    (16, "boolean", "b", 0, st.sampled_from("tf")),
    (20, "bigint", "b", 20, integers),
    (21, "smallint", "b", 0, integers),
    (23, "integer", "b", 0, integers),
    (26, "oid", "b", 0, st.integers(0, 2**32 - 1).map(str)),
    (25, "text", "b", 0, any_text | spiteful_text),
    (1043, "character varying(20)", "b", 0, any_text),
    (1042, "character(6)", "b", 0, any_text.map(lambda t: t[:6].ljust(6))),
    (700, "real", "b", 0, floats),
    (701, "double precision", "b", 0, floats),
    (1700, "numeric", "b", 0, numerics),
    (1082, "date", "b", 0, dates),
    (1083, "time without time zone", "b", 0, st.just("24:00:00") | st.times().map(str)),
    (1114, "timestamp without time zone", "b", 0, times),
    (1184, "timestamp with time zone", "b", 0, zoned),
    (17, "bytea", "b", 0, bytea),
    (3802, "jsonb", "b", 0, st.just('{"a": "\\"\\\\"}') | any_text),
    (114, "json", "b", 0, st.just('{"a": "\\u0000",\n "a":1}')),
    (2950, "uuid", "b", 0, st.uuids().map(str)),
    (16500, "order_status", "e", 16500, any_text),
    (16501, "positive", "b", 23, integers),  # a domain
    (1009, "text[]", "b", 0, arrays_of(any_text | spiteful_text)),
    (1007, "integer[]", "b", 0, arrays_of(integers)),
    (1000, "boolean[]", "b", 0, arrays_of(st.sampled_from("tf"))),
    (1231, "numeric(10,2)[]", "b", 0, arrays_of(numerics)),
    (1022, "double precision[]", "b", 0, arrays_of(floats)),
    (1185, "timestamp with time zone[]", "b", 0, arrays_of(zoned)),
    (1115, "timestamp without time zone[]", "b", 0, arrays_of(times)),
    (1001, "bytea[]", "b", 0, arrays_of(bytea)),
    (16502, "order_status[]", "b", 16502, arrays_of(any_text)),
    (16503, "tags", "b", 1009, arrays_of(any_text)),  # a domain over text[]
    (1020, "box[]", "b", 0, st.sampled_from(["{(1,1),(0,0);(2,2),(1,1)}", "{}", '{"(1;1)";NULL}'])),
    (1186, "interval", "b", 0, st.sampled_from(["1 year 2 mons -3 days +04:05:06.78", "00:00:00"])),
    (869, "inet", "b", 0, st.just("192.168.0.1/24")),
]

names = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from(
    ["id", "name", "{j0}", "'", '"', "\\", "}}", "\\N{DASH}", "f'", "\n"]
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableEncoder, Oracle, list[st.SearchStrategy[str]], bytes, list[bool]]:
    """(encoder, oracle, a strategy of text for each column, kind of old tuples, which columns those hold)."""
    column_names = draw(st.lists(names, min_size=1, max_size=9, unique=True))
    types = [draw(st.sampled_from(TYPES)) for _ in column_names]
    columns = [
        Column(name, oid, draw(st.integers(-1, 99)), type_name, True, kind, base)
        for name, (oid, type_name, kind, base, _) in zip(column_names, types, strict=True)
    ]
    key = draw(st.lists(st.sampled_from(column_names), min_size=1, unique=True))
    identity = draw(st.sampled_from("dif"))
    extra = draw(st.lists(st.sampled_from(column_names))) if identity == "i" else []
    schema, relation = wire.schema_and_relation(
        columns,
        key,
        identity=identity,
        identity_columns=[*key, *extra],
        oid=OID,
        table=TableId(draw(names), draw(names)),
        version=draw(st.integers(1, 9)),
    )
    encoder, oracle = TableEncoder(schema, relation, CONTEXT), Oracle(schema, relation, CONTEXT)
    transaction = draw(st.tuples(*[st.integers(0, 2**50)] * 3, st.none() | st.integers(0, 2**63)))
    for each in (encoder, oracle):
        each.start_transaction(*transaction)
    held = [c.is_key for c in relation.columns]
    return encoder, oracle, [t[4] for t in types], b"O" if identity == "f" else b"K", held


ODD: list[TupleValue] = [NULL, NULL, UNCHANGED, Binary(b"\0\1"), b"\xff", b"\xed\xa0\x80", b"\xc3"]


def new_values(draw: st.DrawFn, texts: list[st.SearchStrategy[str]]) -> list[TupleValue]:
    """Mostly what PostgreSQL sends; sometimes a null, a hole, a binary value, a text of no type or no UTF-8."""
    odd: st.SearchStrategy[TupleValue] = st.sampled_from(ODD) | st.binary(max_size=6) | spiteful_text.map(str.encode)
    pristine = draw(st.booleans())
    return [draw(t.map(str.encode) if pristine or draw(st.integers(0, 5)) else odd) for t in texts]


def key_only(values: list[TupleValue], held: list[bool]) -> list[TupleValue]:
    only: list[TupleValue] = [NULL] * len(values)
    for i, is_held in enumerate(held):
        if is_held:
            only[i] = values[i]
    return only


@st.composite
def changes(draw: st.DrawFn) -> tuple[TableEncoder, Oracle, bytes]:
    encoder, oracle, texts, old_kind, held = draw(tables())
    new = new_values(draw, texts)
    old = new_values(draw, texts)
    if draw(st.booleans()):
        old = new
    if old_kind == b"K" and draw(st.integers(0, 9)):
        old = key_only(old, held)
    message = draw(
        st.sampled_from(
            [
                wire.insert(OID, new),
                wire.update(OID, new),
                wire.update(OID, new, old, old_kind),
                wire.update(OID, new, old, old_kind),
                wire.delete(OID, old, old_kind),
            ]
        )
    )
    return encoder, oracle, message


numbers = st.integers(0, 2**63 - 1)


def outcome(encode: Callable[[], Any]) -> Any:
    """The records, or "refused"."""
    try:
        return encode()
    except WatershedError:
        return "refused"


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(change=changes(), frame=st.binary(max_size=30), lsn=numbers, tx_index=numbers, seq=st.integers(0, 2**47))
def test_a_change_gives_the_oracles_records_or_both_refuse(
    change: tuple[TableEncoder, Oracle, bytes], frame: bytes, lsn: int, tx_index: int, seq: int
) -> None:
    encoder, oracle, message = change
    arguments = (frame + message, len(frame), lsn, tx_index, seq, 1_767_323_080_000_123)
    assert outcome(lambda: encoder.encode(*arguments)) == outcome(lambda: oracle.encode(*arguments))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_copy_line_gives_the_oracles_record_and_the_streams_key_and_row(data: st.DataObject) -> None:
    encoder, oracle, texts, _, _ = data.draw(tables())
    odd = st.none() | spiteful_text
    values = [data.draw(t if data.draw(st.integers(0, 7)) else odd) for t in texts]
    insert = wire.insert(OID, [wire.text(value) for value in values])
    streamed = outcome(lambda: encoder.encode(insert, 0, 5, 0, 9, 17))
    for each in (encoder, oracle):
        each.start_snapshot(5, 1_767_323_079_990_123)
    line = wire.copy_line(values)
    copied = outcome(lambda: encoder.copy_row(line, 5, 3, 9, 17))
    assert copied == outcome(lambda: oracle.copy_row(values, 5, 3, 9, 17))
    assert copied == outcome(lambda: encoder.copy_row(line.removesuffix(b"\n"), 5, 3, 9, 17))
    if copied == "refused":
        assert streamed == "refused"
    else:
        [(key, value, _)] = streamed
        assert copied[0] == key
        assert copied[1].partition(b',"source":{"version"')[0] == value.partition(b',"source":{"version"')[0]


# ---- bytes that are no messages


MUTATIONS = 20_000


def mutate(rng: random.Random, message: bytes) -> bytes:
    mutant = bytearray(message)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(mutant)) if mutant else 0
        match rng.randrange(5):
            case 0:
                mutant[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del mutant[at : at + rng.randint(1, 9)]
            case 2:
                mutant[at:at] = rng.choice(
                    [b"n", b"u", b"t\0\0\0\1", b"b\0\0\0\0", b"\0", b"\xff\xff\xff\xff", b"t\x7f"]
                )
            case 3:
                mutant[at : at + 4] = rng.choice([b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\0\0\x01"])
            case 4:
                start = rng.randrange(len(message))
                mutant[at:at] = message[start : start + rng.randint(1, 12)]
    return bytes(mutant)


def some_messages() -> list[bytes]:
    new: list[TupleValue] = [b"17", b"Zo\xc3\xab", b"t", b'{a,"b c",NULL}', b"2024-01-31 12:00:00.5+00", b"-1.5e+20"]
    old: list[TupleValue] = [b"16", *[NULL] * 5]
    _, relation = wire.schema_and_relation(MUTATED_COLUMNS, ["id"], oid=OID)
    return [
        wire.insert(OID, new),
        wire.insert(OID, [b"17", NULL, NULL, b"{}", b"infinity", b"NaN"]),
        wire.update(OID, [*new[:1], UNCHANGED, *new[2:]]),
        wire.update(OID, new, old),
        wire.update(OID, new),
        wire.delete(OID, old),
        wire.begin(24_026_100, 1_767_323_079_990_123, 560),
        wire.commit(24_026_100, 24_026_148, 1_767_323_079_990_123),
        wire.relation_bytes(relation),
        wire.truncate([OID, 7], 3),
        wire.logical_message("prefix", b"content"),
        b"Y\0\0@\1public\0mood\0",
        b"O\0\0\0\0\0\0\0\5origin\0",
        b"A\0\0\0\5\0\0\0\6",
    ]


MUTATED_COLUMNS = [
    Column("id", 20, -1, "bigint", False),
    Column("name", 25, -1, "text", True),
    Column("ok", 16, -1, "boolean", True),
    Column("tags", 1009, -1, "text[]", True),
    Column("at", 1184, -1, "timestamp with time zone", True),
    Column("size", 701, -1, "double precision", True),
]


@pytest.mark.parametrize("identity", ["d", "f"])
def test_mutated_messages_are_refused_or_mean_what_the_oracle_says(identity: str) -> None:
    rng = random.Random(20260131)
    schema, relation = wire.schema_and_relation(MUTATED_COLUMNS, ["id"], identity=identity, oid=OID)
    encoder, oracle = TableEncoder(schema, relation, CONTEXT), Oracle(schema, relation, CONTEXT)
    for each in (encoder, oracle):
        each.start_transaction(24_026_100, 1_767_323_079_990_123, 560, None)
    messages = some_messages()
    if identity == "f":
        messages += [wire.update(OID, [b"17", UNCHANGED, *[NULL] * 4], [b"17", b"large", *[NULL] * 4], b"O")] * 5
    refused = 0
    for _ in range(MUTATIONS):
        mutant = mutate(rng, rng.choice(messages))
        outcome(lambda m=mutant: decode(m, "here"))  # type: ignore[misc]
        records = outcome(lambda m=mutant: encoder.encode(m, 0, 24_026_000, 0, 17, 5))  # type: ignore[misc]
        assert records == outcome(lambda m=mutant: oracle.encode(m, 0, 24_026_000, 0, 17, 5))  # type: ignore[misc]
        refused += records == "refused"
    assert 0.5 < refused / MUTATIONS < 1  # mutants that pass are as wanted as mutants that don't


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60))
@example(b"")
@example(b"R\0\0\0\1s\0t\0d\xff\xff")
@example(b"I\0\0\0\1N\x06\x80" + b"t\x7f\xff\xff\xff")
@example(b"T\xff\xff\xff\xff\0")
@example(b"M\1\0\0\0\0\0\0\0\0p\0\xff\xff\xff\xff")
def test_arbitrary_bytes_are_decoded_or_refused(message: bytes) -> None:
    outcome(lambda: decode(message, "0/0"))
    outcome(lambda: decode(memoryview(message), "0/0"))
