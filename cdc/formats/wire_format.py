"""Confluent's wire format of keys and values: a zero byte, the four bytes of the schema's id in the registry, then the
content. JSON never begins with a zero byte, so a reader knows from a record itself how to read it. Pure.
"""

from typing import Final

MAGIC: Final = b"\0"
HEAD_BYTES: Final = 5


def head(schema_id: int) -> bytes:
    return MAGIC + schema_id.to_bytes(4)


def schema_id_of(content: bytes) -> int | None:
    """Returns the id of the schema that describes a key or value; None for JSON without one."""
    return int.from_bytes(content[1:HEAD_BYTES]) if content[:1] == MAGIC and len(content) >= HEAD_BYTES else None
