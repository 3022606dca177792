"""How a search cluster is called: its hosts, as whom, and with which certificates. Secrets stay out of errors."""

import base64
import hashlib
import hmac
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from pydantic import ValidationError

from cdc.config.stores import SearchConfig, shared_names
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.search.server import SearchServer
from tests.support.tls import TlsProxy, make_certificates
from tests.unit.sinks.search.scripted import Request, Scripted, scripted_server

ONCE = Retries(attempt_count_max=1)
INFO: tuple[int, object] = (200, {"version": {"number": "3.8.0", "distribution": "opensearch"}})
SECRETS = ("s3cret", "czNjcmV0", "bXktaWQ6czNjcmV0", "AWSSECRET")


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with scripted_server([INFO]) as made:
        yield made


def config(**options: Any) -> SearchConfig:
    return SearchConfig.model_validate(options)


def ask(section: SearchConfig) -> None:
    server = SearchServer(section, ONCE)
    try:
        server.call(lambda client: client.info())
    finally:
        server.close()


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({}, None),
        pytest.param(
            {"url": "http://user:s3%2Ccret@{host}"},
            basic("user:s3,cret"),
            marks=pytest.mark.combination(
                "search",
                "each of these",
                "user in the address",
                instead="a server of the test that keeps what it was asked",
            ),
        ),
        pytest.param(
            {"user": "user", "password": "s3cret ü €"},
            basic("user:s3cret ü €"),
            marks=pytest.mark.combination(
                "search",
                "each of these",
                "user and password",
                instead="a server of the test that keeps what it was asked",
            ),
        ),
        pytest.param(
            {"api_key": "my-id:s3cret"},
            "ApiKey bXktaWQ6czNjcmV0",
            marks=pytest.mark.combination(
                "search", "each of these", "API key", instead="a server of the test that keeps what it was asked"
            ),
        ),
        ({"api_key": "bXktaWQ6czNjcmV0"}, "ApiKey bXktaWQ6czNjcmV0"),
    ],
)
def test_each_request_has_its_credential(scripted: Scripted, options: dict[str, str], header: str | None) -> None:
    host = scripted.url.removeprefix("http://")
    url = options.get("url", "http://{host}").format(host=host)
    ask(config(**(options | {"url": url})))
    assert scripted.requests[0].headers.get("authorization") == header


