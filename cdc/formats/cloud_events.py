"""CloudEvents 1.0 with the Kafka protocol binding: what rows and events have in common, and the attributes of rows.

Binary mode: the value stays what it is, and attributes are headers `ce_id`, `ce_type`…, with `content-type` for the
value. Structured mode: the value is one JSON object of the attributes and `data`. Attributes of a row's record:

| attribute | value                                                                                                  |
|-----------|--------------------------------------------------------------------------------------------------------|
| `source`  | `/watershed/<topic prefix>/<schema>.<table>`                                                           |
| `id`      | `<history>.<epoch>.<seq>`, which no other record of the table has, not even one of former topics       |
| `type`    | `watershed.insert`, `.update`, `.delete`, `.read` (an existing row) or `.truncate`                     |
| `time`    | `source.ts_us`: of the commit; for an existing row, about when it was read                             |

Tombstones are no events: they have no attributes.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

from cdc.config.format_options import CloudEventsMode

Header = tuple[str, bytes | None]

VERSION: Final = "1.0"
JSON: Final = "application/json"
STRUCTURED: Final[tuple[Header, ...]] = (("content-type", b"application/cloudevents+json; charset=UTF-8"),)
OPERATIONS: Final[Mapping[str, str]] = {"c": "insert", "u": "update", "d": "delete", "r": "read", "t": "truncate"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def source_of(prefix: str, name: str) -> str:
    """`prefix`: that of the topics. `name`: the table, or the prefix of messages."""
    return f"/watershed/{quote(prefix)}/{quote(name)}"


def time_of(us: int) -> str:
    """`us`: µs since 1970."""
    return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


class RowAttributes:
    """The attributes of one table's records, for one run."""

    def __init__(self, mode: CloudEventsMode, prefix: str, table: str, run: tuple[str, int]) -> None:
        """`run`: history and epoch. Epochs begin again after a teardown; the history is another one."""
        self._is_structured = mode == "structured"
        self._run = ".".join(map(str, run))
        self._time = ""
        source = source_of(prefix, table)  # ASCII without quotes, as all attributes are
        self.head = (
            f'{{"specversion":"{VERSION}","source":"{source}","datacontenttype":"{JSON}","data":'
            if self._is_structured
            else ""
        )
        self._constant: tuple[Header, ...] = (
            ("ce_specversion", VERSION.encode()),
            ("ce_source", source.encode()),
            ("content-type", JSON.encode()),
        )

    def start(self, ts_us: int) -> None:
        """Sets the time of the records that follow, µs since 1970."""
        self._time = time_of(ts_us)

    def headers(self, op: str, seq: int) -> tuple[Header, ...]:
        """Returns the headers of a record."""
        if self._is_structured:
            return STRUCTURED
        return (
            *self._constant,
            ("ce_id", f"{self._run}.{seq}".encode()),
            ("ce_type", f"watershed.{OPERATIONS[op]}".encode()),
            ("ce_time", self._time.encode()),
        )

    def tail(self, op: str, seq: int) -> str:
        """Returns the text behind the data; empty in binary mode."""
        if not self._is_structured:
            return ""
        return f',"id":"{self._run}.{seq}","type":"watershed.{OPERATIONS[op]}","time":"{self._time}"}}'
