"""The registry's client against an HTTP server that answers as Confluent's registry does."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from cdc.config.format_options import FormatOptions
from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.formats.connect import STRING, optional, required, struct_of
from cdc.formats.encodings import Form, form_of
from cdc.kafka.schema_registry import SchemaRefusedError, SchemaRegistry, registry_of
from cdc.model.errors import ConfigError, UnknownIdError, UnreachableError

TOPIC = "shop.public.t"
QUICK = {"max.retries": "0", "timeout": "5"}


def form(*columns: str) -> Form:
    node = struct_of((column, optional(STRING)) for column in columns)
    return form_of({**required(node), "name": "shop.public.t.Value"}, FormatOptions(encoding="avro"), "public.t")


class Answers(BaseHTTPRequestHandler):
    """Says what it was told to; (status, body) by method and path."""

    answers: ClassVar[dict[str, tuple[int, Any]]] = {}
    asked: ClassVar[list[tuple[str, Any, str | None]]] = []

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.asked.append((f"{self.command} {path}", body, self.headers.get("Authorization")))
        status, content = self.answers.get(
            f"{self.command} {path}", (404, {"error_code": 40401, "message": "Subject not found."})
        )
        encoded = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, format: str, *_: Any) -> None:
        """Is silent."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Answers, "answers", {})
    monkeypatch.setattr(Answers, "asked", [])
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def client(url: str, options: dict[str, str] | None = None, chosen: dict[str, Any] | None = None) -> SchemaRegistry:
    config = {"url": url, "options": {**QUICK, **(options or {})}, **(chosen or {})}
    return SchemaRegistry(SchemaRegistryConfig.model_validate(config))


def test_a_schema_is_registered_once(server: str) -> None:
    Answers.answers[f"POST /subjects/{TOPIC}-value/versions"] = 200, {"id": 7}
    asked = client(server, {"basic.auth.user.info": "me:secret"})
    assert [asked.register(TOPIC, "value", form("a")) for _ in range(2)] == [7, 7]
    assert json.loads(asked.fetch(7)[1]) == json.loads(form("a").schema), "it is known, and not asked for"
    [(_, body, login)] = [call for call in Answers.asked if call[0].endswith("/versions")]
    assert json.loads(body["schema"]) == json.loads(form("a").schema)
    assert login == "Basic " + base64.b64encode(b"me:secret").decode()


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("topic", "shop.public.t-value"),
        ("record", "shop.public.t.Value"),
        ("topic_record", f"{TOPIC}-shop.public.t.Value"),
    ],
)
def test_subjects_have_the_names_of_their_strategy(server: str, strategy: str, subject: str) -> None:
    Answers.answers[f"POST /subjects/{subject}/versions"] = 200, {"id": 7}
    assert client(server, chosen={"subject.name.strategy": strategy}).register(TOPIC, "value", form("a")) == 7


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (409, 409, SchemaRefusedError, "refuses a schema for subject shop.public.t-value: it is why (409)"),
        (422, 42201, SchemaRefusedError, "it is why (42201)"),
        (401, 401, UnreachableError, "refuses the credentials: it is why (HTTP 401)"),
        (403, 40301, UnreachableError, "refuses the credentials: it is why (HTTP 403)"),
        (500, 50001, UnreachableError, "has failed: it is why (HTTP 500)"),
    ],
)
def test_what_the_registry_answers_is_in_the_error(
    server: str, status: int, code: int, error: type[Any], message: str
) -> None:
    Answers.answers[f"POST /subjects/{TOPIC}-value/versions"] = status, {"error_code": code, "message": "it is why"}
    with pytest.raises(error) as failure:
        client(server).register(TOPIC, "value", form("a"))
    assert f"schema registry {server}" in failure.value.message
    assert message in failure.value.message
    assert failure.value.hint


def test_the_newest_schema_may_have_more_notes_and_no_other_fields(server: str) -> None:
    latest = f"GET /subjects/{TOPIC}-value/versions/latest"
    noted = json.loads(form("a").schema) | {"doc": "whose it is"}
    content = {"subject": "s", "version": 3, "id": 9, "schema": json.dumps(noted)}
    Answers.answers[latest] = 200, content
    newest = {"use.latest.version": True}
    assert client(server, chosen=newest).register(TOPIC, "value", form("a")) == 9
    with pytest.raises(SchemaRefusedError, match=r"\(version 3\) is not that of the table"):
        client(server, chosen=newest).register(TOPIC, "value", form("a", "b"))
    Answers.answers[latest] = 200, content | {"schemaType": "JSON"}
    with pytest.raises(SchemaRefusedError, match="is not that of the table"):
        client(server, chosen=newest).register(TOPIC, "value", form("a"))
    del Answers.answers[latest]
    with pytest.raises(SchemaRefusedError, match=r"has no schema of subject shop\.public\.t-value: Subject not found"):
        client(server, chosen=newest).register(TOPIC, "value", form("a"))


