"""The schema registry, through confluent-kafka's client. Schemas never change under their id, so ids are kept for the
life of the process: a registry that is away matters only where a schema is new.
"""

import threading
from collections.abc import Callable
from typing import Final, NoReturn, Protocol, TypeVar

import structlog

from cdc.config.schema_registry import SchemaRegistryConfig
from cdc.formats.encodings import Form, Part, SchemaType, is_same_form
from cdc.model.errors import ConfigError, UnknownIdError, UnreachableError, WatershedError

try:
    from confluent_kafka.schema_registry import RegisteredSchema, Schema, SchemaRegistryClient, SchemaRegistryError
except ImportError as error:  # an extra: it brings an HTTP client of its own
    raise ConfigError(
        f"kafka.schema_registry: the registry's client can't be loaded: {error}",
        "pip install 'watershed-cdc[registry]'",
    ) from error

log = structlog.get_logger(__name__)

NEXT_REACHABLE: Final = (
    "check kafka.schema_registry (url, options) and the registry; what waits for it goes on by itself, nothing is lost"
)
NEXT_REFUSED: Final = (
    "register the schema yourself, set the subject's compatibility to one that allows the change, or undo the change"
)
_DENIED: Final = (401, 403)
_NOT_FOUND: Final = 404
_PERMANENT: Final = (_NOT_FOUND, 409, 422)  # answers about the schema or the subject; others are about the registry
_Answer = TypeVar("_Answer")


class SchemaRefusedError(WatershedError):
    """The registry does not accept a schema, or does not have it."""


class Registry(Protocol):
    """What capture and readers need of a registry."""

    def register(self, topic: str, part: Part, form: Form) -> int:
        """Returns the id of the form's schema. Raises SchemaRefusedError, UnreachableError."""

    def newest(self, topic: str, part: Part, name: str) -> tuple[str, str] | None:
        """Returns type and text of the newest schema of the subject of records of this name; None if it has none.
        Raises SchemaRefusedError, UnreachableError."""

    def fetch(self, schema_id: int) -> tuple[str, str]:
        """Returns type and text of a schema. Raises UnknownIdError, UnreachableError."""


