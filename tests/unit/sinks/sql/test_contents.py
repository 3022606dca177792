"""Rows of an SQL store that somebody else wrote are seen, and corrected by what is published again."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import update

from cdc.config.store_shapes import SqlShape
from cdc.config.stores import SqlConfig
from cdc.model.events import pack_version
from sinks.contents import StoredEntry
from sinks.sql.contents import UNVERSIONED, SqlContents
from sinks.sql.sink import SqlSink
from tests.conformance.tables import LABELS
from tests.unit.sinks.sql.conftest import Open

V = pack_version(1, 100)
FUTURE = pack_version(9, 1)
NAMES = ("a", "b", "c", "d")
KEYS = [{"name": name} for name in NAMES]


def contents_of(sink: SqlSink, **options: Any) -> SqlContents:
    made = SqlContents(sink, SqlConfig.model_validate({"url": SecretStr("sqlite:////none"), **options}))
    made.attach(LABELS.schema)
    return made


def test_rows_and_versions_that_the_sink_did_not_write(open_sink: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.sql.contents.PAGE_ROWS", 2)
    sink = open_sink()
    sink.prepare(LABELS.schema)
    sink.apply([LABELS.upsert(V + number, name=name) for number, name in enumerate(NAMES)])
    form = sink.form(LABELS.id)
    is_a, is_d = form.rows.c.name == "a", form.versions.c.k0 == "d"
    sink.server.transaction(lambda c: c.execute(form.rows.delete().where(is_a)))
    sink.server.transaction(lambda c: c.execute(form.versions.delete().where(form.versions.c.k0 == "b")))
    sink.server.transaction(lambda c: c.execute(form.rows.insert().values(name="strange")))
    sink.server.transaction(lambda c: c.execute(update(form.versions).where(is_d).values(version=FUTURE)))

    contents = contents_of(sink)
    seen = {key["name"]: (held.version, held.is_edited) for key, held in contents.rows(LABELS.id)}
    assert seen == {"b": (UNVERSIONED, True), "c": (V + 2, False), "d": (FUTURE, False), "strange": (UNVERSIONED, True)}
    a, *others = contents.held(LABELS.id, [*KEYS, {"name": "strange"}])
    assert a == StoredEntry(V, None)
    assert {h.row["name"]: (h.version, h.is_edited) for h in others if h is not None and h.row is not None} == seen

    # Without the version from the future any change is taken. Readers see the row all the time.
    contents.remove(LABELS.id, [({"name": "d"}, FUTURE), ({"name": "c"}, FUTURE)])
    (d,) = contents.held(LABELS.id, [{"name": "d"}])
    assert d is not None and (d.version, d.row is not None) == (UNVERSIONED, True)
    sink.apply([LABELS.upsert(V + 10 + number, name=name) for number, name in enumerate(NAMES)])
    sink.apply([LABELS.delete(V + 20, name="strange")])
    assert [(key["name"], held.version, held.is_edited) for key, held in contents.rows(LABELS.id)] == [
        (name, V + 10 + number, False) for number, name in enumerate(NAMES)
    ]


def test_columns_whose_type_is_chosen_are_not_compared(open_sink: Open) -> None:
    contents = contents_of(open_sink(), shapes={"public.*": SqlShape(types={"name": "varchar(10)"})})
    assert contents.uncompared(LABELS.id) == {"name"}
    assert contents_of(open_sink()).uncompared(LABELS.id) == frozenset()


def test_a_table_that_lacks_a_column_of_the_schema_is_not_prepared(open_sink: Open) -> None:
    sink = open_sink()
    contents = contents_of(sink)
    assert not contents.is_prepared(LABELS.id)
    sink.prepare(LABELS.schema)
    assert contents.is_prepared(LABELS.id)
    column = replace(LABELS.schema.columns[0], name="added", nullable=True)
    contents.attach(replace(LABELS.schema, version=2, columns=(*LABELS.schema.columns, column)))
    assert not contents.is_prepared(LABELS.id)
