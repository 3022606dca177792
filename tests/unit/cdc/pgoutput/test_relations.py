"""What differs between a relation message and the published schema is said in words."""

from dataclasses import replace

import pytest

from cdc.model.errors import UnsupportedChangeError
from cdc.model.events import Column
from cdc.pgoutput.codec import RowCodec
from cdc.pgoutput.messages import RelationColumn
from cdc.pgoutput.relations import relation_differs
from tests.support import wire

COLUMNS = (
    Column("b", 25, -1, "text", False),
    Column("a", 20, -1, "bigint", False),
    Column("note", 25, -1, "text", True),
    Column("ok", 16, -1, "boolean", True),
)
SCHEMA, RELATION = wire.schema_and_relation(COLUMNS, ["a", "b"])


def test_a_relation_as_described_does_not_differ() -> None:
    assert relation_differs(SCHEMA, RELATION) is None


def test_a_column_that_is_left_out_may_come_and_go() -> None:
    left_out = RelationColumn(False, "phone", 25, -1, is_captured=False)
    assert relation_differs(SCHEMA, replace(RELATION, columns=(left_out, *RELATION.columns, left_out))) is None
    unwanted = replace(RELATION.columns[2], is_captured=False)
    relation = replace(RELATION, columns=(*RELATION.columns[:2], unwanted, RELATION.columns[3]))
    assert relation_differs(SCHEMA, relation) == "column note was dropped"


@pytest.mark.parametrize(
    ("relation", "words"),
    [
        (replace(RELATION, oid=7), "its oid is 7, but was 16385: the table was recreated"),
        (replace(RELATION, name="clients"), "it is called public.clients now"),
        (replace(RELATION, schema="old"), "it is called old.customers now"),
        (
            replace(RELATION, columns=(*RELATION.columns, RelationColumn(False, "new", 25, -1))),
            "column new was added",
        ),
        (replace(RELATION, columns=RELATION.columns[:-1]), "column ok was dropped"),
        (
            replace(RELATION, columns=(*RELATION.columns[:-1], RelationColumn(False, "fine", 16, -1))),
            "column fine was added, column ok was dropped",
        ),
        (replace(RELATION, columns=RELATION.columns[::-1]), "its columns are in another order: ok, note, a, b"),
        (
            replace(RELATION, columns=(*RELATION.columns[:3], RelationColumn(False, "ok", 23, -1))),
            "column ok has type oid 23, it was 16 (boolean)",
        ),
        (
            replace(RELATION, columns=(*RELATION.columns[:3], RelationColumn(False, "ok", 16, 5))),
            "column ok has type modifier 5, it was -1 (boolean)",
        ),
        (
            replace(RELATION, columns=(RelationColumn(False, "b", 25, -1), *RELATION.columns[1:])),
            "key column b is not in the replica identity",
        ),
    ],
)
def test_what_differs_is_said_in_words_and_stops_capture(relation: object, words: str) -> None:
    assert relation_differs(SCHEMA, relation) == words  # type: ignore[arg-type]
    with pytest.raises(UnsupportedChangeError, match="customers was altered") as stop:
        RowCodec(SCHEMA, relation)  # type: ignore[arg-type]
    assert words in stop.value.message
