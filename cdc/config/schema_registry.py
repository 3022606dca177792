"""The schema registry: where the schemas of tables' records are, and how they are named there."""

from typing import Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from cdc.config.section import DebeziumSection

SubjectNames = Literal["topic", "record", "topic_record"]
# Options of the client that are numbers.
_NUMBERS: Final = frozenset({"timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity"})
# A call that takes longer ends the session, which is tried again: the client's own retries are few and short.
_DEFAULTS: Final = {"timeout": "10", "max.retries": "2", "retries.wait.ms": "200", "retries.max.wait.ms": "1000"}


class SchemaRegistryConfig(DebeziumSection):
    """A registry with Confluent's API. `options` go to confluent-kafka's client as they are (basic.auth.*,
    bearer.auth.*, ssl.*)."""

    url: str = Field(min_length=1)  # or several, separated by commas
    options: dict[str, SecretStr] = Field(default_factory=dict)
    subject_name_strategy: SubjectNames = "topic"
    auto_register_schemas: bool = True  # false: schemas must be in the registry before
    use_latest_version: bool = False  # the subject's newest schema must be the table's; nothing is registered
    normalize_schemas: bool = False

    @model_validator(mode="after")
    def _url(self) -> Self:
        for url in self.url.split(","):
            parts = urlsplit(url.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("url is not an address that begins with http:// or https://")
            if parts.username is not None or parts.password is not None:
                raise ValueError("url has a user: write user:password in options, as basic.auth.user.info")
        if "url" in self.options:
            raise ValueError("options can't have url, which is a key of its own")
        for name in _NUMBERS.intersection(self.options):
            if not self.options[name].get_secret_value().isdigit():
                raise ValueError(f"options: {name} is not a whole number")
        return self

    @property
    def client_options(self) -> dict[str, Any]:
        """The options of the client, in clear."""
        given = _DEFAULTS | {name: secret.get_secret_value() for name, secret in self.options.items()}
        options = {name: int(value) if name in _NUMBERS else value for name, value in given.items()}
        return {"url": self.url, **options}

    def subject(self, topic: str, record: str, part: Literal["key", "value"]) -> str:
        """Returns the subject of a topic's keys or values. `record`: their full name."""
        match self.subject_name_strategy:
            case "topic":
                return f"{topic}-{part}"
            case "record":
                return record
            case "topic_record":
                return f"{topic}-{record}"
