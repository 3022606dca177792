"""Views over values that have several forms, that no condition or key fits, or that are too long for a key."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from cdc.model.errors import ConfigError
from cdc.model.events import pack_version
from sinks.contract import Change
from sinks.errors import SinkError
from sinks.sql.sink import SqlSink
from tests.conformance.tables import table
from tests.conftest import PostgresServer, new_database
from tests.support.view_tables import Query
from tests.support.views import Views, base_config, base_sink, until_idle
from watershed.views.statements import KEY_BYTES_MAX

THINGS = table(
    "public", "things", ("id",), {"id": "int8", "name": "text", "attributes": "jsonb", "note": "json", "xs": "int4[]"}
)
REST = {"name": None, "attributes": None, "note": None, "xs": None}


@pytest.fixture
def views(postgres: PostgresServer) -> Iterator[Views]:
    with new_database(postgres) as dsn:
        yield Views(base_config(dsn), dsn)


@pytest.fixture
def things(views: Views) -> Iterator[SqlSink]:
    with base_sink(base_config(views.dsn), [THINGS]) as sink:
        yield sink


class Things:
    """Rows of the table, each with a greater version than the one before."""

    def __init__(self) -> None:
        self._version = pack_version(1, 1)

    def row(self, number: int, **values: object) -> Change:
        self._version += 1
        return THINGS.upsert(self._version, id=number, **{**REST, **values})

    def gone(self, number: int) -> Change:
        self._version += 1
        return THINGS.delete(self._version, id=number)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("SELECT t.id, t.name FROM things t WHERE t.attributes IS NOT NULL", "id"),
        ("SELECT t.attributes IS NULL AS k, count(*) AS n FROM things t GROUP BY 1", "k"),
        ("SELECT t.attributes::text AS k, count(*) AS n FROM things t GROUP BY 1", "k"),
        ("SELECT coalesce(t.attributes, '5')::text AS k, count(*) AS n FROM things t GROUP BY 1", "k"),
        ("SELECT t.note::text AS k, count(*) AS n FROM things t GROUP BY 1", "k"),
        ("SELECT md5(t.note::text) AS k, count(*) AS n FROM things t GROUP BY 1", "k"),
        ("SELECT t.id FROM things t WHERE t.note::text = '{\"a\":1}'", "id"),
        ("SELECT t.xs[1] AS k, count(*) AS n FROM things t GROUP BY 1", "k"),
        ("SELECT t.id, t.xs::text AS xs FROM things t WHERE t.xs[1] = 8", "id"),
        ("SELECT t.xs::text AS k, count(*) AS n FROM things t GROUP BY 1", "k"),
    ],
)
def test_values_that_json_has_in_one_form_keep_theirs(views: Views, things: SqlSink, text: str, key: str) -> None:
    """JSON null is not NULL, json keeps its spaces, arrays have bounds."""
    query, rows = Query(text, [key]), Things()
    with views.job("v", query) as maintainer:
        for step in (
            [
                rows.row(1, attributes="null", note='{"a":1}', xs="[0:1]={7,8}"),
                rows.row(2, attributes="{}", note='{"a": 1}', xs="{7,8}"),
                rows.row(3),
            ],
            [rows.row(1, attributes="{}", note='{"a":  1}', xs="{7,8}"), rows.row(2, attributes="null", note="null")],
            [rows.row(2, note='{"a":1}', xs="[0:1]={7,8}"), rows.row(3, attributes="null", xs="[2:2]={8}")],
            [rows.gone(1), rows.row(2, attributes="[null]", xs="{8}")],
        ):
            things.apply(step)
            until_idle(maintainer)
            views.assert_equal("v", query)


@pytest.mark.usefixtures("things")
def test_a_writer_by_hand_with_other_settings_notes_the_same_values(views: Views) -> None:
    dates = table("public", "dates", ("id",), {"id": "int8", "d": "date", "i": "interval"})
    query = Query("SELECT d.d, d.i::text AS i, count(*) AS n FROM dates d GROUP BY 1, 2", ["d", "i"])
    with (
        base_sink(base_config(views.dsn), [dates]),
        views.job("v", query) as maintainer,
        psycopg.connect(views.dsn, autocommit=True) as connection,
    ):
        connection.execute("SET datestyle = 'German'")
        connection.execute("SET intervalstyle = 'sql_standard'")
        connection.execute("INSERT INTO dates VALUES (1, '2026-02-03', '-1 day 2:00'), (2, '2026-11-12', '-3:00')")
        until_idle(maintainer)
        assert views.query("SELECT d::text, i, n FROM views.v ORDER BY d") == [
            ("2026-02-03", "-1 days -02:00:00", 1),
            ("2026-11-12", "-03:00:00", 1),
        ]


def test_a_value_that_fits_no_condition_rejects_its_own_key_alone(views: Views, things: SqlSink) -> None:
    query, rows = Query("SELECT t.id, t.name::int * 2 AS n FROM things t WHERE t.name::int > 0", ["id"]), Things()
    with views.job("v", query) as maintainer:
        things.apply([rows.row(1, name="1"), rows.row(2, name="n/a"), rows.row(3, name="-3")])
        until_idle(maintainer)
        assert views.query("SELECT id, n FROM views.v") == [(1, 2)]
        assert views.query("SELECT key, reason FROM watershed_views_shop.rejected") == [
            (["2"], 'the query fails: invalid input syntax for type integer: "n/a"')
        ]
        things.apply([rows.row(2, name="4")])
        until_idle(maintainer)
        assert views.assert_equal("v", query) == 2


def test_a_value_that_fits_no_key_is_waited_for_until_it_is_corrected(views: Views, things: SqlSink) -> None:
    query, rows = Query("SELECT t.name::int AS k, count(*) AS n FROM things t GROUP BY 1", ["k"]), Things()
    with views.job("v", query) as maintainer:
        things.apply([rows.row(1, name="1"), rows.row(2, name="1")])
        until_idle(maintainer)
        things.apply([rows.row(3, name="n/a"), rows.row(2, name="2")])
        with pytest.raises(SinkError, match="n/a"):
            until_idle(maintainer)
        assert views.query("SELECT k, n FROM views.v") == [(1, 2)], "the target keeps the rows of before"
        things.apply([rows.row(3, name="3")])
        until_idle(maintainer)
        assert views.assert_equal("v", query) == 3


def test_a_key_that_no_index_takes_is_rejected_and_others_go_on(views: Views, things: SqlSink) -> None:
    query, rows = (
        Query("SELECT t.name AS k, count(*) AS n FROM things t WHERE t.name IS NOT NULL GROUP BY 1", ["k"]),
        Things(),
    )
    fits, long = ("".join(map(chr, range(256, 256 + size))) for size in (900, 3000))
    assert len(fits.encode()) < KEY_BYTES_MAX < len(long.encode())
    reason = "the key has more than 2,000 bytes"
    with views.job("v", query) as maintainer:
        things.apply([rows.row(1, name=long), rows.row(2, name=fits), rows.row(3, name="a")])
        until_idle(maintainer)
        assert views.query("SELECT k FROM views.v ORDER BY 1") == [("a",), (fits,)]
        assert views.query("SELECT key->>0, reason FROM watershed_views_shop.rejected") == [
            (f'["{long}"]'[:200], reason)
        ]
        with views.base() as base:
            base.ask_rebuild("v")
        until_idle(maintainer)
        assert views.query("SELECT k FROM views.v ORDER BY 1") == [("a",), (fits,)]
        assert views.query("SELECT key->>0, reason FROM watershed_views_shop.rejected") == [
            (f'["{long}"]'[:200], reason)
        ]


def test_a_truncate_by_hand_and_a_disabled_trigger_are_noticed(views: Views, things: SqlSink) -> None:
    query, rows = Query("SELECT t.id, t.name FROM things t", ["id"]), Things()
    things.apply([rows.row(1, name="a")])
    with views.job("v", query) as maintainer:
        views.query("TRUNCATE things")
        until_idle(maintainer)
        assert views.assert_equal("v", query) == 0
        views.query("ALTER TABLE things DISABLE TRIGGER ALL")
        views.query("INSERT INTO things (id, name) VALUES (2, 'b')")
        until_idle(maintainer)
        assert views.assert_equal("v", query) == 1


@pytest.mark.usefixtures("things")
def test_a_column_that_is_dropped_does_not_stop_the_base_s_sink(views: Views) -> None:
    """The triggers name it still. What they can't note is filled."""
    query = Query("SELECT t.id, t.name FROM things t", ["id"])
    with views.job("v", query) as maintainer:
        views.query("ALTER TABLE things DROP COLUMN name")
        views.query("INSERT INTO things (id) VALUES (5)")
        views.query("ALTER TABLE things ADD COLUMN name text DEFAULT 'again'")
        with pytest.raises(SinkError, match="columns of its base have changed"):
            until_idle(maintainer)
    with views.job("v", query) as maintainer:
        until_idle(maintainer)
        assert views.query("SELECT id, name FROM views.v") == [(5, "again")]


