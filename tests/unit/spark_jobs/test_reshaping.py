"""A mapping that changed is noticed for the tables whose rows are in the store."""

from typing import Any

from cdc.config.store_mapping import Held
from cdc.model.events import TableId
from sinks.lineage import Lineage
from spark_jobs.reshaping import recorded_mappings, reshaped_tables
from tests.unit.spark_jobs.records import schema
from tests.unit.watershed.cli.test_store_filling import sink_record

A, B = TableId("public", "a"), TableId("public", "b")
LINEAGES = [Lineage((schema("a"),)), Lineage((schema("b"),))]
OFFSETS = {lineage.newest.topic: (1,) for lineage in LINEAGES}


def section(**mapping: Any) -> Held:
    return Held.model_validate({"mapping": {f"public.{table}": entry for table, entry in mapping.items()}})


def test_only_tables_whose_rows_get_another_shape_are_named() -> None:
    before = section(a={"exclude": ["x"]})
    record = sink_record(1, 5).model_copy(
        update={"end_offsets": OFFSETS, "mappings": recorded_mappings(before, [A, B], {})}
    )
    assert reshaped_tables(before, LINEAGES, record) == []
    assert reshaped_tables(section(), LINEAGES, record) == [A]
    assert reshaped_tables(section(a={"exclude": ["y"]}, b={"exclude": ["y"]}), LINEAGES, record) == [A, B]


def test_a_table_of_which_nothing_was_read_has_no_shape_yet() -> None:
    record = sink_record(1, 5).model_copy(update={"end_offsets": {schema("a").topic: (1,)}})
    assert reshaped_tables(section(b={"exclude": ["y"]}), LINEAGES, record) == []
    assert reshaped_tables(section(a={"exclude": ["y"]}), LINEAGES, None) == []


def test_the_shape_of_a_table_that_is_left_out_for_a_while_is_remembered() -> None:
    noted = recorded_mappings(section(a={"exclude": ["x"]}), [A, B], {})
    assert recorded_mappings(section(), [B], noted) == noted
    assert recorded_mappings(section(), [A, B], noted) == {}