class SchemaRegistry:
    """Thread-safe. Calls block for some seconds at most."""

    def __init__(self, config: SchemaRegistryConfig) -> None:
        """Raises ConfigError for options that the client does not accept. Does not connect."""
        self._config = config
        self._lock = threading.Lock()
        self._ids: dict[tuple[str, str], int] = {}  # subject and schema → id
        self._schemas: dict[int, tuple[str, str]] = {}
        try:
            self._client = SchemaRegistryClient(config.client_options)
        except (ValueError, TypeError, OSError) as error:  # OSError: a file of a certificate
            # The client's message may show a value, which may be a secret.
            raise ConfigError(
                f"kafka.schema_registry: the client refuses the options ({type(error).__name__})",
                "check the names in kafka.schema_registry.options, and that files of certificates can be read",
            ) from error

    def check(self, schema_type: SchemaType) -> None:
        """Checks that the registry answers and knows this type of schema. Raises UnreachableError, ConfigError."""
        known = self._ask("can't list its types of schemas", self._client.get_schema_types)
        if schema_type not in known:
            raise ConfigError(
                f"schema registry {self._config.url} knows the types {', '.join(sorted(known))}, and not {schema_type}",
                "choose another format.encoding or another registry",
            )

    def register(self, topic: str, part: Part, form: Form) -> int:
        """Implements Registry. With `use.latest.version` or without `auto.register.schemas` it only looks it up."""
        subject = self._config.subject(topic, form.name, part)
        with self._lock:
            if (known := self._ids.get((subject, form.schema))) is None:
                try:
                    known = self._ids[subject, form.schema] = self._registered(subject, form)
                except SchemaRefusedError:
                    log.warning("schema not in the registry", subject=subject, schema=form.schema)
                    raise
                self._schemas.setdefault(known, (form.schema_type, form.schema))
        return known

    def _registered(self, subject: str, form: Form) -> int:
        client, normal = self._client, self._config.normalize_schemas
        schema = Schema(form.schema, schema_type=form.schema_type)
        if self._config.use_latest_version:
            latest = self._ask(f"has no schema of subject {subject}", lambda: self._latest(subject))
            kind, text = _type_and_text(latest.schema)
            if kind != form.schema_type or not is_same_form(form.schema_type, text, form.schema):
                raise SchemaRefusedError(
                    f"the newest schema of subject {subject} in schema registry {self._config.url} (version "
                    f"{latest.version}) is not that of the table",
                    "register the table's schema, which capture's log has, or set use.latest.version to false",
                )
            return int(latest.schema_id or 0)
        if not self._config.auto_register_schemas:
            looked_up = self._ask(
                f"does not have the schema for subject {subject}",
                lambda: client.lookup_schema(subject, schema, normal),
            )
            return int(looked_up.schema_id or 0)
        return self._ask(
            f"refuses a schema for subject {subject}", lambda: client.register_schema(subject, schema, normal)
        )

    def newest(self, topic: str, part: Part, name: str) -> tuple[str, str] | None:
        """Implements Registry."""
        subject = self._config.subject(topic, name, part)

        def call() -> RegisteredSchema | None:
            try:
                return self._latest(subject)
            except SchemaRegistryError as error:
                if error.http_status_code == _NOT_FOUND:
                    return None
                raise

        found = self._ask(f"can't say what the newest schema of subject {subject} is", call)
        return None if found is None else _type_and_text(found.schema)

    def _latest(self, subject: str) -> RegisteredSchema:
        """Asks the registry itself: somebody may have registered another schema since. Raises SchemaRegistryError."""
        self._client.clear_latest_caches()  # type: ignore[no-untyped-call]
        return self._client.get_latest_version(subject)

    def fetch(self, schema_id: int) -> tuple[str, str]:
        """Implements Registry."""
        if (known := self._schemas.get(schema_id)) is None:
            what = f"has no schema with id {schema_id}"
            try:
                found = self._ask(what, lambda: self._client.get_schema(schema_id))
            except SchemaRefusedError as error:
                raise UnknownIdError(error.message, NEXT_AFTER_UNKNOWN_ID) from error
            known = self._schemas[schema_id] = _type_and_text(found)
        return known

    def _ask(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        """`what`: what a negative answer means, in words."""
        try:
            return call()
        except SchemaRegistryError as error:
            self._raise(what, error)
        except Exception as error:  # of the HTTP client, whose classes are not ours to know
            raise UnreachableError(
                f"schema registry {self._config.url} does not answer ({type(error).__name__}: {error})", NEXT_REACHABLE
            ) from error

    def _raise(self, what: str, error: SchemaRegistryError) -> NoReturn:
        status, answer = error.http_status_code, error.error_message
        if status in _PERMANENT:
            raise SchemaRefusedError(
                f"schema registry {self._config.url} {what}: {answer} ({error.error_code})", NEXT_REFUSED
            ) from error
        why = "refuses the credentials" if status in _DENIED else "has failed"
        raise UnreachableError(
            f"schema registry {self._config.url} {why}: {answer} (HTTP {status})", NEXT_REACHABLE
        ) from error


def _type_and_text(schema: Schema | None) -> tuple[str, str]:
    """`schema`: as the registry answers, which leaves out the type of Avro."""
    return ("AVRO", "") if schema is None else (schema.schema_type or "AVRO", schema.schema_str or "")


NEXT_AFTER_UNKNOWN_ID: Final = (
    "check that kafka.schema_registry is the registry with which the topic was written; restore it if schemas are lost"
)

_registries: dict[str, SchemaRegistry] = {}
_registries_lock = threading.Lock()


def registry_of(config: SchemaRegistryConfig) -> SchemaRegistry:
    """Returns the process's client of this registry. Raises ConfigError."""
    name = repr((sorted(config.client_options.items()), config.model_dump(exclude={"options"})))
    with _registries_lock:
        if name not in _registries:
            _registries[name] = SchemaRegistry(config)
        return _registries[name]
