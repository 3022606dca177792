"""The commands that a demo prints when it is kept running."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from cdc.config.config_file import Config, load_config
from cdc.model.errors import WatershedError
from tests.support.http_server import free_port as any_port
from tests.unit.watershed.demo.test_place import ENDPOINTS
from watershed.demo.followed import ORDER
from watershed.demo.keeping import Keeping, commands, console_line
from watershed.demo.place import free_port, write_config


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return load_config(write_config(tmp_path, ENDPOINTS))


def test_commands_name_the_servers_and_the_order(config: Config) -> None:
    message = commands(config, Path("demo.yml"), ENDPOINTS)
    assert message[0] == console_line(config) == f"console: http://127.0.0.1:{config.http.port}/"
    assert (
        message[1]
        == f"psql 'postgresql://watershed@127.0.0.1:1/watershed' -c 'SELECT * FROM orders WHERE id = {ORDER}'"
    )
    assert message[3] == f"curl 'http://127.0.0.1:3/shop.public.orders/_search?q=id:{ORDER}&pretty'"
    assert message[4] == f"redis-cli -u redis://127.0.0.1:4 HGET 'shop:public.orders:{ORDER}' doc"


def test_waiting_ends_with_enter_with_ctrl_c_and_with_a_process_that_has_ended(config: Config) -> None:
    output = io.StringIO()
    keeping = Keeping(config, Path("demo.yml"), ENDPOINTS, Console(file=output))
    answers = iter([False, True])
    checks: list[None] = []
    keeping.wait(lambda: next(answers), lambda: checks.append(None))
    assert len(checks) == 1

    def interrupt() -> None:
        raise KeyboardInterrupt

    keeping.wait(lambda: False, interrupt)
    assert "the demo is ending" in output.getvalue()

    def ended() -> None:
        raise WatershedError("capture ended by itself")

    with pytest.raises(WatershedError, match="ended by itself"):
        keeping.wait(lambda: False, ended)


def test_a_port_that_is_taken_is_left_to_its_owner() -> None:
    import socket

    wanted = any_port()
    assert free_port(wanted) == wanted
    with socket.create_server(("127.0.0.1", wanted)):
        assert free_port(wanted) != wanted
