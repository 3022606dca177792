"""The settings of the warehouse's catalog, and of its files in an object store."""

import re
from typing import Annotated, Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import Field, SecretStr, model_validator

from cdc.config.section import SecretOption, Section

CatalogType = Literal["jdbc", "rest", "glue", "hive"]
JDBC_SQLITE: Final = "jdbc:sqlite:"
JDBC_POSTGRESQL: Final = "jdbc:postgresql:"
POSTGRESQL_OPTIONS: Final = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"})  # named alike by all clients
_S3_SCHEMES: Final = ("s3://", "s3a://")
_PROPERTY: Final = r"^[a-z][A-Za-z0-9_]*([.-][A-Za-z0-9_-]+)*$"
# Properties that follow from the other keys, or that Watershed's commits depend on.
_OURS: Final = frozenset(
    {"type", "uri", "warehouse", "catalog-impl", "py-catalog-impl", "cache-enabled", "jdbc.schema-version"}
    | {"jdbc.user", "jdbc.password", "credential", "token", "init_catalog_tables"}
)
_FORMS: Final = {
    "rest": re.compile(r"https?://[^/\s]+(/\S*)?"),
    "hive": re.compile(r"thrift://[^/,\s:]+:\d+(,thrift://[^/,\s:]+:\d+)*"),
}
_EXAMPLES: Final = {"rest": "https://catalog.example/api", "hive": "thrift://metastore.example:9083"}


class CatalogConfig(Section):
    """An Iceberg catalog. Which keys it takes depends on its type."""

    type: CatalogType
    # jdbc:sqlite:PATH, jdbc:postgresql://HOST:PORT/DATABASE, https://HOST/PATH (rest), thrift://HOST:9083 (hive).
    uri: SecretStr | None = None
    user: str | None = None  # jdbc, PostgreSQL
    password: SecretStr | None = None
    warehouse: str | None = None  # rest: the name of the warehouse, where the server has several
    credential: SecretStr | None = None  # rest: client_id:client_secret, exchanged for a token (OAuth2)
    token: SecretStr | None = None  # rest: a bearer token
    # Further properties of Iceberg's catalog, such as glue.id or oauth2-server-uri, for Spark and for PyIceberg.
    properties: dict[Annotated[str, Field(pattern=_PROPERTY)], SecretOption] = Field(default_factory=dict)

    @property
    def address(self) -> str:
        """The URI; empty for a catalog that has none."""
        return self.uri.get_secret_value() if self.uri else ""

    @property
    def is_sqlite(self) -> bool:
        return self.address.startswith(JDBC_SQLITE)

    @property
    def is_flat(self) -> bool:
        """Says whether a database of the catalog can't contain others: tables have two names there, not three."""
        return self.type in ("glue", "hive")

    @model_validator(mode="after")
    def _keys_suit_type(self) -> Self:
        taken = {
            "jdbc": {"uri", "user", "password"},
            "rest": {"uri", "warehouse", "credential", "token"},
            "glue": set[str](),
            "hive": {"uri"},
        }[self.type] | {"type", "properties"}
        if wrong := sorted(self.model_fields_set - taken):
            raise ValueError(f"type {self.type} takes no {wrong[0]}; it takes {', '.join(sorted(taken - {'type'}))}")
        if self.type != "glue" and self.uri is None:
            raise ValueError(f"type {self.type} needs uri")
        if self.type == "jdbc":
            _check_jdbc(self.address, has_user=self.user is not None or self.password is not None)
        elif self.type in _FORMS and not _FORMS[self.type].fullmatch(self.address):
            raise ValueError(f"uri of type {self.type} is written like {_EXAMPLES[self.type]}")
        if self.credential is not None and self.token is not None:
            raise ValueError("credential and token can't be combined")
        if self.credential is not None and ":" not in self.credential.get_secret_value():
            raise ValueError("credential is written client_id:client_secret")
        if ours := sorted(_OURS & set(self.properties)):
            raise ValueError(f"properties may not name {ours[0]}, which Watershed sets from the other keys")
        return self


def _check_jdbc(uri: str, *, has_user: bool) -> None:
    """Raises ValueError, which names no part of the URI: a password may be in it."""
    if uri.startswith(JDBC_SQLITE):
        path = uri.removeprefix(JDBC_SQLITE)
        if not path or path.startswith(":") or "?" in path:
            raise ValueError("the address of SQLite is jdbc:sqlite:PATH, for example jdbc:sqlite:warehouse/catalog.db")
        if has_user:
            raise ValueError("SQLite has no user and no password")
        return
    if not uri.startswith(JDBC_POSTGRESQL):
        raise ValueError("the address of type jdbc is jdbc:sqlite:PATH or jdbc:postgresql://HOST:PORT/DATABASE")
    try:
        parts = urlsplit(uri.removeprefix("jdbc:"))
        options, is_whole = parse_qs(parts.query), bool(parts.hostname and parts.path.strip("/") and parts.port != 0)
    except ValueError:
        options, is_whole = {}, False
    if not is_whole or "@" in parts.netloc or set(options) - POSTGRESQL_OPTIONS:
        raise ValueError(
            "the address of PostgreSQL is jdbc:postgresql://HOST:PORT/DATABASE, with at most the options "
            f"{', '.join(sorted(POSTGRESQL_OPTIONS))}; user and password have keys of their own"
        )


class S3Config(Section):
    """An object store that speaks S3's protocol. What is not named here is found as all AWS clients find it: in the
    environment, in ~/.aws, or from the machine's role."""

    endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s]+/?$")] | None = None  # None: Amazon's
    region: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")] | None = None
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    path_style: bool = False  # https://endpoint/bucket/key instead of https://bucket.endpoint/key

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key must be set together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        return self


def is_s3(location: str) -> bool:
    return location.startswith(_S3_SCHEMES)