def test_the_newest_schema_of_a_subject_is_asked_for_each_time(server: str) -> None:
    """Its field numbers are taken, whoever registered it since."""
    latest, asked = f"GET /subjects/{TOPIC}-value/versions/latest", client(server)
    assert asked.newest(TOPIC, "value", "shop.public.t.Value") is None
    for text in ("one", "two"):
        Answers.answers[latest] = 200, {"subject": "s", "version": 1, "id": 9, "schema": text, "schemaType": "PROTOBUF"}
        assert asked.newest(TOPIC, "value", "shop.public.t.Value") == ("PROTOBUF", text)
    Answers.answers[latest] = 500, {"error_code": 50001, "message": "it is why"}
    with pytest.raises(UnreachableError, match="it is why"):
        asked.newest(TOPIC, "value", "shop.public.t.Value")


def test_a_schema_that_was_registered_after_a_refusal_is_seen(server: str) -> None:
    latest, asked = f"GET /subjects/{TOPIC}-value/versions/latest", client(server, chosen={"use.latest.version": True})
    Answers.answers[latest] = 200, {"subject": "s", "version": 1, "id": 8, "schema": form("a").schema}
    with pytest.raises(SchemaRefusedError, match="is not that of the table"):
        asked.register(TOPIC, "value", form("a", "b"))
    Answers.answers[latest] = 200, {"subject": "s", "version": 2, "id": 9, "schema": form("a", "b").schema}
    assert asked.register(TOPIC, "value", form("a", "b")) == 9


def test_without_the_right_to_register_a_schema_is_looked_up(server: str) -> None:
    chosen = {"auto.register.schemas": False}
    with pytest.raises(SchemaRefusedError, match="does not have the schema for subject"):
        client(server, chosen=chosen).register(TOPIC, "value", form("a"))
    found = {"subject": "s", "version": 1, "id": 5, "schema": form("a").schema}
    Answers.answers[f"POST /subjects/{TOPIC}-value"] = 200, found
    assert client(server, chosen=chosen).register(TOPIC, "value", form("a")) == 5


def test_a_schema_is_fetched_once_and_an_unknown_id_is_named(server: str) -> None:
    Answers.answers["GET /schemas/ids/5"] = 200, {"schema": form("a").schema}
    asked = client(server)
    assert [asked.fetch(5) for _ in range(2)] == [("AVRO", form("a").schema)] * 2
    assert len([call for call in Answers.asked if call[0] == "GET /schemas/ids/5"]) == 1
    with pytest.raises(UnknownIdError, match="has no schema with id 6"):
        asked.fetch(6)


def test_a_check_names_a_type_that_the_registry_does_not_know(server: str) -> None:
    Answers.answers["GET /schemas/types"] = 200, ["AVRO"]
    client(server).check("AVRO")
    with pytest.raises(ConfigError, match="knows the types AVRO, and not JSON"):
        client(server).check("JSON")


def test_a_registry_that_is_away_is_named() -> None:
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:1 does not answer"):
        client("http://127.0.0.1:1").check("AVRO")


def test_options_that_the_client_refuses_are_no_secret_in_the_message() -> None:
    with pytest.raises(ConfigError, match="the client refuses the options") as failure:
        client("http://127.0.0.1:1", {"basic.auth.user.info": "hunter2"})
    assert "hunter2" not in str(failure.value)
    with pytest.raises(ConfigError, match="the client refuses the options"):
        client("http://127.0.0.1:1", {"ssl.ca.location": "/nowhere/ca.pem"})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"url": "registry:8081"}, "url is not an address"),
        ({"url": "http://a:1,ftp://b"}, "url is not an address"),
        ({"url": "http://me:secret@registry"}, "url has a user"),
        ({"url": "http://r", "options": {"url": "x"}}, "options can't have url"),
        ({"url": "http://r", "options": {"timeout": "soon"}}, "timeout is not a whole number"),
        ({"url": "http://r", "subject.name.strategy": "mine"}, "subject_name_strategy"),
    ],
)
def test_a_wrong_section_is_refused(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as failure:
        SchemaRegistryConfig.model_validate(section)
    assert "secret" not in str(failure.value)


def test_a_process_has_one_client_of_a_registry() -> None:
    config = SchemaRegistryConfig(url="http://r")
    assert registry_of(config) is registry_of(config.model_copy())
    assert registry_of(config) is not registry_of(SchemaRegistryConfig(url="http://r", use_latest_version=True))
