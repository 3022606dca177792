"""Who is answered by the HTTP server, over its own socket: tokens, roles, TLS, and what is open."""

import hashlib
import http.client
import json
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cdc.config.http_settings import HttpConfig, HttpTls, HttpUser
from cdc.model.errors import ConfigError
from tests.support.http_server import running
from tests.support.status_facts import Clock, reading, source
from tests.support.tls import make_certificates
from tests.unit.watershed.http.test_routes import Pipeline
from watershed.http.access import caller_of
from watershed.http.routes import console_routes
from watershed.http.server import http_server

READ, OPERATE = "read-0123456789abcdef", "operate-0123456789abcdef"
USERS = {
    "viewer": HttpUser(token=SecretStr(READ)),
    "oncall": HttpUser(role="operate", token_sha256=hashlib.sha256(OPERATE.encode()).hexdigest()),
}
OTHERS = "0.0.0.0"  # noqa: S104


def who(request: Request) -> Response:
    caller = caller_of(request)
    return JSONResponse({"name": caller.name, "role": caller.role})


def app() -> Starlette:
    routes = [Route(path, who) for path in ("/healthz", "/readyz", "/metrics", "/v1/status", "/openapi.json")]
    return Starlette(routes=[*routes, Route("/v1/pause", who, methods=["POST"]), *console_routes()])


def ask(
    port: int, path: str, token: str | None = None, method: str = "GET", scheme: str = "Bearer"
) -> tuple[int, dict[str, Any], dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={} if token is None else {"Authorization": f"{scheme} {token}"})
        answer = connection.getresponse()
        body, headers = answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(body) if "json" in headers.get("content-type", "") else {}, headers
    finally:
        connection.close()


@pytest.fixture
def port() -> Iterator[int]:
    with running(http_server(app(), HttpConfig(users=USERS))) as made:
        yield made


def test_a_token_says_who_asks(port: int) -> None:
    assert ask(port, "/v1/status", READ)[:2] == (200, {"name": "viewer", "role": "read"})
    assert ask(port, "/v1/status", OPERATE)[:2] == (200, {"name": "oncall", "role": "operate"})
    assert ask(port, "/v1/status", OPERATE, scheme="bearer")[0] == 200


@pytest.mark.parametrize("path", ["/v1/status", "/metrics", "/openapi.json", "/v1/none"])
def test_without_a_token_nothing_is_answered(port: int, path: str) -> None:
    code, body, headers = ask(port, path)
    assert (code, body["error"], body["next"]) == (
        401,
        "a token is needed",
        "send the header Authorization: Bearer TOKEN",
    )
    assert headers["www-authenticate"] == 'Bearer realm="watershed"'


@pytest.mark.parametrize(
    ("token", "scheme"),
    [
        ("wrong", "Bearer"),
        (READ[:-1], "Bearer"),
        (READ + "x", "Bearer"),
        ("", "Bearer"),
        ("\xff", "Bearer"),
        (READ, "Basic"),
    ],
)
def test_a_token_that_is_nobodys_is_refused_also_where_none_is_needed(port: int, token: str, scheme: str) -> None:
    for path in ("/v1/status", "/readyz"):
        code, body, _ = ask(port, path, token, scheme=scheme)
        assert (code, body["error"]) == (401, "the token is not known")
        assert READ not in str(body)


def test_only_the_role_operate_changes_something(port: int) -> None:
    assert ask(port, "/v1/pause", OPERATE, "POST")[:2] == (200, {"name": "oncall", "role": "operate"})
    code, body, _ = ask(port, "/v1/pause", READ, "POST")
    assert (code, body["error"]) == (403, "user viewer has role read")
    assert ask(port, "/v1/pause", None, "POST")[0] == 401
    assert ask(port, "/console/", None, "POST")[0] == 401, "not even of what is open"


def test_probes_and_the_consoles_files_are_open(port: int) -> None:
    assert ask(port, "/healthz")[0] == ask(port, "/console/")[0] == ask(port, "/console/app.js")[0] == 200
    assert ask(port, "/readyz")[:2] == (200, {"name": "", "role": "none"})
    assert ask(port, "/")[0] == 307
    for path in ("/console/../v1/status", "/console/%2e%2e/v1/status", "/console//v1/status"):
        assert ask(port, path)[0] == 404


