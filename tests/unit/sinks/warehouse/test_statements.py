"""The text of statements; that engines understand it is the conformance suite's to show."""

from sinks.warehouse import statements
from sinks.warehouse.naming import Place

PLACE = Place(rows=("shop", "public", "a_with_deleted"), live=("shop", "public", "a"))


def test_names_and_literals_are_quoted() -> None:
    assert statements.full(("sh`op", "a b")) == "`watershed`.`sh``op`.`a b`"
    assert statements.literal("it's \\") == "'it\\'s \\\\'"


def test_a_table_has_our_columns_and_properties() -> None:
    text = statements.create_table(PLACE, [("id", "bigint"), ("na me", "string")], {"watershed.key": '["id"]'})
    assert "(`id` bigint, `na me` string, ws_version bigint, ws_deleted boolean) USING iceberg" in text
    assert "'format-version' = '3'" in text
    assert "'write.merge.isolation-level' = 'serializable'" in text
    assert "'watershed.key' = '[\"id\"]'" in text


def test_the_view_shows_live_rows_and_source_columns() -> None:
    assert statements.create_view(PLACE, ["id", "name"], {"a": "b"}) == (
        "CREATE OR REPLACE VIEW `watershed`.`shop`.`public`.`a` TBLPROPERTIES ('a' = 'b') AS "
        "SELECT `id`, `name` FROM `watershed`.`shop`.`public`.`a_with_deleted` WHERE NOT ws_deleted"
    )


def test_the_merge_is_guarded_and_writes_the_key_as_the_row_has_it() -> None:
    assert statements.merge(PLACE.rows, ["id", "part", "name"], ["id", "part"]) == (
        "MERGE INTO `watershed`.`shop`.`public`.`a_with_deleted` t USING ws_source s "
        "ON t.`id` = s.`id` AND t.`part` = s.`part` "
        "WHEN MATCHED AND s.ws_version > t.ws_version THEN "
        "UPDATE SET t.`id` = s.`id`, t.`part` = s.`part`, t.`name` = s.`name`, t.ws_version = s.ws_version, "
        "t.ws_deleted = s.ws_deleted "
        "WHEN NOT MATCHED THEN INSERT (`id`, `part`, `name`, ws_version, ws_deleted) "
        "VALUES (s.`id`, s.`part`, s.`name`, s.ws_version, s.ws_deleted)"
    )


def test_the_merge_of_rows_that_lack_columns_keeps_those_of_live_rows_and_inserts_none() -> None:
    assert statements.merge_columns(PLACE.rows, ["id", "na'me"], ["id"]) == (
        "MERGE INTO `watershed`.`shop`.`public`.`a_with_deleted` t USING ws_source s ON t.`id` = s.`id` "
        "WHEN MATCHED AND s.ws_version > t.ws_version AND NOT t.ws_deleted THEN "
        "UPDATE SET t.`na'me` = CASE WHEN array_contains(s.ws_unchanged, 'na\\'me') THEN t.`na'me` ELSE s.`na'me` END, "
        "t.ws_version = s.ws_version"
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


def test_a_sweep_empties_all_but_the_key() -> None:
    assert statements.sweep(PLACE.rows, ["id", "name"], ["id"], 7) == (
        "UPDATE `watershed`.`shop`.`public`.`a_with_deleted` SET `name` = NULL, ws_version = 7L, ws_deleted = true "
        "WHERE ws_version < 7 AND NOT ws_deleted"
    )


def test_maintenance_names_the_table_without_its_catalog() -> None:
    assert "table => '`shop`.`public`.`a_with_deleted`', options" in statements.compact(PLACE.rows)
    assert "older_than => TIMESTAMP '2026-01-01 00:00:00', retain_last => 5" in statements.expire(
        PLACE.rows, "2026-01-01 00:00:00", 5
    )


def test_doubles_go_by_their_place_in_a_file() -> None:
    text = statements.remove_doubles(PLACE.rows, ["id"])
    assert "PARTITION BY t.`id` ORDER BY t.ws_version DESC" in text
    assert text.endswith("ON t._file = d.ws_file AND t._pos = d.ws_pos WHEN MATCHED THEN DELETE")
