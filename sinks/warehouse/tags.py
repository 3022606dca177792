"""Tags of Iceberg that name a position of the source: all tables with the same tag are as of the same position.

A tag is set only on a snapshot that has exactly what was committed up to the position. The caller says that everything
up to it is there; that nothing beyond it is there is read from the snapshots: each one that merged a batch names the
offsets up to which the batch went, whatever job wrote it. Tables are tagged one after the other. Until the last one is,
a reader who joins them by the tag gets an error, and never two positions.
"""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple

import structlog

from cdc.model.control import ProgressRecord
from sinks.warehouse import properties
from sinks.warehouse.engine import Conflict, Engine, Snapshot

log = structlog.get_logger(__name__)

_NAME: Final = re.compile(r"ws-(\d+)-([0-9A-F]{16})")


class TagPosition(NamedTuple):
    """The position that a tag names. Ordered."""

    epoch: int
    lsn: int


def tag_name(position: TagPosition) -> str:
    """Returns the name: names of one epoch are in the order of their LSNs."""
    return f"ws-{position.epoch}-{position.lsn:016X}"


def tag_position(name: str) -> TagPosition | None:
    """The inverse of `tag_name`; None for a tag of somebody else."""
    found = _NAME.fullmatch(name)
    return None if found is None else TagPosition(int(found[1]), int(found[2], 16))


class Tags:
    """Sets the tags of one warehouse's tables."""

    def __init__(self, engine: Engine, kept: int) -> None:
        """`kept`: how many tags of its own each table keeps."""
        self._engine = engine
        self._kept = kept

    def set(self, cut: ProgressRecord, tables: Mapping[tuple[str, ...], str]) -> bool:
        """Tags these tables, which have everything up to the cut; each with its topic. Returns False, and tags none, if
        a table has something beyond it."""
        position = TagPosition(cut.epoch, cut.lsn)
        snapshots: dict[tuple[str, ...], tuple[int | None, Mapping[str, int]]] = {}
        for table, topic in tables.items():
            held, history = self._engine.tags(table), self._engine.history(table)
            newest = next(history, None)
            if newest is not None and _is_beyond(chain([newest], history), topic, cut, held):
                log.info("no tag: a job has written beyond the position", table=".".join(table))
                return False
            snapshots[table] = None if newest is None else newest.id, held
        for table, (snapshot, held) in snapshots.items():
            own = sorted(
                (place, name) for name in held if (place := tag_position(name)) is not None and place != position
            )
            removed = [name for _, name in own[: max(0, len(own) + 1 - self._kept)]]
            try:
                self._engine.tag(table, tag_name(position), snapshot, removed)
            except Conflict:
                log.info("no tag: another writer has committed", table=".".join(table))
                return False
        return True


def _is_beyond(history: Iterable[Snapshot], topic: str, cut: ProgressRecord, tags: Mapping[str, int]) -> bool:
    """Says whether a table may have rows beyond the cut. What an earlier tag of ours has is not beyond it."""
    known = {snapshot: place for name, snapshot in tags.items() if (place := tag_position(name)) is not None}
    for snapshot in history:
        if (tagged := known.get(snapshot.id)) is not None:
            return tagged > (cut.epoch, cut.lsn)
        if _goes_beyond(snapshot, topic, cut):
            return True
    return False


def _goes_beyond(snapshot: Snapshot, topic: str, cut: ProgressRecord) -> bool:
    summary = snapshot.summary
    if summary.get(properties.TOPIC) != topic:
        return False  # it merged no batch, or one of a topic that does not exist any more
    incarnation = cut.incarnations.get(topic, "")
    if summary.get(properties.INCARNATION, incarnation) != incarnation:
        return False
    ends = cut.end_offsets.get(topic, ())
    written = {int(number): end for number, (_, end) in json.loads(summary.get(properties.OFFSETS, "{}")).items()}
    return any(number >= len(ends) or end > ends[number] for number, end in written.items())
