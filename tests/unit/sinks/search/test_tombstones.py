"""Documents of deleted rows go when they are old, and only they."""

from contextlib import closing

import pytest
from opensearchpy.exceptions import NotFoundError

from cdc.model.events import pack_version
from sinks.contract import Outcome
from sinks.search.tombstones import TombstonePurge
from tests.support.waiting import eventually
from tests.unit.sinks.search.conftest import SCHEMA, TABLE, Place, delete, upsert

V = pack_version(1, 1)


def test_tombstones_go_when_they_are_old_and_nothing_else_does(place: Place) -> None:
    with closing(place.open()) as sink:
        sink.begin_generation(1)
        sink.prepare(SCHEMA)
        sink.apply([upsert(1, V), upsert(2, V + 1), upsert(3, V + 2)])
        sink.apply([delete(1, V + 3)])
        sink.make_readable({TABLE})
        deleted_at_s = place.client.get(index=place.alias, id="1")["_source"]["ws_deleted_at"] / 1000
        tombstones = TombstonePurge(place.server(), 60)
        tombstones.purge([place.alias], deleted_at_s)
        tombstones.purge([f"{place.prefix}.nothing"], deleted_at_s)
        sink.apply([delete(2, V + 4)])
        sink.make_readable({TABLE})
        tombstones.purge([place.alias], deleted_at_s + 0.002)

        def is_gone() -> bool:
            try:
                place.client.get(index=place.alias, id="1")
            except NotFoundError:
                return True
            return False

        eventually(is_gone, 30, "the tombstone is gone")
        place.client.indices.refresh(index=f"{place.alias}.documents")
        assert place.client.count(index=f"{place.alias}.documents")["count"] >= 1
        assert place.find({"match_all": {}}) == [3]
        assert sink.apply([upsert(3, V)])[0].outcome is Outcome.STALE


def test_tombstones_are_looked_at_once_an_hour(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(TombstonePurge, "purge", lambda _, aliases, _before_s: calls.append(aliases))
    with closing(place.open()) as sink:
        sink.begin_generation(1)
        sink.prepare(SCHEMA)
        for _ in range(3):
            sink.make_readable({TABLE})
    assert calls == [[f"{place.alias}.documents.own"]]
