"""Tokens of an OpenID provider, which is a local HTTP server here: whose are accepted, and what happens without it."""

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, RSAKey
from pydantic import ValidationError

from cdc.config.http_settings import HttpConfig, HttpOidc
from cdc.model.errors import UnreachableError
from tests.support.http_audit import RecordedAudit
from tests.support.http_server import running
from tests.unit.watershed.http.test_access import READ, USERS, app, ask
from watershed.http import openid
from watershed.http.json_fetch import fetch_json
from watershed.http.openid import OpenId
from watershed.http.server import http_server

AUDIENCE = "watershed"


class Provider:
    """Serves discovery and keys."""

    def __init__(self) -> None:
        self.keys: dict[str, Key] = {"first": RSAKey.generate_key(2048, {"kid": "first"})}
        self.asked: list[str] = []
        self.is_away = False
        self.document: dict[str, Any] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                found = provider.answer(self.path)
                self.send_response(200 if found is not None else 503)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_port}/realm"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, path: str) -> Any:
        if self.is_away:
            return None
        if path == "/realm/.well-known/openid-configuration":
            return {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **self.document}
        odd = {"kty": "NEW", "kid": "of another kind"}
        return {"keys": [odd, *(key.as_dict(private=False) for key in self.keys.values())]}

    def token(self, key: Key | None = None, alg: str = "RS256", kid: str | None = "first", **claims: Any) -> str:
        known = {"iss": self.issuer, "aud": ["other", AUDIENCE], "sub": "4711", "exp": int(time.time()) + 300}
        wanted = {**known, "preferred_username": "ada", "roles": ["operators"], **claims}
        header = {"alg": alg} | ({} if kid is None else {"kid": kid})
        given = {name: value for name, value in wanted.items() if value is not None}
        return jwt.encode(header, given, key or self.keys["first"], algorithms=[alg])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def made() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.close()


@pytest.fixture
def provider(made: Provider) -> Provider:
    made.keys = {"first": made.keys["first"]}
    made.asked, made.is_away, made.document = [], False, {}
    return made


@contextmanager
def served(provider: Provider, **settings: Any) -> Iterator[int]:
    given = {"issuer": provider.issuer, "audience": AUDIENCE, "read": ("readers",), "operate": ("operators",)}
    http = HttpConfig(users=USERS, oidc=HttpOidc.model_validate(given | settings))
    with running(http_server(app(), http)) as port:
        yield port


@pytest.fixture
def port(provider: Provider) -> Iterator[int]:
    with served(provider) as made:
        yield made


def refusal(port: int, token: str) -> tuple[int, str]:
    code, body, _ = ask(port, "/v1/status", token)
    assert body["next"]
    return code, body["error"]


def test_a_claim_gives_the_role(port: int, provider: Provider) -> None:
    assert ask(port, "/v1/status", provider.token())[:2] == (200, {"name": "oidc:4711 (ada)", "role": "operate"})
    assert ask(port, "/v1/pause", provider.token(), "POST")[0] == 200
    reader = provider.token(roles="readers others", preferred_username=None)
    assert ask(port, "/v1/status", reader)[:2] == (200, {"name": "oidc:4711", "role": "read"})
    assert ask(port, "/v1/pause", reader, "POST")[0] == 403
    assert len(provider.asked) == 2, "the keys are kept"


def test_the_claim_may_lie_below_others(provider: Provider) -> None:
    with served(provider, roles_claim="realm_access.roles") as port:
        token = provider.token(roles=None, realm_access={"roles": ["operators"]})
        assert ask(port, "/v1/status", token)[1]["role"] == "operate"
    with served(provider, roles_claim="https://shop.example/roles") as port:
        named: dict[str, Any] = {"https://shop.example/roles": ["readers"]}
        token = provider.token(**named)
        assert ask(port, "/v1/status", token)[1]["role"] == "read"


