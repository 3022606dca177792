"""Reduction of a batch to the newest change of each key, and the text that identifies a key in a store. Pure."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from cdc.model.events import TableId
from sinks.contract import Change, Json
from sinks.records import encode_json

# The limit of OpenSearch for _id, in UTF-8 bytes. Every store uses the same ids, so that they can be compared.
DOCUMENT_ID_BYTES_MAX: Final = 512
DIGEST_MARKER: Final = "sha256:"


def reduce_changes(changes: Iterable[Change]) -> list[Change]:
    """Returns the change with the highest version for each (table, key), in order of each key's first appearance.
    Columns that it lacks are taken from earlier changes.

    A delete and its tombstone have the same version and mean the same; the delete is kept, because it says more.
    """
    changes = list(changes)
    newest: dict[tuple[TableId, str], Change] = {}
    lives: dict[tuple[TableId, str], list[Change]] = {}  # of keys whose newest change lacks columns
    for change in changes:
        name = (change.table, key_text(change.key))
        held = newest.setdefault(name, change)
        if change.version > held.version or (change.version == held.version and held.schema_version is None):
            newest[name] = change
        if change.unchanged:
            lives[name] = []
    if lives:
        for change in changes:
            if (life := lives.get((change.table, key_text(change.key)))) is not None:
                life.append(change)
        newest |= {name: _folded(newest[name], life) for name, life in lives.items()}
    return list(newest.values())


def with_kept(change: Change, row: Mapping[str, Json] | None) -> Change | None:
    """Fills a change that lacks columns with those of the live row that its store holds (None: it holds none). Returns
    None if that is not possible."""
    if row is None or change.row is None or not change.unchanged <= row.keys():
        return None
    kept = {name: row[name] for name in row if name in change.unchanged}
    return replace(change, row=change.row | kept, unchanged=frozenset())


def completed(
    changes: Sequence[Change],
    held: Callable[[Sequence[Change]], Iterable[Mapping[str, Json] | None]],
    looked_at_once: int,
) -> Iterator[tuple[int, Change]]:
    """Yields (number, change) of each change, whole; without those for which the store holds no live row to take
    columns from. `held`: reads the live rows for that many changes at once; changes lack large columns only, so no more
    of them are in memory. Between this read and the write another writer may write the row: an older version loses
    against ours, a newer one wins."""
    if not any(change.unchanged for change in changes):
        yield from enumerate(changes)
        return
    for start in range(0, len(changes), looked_at_once):
        part = changes[start : start + looked_at_once]
        lacking = [change for change in part if change.unchanged]
        rows = iter(held(lacking)) if lacking else iter(())
        for number, change in enumerate(part, start):
            whole = with_kept(change, next(rows)) if change.unchanged else change
            if whole is not None:
                yield number, whole


def _folded(change: Change, life: Sequence[Change]) -> Change:
    """Fills the columns that a change lacks from changes of lower versions. A delete among them ends the search: before
    it the key had another row, so the whole row is not known."""
    for older in sorted(life, key=lambda other: other.version, reverse=True):
        if older.version >= change.version:
            continue
        if not change.unchanged:
            break
        if older.row is None:
            return replace(change, row=None, unchanged=frozenset())
        assert change.row is not None
        known = {name: older.row[name] for name in older.row if name in change.unchanged}
        change = replace(change, row=change.row | known, unchanged=change.unchanged.difference(known))
    return change


def document_id(key: Mapping[str, Json]) -> str:
    """Returns the name of a row inside its table, which is unique and has 1 to 512 bytes of UTF-8: `bounded_id` of the
    key's text.
    """
    return bounded_id(key_text(key))


def key_text(key: Mapping[str, Json]) -> str:
    """Returns the text of a key: of one column its text (a number as in JSON), of several columns a compact JSON
    array.
    """
    if len(key) == 1:
        (value,) = key.values()
        if type(value) is int:
            return str(value)  # as in JSON
    else:
        value = list(key.values())
    return value if type(value) is str else encode_json(value).decode()


def bounded_id(text: str) -> str:
    """Returns the id; an empty or too long one, or one that looks like a digest, becomes `sha256:` and the hexadecimal
    digest of that text."""
    # UTF-8 has at most 4 bytes for a character, so short texts need not be encoded for this check.
    if 0 < len(text) <= DOCUMENT_ID_BYTES_MAX // 4 and not text.startswith(DIGEST_MARKER):
        return text
    content = text.encode()
    if 0 < len(content) <= DOCUMENT_ID_BYTES_MAX and not text.startswith(DIGEST_MARKER):
        return text
    return DIGEST_MARKER + hashlib.sha256(content).hexdigest()
