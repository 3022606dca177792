"""The digest of a table's row is that of its record, whatever kind of record has it; and of no other."""

from dataclasses import replace

import pytest

from cdc.config.format_options import FormatOptions
from cdc.config.masking import Mask
from cdc.formats.records import Draft, EnvelopeContext, TableEncoder, is_delete
from cdc.formats.row_digests import OTHER_FORM, RowDigests
from cdc.model.events import Column, TableSchema
from cdc.pgoutput.messages import NULL, UNCHANGED, Tuple
from cdc.pgoutput.relations import relation_of
from tests.support import wire

COLUMNS = (
    Column("id", 20, -1, "bigint", False),
    Column("name", 25, -1, "text", True),
    Column("doc", 3802, -1, "jsonb", True),
)
OURS = '{"after": {"a": ","}, "source": {"version": "9"}, "schema_version": 1, "op": "d"}'
"""A value of a user that looks like parts of the envelope."""
NOW_US = 1_767_323_080_000_123
OID = 16385
CONTEXT = EnvelopeContext("shop", "shop", 3, "0.1.0")
SCHEMA, RELATION = wire.schema_and_relation(COLUMNS, ["id"], identity="f")


def digests(schema: TableSchema = SCHEMA, context: EnvelopeContext = CONTEXT) -> RowDigests:
    return RowDigests(schema, context)


def encoder(context: EnvelopeContext = CONTEXT) -> TableEncoder:
    made = TableEncoder(SCHEMA, RELATION, context)
    made.start_transaction(24_026_100, NOW_US, 560, 24_025_000)
    return made


def values(message: bytes, context: EnvelopeContext = CONTEXT) -> list[bytes | None]:
    made = encoder(context).encode(message, 0, 24_026_000, 0, 17, NOW_US)
    return [value.without_holes() if isinstance(value, Draft) else value for _, value, _ in made]


ROWS: list[Tuple] = [
    (b"1", b"x", b"{}"),
    (b"2", NULL, NULL),
    (b"3", 'é "quoted" \\ \t'.encode(), OURS.encode()),
    (b"4", b'","source":{"version":"', b'[{"op":"d"}]'),
]


def line(row: Tuple) -> bytes:
    return wire.copy_line([None if value is NULL else bytes(value).decode() for value in row])  # type: ignore[arg-type]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("schemas_enable", [False, True])
def test_a_row_has_the_digest_of_its_record_in_stream_and_snapshot(row: Tuple, schemas_enable: bool) -> None:
    context = replace(CONTEXT, format=FormatOptions(schemas_enable=schemas_enable))
    here = digests(context=context)
    found = here.of_line(line(row))
    assert found is not None
    key, digest = found
    (inserted,) = values(wire.insert(OID, row), context)
    (updated,) = values(wire.update(OID, row, ROWS[0], old_kind=b"O"), context)[-1:]
    copying = encoder(replace(context, epoch=4))
    copying.start_chunk(24_027_000, NOW_US)
    copied_key, copied, _ = copying.copy_row(line(row), 24_027_000, 0, 1, NOW_US)
    assert copied_key == key
    for value in (inserted, updated, copied):
        assert value is not None
        assert not is_delete(value)
        assert here.of_value(value) == digest
    others = {here.of_line(line(other)) for other in ROWS}
    assert len(others) == len(ROWS)


def test_a_delete_is_known_as_such_whatever_its_old_row_has() -> None:
    (deleted, tombstone) = values(wire.delete(OID, ROWS[2], old_kind=b"O"))
    assert deleted is not None
    assert is_delete(deleted)
    assert tombstone is None


def test_a_record_without_a_large_value_is_equal_to_no_row() -> None:
    schema, relation = wire.schema_and_relation(COLUMNS, ["id"])
    made = TableEncoder(schema, relation, CONTEXT)
    made.start_transaction(24_026_100, NOW_US, 560, 24_025_000)
    ((_, value, _),) = made.encode(wire.update(OID, (b"1", b"x", UNCHANGED)), 0, 24_026_000, 0, 17, NOW_US)
    assert isinstance(value, Draft)
    here = digests(schema)
    found = here.of_line(line(ROWS[0]))
    assert found is not None
    assert here.of_value(value.without_holes()) != found[1]
    assert here.of_value(value.finished(("1", '"x"', '"{}"'), (2,))) == found[1], "filled in, it is"


