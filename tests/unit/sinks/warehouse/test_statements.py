"""The text of statements; that engines understand it is the conformance suite's to show."""

from sinks.warehouse import statements
from sinks.warehouse.naming import TableLocation

PLACE = TableLocation(rows=("shop", "public", "a"), deleted=("shop", "public__deleted", "a"))


def test_names_and_literals_are_quoted() -> None:
    assert statements.full(("sh`op", "a b")) == "`watershed`.`sh``op`.`a b`"
    assert statements.literal("it's \\") == "'it\\'s \\\\'"


def test_a_table_has_our_columns_and_properties() -> None:
    columns = {"id": "bigint", "na me": "string", "ws_version": "bigint"}
    text = statements.create_table(PLACE.rows, columns, {"watershed.key": '["id"]'}, ["bucket(16, `id`)"])
    assert "(`id` bigint, `na me` string, `ws_version` bigint) USING iceberg PARTITIONED BY (bucket(16, `id`)) " in text
    assert "'format-version' = '3'" in text
    assert "'write.merge.isolation-level' = 'serializable'" in text
    assert "'watershed.key' = '[\"id\"]'" in text


def test_the_merge_is_guarded_and_writes_the_key_as_the_row_has_it() -> None:
    assert statements.merge(PLACE.rows, ["id", "part", "name"], ["id", "part"]) == (
        "MERGE INTO `watershed`.`shop`.`public`.`a` t USING ws_source s "
        "ON t.`id` = s.`id` AND t.`part` = s.`part` "
        "WHEN MATCHED AND s.ws_version > t.ws_version AND s.ws_deleted THEN DELETE "
        "WHEN MATCHED AND s.ws_version > t.ws_version THEN "
        "UPDATE SET t.`id` = s.`id`, t.`part` = s.`part`, t.`name` = s.`name`, t.ws_version = s.ws_version "
        "WHEN NOT MATCHED AND NOT s.ws_deleted THEN INSERT (`id`, `part`, `name`, ws_version) "
        "VALUES (s.`id`, s.`part`, s.`name`, s.ws_version)"
    )


def test_the_merge_of_rows_that_lack_columns_keeps_those_of_live_rows_and_inserts_none() -> None:
    assert statements.merge_columns(PLACE.rows, ["id", "na'me"], ["id"]) == (
        "MERGE INTO `watershed`.`shop`.`public`.`a` t USING ws_source s ON t.`id` = s.`id` "
        "WHEN MATCHED AND s.ws_version > t.ws_version THEN "
        "UPDATE SET t.`na'me` = CASE WHEN array_contains(s.ws_unchanged, 'na\\'me') THEN t.`na'me` ELSE s.`na'me` END, "
        "t.ws_version = s.ws_version"
    )


def test_rows_whose_key_was_deleted_later_are_left_out_of_the_source() -> None:
    assert statements.without_deleted(PLACE.deleted, ["id"], 7) == (
        "(SELECT s.* FROM ws_source s LEFT ANTI JOIN `watershed`.`shop`.`public__deleted`.`a` d ON s.`id` = d.`id` "
        "AND d.ws_version >= 7L AND d.ws_version >= s.ws_version AND NOT s.ws_deleted)"
    )


def test_values_of_a_condition_are_literals_with_bounds() -> None:
    assert statements.one_of([("id", [-1, 2]), ("na`me", ["it's", "z"])]) == (
        "t.`id` >= -1 AND t.`id` <= 2 AND t.`id` IN (-1, 2) AND "
        "t.`na``me` >= 'it\\'s' AND t.`na``me` <= 'z' AND t.`na``me` IN ('it\\'s', 'z')"
    )
    assert statements.one_of([]) == ""
    assert "ON t.`id` = s.`id` AND t.`id` IN (1) WHEN" in statements.merge(PLACE.rows, ["id"], ["id"], "t.`id` IN (1)")
    assert "ON t.`id` = s.`id` AND t.`id` IN (1) WHEN" in statements.merge_columns(
        PLACE.rows, ["id"], ["id"], "t.`id` IN (1)"
    )


def test_maintenance_names_the_table_without_its_catalog() -> None:
    assert "table => '`shop`.`public`.`a`', options" in statements.compact(PLACE.rows)
    text = statements.expire(PLACE.rows, [7, 8], "2026-01-01 00:00:00")
    assert "snapshot_ids => ARRAY(7L, 8L), older_than => TIMESTAMP '2026-01-01 00:00:00', retain_last => 1" in text


def test_doubles_go_by_their_place_in_a_file() -> None:
    text = statements.remove_duplicates(PLACE.rows, ["id"], of_source=True)
    assert "LEFT SEMI JOIN ws_source s ON t.`id` = s.`id`" in text
    assert "PARTITION BY t.`id` ORDER BY t.ws_version DESC" in text
    assert text.endswith("ON t._file = d.ws_file AND t._pos = d.ws_pos WHEN MATCHED THEN DELETE")
