"""An index is read whole, each document once, as it was when reading began."""

from typing import Any

import pytest

from cdc.model.events import pack_version
from sinks.errors import SinkError
from sinks.search import pages
from sinks.search.mapping import LIVE
from sinks.search.sink import SearchSink
from tests.unit.sinks.search.conftest import TABLE, Place, delete, upsert
from tests.unit.sinks.search.scripted import scripted_server

V = pack_version(1, 1)


def read(place: Place, with_row: bool = True) -> list[dict[str, Any]]:
    return list(pages.live_documents(place.server(), f"{place.alias}.documents", LIVE, with_row=with_row))


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 35])
def test_pages_end_where_the_index_ends(
    sink: SearchSink, place: Place, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(pages, "_PAGE_ROWS_MAX", 10)
    monkeypatch.setattr(pages, "_PAGE_IDS", 10)
    sink.apply([upsert(number, V + number) for number in range(count)])
    sink.make_readable({TABLE})
    for with_row in (True, False):
        assert [int(hit["_id"]) for hit in read(place, with_row)] == list(range(count))


def test_documents_of_one_version_are_told_apart(
    sink: SearchSink, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_PAGE_ROWS_MAX", 10)
    sink.apply([upsert(number, V) for number in range(35)])
    sink.make_readable({TABLE})
    assert sorted(int(hit["_id"]) for hit in read(place)) == list(range(35))


def test_reading_shows_one_moment(sink: SearchSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_PAGE_ROWS_MAX", 10)
    sink.apply([upsert(number, V + number) for number in range(30)])
    sink.make_readable({TABLE})
    rows = sink.rows(TABLE)
    first = next(rows)
    sink.apply([delete(number, V + 100 + number) for number in range(0, 30, 2)] + [upsert(99, V + 200)])
    sink.make_readable({TABLE})
    assert [first.key["id"], *(row.key["id"] for row in rows)] == list(range(30))


def test_wide_rows_come_in_small_pages(sink: SearchSink, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows of a page comes from their size in the index."""
    monkeypatch.setattr(pages, "_PAGE_BYTES", 500_000)
    wide = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(10_000))  # does not compress well
    sink.apply([upsert(number, V + number, attributes=wide[number:]) for number in range(30)])
    sink.make_readable({TABLE})
    assert 10 <= pages._page_rows(place.server(), f"{place.alias}.documents") < 30
    assert len(read(place)) == 30


def test_nothing_is_left_open_by_a_reader_who_stops(sink: SearchSink, place: Place) -> None:
    sink.apply([upsert(1, V)])
    sink.make_readable({TABLE})
    rows = sink.rows(TABLE)
    next(rows)
    index = f"{place.alias}.documents"
    assert _open_contexts(place, index) == 1
    rows.close()  # type: ignore[attr-defined]
    assert _open_contexts(place, index) == 0


def _open_contexts(place: Place, index: str) -> int:
    search = place.client.indices.stats(index=index, metric="search")["_all"]["total"]["search"]
    return int(search["point_in_time_current"])


def test_a_missing_index_is_named(place: Place) -> None:
    with pytest.raises(SinkError, match=f"there is no index {place.alias}"):
        read(place)


def test_a_part_of_an_answer_is_no_answer() -> None:
    """A shard that failed must not look like an end of the rows."""
    answers: list[tuple[int, object]] = [
        (200, {"version": {"number": "3.8.0"}}),
        (200, {"pit_id": "p"}),
        (200, {"_all": {"primaries": {"store": {"size_in_bytes": 1}, "docs": {"count": 1}}}}),
        (200, {"pit_id": "p", "timed_out": False, "_shards": {"failed": 1}, "hits": {"hits": []}}),
        (200, {}),
    ]
    with scripted_server(answers) as scripted:
        server = Place(scripted.url, "shop", None).server()  # type: ignore[arg-type]
        with pytest.raises(SinkError, match="index i could only be read in part"):
            list(pages.live_documents(server, "i", LIVE, with_row=True))
        server.close()
        assert scripted.requests[-1].method == "DELETE", "the point in time is given back"
