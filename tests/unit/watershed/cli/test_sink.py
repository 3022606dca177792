"""`cdc sink run` refuses an unknown name before anything else happens."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from cdc.model.errors import ConfigError
from watershed.cli.sink import run


def test_an_unknown_name_is_refused_before_the_port_is_taken(tmp_path: Path) -> None:
    """The port is in use: if it were tried first, the error would be about the port."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = {
            "source": {"dsn": "postgresql://nobody@127.0.0.1:1/shop", "tables": ["public.orders"]},
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "topics": {"prefix": "shop"},
            "sinks": {"cache": {"url": "redis://127.0.0.1:1/0"}},
            "http": {"sink_port": taken.getsockname()[1]},
        }
        path = tmp_path / "watershed.yml"
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        with pytest.raises(ConfigError, match="the configuration has no sink 'cash'") as error:
            run(["cash"], config=path, log_level="info", log_json=False, http_port=None)
        assert error.value.hint == "sinks with a section are: cache"
