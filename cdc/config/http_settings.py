"""Section `http`: where the HTTP server of each process listens, and who may ask it."""

import ipaddress
import re
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from cdc.config.section import Section

Role = Literal["read", "operate"]
TOKEN_CHARS_MIN = 20  # a shorter one could be guessed
PIPELINES_MAX: Final = 50


class HttpUser(Section):
    """A user or a program that sends a token. `operate` may do all that `read` may, and see rows of dead letters."""

    role: Role = "read"
    token: SecretStr | None = None
    # The token's SHA-256 instead, in hexadecimal digits: the configuration then holds no secret.
    token_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _has_one_token(self) -> Self:
        if (self.token is None) == (self.token_sha256 is None):
            raise ValueError("a user has token or token_sha256")
        if self.token is not None and len(self.token.get_secret_value()) < TOKEN_CHARS_MIN:
            raise ValueError(f"a token has {TOKEN_CHARS_MIN} characters at least: make one with `openssl rand -hex 32`")
        return self


class HttpTls(Section):
    """The server's certificate, with those between it and its authority, and its key. Files are in PEM form."""

    certificate_file: str
    key_file: str


class HttpOidc(Section):
    """An OpenID provider whose tokens are accepted as those of users are."""

    issuer: str  # as it is in tokens; its keys are found from /.well-known/openid-configuration below it
    audience: str  # what `aud` of a token has to contain
    # The claim with a user's roles or groups: its name, or its place, such as realm_access.roles.
    roles_claim: Annotated[str, Field(min_length=1)] = "roles"
    read: tuple[Annotated[str, Field(min_length=1)], ...] = ()  # values of the claim that give role read
    operate: tuple[Annotated[str, Field(min_length=1)], ...] = ()  # and role operate

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if not is_trusted_url(self.issuer):
            raise ValueError("issuer is an address with https://, since whoever answers in its place decides who may")
        if not (self.read or self.operate):
            raise ValueError("no value of the claim gives a role: name some in read or operate")
        return self


def _is_plain_address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an address begins with http:// or https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address has no user or password: they are an option of their own")
    if parts.query or parts.fragment:
        raise ValueError("an address ends with its path: it has no ? or #")
    _ = parts.port  # raises ValueError if it is no number
    return url.rstrip("/")


def _is_header(secret: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?", secret.get_secret_value()):
        raise ValueError("a header has printable ASCII characters only, and no blank at its ends")
    return secret


_Address = Annotated[str, AfterValidator(_is_plain_address)]
_Header = Annotated[SecretStr, AfterValidator(_is_header)]


class HttpPrometheus(Section):
    """A Prometheus, or a server with its API, that scrapes the processes of this pipeline."""

    url: _Address  # /api/v1/query_range is below it
    authorization: _Header | None = None  # the value of the header, such as Bearer TOKEN
    # Labels of this pipeline's series, where the server has several with its topic prefix.
    labels: dict[Annotated[str, Field(pattern="^[a-zA-Z_][a-zA-Z0-9_]*$")], str] = Field(default_factory=dict)


class HttpPipeline(Section):
    """Another pipeline, whose status the console shows beside this one's."""

    url: _Address  # of the HTTP server of one of its processes
    token: _Header | None = None  # of a user of that server; role read is enough
    console: _Address | None = None  # for browsers, where that is another address than `url`


class HttpConfig(Section):
    """The HTTP server of `cdc run`, `cdc sink run` and `cdc view run`: health, status, metrics, console."""

    host: str = "127.0.0.1"
    # Names under which the server is asked, beside localhost and `host`; requests under other names get 421.
    names: tuple[str, ...] = ()
    port: Annotated[int, Field(ge=1, le=65535)] | None = 8480  # of `cdc run`; null: no server
    sink_port: Annotated[int, Field(ge=1, le=65535)] | None = 8481  # of `cdc sink run`
    view_port: Annotated[int, Field(ge=1, le=65535)] | None = 8482  # of `cdc view run`
    tls: HttpTls | None = None
    users: dict[Annotated[str, Field(pattern="^[a-z0-9_-]+$")], HttpUser] = Field(default_factory=dict)
    oidc: HttpOidc | None = None
    # What is answered without a token where there are users: /healthz and /readyz (without reasons); /metrics.
    open: tuple[Literal["probes", "metrics"], ...] = ("probes",)
    insecure: bool = False  # listen on an address that other machines reach, without users
    prometheus: HttpPrometheus | None = None
    pipelines: Annotated[
        dict[Annotated[str, Field(pattern="^[a-z0-9_-]+$")], HttpPipeline], Field(max_length=PIPELINES_MAX)
    ] = Field(default_factory=dict)
    # How much WAL the disk can hold for the slot, if max_slot_wal_keep_size sets no limit or a greater one.
    wal_bytes_max: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _is_not_open_to_others(self) -> Self:
        if not self.has_users and not self.insecure and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached by other machines, and anyone could read the status: configure "
                "users or oidc, or set insecure: true if a firewall or a proxy with a login is in front"
            )
        return self

    @property
    def has_users(self) -> bool:
        """Whether requests need a token."""
        return bool(self.users) or self.oidc is not None

    @property
    def unencrypted(self) -> tuple[str, ...]:
        """The options whose secrets are sent unencrypted to other machines."""
        asked = {f"http.pipelines.{name}.token": (one.url, one.token) for name, one in self.pipelines.items()}
        if self.prometheus is not None:
            asked["http.prometheus.authorization"] = (self.prometheus.url, self.prometheus.authorization)
        return tuple(key for key, (url, secret) in asked.items() if secret is not None and not is_trusted_url(url))


def is_trusted_url(url: str) -> bool:
    """Returns whether nobody between this machine and the server can answer in its place."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    )


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