@pytest.mark.usefixtures("things")
def test_an_operator_of_somebody_else_that_reads_a_table_is_refused(views: Views) -> None:
    views.query(
        "CREATE TABLE settings (f int); CREATE FUNCTION times(bigint, int) RETURNS bigint STABLE LANGUAGE sql "
        "AS 'SELECT $1 * $2 * (SELECT f FROM public.settings)'; "
        "CREATE OPERATOR public.@@ (LEFTARG = bigint, RIGHTARG = int, FUNCTION = times)"
    )
    query = Query("SELECT t.id, t.id OPERATOR(public.@@) 2 AS f FROM things t", ["id"])
    with pytest.raises(ConfigError, match=r"times\(\) is not deterministic"), views.job("v", query):
        pass


def test_keys_that_have_waited_longest_come_first_and_are_seen_as_lag(views: Views, things: SqlSink) -> None:
    """A row on which many view rows depend is computed in batches, between which other changes are noted."""
    rows = Things()
    followers = 300
    query = Query("SELECT f.id, c.attributes FROM things f JOIN things c ON c.name = f.name AND c.id = 0", ["id"])
    things.apply([rows.row(number, name="celebrity") for number in range(followers)])
    with views.base() as base, closing(views.open("v", views.config(query, keys_per_batch=20), base)) as maintainer:
        maintainer.start()
        until_idle(maintainer)
        assert views.assert_equal("v", query) == followers
        things.apply([rows.row(0, name="celebrity", attributes='{"now": 1}')])
        assert maintainer.step()
        counts = base.counts("v")
        assert counts is not None
        assert (counts.changes, counts.keys) == (0, followers - 20), "no more than a batch in one step"
        assert counts.oldest_s is not None
        things.apply([rows.row(followers + 1, name="celebrity")])
        steps = 1
        while maintainer.step():
            steps += 1
        assert steps >= followers // 20
        assert views.assert_equal("v", query) == followers + 1
        counts = base.counts("v")
        assert counts is not None
        assert counts.oldest_s is None
