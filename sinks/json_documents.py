"""Documents of rows, in JSON, in which values of type json and jsonb are JSON values and not texts. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from sinks.records import encode_json

# Texts of JSON columns that the column's own field can't represent exactly, by column.
JSON_FIELD: Final = "ws_json"
LEVELS_MAX: Final = 100  # of a JSON value that is stored as an object
_BRACKETS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{}\]]')  # and the strings of JSON, which may contain some


def is_shallow(text: str) -> bool:
    """Returns whether a JSON text has at most LEVELS_MAX levels. Some thousand levels overflow the stack of readers,
    and end OpenSearch."""
    if text.count("{") + text.count("[") <= LEVELS_MAX:
        return True
    level = deepest = 0
    for part in _BRACKETS.findall(text):
        level += (part in "{[") - (part in "}]")
        deepest = max(deepest, level)
    return deepest <= LEVELS_MAX


def encode_document(document: Mapping[str, Any]) -> bytes:
    """Returns a document, in which JSON values are fragments of orjson, as compact JSON. Integers of any size stay
    exact."""
    try:
        return b"%b" % orjson.dumps(document)
    except TypeError:  # an integer above 64 bits
        items = (b"%b:%b" % (encode_json(name), _encoded(value)) for name, value in document.items())
        return b"{%b}" % b",".join(items)


def _encoded(value: Any) -> bytes:
    return bytes(orjson.dumps(value)) if isinstance(value, orjson.Fragment) else encode_json(value)
