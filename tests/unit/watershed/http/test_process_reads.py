"""The configuration and the log of the process, as the console shows them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from cdc.config import logs
from cdc.config.config_file import load_config
from cdc.config.http_settings import HttpConfig
from cdc.config.logs import LINE_CHARS_KEPT, LINES_KEPT, configure_logs
from tests.support.http_server import HttpServer, running
from tests.unit.watershed.http.test_access import USERS
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http.current_config import CurrentConfig
from watershed.http.process_reads import ProcessReads
from watershed.http.server import http_server

FILE = """
source: {dsn: "postgresql://me:hunter%202@db/shop", tables: [public.orders]}
kafka: {bootstrap_servers: "k:9092", options: {sasl.password: swordfish}}
topics: {prefix: shop}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "watershed.yml"
    file.write_text(FILE, encoding="utf-8")
    return file


def reads(file: Path, http: HttpConfig | None = None) -> ProcessReads:
    return ProcessReads(http or HttpConfig(), CurrentConfig(load_config(file), file), file)


@pytest.fixture
def server(file: Path) -> Iterator[HttpServer]:
    application = Pipeline().application(reads(file))
    with running(http_server(application, HttpConfig())) as port:
        yield HttpServer(port)


def test_the_configuration_is_that_of_the_command_without_secrets(server: HttpServer, file: Path) -> None:
    code, text = server.get("/v1/config")
    assert code == 200 and "hunter" not in text and "swordfish" not in text
    found = json.loads(text)
    assert found["file"] == str(file)
    assert found["options"]["topics.prefix"] == {"value": "shop", "from": "file"}
    assert found["options"]["source.dsn"] == {"value": "**********", "from": "file"}


def test_a_file_that_was_broken_meanwhile_is_said(server: HttpServer, file: Path) -> None:
    file.write_text(FILE + "sinkz: {}\n", encoding="utf-8")
    code, text = server.get("/v1/config")
    assert code == 409 and "sinkz" in text and json.loads(text)["next"]


def test_the_log_has_the_last_lines_without_secrets(server: HttpServer, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    log = structlog.get_logger("test")
    for number in range(LINES_KEPT + 5):
        log.info("line", number=number)
    log.warning("refused", dsn="postgresql://me:hunter%202@db/shop", said="hunter 2, swordfish")
    written = capsys.readouterr().err
    assert "swordfish" in written, "the log itself is as it was"
    found = server.json("/v1/log?lines=3")["lines"]
    assert ["number=1003" in found[0], "number=1004" in found[1], "refused" in found[2]] == [True, True, True]
    assert "hunter" not in found[2] and "swordfish" not in found[2] and "said='**********, **********'" in found[2]
    assert len(server.json("/v1/log?lines=1000")["lines"]) == LINES_KEPT
    assert len(server.json("/v1/log")["lines"]) == 200


def test_a_line_that_was_cut_within_a_secret_does_not_show_its_beginning(server: HttpServer) -> None:
    configure_logs()
    for shift in range(1, 10):
        head = "x" * (LINE_CHARS_KEPT - shift)
        recorded(head + "swordfish")
        (line,) = server.json("/v1/log?lines=1")["lines"]
        assert "s" not in line and line.endswith("…")


def recorded(line: str) -> None:
    logs._recent.append(line[:LINE_CHARS_KEPT])


@pytest.mark.parametrize("count", ["0", "1001", "-1", "x", "", "9" * 30])
def test_a_count_of_lines_that_is_none_is_refused(server: HttpServer, count: str) -> None:
    code, text = server.get(f"/v1/log?lines={count}")
    assert code == 400 and "is no number from 1 to 1000" in text


def test_other_machines_read_neither(file: Path) -> None:
    application = Pipeline().application(reads(file))
    with running(http_server(application, HttpConfig(users=USERS))) as port:
        assert HttpServer(port).get("/v1/config")[0] == HttpServer(port).get("/v1/log")[0] == 401
    settings = HttpConfig(host="0.0.0.0", insecure=True)  # noqa: S104
    with running(http_server(Pipeline().application(reads(file, settings)), settings)) as port:
        assert HttpServer(port).get("/v1/config")[0] == HttpServer(port).get("/v1/log")[0] == 403


def test_a_secret_that_was_changed_is_hidden_and_a_mistake_changes_nothing(server: HttpServer, file: Path) -> None:
    configure_logs()
    file.write_text(FILE.replace("swordfish", "open sesame"), encoding="utf-8")
    recorded("said open sesame")
    assert server.json("/v1/log?lines=1")["lines"] == ["said **********"]
    file.write_text("nothing: {}", encoding="utf-8")
    recorded("said open sesame again")
    assert any("the changed configuration file has a mistake" in line or "********** again" in line
               for line in server.json("/v1/log?lines=2")["lines"])  # fmt: skip
