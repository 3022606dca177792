"""What `cdc warehouse maintain` refuses before it starts anything."""

from pathlib import Path

import pytest
import yaml

from cdc.model.errors import ConfigError
from watershed.cli.warehouse import maintain

SECTIONS = {
    "source": {"dsn": "postgresql://nobody@127.0.0.1/none", "tables": ["public.a"]},
    "kafka": {"bootstrap_servers": "127.0.0.1:1"},
    "topics": {"prefix": "shop"},
    "sinks": {"cache": {"url": "redis://127.0.0.1:1"}},
}


@pytest.mark.parametrize(
    ("sink", "message"),
    [(None, "no sink of type warehouse"), (["cache"], "cache is not a warehouse"), (["lake"], "no sink 'lake'")],
)
def test_sinks_that_are_no_warehouse_are_named(tmp_path: Path, sink: list[str] | None, message: str) -> None:
    path = tmp_path / "watershed.yml"
    path.write_text(yaml.safe_dump(SECTIONS))
    with pytest.raises(ConfigError, match=message):
        maintain(sink, path)


def test_a_view_that_is_no_warehouse_is_named(tmp_path: Path) -> None:
    path = tmp_path / "watershed.yml"
    path.write_text(yaml.safe_dump(SECTIONS))
    with pytest.raises(ConfigError, match="no view 'totals' has a target of type warehouse"):
        maintain(None, path, view=["totals"])