@pytest.mark.parametrize("status", [401, 403, 500])
@pytest.mark.parametrize(
    "options",
    [{"url": "http://user:s3cret@{host}"}, {"user": "user", "password": "s3cret"}, {"api_key": "my-id:s3cret"}],
)
def test_no_error_shows_a_secret(status: int, options: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with scripted_server([(status, {"error": {"type": "x", "reason": "of s3cret"}})]) as scripted:
        host = scripted.url.removeprefix("http://")
        section = config(**(options | {"url": options.get("url", "http://{host}").format(host=host)}))
        with pytest.raises(SinkError) as caught:
            ask(section)
    shown = f"{caught.value} {caught.value.hint} {section!r} {section} {caplog.text}"
    assert not any(secret in shown for secret in SECRETS)


@pytest.mark.combination(
    "search",
    "each of these",
    "a user without a right",
    refused="does not permit a request (status 403, indices:admin/create)",
)
def test_what_a_user_may_not_do_is_named(expected_refusal: str) -> None:
    """As Elasticsearch and OpenSearch say it."""
    reasons = [
        "action [indices:admin/create] is unauthorized for API key id [x] of user [y] on indices [shop.watershed], "
        "this action is granted by the index privileges [create_index,manage,all]",
        "no permissions for [indices:admin/create] and User [name=y, backend_roles=[], requestedTenant=null]",
    ]
    for reason in reasons:
        answer = 403, {"error": {"type": "security_exception", "reason": reason}}
        with scripted_server([answer]) as scripted, pytest.raises(SinkError) as caught:
            ask(config(url=scripted.url))
        assert caught.value.message.endswith(expected_refusal)


def test_a_host_that_is_down_is_left_for_the_next(scripted: Scripted) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        gone = f"http://127.0.0.1:{listening.getsockname()[1]}"
    section = config(url=f"{gone},{scripted.url}", user="user", password="s3cret")
    for _ in range(4):  # the client begins with any of them
        ask(section)
    assert len(scripted.requests) == 4
    assert {request.headers["authorization"] for request in scripted.requests} == {basic("user:s3cret")}
    with pytest.raises(SinkError) as caught:
        ask(config(url=f"{gone}, {gone}"))
    assert f"{gone.removeprefix('http://')}, {gone.removeprefix('http://')} does not answer" in caught.value.message


def test_two_sinks_that_share_one_host_share_the_cluster() -> None:
    sinks = {"one": config(url="http://a:9200,http://b:9200"), "two": config(url="http://user:s3cret@b:9200")}
    assert "one and two would share one store" in str(shared_names(sinks, "shop"))
    assert shared_names(sinks, "shop") is not None and "s3cret" not in str(shared_names(sinks, "shop"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://u:s3cret@h", "aws": {"region": "r"}}, "a user in url and aws exclude each other"),
        ({"aws": {"region": ""}}, "at least 1 character"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(**({"url": "https://search.example"} | options))
    assert message in str(caught.value) and "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"user": "user"},
            marks=pytest.mark.combination(
                "search", "each of these", "user without password", refused="user and password must be set together"
            ),
        ),
        pytest.param(
            {"user": "user", "password": "s3cret", "api_key": "s3cret"},
            marks=pytest.mark.combination(
                "search",
                "each of these",
                "user and API key",
                refused="user and api_key exclude each other: a request has one credential",
            ),
        ),
        pytest.param(
            {"aws": {"region": "eu-west-1", "service": "aoss"}},
            marks=pytest.mark.combination(
                "search",
                "Amazon OpenSearch Serverless",
                "AWS (SigV4)",
                refused="collections of OpenSearch Serverless (aoss) are not supported: they have no refresh and no "
                "statistics of indexes",
            ),
        ),
    ],
)
def test_credentials_that_no_server_takes_are_refused(options: dict[str, Any], expected_refusal: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(**({"url": "https://search.example"} | options))
    assert expected_refusal in str(caught.value) and "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://user:s3/cret@host"}, "is not an HTTP address"),
        ({"url": "http://a,https://b"}, "some addresses of the sink's url have TLS"),
        ({"url": "http://u:s3cret@a,http://v:s3cret@b"}, "name several users"),
        ({"url": "http://a", "tls": {"ca_file": "/no/such.pem"}}, "requires an address with TLS"),
        ({"url": "https://a", "tls": {"ca_file": "/no/such.pem"}}, "file /no/such.pem can't be read"),
        (
            {"url": "https://x.eu-west-1.aoss.amazonaws.com"},
            "the sink's url is a collection of OpenSearch Serverless, which is not supported",
        ),
    ],
)
def test_addresses_and_files_that_can_not_be_used_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SinkError, match=message) as caught:
        SearchServer(config(**options), ONCE)
    assert "s3" not in str(caught.value) and caught.value.__cause__ is None


# ---- TLS


@pytest.mark.combination(
    "search",
    "each of these",
    "client certificate, own authority",
    instead="a server of the test that keeps what it was asked",
)
@pytest.mark.combination(
    "search",
    "each of these",
    "an authority that is not known",
    refused="over TLS (self-signed certificate in certificate chain)",
)
def test_a_cluster_with_tls_takes_our_authority_and_our_certificate(
    scripted: Scripted, tmp_path: Path, expected_refusal: str
) -> None:
    folder = make_certificates(tmp_path)
    authority, *own = (str(folder / name) for name in ("ca.pem", "client.pem", "client.key"))
    proxy = TlsProxy(folder, int(scripted.url.rpartition(":")[2]))
    url = f"https://127.0.0.1:{proxy.port}"
    ask(config(url=url, tls={"ca_file": authority, "certificate_file": own[0], "key_file": own[1]}))
    assert len(scripted.requests) == 1
    with pytest.raises(SinkError) as caught:
        ask(config(url=url))
    assert expected_refusal in caught.value.message
    assert "tls.ca_file" in caught.value.hint
    with pytest.raises(SinkError, match=r"can't be reached over TLS|does not answer"):
        ask(config(url=url, tls={"ca_file": authority}))
    proxy.close()
    assert len(scripted.requests) == 1


