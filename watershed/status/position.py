"""One position over all stores: the LSN up to which each of them shows all transactions."""

from cdc.model.lsn import Lsn, format_lsn
from cdc.model.sink_records import SinkRecord, newest
from watershed.client.applied import Positions, owed_by, shows_these_topics
from watershed.status.model import Node


class StorePosition(Node):
    """How far one store is."""

    sink: str
    type: str  # of the store
    epoch: int | None
    # Null: nothing is applied yet, the sink has not begun to read the topics that exist now, or another generation is
    # about to take over.
    lsn: str | None
    since_unix_seconds: float | None  # since it shows this LSN
    commit_unix_seconds: float | None  # of the newest transaction that it shows
    owed: dict[str, str]  # table → why rows up to the LSN may be missing
    dead_letters: int  # rows that the store rejected


class PositionOfStores(Node):
    """The LSN up to which every store shows all transactions."""

    lsn: str | None  # the smallest of all stores; null: one of them has none, or there is no store
    epoch: int | None  # to which it belongs: LSNs of different epochs can't be compared
    since_unix_seconds: float | None  # since every store shows at least this LSN; some may have shown it earlier
    is_complete: bool  # no store owes rows below it, or has rejected any
    stores: tuple[StorePosition, ...]


def position_of_stores(positions: Positions) -> PositionOfStores:
    """Returns the position, with that of each sink that has published one."""
    names = sorted({record.sink for record in positions.sinks})
    shown = {name: newest(positions.sinks, name) for name in names}
    stores = tuple(_of(name, record, positions) for name, record in shown.items())
    places = [(record.epoch, record.applied_lsn) for record in shown.values() if record is not None]
    nothing = PositionOfStores(lsn=None, epoch=None, since_unix_seconds=None, is_complete=False, stores=stores)
    if not stores or any(store.lsn is None for store in stores):
        return nothing
    epoch, lsn = min(places)
    since = [store.since_unix_seconds for store in stores]
    return PositionOfStores(
        lsn=format_lsn(Lsn(lsn)),
        epoch=epoch,
        since_unix_seconds=max((each for each in since if each is not None), default=None)
        if None not in since
        else None,
        is_complete=not any(store.owed or store.dead_letters for store in stores),
        stores=stores,
    )


def _of(name: str, record: SinkRecord | None, positions: Positions) -> StorePosition:
    if record is None or not record.epoch or not shows_these_topics(record, positions):
        return StorePosition(
            sink=name,
            type="" if record is None else record.store,
            epoch=None,
            lsn=None,
            since_unix_seconds=None,
            commit_unix_seconds=None,
            owed={},
            dead_letters=0,
        )
    return StorePosition(
        sink=name,
        type=record.store,
        epoch=record.epoch,
        lsn=format_lsn(Lsn(record.applied_lsn)),
        since_unix_seconds=record.applied_since_us / 1_000_000 if record.applied_since_us else None,
        commit_unix_seconds=record.commit_ts_us / 1_000_000 if record.commit_ts_us else None,
        owed=owed_by(record, positions),
        dead_letters=record.dead_letters,
    )
