"""An index follows new versions of its table's schema, killed anywhere and with others beside it."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest
from msgspec import structs
from pydantic import SecretStr

from cdc.config.stores import SearchConfig
from cdc.model.events import Column, TableSchema, pack_version
from sinks.contract import Change, Outcome
from sinks.errors import RefusedError, SinkError
from sinks.search.server import SearchServer
from sinks.search.sink import SearchSink
from tests.unit.sinks.search.conftest import QUICK, SCHEMA, TABLE, Place, delete, upsert

V = pack_version(1, 1)
TEXT = (25, "text")
INTEGER = (23, "integer")
BIGINT = (20, "bigint")


def retyped(version: int, name: str, kind: tuple[int, str]) -> TableSchema:
    """The table's schema with another type for a column."""
    columns = (replace(c, type_oid=kind[0], type_name=kind[1]) if c.name == name else c for c in SCHEMA.columns)
    return replace(SCHEMA, version=version, columns=tuple(columns))


class InterruptedServer(SearchServer):
    """Does something else after its n-th request that changes something, once."""

    def __init__(self, place: Place, number: int, interrupt: Callable[[], None]) -> None:
        super().__init__(SearchConfig(url=SecretStr(place.url)), QUICK)
        self.requests = 0
        perform = self._client.transport.perform_request

        def counted(method: str, url: str, *arguments: Any, **named: Any) -> Any:
            answer = perform(method, url, *arguments, **named)
            if method not in ("GET", "HEAD") and not url.endswith(("/_refresh", "/_count")):
                self.requests += 1
                if self.requests == number:
                    interrupt()
            return answer

        setattr(self._client.transport, "perform_request", counted)  # noqa: B010


class Killed(Exception):  # noqa: N818
    """As a kill -9, without a process."""


def kill() -> None:
    raise Killed


def indexes(place: Place) -> list[str]:
    return sorted(place.client.indices.get(index=f"{place.alias}.documents*"))


def versions(place: Place) -> dict[str, int]:
    """id → version of each document, deleted rows' too."""
    (index,) = place.client.indices.get_alias(name=place.alias)
    hits = place.client.search(index=index, body={"version": True, "size": 100})["hits"]["hits"]
    assert all(hit["_version"] == hit["_source"]["ws_version"] for hit in hits)
    return {hit["_id"]: hit["_version"] for hit in hits}


def test_a_column_of_another_type_moves_to_an_index_of_its_own(sink: SearchSink, place: Place) -> None:
    sink.apply([upsert(1, V, name="a", price="1.5", token="x"), upsert(2, V + 1), delete(2, V + 2), delete(3, V + 3)])
    sink.make_readable({TABLE})
    wider = retyped(2, "price", TEXT)
    sink.prepare(wider, [SCHEMA])
    assert indexes(place) == [f"{place.alias}.documents.v2"]
    assert versions(place) == {"1": V, "2": V + 2, "3": V + 3}
    assert place.find({"match_all": {}}) == [1]
    (row,) = sink.rows(TABLE)
    assert row.row == {
        name: value for name, value in (upsert(1, V, name="a", token="x").row or {}).items() if name != "price"
    }
    # The mark goes with it, the guard holds, and the new field is searched as what it is.
    assert sink.generation() == 1
    assert sink.apply([upsert(2, V + 1), upsert(1, V + 4, price="free of charge")]) == [
        (Outcome.STALE, ""),
        (Outcome.WRITTEN, ""),
    ]
    sink.make_readable({TABLE})
    assert place.find({"match": {"price": "charge"}}) == [1]
    with closing(place.open()) as restarted:
        restarted.prepare(wider, [SCHEMA])
        assert restarted.generation() == 1
        restarted.begin_generation(2)
        restarted.prepare(wider, [SCHEMA])
        assert restarted.generation() == 2
        assert indexes(place) == [f"{place.alias}.documents.v2"]
    with closing(place.open()) as zombie, pytest.raises(SinkError, match="later schema than version 1"):
        zombie.prepare(SCHEMA)


