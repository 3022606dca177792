"""The generated codec against the plain oracle: the same bytes for every row, and the same refusals."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cdc.formats.records import Draft, EnvelopeContext, FinishedRecord, TableEncoder
from cdc.model.errors import WatershedError
from cdc.model.events import Column, TableId
from cdc.model.topic_record import TopicRecord
from cdc.pgoutput.decoder import decode
from cdc.pgoutput.messages import NULL, UNCHANGED, TupleValue
from tests.property.oracle import Oracle
from tests.support import wire
from tests.support.holes import without_holes

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
    (16504, "positive[]", "b", 16504, arrays_of(integers)),  # of a domain
    (16503, "tags", "b", 1009, arrays_of(any_text)),  # a domain over text[]
    (1020, "box[]", "b", 0, st.sampled_from(["{(1,1),(0,0);(2,2),(1,1)}", "{}", '{"(1;1)";NULL}'])),
    (1186, "interval", "b", 0, st.sampled_from(["1 year 2 mons -3 days +04:05:06.78", "00:00:00"])),
    (869, "inet", "b", 0, st.just("192.168.0.1/24")),
]

# Array type, or the one that a domain is over: its elements' type, as the catalog says
ELEMENTS = {1009: 25, 1007: 23, 1000: 16, 1231: 1700, 1022: 701, 1185: 1184, 1115: 1114, 1001: 17, 1020: 603}
ELEMENTS |= {16502: 16500, 16504: 23}

numbers = st.integers(0, 2**63 - 1)
names = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from(
    ["id", "name", "{j0}", "'", '"', "\\", "}}", "\\N{DASH}", "f'", "\n"]
)


@dataclass(frozen=True)
class Table:
    """A random table, both encoders of it, and some texts for each column."""

    encoder: TableEncoder
    oracle: Oracle
    texts: list[list[str]]
    held: list[bool]  # columns that a key-only old tuple holds
    old_kind: bytes


@st.composite
def tables(draw: st.DrawFn) -> Table:
    column_names = draw(st.lists(names, min_size=1, max_size=9, unique=True))
    types = [draw(st.sampled_from(TYPES)) for _ in column_names]
    columns = [
        Column(
            name,
            oid,
            draw(st.integers(-1, 99)),
            type_name,
            True,
            kind,
            base,
            element_oid=ELEMENTS.get(base or oid, 0),
            delimiter=";" if oid == 1020 else ",",
        )
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
    commit_lsn, commit_ts_us, xid, last = draw(st.tuples(numbers, numbers, numbers, st.none() | numbers))
    encoder.start_transaction(commit_lsn, commit_ts_us, xid, last)
    oracle.start_transaction(commit_lsn, commit_ts_us, xid, last)
    return Table(
        encoder,
        oracle,
        texts=[draw(st.lists(type_[4], min_size=1, max_size=4)) for type_ in types],
        held=[c.is_key for c in relation.columns],
        old_kind=b"O" if identity == "f" else b"K",
    )


ODD: list[TupleValue] = [NULL, UNCHANGED, b"\0\1", b"\xff", b"\xed\xa0\x80", b"\xc3", b""]


def almost(rng: random.Random, text: str) -> str:
    """The text with a character put in, changed or dropped."""
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice('01-+.,:;eTNtn {}"\\\n\0²') * rng.randint(0, 1) + text[at + rng.randint(0, 1) :]


def row_texts(rng: random.Random, table: Table) -> list[str | None]:
    """What PostgreSQL sends, with nulls. In every second row one text is almost its type's; one only, or the rows
    would all be refused for the first."""
    texts = [rng.choice(texts) if rng.randrange(8) else None for texts in table.texts]
    i = rng.randrange(len(texts))
    odd = texts[i]
    if odd is not None and rng.randrange(2):
        texts[i] = almost(rng, odd)
    return texts


def row_values(rng: random.Random, table: Table) -> list[TupleValue]:
    """The same, and sometimes a hole, a binary value or bytes that are no text."""
    values = [wire.text(text) for text in row_texts(rng, table)]
    if not rng.randrange(6):
        values[rng.randrange(len(values))] = rng.choice(ODD)
    return values


def change(rng: random.Random, table: Table) -> bytes:
    new, old = row_values(rng, table), row_values(rng, table)
    for i in range(len(new)):
        if rng.randrange(2):
            old[i] = new[i] if new[i] is not UNCHANGED or rng.randrange(2) else wire.text(table.texts[i][0])
        if table.old_kind == b"K" and not table.held[i] and rng.randrange(9):
            old[i] = NULL
    match rng.randrange(5):
        case 0:
            return wire.insert(OID, new)
        case 1:
            return wire.update(OID, new)
        case 2:
            return wire.delete(OID, old, table.old_kind)
        case _:
            return wire.update(OID, new, old, table.old_kind)


def outcome(encode: Callable[[], Any]) -> Any:
    """The records, or "refused"."""
    try:
        return encode()
    except WatershedError:
        return "refused"


def with_holes(encoder: TableEncoder, message: bytes, offset: int, *numbers: int) -> list[FinishedRecord]:
    """The records; what has holes goes out with them."""
    return [without_holes(record) for record in encoder.encode(message, offset, *numbers)]


CHANGES_OF_A_TABLE = 40


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables(), st.binary(max_size=30), st.integers(0, 2**32))
@pytest.mark.invariant(7)
def test_a_change_gives_the_oracles_records_or_both_refuse(table: Table, frame: bytes, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(CHANGES_OF_A_TABLE):
        message = frame + change(rng, table)
        numbers = rng.randrange(2**63), rng.randrange(2**31), rng.randrange(2**47), rng.randrange(2**50)
        ours = outcome(lambda m=message, n=numbers: with_holes(table.encoder, m, len(frame), *n))  # type: ignore[misc]
        assert ours == outcome(lambda m=message, n=numbers: table.oracle.encode(m, len(frame), *n))  # type: ignore[misc]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables(), st.integers(0, 2**32))
def test_a_copy_line_gives_the_oracles_record_and_the_streams_key_and_row(table: Table, seed: int) -> None:
    rng = random.Random(seed)
    rows = [row_texts(rng, table) for _ in range(CHANGES_OF_A_TABLE)]
    messages = [wire.insert(OID, [wire.text(text) for text in row]) for row in rows]
    streamed = [outcome(lambda m=m: with_holes(table.encoder, m, 0, 5, 0, 9, 17)) for m in messages]  # type: ignore[misc]
    table.encoder.start_snapshot(5, 1_767_323_079_990_123)
    table.oracle.start_snapshot(5, 1_767_323_079_990_123)
    for row, inserted in zip(rows, streamed, strict=True):
        line = wire.copy_line(row)
        copied = outcome(lambda x=line: table.encoder.copy_row(x, 5, 3, 9, 17))  # type: ignore[misc]
        assert copied == outcome(lambda x=row: table.oracle.copy_row(x, 5, 3, 9, 17))  # type: ignore[misc]
        assert copied == outcome(lambda x=line: table.encoder.copy_row(x[:-1], 5, 3, 9, 17))  # type: ignore[misc]
        assert (copied == "refused") == (inserted == "refused")
        if copied != "refused":
            [(key, value, _)] = inserted
            assert copied[0] == key
            assert copied[1].partition(b',"source":{"version"')[0] == value.partition(b',"source":{"version"')[0]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables(), st.integers(0, 2**32), st.integers(1, 4))
def test_many_copy_lines_give_the_records_of_each_or_are_left_to_them(table: Table, seed: int, size: int) -> None:
    rng = random.Random(seed)
    table.encoder.start_snapshot(5, 1_767_323_079_990_123)
    topic = table.encoder.schema.topic
    for _ in range(CHANGES_OF_A_TABLE):
        lines = [wire.copy_line(row_texts(rng, table))[:-1] for _ in range(size)]
        if not rng.randrange(8):
            lines[rng.randrange(size)] += rng.choice([b"\n", b"\r", b"\t", b"\\", b"\\q", b"\xff", b"\xc3", b"\n1"])
        single = outcome(
            lambda x=lines: [  # type: ignore[misc]
                TopicRecord(topic, *table.encoder.copy_row(line, 5, 3 + i, 9 + i, 17)) for i, line in enumerate(x)
            ]
        )
        many = table.encoder.copy_rows(lines, 5, 3, 9, 17)
        if single == "refused":
            assert many is None
        else:
            # What COPY prints is never left to the slow path, only what ends in its newline
            assert many == single or (many is None and any(line.endswith(b"\n") for line in lines))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables(), st.integers(0, 2**32))
def test_a_record_says_again_what_each_column_was(table: Table, seed: int) -> None:
    """So that a later record of the key can take columns from it."""
    rng = random.Random(seed)
    for _ in range(CHANGES_OF_A_TABLE):
        message = change(rng, table)
        try:
            records = table.encoder.encode(message, 0, 1, 2, 3, 4)
        except WatershedError:
            continue
        for _, value, _ in records:
            if isinstance(value, Draft):
                assert table.encoder.columns_of(value.without_holes()) is None  # not whole
            elif value is not None:
                columns = table.encoder.columns_of(value)
                row = value.partition(b'"after":')[2] if b'"before":null' in value[:14] else None
                if columns is not None and row is not None:
                    assert row.startswith(table.encoder._codec.row_of(columns).encode("latin-1"))
                assert (columns is None) == (b'"after":null,"source":{"version"' in value)


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
    Column("tags", 1009, -1, "text[]", True, element_oid=25),
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
        records = outcome(lambda m=mutant: with_holes(encoder, m, 0, 24_026_000, 0, 17, 5))  # type: ignore[misc]
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
