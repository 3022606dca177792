"""What is wanted and what is locked agree."""

import pytest

from spark_jobs.jars.lock import Coordinates, read_lock
from spark_jobs.jars.relock import OPENSEARCH, WANTED, JarGroup
from watershed.devstack.opensearch import MODULES, VERSION


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: wanted.place)
def test_what_is_wanted_is_locked_in_its_place(wanted: JarGroup) -> None:
    places = {jar.coordinates: jar.places for jar in read_lock().jars}
    for root in wanted.roots:
        assert wanted.place in places[Coordinates.parse(root.rstrip("!"))]
    here = {at.artifact for at, where in places.items() if wanted.place in where}
    assert here.isdisjoint(wanted.without)


def test_nothing_is_locked_that_is_not_wanted() -> None:
    places = {place for jar in read_lock().jars for place in jar.places}
    assert places == {wanted.place for wanted in WANTED}


def test_a_module_has_no_jar_that_the_core_has() -> None:
    for jar in read_lock().jars:
        assert not ("opensearch/lib" in jar.places and any(place.startswith("opensearch/m") for place in jar.places))


def test_every_module_that_is_laid_out_has_jars() -> None:
    locked = {folder.partition("/")[2] for _, folder in read_lock().placed("opensearch") if folder != "lib"}
    assert locked == set(MODULES)
    assert VERSION == OPENSEARCH
