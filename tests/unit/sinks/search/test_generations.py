"""The marker index knows each index by its UUID."""

import pytest

from cdc.errors import SinkError
from sinks.search.generations import Generations
from tests.unit.sinks.search.conftest import Place


def generations(place: Place) -> Generations:
    return Generations(place.server(), f"{place.prefix}.watershed")


def make_index(place: Place, number: int) -> str:
    name = f"{place.prefix}.index{number}"
    place.client.indices.create(index=name)
    return name


def test_nothing_is_held_before_the_first_generation(place: Place) -> None:
    held = generations(place)
    assert held.current() is None
    assert not held.is_begun()
    assert held.marked_uuid("any") is None


def test_a_generation_is_held_with_all_its_indexes(place: Place) -> None:
    held = generations(place)
    held.begin(7)
    assert (held.current(), held.is_begun()) == (7, True)
    for number in range(6):  # more than go into one request
        name = make_index(place, number)
        uuid = held.uuid(name)
        assert uuid is not None
        held.mark(name, uuid)
        assert held.marked_uuid(name) == uuid
    assert generations(place).current() == 7


def test_an_index_that_was_deleted_ends_the_generation(place: Place) -> None:
    held = generations(place)
    held.begin(1)
    for number in range(2):
        name = make_index(place, number)
        held.mark(name, held.uuid(name) or "")
    place.client.indices.delete(index=name)
    assert held.current() is None
    assert held.is_begun()


def test_an_index_that_was_made_anew_ends_the_generation(place: Place) -> None:
    held = generations(place)
    held.begin(1)
    name = make_index(place, 0)
    held.mark(name, held.uuid(name) or "")
    place.client.indices.delete(index=name)
    make_index(place, 0)
    assert held.current() is None


def test_a_new_generation_forgets_the_indexes_of_the_last(place: Place) -> None:
    held = generations(place)
    held.begin(1)
    held.mark("gone", "uuid")
    assert held.current() is None
    held.begin(2)
    assert held.current() == 2
    assert held.marked_uuid("gone") is None


def test_a_marker_that_is_gone_is_not_made_by_a_write(place: Place) -> None:
    """On a server that makes indices by itself it would be made without our mapping."""
    held = generations(place)
    with pytest.raises(SinkError, match="watershed was deleted just now"):
        held.mark("index", "uuid")
    assert not place.client.indices.exists(index=f"{place.prefix}.watershed")
