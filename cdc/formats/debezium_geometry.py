"""Geometric values as Debezium's structs, with their well-known binary (little-endian), and PostGIS's.

point                     {"x":1.0,"y":2.0,"wkb":"…","srid":null}
box, lseg, path, polygon  {"wkb":"…","srid":null,"extensions":{"type":"path","closed":"true"}}
circle                    {"center":{point},"radius":3.0}
line                      {"a":1.0,"b":-1.0,"c":0.0}
PostGIS geometry          {"wkb":"…","srid":4326,"extensions":null}
PostGIS geography         {"wkb":"…","srid":4326}
"""

import re
import struct
from binascii import Error as BinasciiError
from binascii import unhexlify
from collections.abc import Sequence
from typing import Final

from cdc.formats.debezium_values import bytes_as
from cdc.model.errors import MalformedValueError
from cdc.pgoutput.values import floating

Point = tuple[str, str]  # the texts of its coordinates

_COORDINATE = r"-?(?:NaN|Infinity|[0-9][0-9.e+-]*)"
_POINT = re.compile(rf"\(({_COORDINATE}),({_COORDINATE})\)")
_POINTS = re.compile(r"[\[(]?\([^()]*\)(?:,\([^()]*\))*[\])]?").fullmatch
_CIRCLE = re.compile(rf"<(\([^()]*\)),({_COORDINATE})>").fullmatch
_LINE = re.compile(rf"\{{({_COORDINATE}),({_COORDINATE}),({_COORDINATE})\}}").fullmatch

_LINE_STRING: Final = 2
_POLYGON: Final = 3
_EWKB_HAS_SRID: Final = 0x20000000
_base64: Final = bytes_as("bytes")


def point(text: str) -> str:
    return _point(*_points(text, "a point", count=1))


def box(text: str) -> str:
    (right, top), (left, bottom) = _points(text, "a box", count=2)
    ring = [(right, top), (right, bottom), (left, bottom), (left, top), (right, top)]
    return _geometry(_polygon(ring), "box")


def lseg(text: str) -> str:
    return _geometry(_line_string(_points(text, "a line segment", count=2)), "lseg")


def path(text: str) -> str:
    return _geometry(
        _line_string(_points(text, "a path")), "path", f',"closed":"{"false" if text.startswith("[") else "true"}"'
    )


def polygon(text: str) -> str:
    ring = _points(text, "a polygon")
    return _geometry(_polygon([*ring, ring[0]]), "polygon")


def circle(text: str) -> str:
    found = _CIRCLE(text)
    if found is None:
        raise MalformedValueError("a circle")
    return f'{{"center":{_point(*_points(found[1], "a circle", count=1))},"radius":{floating(found[2])}}}'


def line(text: str) -> str:
    found = _LINE(text)
    if found is None:
        raise MalformedValueError("a line")
    return f'{{"a":{floating(found[1])},"b":{floating(found[2])},"c":{floating(found[3])}}}'


def postgis_geometry(text: str) -> str:
    return f'{postgis_geography(text)[:-1]},"extensions":null}}'


def postgis_geography(text: str) -> str:
    """PostGIS prints extended well-known binary in hexadecimal; the reference system is in its head."""
    try:
        content = unhexlify(text)
        order = "<" if content[0] == 1 else ">"
        (kind,) = struct.unpack_from(f"{order}I", content, 1)
        srid = str(struct.unpack_from(f"{order}I", content, 5)[0]) if kind & _EWKB_HAS_SRID else "null"
    except (BinasciiError, ValueError, IndexError, struct.error):
        raise MalformedValueError("a geometry") from None
    return f'{{"wkb":{_base64(content)},"srid":{srid}}}'


def _points(text: str, what: str, count: int | None = None) -> list[Point]:
    found = [(x, y) for x, y in _POINT.findall(text)]
    if not _POINTS(text) or len(found) != text.count("(") - text.startswith("((") or count not in (None, len(found)):
        raise MalformedValueError(what)
    for coordinate in (coordinate for pair in found for coordinate in pair):
        floating(coordinate)
    return found


def _point(at: Point) -> str:
    x, y = at
    wkb = struct.pack("<BI", 1, 1) + _coordinates([at])
    return f'{{"x":{floating(x)},"y":{floating(y)},"wkb":{_base64(wkb)},"srid":null}}'


def _geometry(wkb: bytes, kind: str, more: str = "") -> str:
    return f'{{"wkb":{_base64(wkb)},"srid":null,"extensions":{{"type":"{kind}"{more}}}}}'


def _line_string(points: Sequence[Point]) -> bytes:
    return struct.pack("<BII", 1, _LINE_STRING, len(points)) + _coordinates(points)


def _polygon(ring: Sequence[Point]) -> bytes:
    return struct.pack("<BIII", 1, _POLYGON, 1, len(ring)) + _coordinates(ring)


def _coordinates(points: Sequence[Point]) -> bytes:
    return b"".join(struct.pack("<dd", float(x), float(y)) for x, y in points)
