"""Geometric values as Debezium's structs."""

import base64
import json
import struct
from typing import Any

import pytest

from cdc.formats import debezium_geometry as geometry
from cdc.model.errors import MalformedValueError
from cdc.pgoutput.values import Encoder


def encoded(encode: Encoder, text: str) -> Any:
    return json.loads(encode(text))


def wkb(found: Any) -> bytes:
    return base64.b64decode(found["wkb"])


def coordinates(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def test_a_point_has_its_coordinates_twice() -> None:
    found = encoded(geometry.point, "(1.5,-2)")
    assert {**found, "wkb": None} == {"x": 1.5, "y": -2, "wkb": None, "srid": None}
    assert wkb(found) == b"\x01\x01\0\0\0" + coordinates(1.5, -2)


def test_points_may_be_no_numbers() -> None:
    assert encoded(geometry.point, "(NaN,-Infinity)")["y"] == "-Infinity"


@pytest.mark.parametrize(
    ("encode", "text", "extensions", "expected"),
    [
        (
            geometry.box,
            "(3,4),(1,2)",
            {"type": "box"},
            b"\x01\x03\0\0\0\x01\0\0\0\x05\0\0\0" + coordinates(3, 4, 3, 2, 1, 2, 1, 4, 3, 4),
        ),
        (geometry.lseg, "[(0,0),(1,1)]", {"type": "lseg"}, b"\x01\x02\0\0\0\x02\0\0\0" + coordinates(0, 0, 1, 1)),
        (
            geometry.path,
            "[(0,0),(1,1)]",
            {"type": "path", "closed": "false"},
            b"\x01\x02\0\0\0\x02\0\0\0" + coordinates(0, 0, 1, 1),
        ),
        (
            geometry.path,
            "((0,0),(1,1))",
            {"type": "path", "closed": "true"},
            b"\x01\x02\0\0\0\x02\0\0\0" + coordinates(0, 0, 1, 1),
        ),
        (
            geometry.polygon,
            "((0,0),(1,1),(2,0))",
            {"type": "polygon"},
            b"\x01\x03\0\0\0\x01\0\0\0\x04\0\0\0" + coordinates(0, 0, 1, 1, 2, 0, 0, 0),
        ),
    ],
)
def test_shapes_are_well_known_binary(encode: Encoder, text: str, extensions: object, expected: bytes) -> None:
    found = encoded(encode, text)
    assert list(found) == ["wkb", "srid", "extensions"]
    assert (found["srid"], found["extensions"]) == (None, extensions)
    assert wkb(found) == expected


def test_a_circle_has_a_center_and_a_line_three_numbers() -> None:
    found = encoded(geometry.circle, "<(1,2),3.5>")
    assert (found["center"]["x"], found["center"]["y"], found["radius"]) == (1, 2, 3.5)
    assert encoded(geometry.line, "{1,-1,0}") == {"a": 1, "b": -1, "c": 0}


def test_postgis_tells_the_reference_system() -> None:
    plain = struct.pack("<BI", 1, 1) + coordinates(1, 2)
    known = struct.pack("<BII", 1, 0x20000001, 4326) + coordinates(1, 2)
    big = struct.pack(">BII", 0, 0x20000001, 4326) + struct.pack(">2d", 1, 2)
    for content, srid in ((plain, None), (known, 4326), (big, 4326)):
        expected = {"wkb": base64.b64encode(content).decode(), "srid": srid}
        assert encoded(geometry.postgis_geography, content.hex().upper()) == expected
        assert encoded(geometry.postgis_geometry, content.hex()) == {**expected, "extensions": None}


@pytest.mark.parametrize(
    ("encode", "text"),
    [
        *((geometry.point, text) for text in ("", "1,2", "(1)", "(1,2),(3,4)", "(a,b)", "(1,2", "(1.2.3,4)")),
        *((geometry.box, "(1,2)"), (geometry.lseg, "[(1,2)]"), (geometry.polygon, "()"), (geometry.path, "x")),
        *((geometry.circle, "(1,2),3"), (geometry.line, "{1,2}")),
        *((geometry.postgis_geometry, "0"), (geometry.postgis_geography, "01")),
    ],
)
def test_text_that_is_not_the_types_is_refused(encode: Encoder, text: str) -> None:
    with pytest.raises(MalformedValueError):
        encode(text)