def test_a_token_of_a_user_is_accepted_beside_them(port: int) -> None:
    assert ask(port, "/v1/status", READ)[:2] == (200, {"name": "viewer", "role": "read"})


def unsigned(provider: Provider) -> str:
    _, claims, _ = provider.token().split(".")
    header = base64.urlsafe_b64encode(b'{"alg":"none","kid":"first"}').decode().rstrip("=")
    return f"{header}.{claims}."


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"iss": "https://other.example"}, "iss"),
        ({"iss": None}, "iss"),
        ({"aud": "another"}, "aud"),
        ({"aud": None}, "aud"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"exp": "soon"}, "exp"),
        ({"nbf": 1 << 40}, "not yet valid"),
        ({"sub": None}, "sub"),
    ],
)
def test_a_token_with_other_claims_is_refused(port: int, provider: Provider, claims: dict[str, Any], said: str) -> None:
    code, error = refusal(port, provider.token(**claims))
    assert code == 401 and error.startswith("the token is refused") and said in error


def test_clocks_may_differ_a_little(port: int, provider: Provider) -> None:
    assert ask(port, "/v1/status", provider.token(exp=int(time.time()) - 20))[0] == 200
    assert ask(port, "/v1/status", provider.token(exp=int(time.time()) - 100))[0] == 401


def test_a_token_that_the_issuer_has_not_signed_is_refused(port: int, provider: Provider) -> None:
    first = provider.keys["first"]
    assert isinstance(first, RSAKey)
    public = first.as_pem(private=False)
    as_secret = OctKey.import_key(base64.urlsafe_b64encode(public).decode().rstrip("="))
    assert refusal(port, unsigned(provider)) == (401, "the token is refused: algorithm 'none'")
    assert refusal(port, provider.token(as_secret, "HS256")) == (401, "the token is refused: algorithm 'HS256'")
    assert refusal(port, provider.token(RSAKey.generate_key(2048)))[0] == 401
    assert refusal(port, provider.token(ECKey.generate_key("P-256"), "ES256"))[0] == 401, "the key is of another kind"
    assert refusal(port, provider.token()[:-8] + "AAAAAAAA")[0] == 401
    for text in ("a.b.c", "..", "é.é.é", "e30.e30.e30", "x" * 20_000 + ".."):
        assert refusal(port, text.encode().decode("latin-1"))[0] == 401


def test_a_user_without_a_role_is_told_so(port: int, provider: Provider) -> None:
    for roles in (None, [], ["others"], 7, {"operators": True}):
        code, error = refusal(port, provider.token(roles=roles))
        assert code == 403 and error.startswith("user oidc:4711 (ada) has no role here")
    audit = RecordedAudit()
    oidc = HttpOidc(issuer=provider.issuer, audience=AUDIENCE, read=("readers",))
    with running(http_server(app(), HttpConfig(oidc=oidc), audit.audit)) as other:
        assert ask(other, "/v1/pause", provider.token(), "POST")[0] == 403
    assert audit.said == [("oidc:4711 (ada)", "pause", "403")]


