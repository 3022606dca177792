"""A broker with an authorizer: capture, a sink and commands with exactly the rights that the documentation lists, each
with a login of its own; topics that others created; tokens of a plug-in that expire while everything runs."""

import base64
import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from confluent_kafka.admin import ScramMechanism

from cdc.config.settings import KafkaConfig, TopicConfig
from cdc.kafka.compacted import read_latest
from cdc.kafka.signals import deliver
from cdc.kafka.topic_admin import TopicAdmin
from cdc.model.errors import BrokerError, UnreachableError
from cdc.model.topic_record import TopicRecord
from cdc.model.topics import Topics
from tests.conftest import INTERPRETED, PostgresServer
from tests.support.captured import CaptureProcess
from tests.support.forked import run
from tests.support.secured_kafka import (
    CERTIFIED,
    PASSWORD,
    Secured,
    add_scram_user,
    binding,
    certificate,
    grant,
    login,
    secured_kafka,
)
from tests.support.sink_job import SinkJob
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "managed-kafka.md"
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text)"
TOKEN_S = 12  # of life
APPLIED_S_MAX = 120.0

PLUGIN = f"""
import base64, json, time

def tokens(options):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    def token():
        now = time.time()
        claims = {{"sub": options["user"], "iat": now, "exp": now + {TOKEN_S}}}
        return f'{{part(dict(alg="none"))}}.{{part(claims)}}.', now + {TOKEN_S}

    return token
"""


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """User `scram-capture` has a password for SCRAM."""
    with secured_kafka(tmp_path_factory.mktemp("kafka") / "stack") as made:
        add_scram_user(made.servers, "scram-capture")
        yield made


@pytest.fixture
def broker(secured: Secured) -> str:
    """Its addresses for passwords and tokens."""
    return secured.servers


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip leaves of a package with a plug-in, for this process's children."""
    folder = tmp_path / "packages"
    described = folder / "acme-1.dist-info"
    described.mkdir(parents=True)
    (folder / "acme_tokens.py").write_text(PLUGIN)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[watershed.kafka_tokens]\nacme = acme_tokens:tokens\n")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{folder}")
    monkeypatch.syspath_prepend(str(folder))


