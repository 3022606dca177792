"""The marker index knows each index by its UUID."""

import pytest

from cdc.model.events import TableId
from sinks.errors import SinkError
from sinks.search.generations import Generations, Overtaken
from sinks.search.names import SearchNames
from tests.unit.sinks.search.conftest import TABLE, Place


def generations(place: Place) -> Generations:
    return Generations(place.server(), SearchNames(place.prefix), lambda table: f"shape of {table.name}")


def make_index(place: Place, number: int) -> str:
    name = f"{place.prefix}.index{number}"
    place.client.indices.create(index=name)
    return name


def uuid_of(place: Place, name: str) -> str:
    return str(place.client.indices.get_settings(index=name)[name]["settings"]["index"]["uuid"])


def test_nothing_is_held_before_the_first_generation(place: Place) -> None:
    held = generations(place)
    assert held.current() is None
    assert not held.is_begun()
    assert held.marked("any") is None


def test_a_generation_is_held_with_all_its_indexes(place: Place) -> None:
    held = generations(place)
    held.begin(7)
    assert (held.current(), held.is_begun()) == (7, True)
    for number in range(6):  # more than go into one request
        name = make_index(place, number)
        uuid = uuid_of(place, name)
        held.mark(name, name, uuid, TABLE, None)
        mark = held.marked(name)
        assert mark is not None and mark[:2] == (name, uuid)
    assert generations(place).current() == 7


def test_an_index_that_was_deleted_ends_the_generation(place: Place) -> None:
    held = generations(place)
    held.begin(1)
    for number in range(2):
        name = make_index(place, number)
        held.mark(name, name, uuid_of(place, name), TABLE, None)
    place.client.indices.delete(index=name)
    assert held.current() is None
    assert held.is_begun()


def test_an_index_that_was_made_anew_ends_the_generation(place: Place) -> None:
    held = generations(place)
    held.begin(1)
    name = make_index(place, 0)
    held.mark(name, name, uuid_of(place, name), TABLE, None)
    place.client.indices.delete(index=name)
    make_index(place, 0)
    assert held.current() is None


def test_a_new_generation_forgets_the_indexes_of_the_last(place: Place) -> None:
    held = generations(place)
    held.begin(1)
    held.mark("gone", "gone", "uuid", TABLE, None)
    assert held.current() is None
    held.begin(2)
    assert held.current() == 2
    assert held.marked("gone") is None


def test_a_marker_that_is_gone_is_not_made_by_a_write(place: Place) -> None:
    """On a server that makes indices by itself it would be made without our mapping."""
    held = generations(place)
    with pytest.raises(SinkError, match="watershed was deleted just now"):
        held.mark("index", "index", "uuid", TABLE, None)
    assert not place.client.indices.exists(index=f"{place.prefix}.watershed")


def test_of_two_writers_that_read_one_mark_the_first_moves_it(place: Place) -> None:
    held = generations(place)
    held.begin(1)
    first, second = make_index(place, 1), make_index(place, 2)
    held.mark("table", first, uuid_of(place, first), TABLE, None)
    with pytest.raises(Overtaken):
        held.mark("table", second, uuid_of(place, second), TABLE, None)
    read = held.marked("table")
    held.mark("table", second, uuid_of(place, second), TABLE, read)
    with pytest.raises(Overtaken):
        held.mark("table", first, uuid_of(place, first), TABLE, read)
    place.client.indices.delete(index=first)
    assert held.current() == 1, "the first index is not the table's any more"


def test_a_changed_shape_ends_the_generation_and_the_next_one_deletes_the_index(place: Place) -> None:
    held = generations(place)
    held.begin(1)
    kept, changed = make_index(place, 1), make_index(place, 2)
    other = TableId("public", "others")
    held.mark("kept", kept, uuid_of(place, kept), other, None)
    held.mark("changed", changed, uuid_of(place, changed), TABLE, None)
    again = Generations(
        place.server(), SearchNames(place.prefix), lambda table: "new" if table == TABLE else "shape of others"
    )
    assert again.current() is None
    again.begin(2)
    assert place.client.indices.exists(index=kept)
    assert not place.client.indices.exists(index=changed)
    assert again.current() == 2
