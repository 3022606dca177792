"""A batch reduced to the newest change of each key, and the text that names a key in a store. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from cdc.events import TableId
from sinks.contract import Change, Json
from sinks.records import encode_json

# The limit of OpenSearch for _id, in UTF-8 bytes. Every store uses the same ids, so that they can be compared.
DOCUMENT_ID_BYTES_MAX: Final = 512
DIGEST_MARKER: Final = "sha256:"


def reduce_changes(changes: Iterable[Change]) -> list[Change]:
    """The change with the highest version for each (table, key), in order of each key's first appearance.

    A delete and its tombstone have the same version and mean the same; the delete is kept, as it says more.
    """
    newest: dict[tuple[TableId, str], Change] = {}
    for change in changes:
        name = (change.table, document_id(change.key))
        held = newest.get(name)
        if (
            held is None
            or change.version > held.version
            or (change.version == held.version and held.schema_version is None)
        ):
            newest[name] = change
    return list(newest.values())


def document_id(key: Mapping[str, Json]) -> str:
    """The name of a row inside its table: differs for different keys, 1 to 512 bytes of UTF-8.

    One key column: its text (a number as in JSON). Several: the values as a compact JSON array. What is empty or too
    long, or could be mistaken for a digest, becomes `sha256:` and the hexadecimal digest of that text.
    """
    values = list(key.values())
    value = values[0] if len(values) == 1 else values
    text = value if type(value) is str else encode_json(value).decode()
    # UTF-8 takes up to 4 bytes for a character: short texts need no encoding to be sure.
    if 0 < len(text) <= DOCUMENT_ID_BYTES_MAX // 4 and not text.startswith(DIGEST_MARKER):
        return text
    content = text.encode()
    if 0 < len(content) <= DOCUMENT_ID_BYTES_MAX and not text.startswith(DIGEST_MARKER):
        return text
    return DIGEST_MARKER + hashlib.sha256(content).hexdigest()