def test_answers_are_kept_nowhere(port: int) -> None:
    for path, token in (("/v1/status", READ), ("/v1/status", None), ("/healthz", None), ("/v1/none", READ)):
        headers = ask(port, path, token)[2]
        assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff"), path
    assert ask(port, "/console/app.js")[2]["cache-control"] == "no-cache", "is asked for by its ETag"


def test_what_is_open_is_an_option() -> None:
    with running(http_server(app(), HttpConfig(users=USERS, open=("metrics",)))) as made:
        assert ask(made, "/metrics")[0] == ask(made, "/healthz")[0] == 200, "an orchestrator would restart the process"
        assert ask(made, "/readyz")[0] == 401


def test_readiness_without_a_token_has_no_reasons() -> None:
    pipeline = Pipeline()
    pipeline.status = Clock().status(reading(source(slot=None)))
    with running(http_server(pipeline.application(), HttpConfig(users=USERS))) as made:
        assert ask(made, "/readyz")[:2] == (503, {"is_ready": False, "reasons": []})
        assert len(ask(made, "/readyz", READ)[1]["reasons"]) == 1
        assert ask(made, "/v1/status", READ)[0] == 200


def test_a_server_without_users_is_read_by_anyone_and_operated_by_nobody() -> None:
    with running(http_server(app(), HttpConfig())) as made:
        assert ask(made, "/v1/status")[:2] == (200, {"name": "", "role": "read"})
        code, body, _ = ask(made, "/v1/pause", OPERATE, "POST")
        assert (code, body["next"]) == (403, "configure http.users or http.oidc")


# ---- the configuration


@pytest.mark.parametrize("host", [OTHERS, "::", "192.0.2.7", "watershed.internal"])
def test_an_address_that_others_reach_needs_users(host: str) -> None:
    with pytest.raises(ValidationError, match=f"host {host} can be reached by other machines"):
        HttpConfig(host=host)
    assert HttpConfig(host=host, insecure=True).host == HttpConfig(host=host, users=USERS).host == host


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({}, "a user has token or token_sha256"),
        ({"token": READ, "token_sha256": "0" * 64}, "a user has token or token_sha256"),
        ({"token": "s3cret"}, "20 characters at least"),
        ({"token_sha256": "S3CRET"}, "should match pattern"),
        ({"token": READ, "role": "admin"}, "'read' or 'operate'"),
    ],
)
def test_a_user_that_can_not_be_is_refused_without_its_token(user: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        HttpConfig.model_validate({"users": {"viewer": user}})
    assert READ not in str(caught.value) and "s3cret" not in str(caught.value).lower()


# ---- TLS


def serial(port: int, authority: Path) -> str:
    """The certificate that a new connection shows, after a request."""
    context = ssl.create_default_context(cafile=authority)
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        shown = connection.sock.getpeercert()
        assert shown is not None
        return str(shown["serialNumber"])
    finally:
        connection.close()


def test_a_renewed_certificate_counts_from_the_next_connection_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        make_certificates(folder)
    files = HttpTls(certificate_file=str(tmp_path / "server.pem"), key_file=str(tmp_path / "server.key"))
    for name in ("server.pem", "server.key"):
        shutil.copy(first / name, tmp_path / name)
    with running(http_server(app(), HttpConfig(tls=files))) as made:
        before = serial(made, first / "ca.pem")
        shutil.copy(second / "server.pem", tmp_path / "server.new")
        (tmp_path / "server.new").replace(tmp_path / "server.pem")
        assert serial(made, first / "ca.pem") == before, "the key is not there yet"
        shutil.copy(second / "server.key", tmp_path / "server.new")
        (tmp_path / "server.new").replace(tmp_path / "server.key")
        assert serial(made, second / "ca.pem") != before
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(made, "/healthz")


def test_certificates_that_can_not_be_used_are_named(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    for certificate, key, named in (
        ("none.pem", "server.key", "none.pem"),
        ("server.pem", "client.key", "server.pem or"),
    ):
        files = HttpTls(certificate_file=str(tmp_path / certificate), key_file=str(tmp_path / key))
        with pytest.raises(ConfigError, match=named) as caught:
            http_server(app(), HttpConfig(tls=files))
        assert "no passphrase" in caught.value.hint
