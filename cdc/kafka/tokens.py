"""Tokens for SASL OAUTHBEARER that librdkafka can't get by itself.

A plug-in is a function that the entry point group `watershed.kafka_tokens` names:

    def tokens(options: Mapping[str, str]) -> Callable[[], tuple[str, float]]:

It checks the options of section `kafka.token`, raising ValueError for those that it does not take, and returns a
function that gets a token. A token is (text, when it expires in seconds since 1970[, principal[, extensions]]). Any
thread may call that function, also while another does. librdkafka asks for the next token after four fifths of a
token's life.
"""

import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import structlog

from cdc.config.settings import TokenConfig
from cdc.kafka import aws_msk_iam
from cdc.model.errors import BrokerError, ConfigError

log = structlog.get_logger(__name__)

GROUP: Final = "watershed.kafka_tokens"
RETRY_S: Final = 10.0  # for which the last token is used again if there is no new one


class Token(NamedTuple):
    """What the brokers are shown."""

    text: str
    expires_at: float  # seconds since 1970
    principal: str = ""
    extensions: Mapping[str, str] = MappingProxyType({})


TokenSource = Callable[[], tuple[Any, ...]]
TokenPlugin = Callable[[Mapping[str, str]], TokenSource]
PLUGINS: Final[Mapping[str, TokenPlugin]] = {"aws_msk_iam": aws_msk_iam.tokens}


class TokenCallback:
    """librdkafka's `oauth_cb`: called for the first token, and whenever one is about to expire.

    It never raises: the client library would end a later call of its own with that error. While the plug-in fails, the
    brokers are shown the last token, and the plug-in is asked again soon.
    """

    def __init__(self, config: TokenConfig) -> None:
        self._config = config
        self._source: TokenSource | None = None
        self._last: Token | None = None
        self._is_fresh = False  # the client has not had it yet

    def prepare(self) -> None:
        """Gets the first token. Raises ConfigError for a plug-in that does not exist or refuses its options,
        BrokerError if it gets none."""
        self._source = self._source or _source(self._config)
        try:
            self._last = _checked(self._source())
        except Exception as error:  # code of another package
            raise BrokerError(
                f"Kafka: kafka.token: {self._config.plugin} gets no token: {self._described(error)}",
                "check its options and the credentials that it uses on this machine",
            ) from error
        self._is_fresh = True

    def __call__(self, _: str | None) -> tuple[str, float, str, dict[str, str]]:
        assert self._source is not None and self._last is not None, "prepare was called"
        if self._is_fresh:
            self._is_fresh = False
        else:
            try:
                self._last = _checked(self._source())
            except Exception as error:  # noqa: BLE001  code of another package
                log.warning("no new Kafka token", plugin=self._config.plugin, error=self._described(error))
                expires_at = max(self._last.expires_at, time.time() + RETRY_S)
                self._last = self._last._replace(expires_at=expires_at)
        return self._last.text, self._last.expires_at, self._last.principal, dict(self._last.extensions)

    def _described(self, error: Exception) -> str:
        """Returns the error without the values of options, which may be secrets."""
        text = f"{type(error).__name__}: {error}"
        for secret in self._config.options.values():
            text = text.replace(secret.get_secret_value(), "…") if secret.get_secret_value() else text
        return text


def _checked(given: tuple[Any, ...]) -> Token:
    token = Token(*given)
    if not isinstance(token.text, str) or not token.text:
        raise ValueError("the token is not a text")
    if token.expires_at <= time.time():
        raise ValueError("the token has expired already: compare this machine's clock")
    return token


def _source(config: TokenConfig) -> TokenSource:
    options = {name: secret.get_secret_value() for name, secret in config.options.items()}
    try:
        return _plugin(config.plugin)(options)
    except ValueError as error:
        raise ConfigError(f"kafka.token.options: {config.plugin}: {error}", "correct these options") from error


def _plugin(name: str) -> TokenPlugin:
    if name in PLUGINS:
        return PLUGINS[name]
    found = entry_points(group=GROUP)
    for entry in found:
        if entry.name == name:
            try:
                plugin: TokenPlugin = entry.load()
            except Exception as error:  # code of another package
                raise ConfigError(
                    f"kafka.token: plug-in {name} ({entry.value}) can't be imported: {type(error).__name__}: {error}",
                    "install what it needs, or correct its package",
                ) from error
            return plugin
    known = ", ".join(sorted({*PLUGINS, *found.names}))
    raise ConfigError(
        f"kafka.token: there is no plug-in {name!r}; there are {known}",
        f"install the package whose entry point in group {GROUP} has this name, or correct kafka.token.plugin",
    )
