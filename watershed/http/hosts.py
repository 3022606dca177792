"""The names under which the server may be addressed.

A page of another site can let a browser read this server under a name of its own, whose address it changes (DNS
rebinding): the browser then sends that name in the Host header. So a request is answered only under names that the
server is known to have. An address is no such name, since a page can't own one.
"""

import ipaddress
from typing import Final

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cdc.config.http_settings import HttpConfig, is_loopback

# Says only that the process is alive, to an orchestrator under whatever name.
OPEN: Final = frozenset({"/healthz"})
LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


class KnownHosts:
    """Says which Host headers are accepted."""

    def __init__(self, http: HttpConfig) -> None:
        self._is_local = is_loopback(http.host)
        self._names = frozenset(map(str.lower, ("localhost", http.host, *http.names)))

    def accepts(self, host: str) -> bool:
        """`host`: the header; empty if there is none, which no browser sends."""
        name = host_name(host).lower().removesuffix(".")
        if not name or name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # Behind an address that others reach there may be translations, as of containers and services.
        return address.is_loopback or not self._is_local


class CheckedHost:
    """Answers 421 to requests under other names. ASGI middleware."""

    def __init__(self, app: ASGIApp, hosts: KnownHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
            if not self._hosts.accepts(host):
                await misdirected(host)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def misdirected(host: str) -> Response:
    """Returns the answer to a request under a name that is not the server's."""
    failure = {
        "error": f"this server is not known as {host_name(host)!r}",
        "next": "use localhost or the server's address; if the name is right, add it to http.names",
    }
    return JSONResponse(failure, 421)


def is_local(http: HttpConfig, host: str) -> bool:
    """Returns whether only this machine reaches the server, and the request, with this Host header, names it so."""
    return is_loopback(http.host) and host_name(host) in LOCAL_NAMES


def host_name(host: str) -> str:
    """Returns the name or address of a Host header, without the port."""
    return host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
