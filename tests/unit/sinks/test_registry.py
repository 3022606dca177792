"""A sink is opened by name from its section of the configuration."""

import subprocess
import sys

import pytest
from pydantic import SecretStr

from cdc.config.settings import CacheConfig, SearchConfig, SinksConfig
from cdc.model.errors import ConfigError, SinkError
from sinks.registry import make_sink


def test_the_cache_is_opened_with_the_topic_prefix(redis: str, unique: str) -> None:
    sink = make_sink("cache", SinksConfig(cache=CacheConfig(url=SecretStr(redis))), unique)
    try:
        assert sink.name == "cache"
        assert sink.generation() is None
        sink.begin_generation(4)
        again = make_sink("cache", SinksConfig(cache=CacheConfig(url=SecretStr(redis), key_prefix=unique)), "other")
        assert again.generation() == 4
        again.close()
    finally:
        sink.close()


def test_the_search_index_is_opened_with_the_topic_prefix(opensearch: str, unique: str) -> None:
    sink = make_sink("search", SinksConfig(search=SearchConfig(url=SecretStr(opensearch))), unique)
    try:
        assert sink.name == "search"
        sink.begin_generation(4)
        section = SearchConfig(url=SecretStr(opensearch), index_prefix=unique)
        again = make_sink("search", SinksConfig(search=section), "other")
        assert again.generation() == 4
        again.close()
    finally:
        sink.close()


@pytest.mark.parametrize("name", ["search", "cache"])
def test_a_missing_section_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"sinks.{name}"):
        make_sink(name, SinksConfig(), "shop")


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(SinkError, match=r"no sink 'seach'\n  next: sinks are: search, cache"):
        make_sink("seach", SinksConfig(), "shop")


@pytest.mark.parametrize(("name", "module"), [("search", "opensearchpy"), ("cache", "redis")])
def test_a_client_library_that_is_not_installed_is_named_with_its_extra(name: str, module: str) -> None:
    """In a process of its own, where the library can't be imported. Nothing of another sink is imported either."""
    program = f"""
import sys
sys.modules[{module!r}] = None
from cdc.config.settings import CacheConfig, SearchConfig, SinksConfig
from cdc.model.errors import SinkError
from sinks.registry import make_sink
assert not {{"opensearchpy", "redis"}} & {{name for name, module in sys.modules.items() if module}}
sections = SinksConfig(search=SearchConfig(url="http://localhost:1"), cache=CacheConfig(url="redis://localhost:1"))
try:
    make_sink({name!r}, sections, "shop")
except SinkError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert f"pip install 'watershed-cdc[{name}]'" in done.stdout
    assert module in done.stdout
