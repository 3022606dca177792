"""Calls of the script that writes rows: the changes of one table, put together for one round trip. Pure."""

from typing import Any, Final

from sinks.cache.forms import TableForm
from sinks.cache.keys import VERSION_DIGITS
from sinks.cache.scripts import APPLY
from sinks.cache.server import Command
from sinks.contract import Change
from sinks.reduction import key_text

# A script blocks the server: 200 keys take about a millisecond, and more a call brings no more keys a second.
SCRIPT_KEYS_MAX: Final = 200
SCRIPT_BYTES_MAX: Final = 1024 * 1024

_DELETED: Final = ""
_PRESENT: Final = "1"


class ApplyCall:
    """A call of APPLY that is being put together."""

    def __init__(self, form: TableForm, tombstone_ttl_ms: int, met: str, *, only_live: bool = False) -> None:
        """`met`: the key of the rows that a rebuild meets, or empty. `only_live`: other rows are left alone."""
        self.numbers: list[int] = []  # of the changes
        self._form = form
        self._tombstone_ttl_ms = tombstone_ttl_ms
        self._met = met
        self._only_live = only_live
        self._kind = form.kind
        self._has_keys = not form.has_short_keys
        self._lookup_count = form.lookup_count
        self._size_bytes = 0
        self._ids: list[str] = []
        self._versions: list[int] = []
        self._values: list[str | bytes] = []
        self._keys: list[str] = []
        self._lookups: list[str] = []
        self._parts: list[str | bytes] = []

    def add(self, number: int, change: Change) -> bool:
        """Adds the change with this number, and says whether there was room for it. There always is for the first."""
        row, numbers = change.row, self.numbers
        row_id = key_text(change.key)
        value: str | bytes = _DELETED
        parts: list[str | bytes] = []
        if row is not None:
            match self._kind:
                case "document" | "string":
                    value = self._form.document(row)
                case "hash":
                    parts = self._form.parts(row)
                    value = str(len(parts))
                case _:
                    value = _PRESENT
        size_bytes = self._size_bytes + len(row_id) + len(value)
        if parts:
            size_bytes += sum(map(len, parts))
        if numbers and (size_bytes > SCRIPT_BYTES_MAX or len(numbers) == SCRIPT_KEYS_MAX):
            return False
        self._size_bytes = size_bytes
        self._parts += parts
        numbers.append(number)
        self._ids.append(row_id)
        self._versions.append(change.version)
        self._values.append(value)
        if self._has_keys:
            self._keys.append(self._form.key_argument(row_id))
        if self._lookup_count:
            self._lookups += [""] * self._lookup_count if row is None else self._form.lookup_arguments(row)
        return True

    def add_deletion(self, row_id: str, version: int) -> None:
        """Adds the deletion of a row. At most SCRIPT_KEYS_MAX of them have room."""
        self.numbers.append(0)
        self._ids.append(row_id)
        self._versions.append(version)
        self._values.append(_DELETED)
        if self._has_keys:
            self._keys.append(self._form.key_argument(row_id))
        self._lookups += [""] * self._lookup_count

    def command(self) -> Command:
        form, shape = self._form, self._form.shape
        ttl_ms = "" if shape.ttl_s is None else shape.ttl_s * 1000
        versions = f"%0{VERSION_DIGITS}d" * len(self._versions) % tuple(self._versions)
        options: list[Any] = [form.text, form.deleted, self._tombstone_ttl_ms, ttl_ms, self._kind]
        options += [shape.publish or "", shape.stream or "", shape.stream_length_max, str(form.schema.table)]
        options += ["live" if self._only_live else "", self._met]
        options += ["keys" if self._has_keys else "", self._lookup_count, versions]
        rows = (*self._ids, *self._values, *self._keys, *self._lookups, *self._parts)
        return ("EVALSHA", APPLY.sha, 1, form.versions, *options, *rows)
