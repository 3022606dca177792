"""The warehouse's records about itself in the catalog, as properties of the namespace and of each table."""

import base64
import json
import zlib
from collections.abc import Mapping

from cdc.model.events import TableId

GENERATION = "watershed.generation"  # of the namespace, and of each table that was prepared in it
# Of the namespace: a number of parts, and the parts `watershed.note.0` and so on (see sinks.contract.Sink.note). A
# catalog may limit a property to 1,000 characters.
NOTE = "watershed.note"
NOTE_PART_CHARS = 900
TABLES = "watershed.tables"  # of the namespace: JSON list of [schema, name] of those tables
TABLE = "watershed.table"  # of a table: the source table
KEY = "watershed.key"  # JSON list of the key's columns, in key order
COLUMNS = "watershed.columns"  # JSON list of [name, Spark type]
SCHEMA_VERSION = "watershed.schema_version"  # of a table: the version that it was prepared with
DELETED_KEYS = "watershed.deleted_keys"  # of a table of deleted keys, instead of all others but TABLE
MODE = "watershed.mode"  # of a table
PARTITIONS_EVER = "watershed.partitions_ever"  # of a table: transforms by which any of its files may be partitioned
LAYOUT = "watershed.layout"  # of a table: JSON list of its partitions and of its sorts, as SQL names them
# In a snapshot's summary: BATCH, the attempt that wrote it, by which a writer recognizes its own commits; PLANNED, the
# snapshot on which the attempt was planned, 0 for none; MENDED, set by a commit that repaired what another writer left.
BATCH = "watershed.batch"
PLANNED = "watershed.planned"
MENDED = "watershed.mended"


def listed_tables(namespace: Mapping[str, str]) -> list[TableId]:
    """Returns the tables prepared in the generation that the namespace holds."""
    return [TableId(*name) for name in json.loads(namespace.get(TABLES, "[]"))]


def note_properties(text: str) -> dict[str, str]:
    """Returns the properties that hold a note."""
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    parts = [packed[start : start + NOTE_PART_CHARS] for start in range(0, len(packed), NOTE_PART_CHARS)]
    return {NOTE: str(len(parts))} | {f"{NOTE}.{number}": part for number, part in enumerate(parts)}


def note_of(namespace: Mapping[str, str]) -> str | None:
    """The inverse of `note_properties`. None if there is no note, or only a part of one."""
    count = namespace.get(NOTE, "")
    if not count.isdecimal() or count == "0":
        return None
    packed = "".join(namespace.get(f"{NOTE}.{number}", "") for number in range(int(count)))
    try:
        return zlib.decompress(base64.b64decode(packed)).decode()
    except (ValueError, zlib.error):
        return None
