"""Who asks the HTTP server, and whether they may.

A request carries the token of a user (`Authorization: Bearer …`). Of tokens only digests are kept, and each is compared
in constant time. The console's files are open, because they hold no data: the page asks for a token and sends it
with each of its requests. No cookie is used, so a page of another site can't act for a user.
"""

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, NamedTuple

import structlog
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cdc.config.http_settings import HttpConfig, HttpUser, Role
from cdc.model.errors import WatershedError
from watershed.http.answers import result_of
from watershed.http.hosts import is_local
from watershed.http.openid import NoRoleError, OpenId, RefusedTokenError

log = structlog.get_logger(__name__)

_PROBES: Final = frozenset({"/healthz", "/readyz"})
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CALLER: Final = "watershed.caller"  # in a request's scope
_LOG_PAUSE_S: Final = 10.0
_OWN_PAGES: Final = ("same-origin", "none")
JWT_DOTS: Final = 2  # of a signed token


class Caller(NamedTuple):
    """Who sent a request."""

    name: str
    role: Role | Literal["none"]  # none: without a token, of a server that has users
    has_users: bool = True


# Of a server without users: whoever reaches it reads, and nobody operates.
ANYONE: Final = Caller("", "read", has_users=False)
NOBODY: Final = Caller("", "none")


NoteRefusal = Callable[[Request, str, str], Awaitable[None]]
"""Records a refused request: its action and the answer."""


class Tokens:
    """The users of a server, by their tokens."""

    def __init__(self, users: Mapping[str, HttpUser]) -> None:
        self._digests = [(_digest(user), Caller(name, user.role)) for name, user in users.items()]

    def caller(self, token: str) -> Caller | None:
        """Returns whose token this is. Takes the same time for any token."""
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, caller in self._digests:
            if hmac.compare_digest(known, digest):
                found = caller
        return found


def _digest(user: HttpUser) -> bytes:
    if user.token is not None:
        return hashlib.sha256(user.token.get_secret_value().encode()).digest()
    assert user.token_sha256 is not None, "checked by the configuration"
    return bytes.fromhex(user.token_sha256)


class CheckedAccess:
    """Answers 401 to requests without a token and 403 to those whose user may not do this. ASGI middleware."""

    def __init__(self, app: ASGIApp, http: HttpConfig, note: NoteRefusal | None = None) -> None:
        """`note`: records operations of users who may not do them."""
        self._app = app
        self._note = note
        self._tokens = Tokens(http.users)
        self._openid = None if http.oidc is None else OpenId(http.oidc)
        self._has_users = http.has_users
        self._open = _PROBES if "probes" in http.open else frozenset({"/healthz"})
        if "metrics" in http.open:
            self._open |= {"/metrics"}
        self._logged_s = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller, refusal = await self._caller(scope) if self._has_users else (ANYONE, None)
        scope[_CALLER] = caller
        refusal = refusal or self._refusal(scope, caller)
        if refusal is not None:
            if self._note is not None and caller.name and scope["method"] not in _READING:
                await self._note(Request(scope), scope["path"].removeprefix("/v1/"), result_of(refusal))
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _caller(self, scope: Scope) -> tuple[Caller, Response | None]:
        """Returns whose token the request has, NOBODY if it has none; and the refusal of a token that is not
        accepted."""
        header = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        if header is None:
            return NOBODY, None
        scheme, _, token = header.decode("latin-1").partition(" ")
        found = self._tokens.caller(token.strip()) if scheme.lower() == "bearer" else None
        if found is not None:
            return found, None
        refusal = _refused(401, "the token is not known", "use a token of http.users")
        if self._openid is not None and scheme.lower() == "bearer" and token.count(".") == JWT_DOTS:
            try:
                return Caller(*await self._openid.user(token.strip())), None
            except NoRoleError as error:
                return Caller(error.user, "none"), _refused(403, error.message, error.hint)
            except RefusedTokenError as error:
                refusal = _refused(401, error.message, error.hint)
            except WatershedError as error:
                return NOBODY, _refused(503, error.message, error.hint)
        now_s = time.monotonic()
        if now_s - self._logged_s >= _LOG_PAUSE_S:
            self._logged_s = now_s
            client = scope.get("client")
            log.warning("refused an HTTP token", client=client[0] if client else "")
        return NOBODY, refusal

    def _refusal(self, scope: Scope, caller: Caller) -> Response | None:
        path = scope["path"]
        is_open = path in self._open or path == "/" or path == "/console" or path.startswith("/console/")
        if scope["method"] not in _READING:
            if caller is ANYONE:
                failure = "this server has no users, so nobody may change anything", "configure http.users or http.oidc"
                return _refused(403, *failure)
            if caller.role == "read":
                return _refused(403, f"user {caller.name} has role read", "this needs a user with role operate")
            is_open = False
        if caller.role == "none" and not is_open:
            return _refused(401, "a token is needed", "send the header Authorization: Bearer TOKEN")
        return None


def caller_of(request: Request) -> Caller:
    """Returns who sent the request. A request that CheckedAccess has not seen is nobody's."""
    caller: Caller = request.scope.get(_CALLER, NOBODY)
    return caller


def refused_values(http: HttpConfig, request: Request) -> Response | None:
    """Returns the refusal if this request gets no values of rows, logs or options. A server without users shows them
    only to this machine, and to no page of another origin."""
    headers, hint = request.headers, "configure http.users, and ask with the token of one of them"
    if caller_of(request).has_users:
        return None
    if headers.get("sec-fetch-site", "none") not in _OWN_PAGES:  # of a browser; others have no such header
        return _refused(403, "a server without users does not answer pages of other origins", hint)
    if is_local(http, headers.get("host", "")):
        return None
    reason = "a server without users shows this only under a name of this machine, such as localhost"
    return _refused(403, reason, hint)


def _refused(code: int, error: str, hint: str) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="watershed"'} if code == 401 else {}
    return JSONResponse({"error": error, "next": hint}, code, headers)
