"""Whether a store holds a table as the configuration says."""

from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.stores import CacheConfig
from cdc.model.events import TableId
from sinks.errors import RefusedError
from watershed.verify.sides import not_filled

TABLE = TableId("public", "goods")


def said(mapping: dict[str, Any], filled: dict[str, Any], excluded: tuple[str, ...] = ()) -> str:
    def section(held: dict[str, Any]) -> CacheConfig:
        return CacheConfig.model_validate({"url": "redis://c", "mapping": {"public.goods": held}})

    record: Any = SimpleNamespace(excluded=excluded, mappings=section(filled).fingerprints([TABLE]))
    return not_filled("cache", section(mapping), record, TABLE)


def test_what_the_sink_has_filled_is_compared_with_the_configuration() -> None:
    assert said({"exclude": ["a"]}, {"exclude": ["a"]}) == ""
    assert "has filled public.goods with a mapping that differs" in said({"exclude": ["a"]}, {})
    assert "with a configuration that does not include public.goods" in said({}, {}, ("public.goods",))


def test_a_function_that_is_not_installed_here_concerns_its_table() -> None:
    with pytest.raises(RefusedError, match=r"sink cache: mapping of public\.goods: there is no function absent"):
        said({"function": "absent"}, {})