def test_files_of_another_form_are_named(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path)
    (folder / "text.pem").write_text("no certificate")
    text, own, key = (str(folder / name) for name in ("text.pem", "client.pem", "server.key"))
    for files in ({"ca_file": text}, {"certificate_file": own, "key_file": key}):
        with pytest.raises(SinkError, match=r"text.pem can't be used|server.key can't be used"):
            SearchServer(config(url="https://a", tls=files), ONCE)


# ---- signatures


def signature(request: Request, host: str, region: str, secret: str) -> tuple[str, str]:
    """The signature that a request has, and the one that AWS's description of SigV4 gives it."""
    authorization = request.headers["authorization"]
    fields = dict(part.split("=", 1) for part in authorization.split(" ", 1)[1].split(", "))
    scope = fields["Credential"].split("/", 1)[1]
    signed = fields["SignedHeaders"].split(";")
    parts = urlsplit(request.path)
    query = sorted((quote(n, safe="-_.~"), quote(v, safe="-_.~")) for n, v in parse_qsl(parts.query, True))
    canonical = "\n".join(
        [
            request.method,
            quote(parts.path, safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in query),
            *(f"{name}:{request.headers[name] if name != 'host' else host}" for name in signed),
            "",
            fields["SignedHeaders"],
            hashlib.sha256(request.body).hexdigest(),
        ]
    )
    text = "\n".join(
        ["AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{secret}".encode()
    for part in (scope.split("/")[0], region, "es", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return fields["Signature"], hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


@pytest.mark.combination(
    "search",
    "Amazon OpenSearch Service",
    "AWS (SigV4)",
    instead="each signature is computed once more, from AWS's description",
)
def test_requests_are_signed_for_amazon(scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not run against AWS: the signature is computed once more, from the description of SigV4."""
    _only_these_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "AWSSECRET")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    server = SearchServer(config(url=scripted.url, aws={"region": "eu-central-1"}), ONCE)
    server.call(lambda client: client.info())
    body = '{"index":{"_index":"a","_id":"ü"}}\n{"x":1}\n'.encode()
    params = {"require_alias": "true", "filter_path": "items.*.status,items.*._index"}
    server.call(lambda client: client.bulk(body=body, params=params))
    server.call(lambda client: client.indices.refresh(index="shop.a,shop.b"))
    server.call(lambda client: client.get(index="shop.watershed", id="ü a/b+c"))
    server.close()
    host = scripted.url.removeprefix("http://")
    for request in scripted.requests:
        found, right = signature(request, host, "eu-central-1", "AWSSECRET")
        assert found == right, request.path
        assert request.headers["x-amz-security-token"] == "token"
        assert "AWSSECRET" not in str(request.headers)
    assert len(scripted.requests) == 4


@pytest.mark.combination(
    "search",
    "Amazon OpenSearch Service",
    "AWS, without credentials",
    refused="sinks.search.aws: AWS's client finds no credentials",
)
def test_without_credentials_the_next_step_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, expected_refusal: str
) -> None:
    _only_these_credentials(monkeypatch, tmp_path)
    section = config(url="https://x", aws={"region": "eu-central-1"})
    with pytest.raises(SinkError) as caught:
        SearchServer(section, ONCE)
    assert expected_refusal in caught.value.message
    monkeypatch.setenv("AWS_PROFILE", "none")
    with pytest.raises(SinkError, match=r"can't read its credentials \(ProfileNotFound\)"):
        SearchServer(section, ONCE)


def _only_these_credentials(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Nothing of this machine, and no call to an instance's metadata."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(folder / "none"))
