"""The statements of a view over its base."""

from pydantic import SecretStr

from cdc.config.stores import CacheConfig
from cdc.config.views import ViewConfig
from cdc.model.events import TableId
from watershed.views.definition import ViewDefinition
from watershed.views.tracing import BaseColumn, trace

ORDERS, LINES = TableId("public", "orders"), TableId("public", "lines")
TEXT = "SELECT o.id, sum(l.price) AS total FROM orders AS o JOIN lines AS l ON l.order_id = o.id GROUP BY o.id"


def defined(key: tuple[str, ...] = ("id",), text: str = TEXT, schema: str = "copies") -> ViewDefinition:
    config = ViewConfig(base="base", sql=text, key=key, target=CacheConfig(url=SecretStr("redis://localhost")))
    columns = {
        ORDERS: {"id": BaseColumn(1, "bigint"), "note": BaseColumn(2, "text")},
        LINES: {"order_id": BaseColumn(1, "bigint"), "no": BaseColumn(2, "integer"), "price": BaseColumn(3, "numeric")},
    }
    query = trace("totals", text, key, {table: list(names) for table, names in columns.items()})
    places = {ORDERS: (schema, "orders"), LINES: (schema, "order lines")}
    return ViewDefinition("totals", config, query, places, columns)


def test_the_query_reads_the_bases_tables_under_their_aliases() -> None:
    message = defined().select.as_string()
    assert '"copies"."orders" AS o' in message
    assert '"copies"."order lines" AS l' in message


def test_the_query_is_run_as_it_was_written() -> None:
    """The parser would write date_part as extract, which has another type."""
    text = "SELECT o.id, date_part('hour', o.at) AS hour /* ü */ FROM orders o -- last"
    config = ViewConfig(
        base="base", sql=f"{text};", key=("id",), target=CacheConfig(url=SecretStr("redis://localhost"))
    )
    query = trace("hours", f"{text};", ("id",), {ORDERS: ("id", "at")})
    message = ViewDefinition("hours", config, query, {ORDERS: ("copies", "orders")}, {}).select.as_string()
    assert message == 'SELECT o.id, date_part(\'hour\', o.at) AS hour /* ü */ FROM "copies"."orders" o\n'


def test_a_row_is_computed_by_its_key_alone() -> None:
    message = defined().row(["bigint"]).as_string()
    assert message.endswith('v WHERE v."id" = CAST($1 AS bigint) LIMIT 2')


def test_changed_rows_are_joined_to_the_key() -> None:
    definition = defined()
    ways = {one.table: one for one in definition.query.traces}
    assert definition.traced_columns(LINES) == ["order_id"]
    assert definition.searched_columns() == [(LINES, ("order_id",)), (ORDERS, ("id",))]
    message = definition.touched(ways[LINES], definition.rows(), ["bigint"]).as_string()
    assert """SELECT CAST(c.image->>'order_id' AS bigint) AS "order_id" FROM""" in message
    assert 'JOIN "copies"."orders" AS "t0" ON "t0"."id" = "t1"."order_id"' in message
    assert not definition.has_split_key


def test_a_key_of_two_tables_joins_also_what_rows_were_before() -> None:
    text = "SELECT o.id, l.no, l.price FROM orders o JOIN lines l ON l.order_id = o.id"
    definition = defined(("id", "no"), text)
    assert definition.has_split_key
    message = definition.touched(definition.query.traces[0], definition.rows(), ["bigint", "integer"]).as_string()
    assert "UNION ALL" in message


def test_the_fingerprint_changes_with_query_key_and_tables() -> None:
    reported = {
        one.fingerprint
        for one in (defined(), defined(("id", "total"), "SELECT id, id AS total FROM orders"), defined(schema="new"))
    }
    assert len(reported) == 3
    assert defined().fingerprint == defined().fingerprint