def rights(prefix: str) -> dict[str, list[tuple[str, str, str, str]]]:
    """The rows of the page: principal → (resource, name, pattern, operation)."""
    found: dict[str, list[tuple[str, str, str, str]]] = {}
    rows = re.findall(
        r"^\| (\w+) \| (\w+) \| (literal|prefixed) \| `([^`]+)` \| ([\w, ]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    for principal, resource, pattern, name, operations in rows:
        for operation in operations.split(", "):
            row = resource, name.replace("<prefix>", prefix), pattern, operation
            found.setdefault(principal, []).append(row)
    return found


def grant_rights(broker: str, prefix: str, principal: str, user: str, *without: str) -> None:
    """`without`: operations that are not granted."""
    rows = rights(prefix)[principal]
    grant(broker, [binding(user, *row) for row in rows if row[3] not in without])


def options(user: str, mechanism: str = "PLAIN") -> dict[str, Any]:
    return {"options": login(user, mechanism)}


def by_token(user: str) -> dict[str, Any]:
    return {
        "options": {"security.protocol": "sasl_plaintext"},
        "token": {"plugin": "acme", "options": {"user": user}},
    }


class Shop:
    """A database, and the configuration of each part."""

    def __init__(self, dsn: str, broker: str, prefix: str, folder: Path) -> None:
        self.dsn, self.broker, self.prefix, self.folder = dsn, broker, prefix, folder
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(ITEMS)

    def config(self, part: str, kafka: dict[str, Any]) -> Path:
        path = self.folder / part / "watershed.yml"
        path.parent.mkdir(exist_ok=True)
        sections = {
            "source": {"dsn": self.dsn, "tables": ["public.items"], "slot": self.prefix},
            "kafka": {"bootstrap_servers": self.broker, **kafka},
            "topics": {"prefix": self.prefix},
            "http": {"port": None, "sink_port": None, "view_port": None},
            "sinks": {"sql": {"url": f"sqlite:///{self.folder}/store.db"}},
            "spark": {"checkpoint_location": str(self.folder / "checkpoints"), "options": INTERPRETED},
        }
        path.write_text(yaml.safe_dump(sections))
        return path

    def write(self, first: int, last: int) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            rows = "INSERT INTO items SELECT n, 'n' || n FROM generate_series(%s::int, %s::int) n"
            connection.execute(rows, (first, last))

    def capture(self, config: Path) -> CaptureProcess:
        log = config.parent / "capture.log"
        return CaptureProcess(config, log, environment={}, is_forked=False)


@pytest.fixture
def shop(broker: str, fresh_database: str, unique: str, tmp_path: Path) -> Shop:
    return Shop(fresh_database, broker, unique, tmp_path)


def command(config: Path, *words: str) -> tuple[int, str]:
    done = run([*words, "--config", str(config)], deadline_s=60.0)
    return done.returncode, done.stdout + done.stderr


def await_rows(shop: Shop, job: SinkJob, count: int) -> None:
    """Until the store has the first `count` rows."""

    def seen() -> tuple[int, int] | None:
        assert job.process.poll() is None, "the job runs"
        if not (shop.folder / "store.db").exists():  # the job has not opened it yet
            return None
        with closing(sqlite3.connect(f"file:{shop.folder}/store.db?mode=ro", uri=True)) as store:
            try:
                found: tuple[int, int] = store.execute("SELECT count(*), max(id) FROM public_items").fetchone()
            except sqlite3.OperationalError:  # not created yet
                return None
        return found

    eventually(lambda: seen() == (count, count), APPLIED_S_MAX, lambda: f"{count} rows are there; seen: {seen()}")


@pytest.mark.combination("kafka", "Apache Kafka", "SCRAM-SHA-512", clients="capture")
@pytest.mark.combination("kafka", "Apache Kafka", "OAUTHBEARER, token plug-in", clients="sinks")
@pytest.mark.combination("kafka", "Apache Kafka", "PLAIN", clients="sinks, commands")
def test_the_listed_rights_are_enough_and_tokens_are_renewed(
    shop: Shop, postgres: PostgresServer, plugin: None
) -> None:
    """Capture by SCRAM; the sink by tokens that expire several times while it runs, in driver and tasks, then by
    PLAIN, with the Java client; an operator's commands by PLAIN."""
    grant_rights(shop.broker, shop.prefix, "capture", "scram-capture")
    grant_rights(shop.broker, shop.prefix, "sinks", "token-sinks")
    grant_rights(shop.broker, shop.prefix, "sinks", "sinks")
    grant_rights(shop.broker, shop.prefix, "operator", "capture")
    shop.write(1, 100)
    capture = shop.capture(shop.config("capture", options("scram-capture", "SCRAM-SHA-512")))
    try:
        capture.await_said("streaming")
        with SinkJob(shop.config("sinks", by_token("token-sinks")), "sql", log_level="info") as job:
            await_rows(shop, job, 100)
            for number in range(101, 104):
                shop.write(number, number)
                await_rows(shop, job, number)
            assert "no new Kafka token" not in job.said()
            assert job.terminate()[0] == 0
        operator = shop.config("operator", options("capture"))
        code, said = command(operator, "snapshot", "start", "--table", "public.items")
        assert code == 0, said
        _, said = command(operator, "status")
        assert shop.prefix in said
        assert "AUTHORIZATION" not in said
        with SinkJob(shop.config("plain", options("sinks")), "sql", log_level="info") as job:
            shop.write(104, 104)
            await_rows(shop, job, 104)
            assert "sink restarts" not in job.said()
        assert "warning" not in capture.said()
        assert capture.terminate() == 0
    finally:
        capture.kill()


@pytest.mark.combination("kafka", "Apache Kafka", "PLAIN", clients="capture")
@pytest.mark.combination("kafka", "Apache Kafka", "no right to create topics, and none is missing", clients="capture")
@pytest.mark.combination(
    "kafka",
    "Apache Kafka",
    "no right to create topics, and one is missing",
    refused="Authorization failed. (TOPIC_AUTHORIZATION_FAILED)",
)
def test_without_create_topics_of_others_are_used(shop: Shop, postgres: PostgresServer, expected_refusal: str) -> None:
    """What is missing is named with the command that creates it."""
    grant_rights(shop.broker, shop.prefix, "capture", "nobody", "Create")
    config = shop.config("capture", options("nobody"))
    refused = shop.capture(config)
    said = refused.await_refusal()
    assert f"can't create topic {shop.prefix}." in said
    assert expected_refusal in said
    code, checked = command(config, "check")
    assert code != 0
    assert "topics of kind table" in checked
    assert "kafka-topics.sh" in checked
    topics = Topics(shop.prefix)
    admin = TopicAdmin(KafkaConfig.model_validate({"bootstrap_servers": shop.broker, **options("admin")}))
    admin.create(
        TopicConfig(prefix=shop.prefix),
        {
            "table": [f"{shop.prefix}.public.items"],
            "state": [topics.state],
            "progress": [topics.progress],
            "control": [topics.control],
            "signals": [topics.signals],
            "audit": [topics.audit],
            "sink_dead_letter": [topics.sink_dead_letter("sql")],
        },
    )
    code, checked = command(config, "check")
    assert code == 0, checked
    shop.write(1, 10)
    capture = shop.capture(config)
    try:
        capture.await_said("streaming")
        ends = {f"{shop.prefix}.public.items": 4}
        eventually(lambda: sum(admin.request_end_offsets(ends).wait()[f"{shop.prefix}.public.items"]) >= 10, 60.0)
        assert capture.terminate() == 0
    finally:
        capture.kill()


@pytest.mark.combination(
    "kafka",
    "Apache Kafka",
    "a wrong password",
    refused="the login is refused: SASL authentication error: Authentication failed: Invalid username or password",
)
def test_a_refused_login_is_named_without_the_password(broker: str, expected_refusal: str) -> None:
    kafka = KafkaConfig.model_validate(
        {"bootstrap_servers": broker, "options": login("capture", password=f"not-{PASSWORD}")}
    )
    with pytest.raises(UnreachableError) as refused:
        TopicAdmin(kafka).broker_count()
    assert expected_refusal in refused.value.message
    assert PASSWORD not in str(refused.value)
    assert "kafka.options" in refused.value.hint


@pytest.mark.combination(
    "kafka",
    "Apache Kafka",
    "OAUTHBEARER, a token that the brokers refuse",
    refused='the login is refused: SASL authentication error: {"status":"invalid_token"}',
)
def test_a_token_that_the_brokers_refuse_is_named(broker: str, plugin: None, expected_refusal: str) -> None:
    kafka = KafkaConfig.model_validate({"bootstrap_servers": broker, **by_token("")})
    with pytest.raises(UnreachableError) as refused:
        TopicAdmin(kafka).broker_count()
    assert expected_refusal in refused.value.message


def may_write(kafka: KafkaConfig, user: str, broker: str, prefix: str) -> None:
    """The user may do what capture may, and nothing else: writes and reads its topic, not another one's."""
    grant_rights(broker, prefix, "capture", user)
    topics, others = Topics(prefix), Topics(f"{prefix}-other")
    admin = TopicAdmin(kafka)
    admin.create(TopicConfig(prefix=prefix), {"state": [topics.state]})
    deliver(kafka, TopicRecord(topics.state, b"k", b"v"))
    assert read_latest(kafka, topics.state) == {"k": b"v"}
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        admin.create(TopicConfig(prefix=others.prefix), {"state": [others.state]})


@pytest.mark.combination("kafka", "Apache Kafka", "SCRAM-SHA-256", clients="admin, producer, consumer")
def test_a_password_logs_in_by_the_other_hash(secured: Secured, unique: str) -> None:
    add_scram_user(secured.servers, "scram-256", ScramMechanism.SCRAM_SHA_256)
    options = login("scram-256", "SCRAM-SHA-256")
    kafka = KafkaConfig.model_validate({"bootstrap_servers": secured.servers, "options": options})
    may_write(kafka, "scram-256", secured.servers, unique)


@pytest.mark.combination("kafka", "Apache Kafka", "client certificate", clients="admin, producer, consumer")
def test_a_client_certificate_logs_in(secured: Secured, unique: str) -> None:
    options = certificate(secured.certificates)
    kafka = KafkaConfig.model_validate({"bootstrap_servers": secured.tls_servers, "options": options})
    may_write(kafka, CERTIFIED, secured.servers, unique)


@pytest.mark.combination(
    "kafka",
    "Apache Kafka",
    "no certificate, where the brokers ask for one",
    refused="the login is refused: Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required",
)
def test_a_client_without_a_certificate_is_refused(secured: Secured, expected_refusal: str) -> None:
    options = certificate(secured.certificates)
    without = {name: options[name] for name in ("security.protocol", "ssl.ca.location")}
    stranger = KafkaConfig.model_validate({"bootstrap_servers": secured.tls_servers, "options": without})
    with pytest.raises(UnreachableError) as refused:
        TopicAdmin(stranger).broker_count()
    assert expected_refusal in refused.value.message


class TokenEndpoint(BaseHTTPRequestHandler):
    """Gives a client of this name and secret a token."""

    CLIENT = "oidc-capture"

    def do_POST(self) -> None:
        expected = base64.b64encode(f"{self.CLIENT}:{PASSWORD}".encode()).decode()
        if self.headers["Authorization"] != f"Basic {expected}":
            self._answer(401, {"error": "invalid_client"})  # as RFC 6749 has it
            return
        now = time.time()
        claims = {"sub": self.CLIENT, "iat": now, "exp": now + 300}
        parts = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in ({"alg": "none"}, claims)
        ]
        self._answer(200, {"access_token": ".".join([*parts, ""]), "token_type": "Bearer", "expires_in": 300})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), TokenEndpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    server.server_close()


@pytest.mark.combination(
    "kafka", "Apache Kafka", "OAUTHBEARER, client credentials", clients="admin, producer, consumer"
)
@pytest.mark.combination(
    "kafka",
    "Apache Kafka",
    "OAUTHBEARER, a wrong client secret",
    refused='the login is refused: Failed to acquire SASL OAUTHBEARER token: {"error": "invalid_client"}',
)
def test_client_credentials_are_exchanged_for_a_token(
    broker: str, unique: str, endpoint: str, expected_refusal: str
) -> None:
    """By librdkafka itself."""
    options = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": endpoint,
        "sasl.oauthbearer.client.id": TokenEndpoint.CLIENT,
        "sasl.oauthbearer.client.secret": PASSWORD,
    }
    kafka = KafkaConfig.model_validate({"bootstrap_servers": broker, "options": options})
    may_write(kafka, TokenEndpoint.CLIENT, broker, unique)
    wrong = options | {"sasl.oauthbearer.client.secret": "another"}
    with pytest.raises(UnreachableError) as refused:
        TopicAdmin(KafkaConfig.model_validate({"bootstrap_servers": broker, "options": wrong})).broker_count()
    assert expected_refusal in refused.value.message
    assert "another" not in str(refused.value)
