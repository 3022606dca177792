"""A sink is opened from its section of the configuration, by the section's type."""

import subprocess
import sys

import pytest
from pydantic import SecretStr

from cdc.config.store_types import STORES
from cdc.config.stores import CacheConfig, SearchConfig, StoreConfig, WarehouseConfig
from sinks.errors import SinkError
from sinks.registry import OURS, make_sink, open_contents, open_slots, store_contents, store_findings


class Bare(StoreConfig):
    """A store of another package that has nothing but its section."""

    type: str = "bare"


def test_the_cache_is_opened_with_the_topic_prefix(redis: str, unique: str) -> None:
    sink = make_sink("sessions", CacheConfig(url=SecretStr(redis)), unique)
    try:
        assert sink.name == "sessions"
        assert sink.generation() is None
        sink.begin_generation(4)
        again = make_sink("cache", CacheConfig(url=SecretStr(redis), key_prefix=unique), "other")
        assert again.generation() == 4
        again.close()
    finally:
        sink.close()


def test_the_search_index_is_opened_with_the_topic_prefix(opensearch: str, unique: str) -> None:
    sink = make_sink("products", SearchConfig(url=SecretStr(opensearch)), unique)
    try:
        assert sink.name == "products"
        sink.begin_generation(4)
        again = make_sink("search", SearchConfig(url=SecretStr(opensearch), index_prefix=unique), "other")
        assert again.generation() == 4
        again.close()
    finally:
        sink.close()


def test_a_warehouse_is_opened_by_the_job_that_has_spark() -> None:
    section = WarehouseConfig(catalog_uri=SecretStr("jdbc:sqlite:a.db"), location="tables")
    with pytest.raises(SinkError, match="the warehouse facts is written by Spark\n  next: cdc sink run facts"):
        make_sink("facts", section, "shop")


@pytest.mark.parametrize(
    ("name", "module", "section"),
    [("search", "opensearchpy", "SearchConfig"), ("cache", "redis", "CacheConfig")],
)
def test_a_client_library_that_is_not_installed_is_named_with_its_extra(name: str, module: str, section: str) -> None:
    """In a process of its own, where the library can't be imported. Nothing of another sink is imported either."""
    program = f"""
import sys
sys.modules[{module!r}] = None
from cdc.config.stores import CacheConfig, SearchConfig
from sinks.errors import SinkError
from sinks.registry import OURS, make_sink
assert not {{"opensearchpy", "redis"}} & {{name for name, module in sys.modules.items() if module}}
try:
    make_sink("mine", {section}(url="http://localhost:1"), "shop")
except SinkError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert f"pip install 'watershed-cdc[{name}]'" in done.stdout
    assert module in done.stdout


def test_each_type_of_ours_has_its_code() -> None:
    assert OURS.keys() == STORES.keys()
    for name, section in STORES.items():
        store = OURS[name]()
        assert store.section is section
        assert (store.slots is not None) is section.has_slots


def test_what_a_store_has_no_part_for_is_said() -> None:
    section = Bare()
    with pytest.raises(SinkError, match="the store of sink mine can't be compared"):
        open_contents("mine", section, "shop")
    with pytest.raises(SinkError, match="teardown does not know what stores of type bare hold"):
        store_contents("mine", section, "shop", [], removes=True)
    assert (open_slots(section, "shop"), section.no_rebuild) == (None, "whose store can't hold two generations at once")
    (finding,) = store_findings("mine", section, "shop", [])
    assert (finding.level, finding.message) == ("fail", "the bare mine is written by Spark")