def test_keys_rotate(port: int, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(port, "/v1/status", provider.token())[0] == 200
    provider.keys["second"] = ECKey.generate_key("P-256", {"kid": "second"})
    token = provider.token(provider.keys["second"], "ES256", "second")
    assert refusal(port, token) == (401, "the token is refused: no key of the issuer has made it"), "asked a moment ago"
    assert len(provider.asked) == 2
    monkeypatch.setattr(openid, "COOLDOWN_S", 0.0)
    assert ask(port, "/v1/status", token)[0] == ask(port, "/v1/status", provider.token())[0] == 200
    assert len(provider.asked) == 4
    del provider.keys["second"]
    monkeypatch.setattr(openid, "KEYS_S", -1.0)
    assert ask(port, "/v1/status", token)[0] == 401, "a key that was withdrawn"


def test_without_the_provider_its_tokens_wait_and_others_go_on(
    port: int, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.is_away = True
    for _ in range(3):
        code, error = refusal(port, provider.token())
        assert code == 503 and "can't be read" in error
    assert len(provider.asked) == 1, "it is not asked by each request"
    assert ask(port, "/v1/status", READ)[0] == 200
    provider.is_away = False
    monkeypatch.setattr(openid, "COOLDOWN_S", 0.0)
    assert ask(port, "/v1/status", provider.token())[0] == 200
    provider.is_away = True
    monkeypatch.setattr(openid, "KEYS_S", -1.0)
    assert ask(port, "/v1/status", provider.token())[0] == 200, "keys that are known go on"
    monkeypatch.setattr(openid, "KEYS_S_MAX", -1.0)
    assert refusal(port, provider.token())[0] == 503, "for a while"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"issuer": "https://other.example"}, "does not describe itself"),
        ({"jwks_uri": "http://keys.example/keys"}, "does not describe itself"),
        ({"jwks_uri": None}, "does not describe itself"),
    ],
)
def test_a_provider_that_is_another_is_not_trusted(
    port: int, provider: Provider, document: dict[str, Any], said: str
) -> None:
    provider.document = document
    code, error = refusal(port, provider.token())
    assert code == 503 and said in error


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"issuer": "http://sso.example"}, "https://"),
        ({"issuer": "sso.example"}, "https://"),
        ({"issuer": "https://sso.example", "operate": []}, "no value of the claim gives a role"),
    ],
)
def test_settings_that_nobody_could_use_or_anybody_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        HttpOidc.model_validate({"audience": AUDIENCE, "operate": ["operators"]} | settings)


def test_a_provider_is_access_control(provider: Provider) -> None:
    oidc = HttpOidc(issuer=provider.issuer, audience=AUDIENCE, read=("readers",))
    http = HttpConfig(host="0.0.0.0", oidc=oidc)  # noqa: S104 not refused
    assert http.has_users and OpenId(oidc)
    with running(http_server(app(), http)) as port:
        assert ask(port, "/v1/status")[0] == 401
        assert ask(port, "/v1/status", provider.token(roles=["readers"]))[0] == 200


@pytest.mark.parametrize("answer", [b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 99_999])
def test_a_provider_that_answers_something_else_is_one_that_does_not_answer(answer: bytes) -> None:
    """Such as a proxy before it: 503 with a next step, and not the traceback of an error that nobody expects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        server = threading.Thread(target=serve)
        server.start()
        with pytest.raises(UnreachableError, match="can't be read"):
            fetch_json(f"http://127.0.0.1:{listener.getsockname()[1]}/", "check it")
        server.join()


class SlowProvider:
    """Answers by raising, as late as it likes; time passes meanwhile."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.now_s = 0.0
        self.asked = 0
        self.is_away = False

    def fetch(self, url: str) -> Any:
        self.asked += 1
        if self.is_away:
            self.now_s += 14.0  # longer than the pause between two attempts
            raise UnreachableError("no answer", "wait")
        return self._provider.answer(url.removeprefix(self._provider.issuer.removesuffix("/realm")))

    def of(self) -> OpenId:
        given = {"issuer": self._provider.issuer, "audience": AUDIENCE, "operate": ("operators",)}
        return OpenId(HttpOidc.model_validate(given), lambda: self.now_s, self.fetch)


def test_a_provider_that_answers_late_is_not_tried_by_each_of_the_waiting_requests(provider: Provider) -> None:
    slow, tokens = SlowProvider(provider), [provider.token() for _ in range(5)]

    async def users() -> list[Any]:
        made = slow.of()
        assert (await made.user(tokens[0]))[1] == "operate"
        slow.is_away, slow.asked, slow.now_s = True, 0, openid.KEYS_S + 1
        return await asyncio.gather(*map(made.user, tokens))

    assert {role for _, role in asyncio.run(users())} == {"operate"}, "known keys go on working"
    assert slow.asked == 1
