"""The warehouse's records about itself in the catalog, as properties of the namespace and of each table."""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from cdc.model.events import TableId

GENERATION = "watershed.generation"  # of the namespace, and of each table that was prepared in it
# Of the namespace: NO_NOTE; a note, if it is short; or `a` or `b` and a number of parts, which are the properties
# `watershed.note.a.0` and so on. A catalog may limit a property to 1,000 characters.
NOTE = "watershed.note"
NO_NOTE = "0"
NOTE_PART_CHARS = 900
TABLES = "watershed.tables"  # of the namespace: JSON list of [schema, name] of those tables
# Of the namespace: JSON list of the earlier generations from which it has adopted tables, as they are.
ADOPTED = "watershed.adopted"
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
REPAIRED = "watershed.mended"
# In the summary of a snapshot that merged a batch of Spark's query: JOB, `sink/generation/job`; QUERY_BATCH, the
# number of the batch in the checkpoint of that generation; TOPIC; OFFSETS, JSON of partition → [offset of the first
# record that the batch may have read, offset after the last one].
JOB = "watershed.job"
QUERY_BATCH = "watershed.query_batch"
TOPIC = "watershed.topic"
OFFSETS = "watershed.offsets"
# If batches go up to cuts: INCARNATION of the topic, whose offsets they are; and of the batch that reaches a cut CUT,
# its epoch and LSN, as of which the table is then.
INCARNATION = "watershed.incarnation"
CUT = "watershed.cut"


def origin_of(job: str, batch: int, topic: str, ranges: Mapping[int, tuple[int, int]]) -> dict[str, str]:
    """Returns the properties that say where a batch's rows of one table came from. `ranges`: by partition."""
    offsets = {str(partition): ranges[partition] for partition in sorted(ranges)}
    return {
        JOB: job,
        QUERY_BATCH: str(batch),
        TOPIC: topic,
        OFFSETS: json.dumps(offsets, separators=(",", ":")),
    }


def listed_tables(namespace: Mapping[str, str]) -> list[TableId]:
    """Returns the tables prepared in the generation that the namespace holds."""
    return [TableId(*name) for name in json.loads(namespace.get(TABLES, "[]"))]


def markers(namespace: Mapping[str, str]) -> frozenset[str]:
    """Returns what GENERATION of a table of the namespace's generation may be."""
    adopted = map(str, json.loads(namespace.get(ADOPTED, "[]")))
    return frozenset({*adopted, *([namespace[GENERATION]] if GENERATION in namespace else [])})


class Note(NamedTuple):
    """The content of the properties of a note."""

    text: str
    # table_key of each table that was written → sequence number and id of its snapshot then; 0 and 0: it had none
    snapshots: Mapping[str, tuple[int, int]]


def note_writes(note: Note, held: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns the changes of properties that replace the note in `held`, in order. The last one alone makes the new
    note count, so that a kill in between leaves the former one.
    """
    packed = base64.b64encode(zlib.compress(json.dumps(note).encode())).decode()
    if len(packed) <= NOTE_PART_CHARS:
        return [{NOTE: packed}]
    place = "b" if held.get(NOTE, "").startswith("a ") else "a"
    starts = range(0, len(packed), NOTE_PART_CHARS)
    parts = {f"{NOTE}.{place}.{n}": packed[start : start + NOTE_PART_CHARS] for n, start in enumerate(starts)}
    return [parts, {NOTE: f"{place} {len(parts)}"}]


def note_of(namespace: Mapping[str, str]) -> Note | None:
    """The inverse of `note_writes`. None if there is no note."""
    packed = namespace.get(NOTE, NO_NOTE)
    if packed == NO_NOTE:
        return None
    place, _, count = packed.partition(" ")
    if count:
        packed = "".join(namespace.get(f"{NOTE}.{place}.{number}", "") for number in range(int(count)))
    try:
        text, snapshots = json.loads(zlib.decompress(base64.b64decode(packed)))
        return Note(text, {table: (number, snapshot) for table, (number, snapshot) in snapshots.items()})
    except (ValueError, TypeError, zlib.error):
        return None
