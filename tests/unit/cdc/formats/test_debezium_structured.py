"""Times as structs, against what Debezium's connector wrote: tests/fixtures/structured."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.config.format_options import FormatOptions, IntervalMode
from cdc.formats.connect import required
from cdc.formats.debezium_kinds import kind_of
from cdc.formats.debezium_structured import structured
from cdc.formats.kinds import Kind, ValueType
from cdc.model.events import Column
from cdc.pgoutput.values import MalformedValueError, UnconvertibleError

RECORDED: Final = json.loads((Path(__file__).parents[3] / "fixtures/structured/times.json").read_text())
ELEMENTS: Final = {1182: 1082, 1183: 1083, 1115: 1114, 1185: 1184, 1270: 1266}  # of arrays
# In arrays Debezium reads values by way of java.sql, which loses microseconds of a time, and time and sign of what is
# before 1582; ours are as they are outside of arrays.
LOST_IN_ARRAYS: Final = ("BC", "24:00:00}", "-infinity", "1500-", "13:51:30.123456", "23:59:59.999999}")


def kind(of: dict[str, Any], interval_mode: IntervalMode | None = None) -> Kind:
    column = Column("c", of["oid"], of["modifier"], "", False, element_oid=ELEMENTS.get(of["oid"], 0))
    options = FormatOptions("debezium", time_precision_mode="structured", interval_handling_mode=interval_mode)
    found = kind_of(column, options)
    assert found is not None
    return found


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


@pytest.mark.parametrize("of", RECORDED["types"], ids=lambda of: of["type"])
def test_schema_and_zero_are_debeziums(of: dict[str, Any]) -> None:
    found = kind(of)
    assert compact(required(found.node)) == compact(of["schema"])
    assert found.zero == compact(of["zero"])


@pytest.mark.parametrize("interval_mode", [None, "numeric", "string"])
def test_values_are_debeziums(interval_mode: IntervalMode | None) -> None:
    same = 0
    for of in RECORDED["values"]:
        text, where = of["text"], f"{of['type']} {of['text']}"
        if of["value"] is None:
            with pytest.raises(UnconvertibleError, match="not a time before 24:00:00"):
                kind(of, interval_mode).encode(text)
        elif of["type"].startswith("interval") and text in ("infinity", "-infinity"):
            assert set(of["value"].values()) - {of["value"]["precision"]} == {0}, where  # which would be another value
            with pytest.raises(UnconvertibleError, match="not a finite interval"):
                kind(of, interval_mode).encode(text)
        elif not (of["oid"] in (1182, 1183, 1115, 1185) and any(lost in text for lost in LOST_IN_ARRAYS)):
            assert kind(of, interval_mode).encode(text) == compact(of["value"]), where
            same += 1
    assert same > 150


@pytest.mark.parametrize(
    ("oid", "element", "text"),
    [
        (1182, 1082, "4713-11-24 BC"),
        (1183, 1083, "13:51:30.123456"),
        (1115, 1114, "0044-03-15 12:00:00.5 BC"),
        (1185, 1184, "-infinity"),
        (1270, 1266, "24:00:00+02"),
    ],
)
def test_in_arrays_values_are_what_they_are_elsewhere(oid: int, element: int, text: str) -> None:
    alone = kind({"oid": element, "modifier": -1}).encode(text)
    assert kind({"oid": oid, "modifier": -1}).encode(f'{{"{text}",NULL}}') == f"[{alone},null]"


def test_an_intervals_hours_have_32_bits() -> None:
    encode = structured(ValueType(1186, -1, "", ())).encode
    assert json.loads(encode("-2147483647:59:59.999999"))["hours"] == -2_147_483_647
    for text in ("2147483648:00:00", "-2562047788:00:54.775807"):
        with pytest.raises(UnconvertibleError, match="not an interval of 32 bits of hours"):
            encode(text)


@pytest.mark.parametrize("oid", [1082, 1083, 1114, 1184, 1266, 1186])
@pytest.mark.parametrize("text", ["", "x", "01/02/2017", "infinite"])
def test_other_texts_are_refused(oid: int, text: str) -> None:
    with pytest.raises(MalformedValueError) as refusal:
        structured(ValueType(oid, -1, "", ())).encode(text)
    assert not isinstance(refusal.value, UnconvertibleError)