def test_a_widened_column_keeps_its_values_and_leaves_dotted_paths_free(sink: SearchSink, place: Place) -> None:
    number, path = Column("number", *INTEGER[:1], -1, INTEGER[1], True), Column("a.b", *TEXT[:1], -1, TEXT[1], True)
    second = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, number, path))
    sink.prepare(second, [SCHEMA])
    assert indexes(place) == [f"{place.alias}.documents"], "new fields need no new index"
    change = upsert(1, V)
    assert change.row is not None
    sink.apply([structs.replace(change, row=change.row | {"number": 7, "a.b": "x"})])
    wide = replace(number, type_oid=20, type_name="bigint")
    third = replace(SCHEMA, version=3, columns=(*SCHEMA.columns, wide, replace(path, name="a")))
    sink.prepare(third, [SCHEMA, second])
    sink.make_readable({TABLE})
    assert indexes(place) == [f"{place.alias}.documents.v3"]
    (row,) = sink.rows(TABLE)
    assert row.row == change.row | {"number": 7}
    assert place.find({"range": {"number": {"gt": 5}}}) == [1]


def interrupted_moves(
    place: Place, first: SearchSink, interrupt: Callable[[TableSchema, int], None]
) -> list[TableSchema]:
    """Moves to ever new versions, interrupted after the first request that changes something, the second…
    until one ends before. After each the
    next writer finds or makes it whole. Returns the versions."""
    known = [SCHEMA]
    for number in count(1):
        wanted = retyped(len(known) + 1, "price", TEXT if len(known) % 2 else (1700, "numeric"))
        server = InterruptedServer(place, number, partial(interrupt, wanted, number))
        with closing(SearchSink(server, place.prefix)) as writer:
            with suppress(Killed):
                writer.prepare(wanted, known)
            assert place.find({"match_all": {}}) == [1], "readers always see the rows"
            assert first.generation() == 1
        with closing(place.open()) as next_writer:
            next_writer.prepare(wanted, known)
        assert indexes(place) == [f"{place.alias}.documents.v{wanted.version}"]
        known.append(wanted)
        if server.requests < number:
            return known
    raise AssertionError


@pytest.mark.promise(2)
def test_a_move_that_is_killed_anywhere_is_gone_on_with(sink: SearchSink, place: Place) -> None:
    sink.apply([upsert(1, V), upsert(2, V + 1), delete(2, V + 2)])
    sink.make_readable({TABLE})
    assert len(interrupted_moves(place, sink, lambda _, __: kill())) > 5
    assert versions(place) == {"1": V, "2": V + 2}


@pytest.mark.promise(2)
def test_of_two_writers_that_move_at_once_none_loses_a_row(sink: SearchSink, place: Place) -> None:
    """Beside the move another one, which writes; and one that still writes by the old schema, or is refused."""
    expected = {"1": V, "2": V + 2}
    known = [SCHEMA]
    sink.apply([upsert(1, V), upsert(2, V + 1), delete(2, V + 2)])
    sink.make_readable({TABLE})

    def write(writer: SearchSink, change: Change) -> None:
        with suppress(SinkError):
            assert writer.apply([change])[0].outcome is Outcome.WRITTEN
            expected[str(change.key["id"])] = change.version

    def interrupt(wanted: TableSchema, number: int) -> None:
        write(sink, delete(1000 + number, V + number))
        with closing(place.open()) as other:
            if number % 2:
                other.prepare(wanted, known)
            else:
                known.append(wanted)
            other.attach(wanted)
            write(other, delete(2000 + number, V + number))
        write(sink, delete(3000 + number, V + number))

    moves = interrupted_moves(place, sink, interrupt)
    sink.make_readable({TABLE})
    assert versions(place) == expected
    assert len(expected) > len(moves)


def test_an_unfinished_move_that_is_not_needed_any_more_is_ended_all_the_same(sink: SearchSink, place: Place) -> None:
    """The old index takes no writes by then."""
    sink.apply([upsert(1, V, price="1.5")])
    moving = SearchSink(InterruptedServer(place, 2, kill), place.prefix)
    with closing(moving), pytest.raises(Killed):
        moving.prepare(retyped(2, "price", TEXT), [SCHEMA])
    assert len(indexes(place)) == 2
    with pytest.raises(SinkError, match="blocked for writes"):
        sink.apply([upsert(1, V + 1)])
    back = replace(SCHEMA, version=3)
    sink.prepare(back, [SCHEMA, retyped(2, "price", TEXT)])
    assert indexes(place) == [f"{place.alias}.documents.v3"]
    assert sink.apply([upsert(1, V + 1)])[0].outcome is Outcome.WRITTEN


def test_an_index_with_other_fields_for_the_same_version_is_refused(sink: SearchSink) -> None:
    sink.prepare(retyped(2, "price", TEXT), [SCHEMA])
    with pytest.raises(RefusedError, match=r"documents\.v2 of table public\.products has fields of other types"):
        sink.prepare(retyped(2, "price", INTEGER), [SCHEMA])
