"""Two generations of a warehouse: readers see one of them by the tables' names, and a swap is one transaction."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdc.config.stores import WarehouseConfig
from cdc.model.events import pack_version
from sinks.errors import SinkError
from sinks.slots import FIRST
from sinks.warehouse.catalog import CatalogPlace
from sinks.warehouse.reader import WarehouseReader
from sinks.warehouse.sink import WarehouseSink
from sinks.warehouse.slots import WarehouseSlots, in_slot
from spark_jobs.engine import SparkEngine
from tests.conformance.tables import LABELS, PAIRS, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

V = pack_version(1, 100)


class Warehouse:
    def __init__(self, spark: "SparkSession", folder: Path, stack: ExitStack) -> None:
        self.place = CatalogPlace(folder / "catalog.db", (folder / "tables").as_uri(), "shop")
        self.folder = folder
        self._spark = spark
        self._stack = stack
        self.engine = SparkEngine(spark, self.place)
        self.slots = stack.enter_context(closing(WarehouseSlots(self.engine, self.place)))

    def open(
        self, slot: str = FIRST, begins: int | None = None, tables: Sequence[Table] = (LABELS, PAIRS)
    ) -> WarehouseSink:
        place = in_slot(self.place, slot)
        engines = [SparkEngine(self._spark, place) for _ in range(2)]
        staging = (self.folder / "staged").as_uri()
        sink = WarehouseSink(engines[0], engines[1:], WarehouseReader(place), staging)
        self._stack.callback(sink.close)
        if begins is not None:
            sink.begin_generation(begins)
        for table in tables:
            sink.prepare(table.schema)
        return sink

    def read(self) -> Mapping[str, Any]:
        return {row.row["name"]: row.row["uses"] for row in WarehouseReader(self.place).rows(LABELS.schema.table)}


@pytest.fixture
def warehouse(spark: "SparkSession", tmp_path: Path) -> Iterator[Warehouse]:
    with ExitStack() as stack:
        yield Warehouse(spark, tmp_path, stack)


def filled(sink: WarehouseSink, uses: int) -> None:
    sink.apply([LABELS.upsert(V + uses, name="a", uses=uses), LABELS.upsert(V + uses, name="b", uses=uses)])


def test_readers_see_the_other_generation_after_one_step_and_the_former_again_after_another(
    warehouse: Warehouse,
) -> None:
    former, new, slots = warehouse.open(begins=1), warehouse.open("g2", begins=2), warehouse.slots
    filled(former, 1)
    filled(new, 2)
    new.apply([LABELS.delete(V + 3, name="b")])
    assert (slots.serving(), slots.others(), slots.generation(FIRST)) == (FIRST, {"g2": 2}, 1)
    assert warehouse.read() == {"a": 1, "b": 1}
    for _ in range(2):
        slots.serve("g2")
        assert (slots.others(), slots.generation(FIRST), warehouse.read()) == ({"g1": 1}, 2, {"a": 2})
    serving = warehouse.open()
    assert (serving.generation(), WarehouseReader(warehouse.place).generation()) == (2, 2)
    serving.apply([LABELS.upsert(V + 2, name="b", uses=2), LABELS.upsert(V + 4, name="c", uses=4)])
    assert warehouse.read() == {"a": 2, "c": 4}, "its deleted keys came along"
    slots.serve("g1")
    assert (slots.others(), slots.generation(FIRST), warehouse.read()) == ({"g2": 2}, 1, {"a": 1, "b": 1})
    for _ in range(2):
        slots.drop("g2")
    assert slots.others() == {}
    assert list(warehouse.folder.glob("tables/shop__g2/**/*.parquet")) == []
    filled(warehouse.open(), 5)
    assert warehouse.read() == {"a": 5, "b": 5}


def test_tables_that_were_built_take_their_places_and_the_others_stay_as_they_are(warehouse: Warehouse) -> None:
    former, slots = warehouse.open(begins=1), warehouse.slots
    filled(former, 1)
    former.apply([PAIRS.upsert(V, left="x", right="y", weight=1)])
    former.save_position("of the former", None)
    new = warehouse.open("g2", begins=2, tables=(LABELS,))
    filled(new, 2)
    new.save_position("of both", None)
    slots.check_room([LABELS.id])
    for _ in range(2):  # idempotent
        slots.serve("g2", adopts=True)
        assert (slots.others(), slots.generation(FIRST), warehouse.read()) == ({"g1": None}, 2, {"a": 2, "b": 2})
    serving = warehouse.open()
    assert (serving.generation(), WarehouseReader(warehouse.place).generation()) == (2, 2)
    assert serving.saved_position() == "of both"
    serving.apply(
        [
            PAIRS.upsert(V, left="x", right="y", weight=1),
            PAIRS.upsert(V + 1, left="y", right="y", weight=1),
            LABELS.delete(V + 3, name="b"),
        ]
    )
    assert sorted(row.key["left"] for row in serving.rows(PAIRS.id)) == ["x", "y"]
    assert warehouse.read() == {"a": 2}
    for _ in range(2):
        slots.drop("g1")
        assert slots.others() == {}
    filled(warehouse.open("g3", begins=3), 5)
    slots.serve("g3")
    assert (slots.generation(FIRST), warehouse.read()) == (3, {"a": 5, "b": 5})
    slots.serve("g2")
    assert warehouse.open().generation() == 2, "what it had adopted goes with it"


def test_a_swap_fails_as_a_whole_and_without_room_none_is_begun(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(warehouse.open(begins=1), 1)
    filled(warehouse.open("g2", begins=2), 2)
    # A table of somebody else has a name that the former generation's table is to get.
    engine = warehouse.engine
    for namespace in (("shop__g1",), ("shop__g1", "public")):
        engine.run(f"CREATE NAMESPACE {'.'.join(('watershed', *namespace))}")
    engine.run("CREATE TABLE watershed.shop__g1.public.pairs (a int) USING iceberg")
    with pytest.raises(SinkError, match="has a table under a name of the new generation that the sink did not create"):
        warehouse.slots.serve("g2")
    assert (warehouse.slots.generation(FIRST), warehouse.read()) == (1, {"a": 1, "b": 1})
    warehouse.slots.check_room()
    usage = shutil.disk_usage(warehouse.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(SinkError, match=r"needs about \d[\d,]+ bytes, and 10 are left"):
        warehouse.slots.check_room()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, None),
        ({"shapes": {"public.*": {"mode": "history"}}}, "keep every change"),
        ({"catalog_uri": None, "catalog": {"type": "rest", "uri": "http://127.0.0.1:1"}}, "type rest"),
    ],
)
def test_which_warehouses_can_be_rebuilt(options: Mapping[str, Any], message: str | None) -> None:
    section = {"catalog_uri": "jdbc:sqlite:catalog.db", "location": "tables", **options}
    reason = WarehouseConfig.model_validate({k: v for k, v in section.items() if v is not None}).no_rebuild
    assert (reason is None) == (message is None) and (message or "") in (reason or "")