def test_a_record_of_another_schema_version_is_equal_to_no_row() -> None:
    (value,) = values(wire.insert(OID, ROWS[0]))
    assert value is not None
    for version in (2, 11):
        assert digests(replace(SCHEMA, version=version)).of_value(value) == OTHER_FORM
    assert digests().of_value(b'{"not":"ours"}') == OTHER_FORM


def test_compared_is_the_masked_value_as_consumers_read_it() -> None:
    mask = Mask(SCHEMA.table, "name", "hash", key=b"0123456789abcdef")
    masked = replace(CONTEXT, format=FormatOptions(masks=(mask,)))
    other = replace(CONTEXT, format=FormatOptions(masks=(replace(mask, key=b"another key of hashes"),)))
    (value,) = values(wire.insert(OID, ROWS[0]), masked)
    assert value is not None
    found, changed = digests(context=masked).of_line(line(ROWS[0])), digests(context=other).of_line(line(ROWS[0]))
    assert found is not None
    assert changed is not None
    assert digests(context=masked).of_value(value) == found[1] != changed[1]


def test_a_line_of_which_no_record_can_be_made_has_none() -> None:
    assert digests().of_line(b"1\tx") is None


MORE, OTHER = Column("more", 25, -1, "text", True), Column("other", 20, -1, "bigint", True)
FIRST = replace(SCHEMA, columns=(*COLUMNS, OTHER))
SECOND = replace(FIRST, version=2, columns=(*COLUMNS, OTHER, MORE), filled=(("more", '"é\\n"'),))
THIRD = replace(SECOND, version=3, columns=(*COLUMNS, MORE), filled=(), dropped=("other",))


def value_of(schema: TableSchema, *texts: str | None) -> bytes:
    made = TableEncoder(schema, relation_of(schema), CONTEXT)
    made.start_chunk(24_027_000, NOW_US)
    _, value, _ = made.copy_row(wire.copy_line(list(texts)), 24_027_000, 0, 1, NOW_US)
    assert isinstance(value, bytes)
    return value


def test_a_record_of_an_earlier_version_is_the_row_that_the_schemas_make_of_it() -> None:
    versions = [FIRST, SECOND, THIRD]
    here = RowDigests(replace(THIRD, dropped=()), CONTEXT, versions)  # as recorded, not as the caller remembers it
    (_, digest), (_, without) = (
        found for text in ("é\n", None) if (found := here.of_line(wire.copy_line(["1", OURS, "{}", text])))
    )
    assert here.of_value(value_of(THIRD, "1", OURS, "{}", "é\n")) == digest
    assert here.of_value(value_of(SECOND, "1", OURS, "{}", "7", "é\n")) == digest
    assert here.of_value(value_of(SECOND, "1", OURS, "{}", "7", None)) == without
    assert here.of_value(value_of(FIRST, "1", OURS, "{}", "7")) == digest
    assert here.of_value(value_of(FIRST, "1", OURS, "[]", "7")) not in (digest, without, OTHER_FORM)


@pytest.mark.parametrize(
    "versions",
    [
        [],
        [FIRST, THIRD],
        [FIRST, SECOND, replace(THIRD, dropped=())],
        [replace(FIRST, columns=(*COLUMNS[:2], replace(MORE, name="doc"), OTHER)), SECOND, THIRD],
    ],
    ids=["none are known", "one is missing", "somebody needed the rows", "another type"],
)
def test_a_record_of_which_no_schema_says_what_it_is_is_no_row(versions: list[TableSchema]) -> None:
    newest = versions[-1] if versions else THIRD
    first = versions[0] if versions else FIRST
    here = RowDigests(newest, CONTEXT, versions)
    texts = ["1", "x", "{}", "7"]
    assert here.of_value(value_of(first, *texts)) == OTHER_FORM
