"""Parts of the statements that decide what is read; that they do what they say is shown by tests/conformance."""

from sinks.warehouse.every_change import HistoryTable, append, sweep_log

HISTORY = HistoryTable(("shop", "public", "a"), {"id": "bigint", "na'me": "string"}, ("id",))
LOG = ("shop", "public", "l")


def test_only_rows_that_may_get_another_neighbour_are_read() -> None:
    text = HISTORY.merge(7, "t.`id` IN (1)", compares=False, lacks=False)
    near = "(t.is_current OR t.ws_version >= 7L OR t.ws_next_version >= 7L) AND t.`id` IN (1)"
    assert text.count(near) == 2, "where the batch is put between rows, and where these are changed"


def test_columns_beside_the_key_are_read_only_to_compare_and_to_fill() -> None:
    assert "CAST(NULL AS string) AS `na'me`" in HISTORY.merge(7, "", compares=False, lacks=False)
    for compares, lacks in ((True, False), (False, True)):
        assert "CAST(NULL AS string)" not in HISTORY.merge(7, "", compares=compares, lacks=lacks)
    assert "array_contains(ws_unchanged, 'na\\'me')" in HISTORY.merge(7, "", compares=False, lacks=True)


def test_a_change_log_reads_versions_of_the_batchs_range() -> None:
    assert "t.ws_version >= 7L AND t.ws_version <= 9L" in append(LOG, ["id"], 7, 9)
    assert "AND NOT t.operation = 't' AND" in append(LOG, ["id"], 7, 9), "a sweep may have the version of a change"
    assert "AND t.operation = 't' AND" in sweep_log(LOG, 7)
    assert "'t' AS operation" in sweep_log(LOG, 7) and "t.ws_version >= 7L AND t.ws_version <= 7L" in sweep_log(LOG, 7)
