"""Who needs all rows of a table again, and the constants of columns in the records' form."""

from dataclasses import replace
from typing import Any

import pytest

from cdc.config.config_file import Config
from cdc.config.format_options import FormatOptions
from cdc.config.masking import Mask
from cdc.config.settings import PipelineConfig
from cdc.daemon import earlier_records
from cdc.daemon.earlier_records import EarlierRecords, encoded_constants
from cdc.formats.records import EnvelopeContext
from cdc.model.events import Column
from cdc.model.sink_records import SinkRecord
from tests.unit.cdc.capture.loops import SCHEMA

CONTEXT = EnvelopeContext("shop", "shop", 1, "0")
SQL = {"type": "sql", "url": "sqlite:///store.db"}
SEARCH = {"type": "search", "url": "http://search:9200"}
CACHE = {"type": "cache", "url": "redis://cache:6379"}
WAREHOUSE = {"type": "warehouse", "catalog_uri": "jdbc:sqlite:x.db", "location": "/lake"}
HISTORY = {**WAREHOUSE, "shapes": {"*": {"mode": "history"}}}
OTHERS = "only other programs read its topic: no sink of the configuration holds the table"


def configured(**sections: Any) -> Config:
    return Config.model_validate(
        {
            "source": {"dsn": "host=db", "tables": [str(SCHEMA.table)]},
            "kafka": {"bootstrap_servers": "k:9092"},
            "topics": {"prefix": "shop"},
            **sections,
        }
    )


def mapped(section: dict[str, Any], **mapping: Any) -> dict[str, Any]:
    return {**section, "mapping": {"*": mapping}}


@pytest.mark.parametrize(
    ("sinks", "dropped", "added"),
    [
        ({"a": SQL}, None, None),
        ({"a": WAREHOUSE}, None, "sink a lacks an added column"),
        ({"a": HISTORY}, "sink a keeps a dropped column", "sink a lacks an added column"),
        ({"a": SEARCH}, "sink a keeps a dropped column", "sink a lacks an added column"),
        ({"a": CACHE}, "sink a keeps a dropped column", "sink a lacks an added column"),
        ({"a": SQL, "b": SEARCH}, "sink b keeps a dropped column", "sink b lacks an added column"),
        ({"a": SQL, "b": {**SEARCH, "exclude_tables": ["*"]}}, None, None),
        ({"a": mapped(SEARCH, include=["id"])}, None, None),
        ({"a": mapped(SEARCH, exclude=["x"])}, None, None),
        ({"a": mapped(SQL, where="x > 1")}, "sink a has a mapping", "sink a has a mapping"),
        ({"a": mapped(SQL, computed={"y": "x + 1"})}, "sink a has a mapping", "sink a has a mapping"),
        ({"a": mapped(SQL, function="label")}, "sink a has a mapping", "sink a has a mapping"),
        ({"a": mapped(SQL, rename={"x": "y"})}, None, None),
        ({"a": mapped(SQL, as_text=["x"])}, None, "sink a has a mapping that changes"),
        ({"a": {**SQL, "exclude_tables": ["*"]}}, OTHERS, OTHERS),
        ({}, OTHERS, OTHERS),
    ],
)
def test_rows_are_published_again_for_those_who_need_them(
    sinks: dict[str, Any], dropped: str | None, added: str | None
) -> None:
    config = configured(sinks=sinks)
    for expected, columns in ((dropped, (["x"], [])), (added, ([], ["x"]))):
        found = config.why_published_again(SCHEMA.table, *columns)
        assert (found is None) is (expected is None) and (found or "").startswith(expected or "")


def test_an_option_has_them_published_for_everybody() -> None:
    config = configured(sinks={"a": SQL}, snapshot={"after_alter": "always"})
    assert config.why_published_again(SCHEMA.table, ["x"], []) == "snapshot.after_alter is always"


def test_a_sink_that_capture_does_not_know_may_need_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a file of its own, or was removed and comes back."""
    positions = [
        SinkRecord(
            sink=name,
            generation=1,
            end_offsets={topic: (7,)},
            applied_lsn=0,
            epoch=1,
            commit_ts_us=0,
            applied_ts_us=0,
            sweeps={},
            written=0,
            stale=0,
        )
        for name, topic in (("a", SCHEMA.topic), ("removed", "shop.public.others"), ("stranger", SCHEMA.topic))
    ]
    monkeypatch.setattr(earlier_records, "read_sinks", lambda _: positions)
    in_force: list[PipelineConfig] = [configured(sinks={"a": SQL})]
    earlier = EarlierRecords(in_force[0].source, lambda: in_force[-1], CONTEXT)
    why = "sink stranger was filled from its topic, and the configuration of capture does not have it"
    assert earlier.why_published_again(SCHEMA, ["x"], []) == why
    in_force.append(configured(sinks={"a": SQL, "stranger": {**SQL, "url": "sqlite:///other.db"}}))
    assert earlier.why_published_again(SCHEMA, ["x"], []) is None, "the file was read again"
    assert PipelineConfig.why_published_again(in_force[0], SCHEMA.table, ["x"], []) == OTHERS


def test_constants_have_the_form_of_records() -> None:
    columns = [
        Column("n", 20, -1, "bigint", True, "b", 20),
        Column("price", 1700, -1, "numeric", True, "b", 1700),
        Column("at", 1184, -1, "timestamptz", True, "b", 1184),
        Column("names", 1009, -1, "text[]", True, "b", 1009, 25),
        Column("secret", 25, -1, "text", True, "b", 25),
    ]
    schema = replace(SCHEMA, columns=(*SCHEMA.columns, *columns))
    texts = {
        "n": "9007199254740993",
        "price": "1.50",
        "at": "2026-01-02 03:04:05+00",
        "names": '{é,NULL,"a b"}',
        "secret": "ünsafe",
        "not published": "1",
    }
    mask = Mask(schema.table, "secret", "truncate", 2)
    context = replace(CONTEXT, format=FormatOptions(masks=(mask,)))
    assert dict(encoded_constants(schema, texts, context)) == {
        "n": "9007199254740993",
        "price": '"1.50"',
        "at": '"2026-01-02T03:04:05Z"',
        "names": '["é",null,"a b"]',
        "secret": '"ün"',
    }
    assert encoded_constants(schema, {"n": "many"}, CONTEXT) == ()
