"""JSON Schemas of events. An event that does not match its type's schema becomes a dead letter, with the reason."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from cdc.model.errors import ConfigError
from cdc.outbox.router import Contract

DEPTH_MAX: Final = 6  # depth of the JSON path in a reason


def contract_of(schemas: Mapping[str, str]) -> Contract:
    """Returns the check of all events. `schemas`: event type → text of its JSON Schema, of the draft that it names
    (default 2020-12). Types without a schema may have any payload. Raises ConfigError for an invalid schema."""
    validators = {event_type: _validator(event_type, text) for event_type, text in schemas.items()}

    def complaint(event_type: str, payload: str | None) -> str | None:
        validator = validators.get(event_type)
        if validator is None:
            return None
        try:
            document = None if payload is None else json.loads(payload)
        except (ValueError, RecursionError):
            return "the payload is not JSON"
        try:
            error = best_match(validator.iter_errors(document))
        except RecursionError:
            return "the payload is nested too deeply"
        except Unresolvable:
            return "the contract refers to a schema that is not in its file"
        if error is None:
            return None
        # Names the rule and the path, but never the value.
        place = "/".join(str(step) for step in list(error.absolute_path)[:DEPTH_MAX])
        return f"{error.validator} is not met at /{place}"

    return complaint


def _validator(event_type: str, text: str) -> Validator:
    try:
        schema: Any = json.loads(text)
        if not isinstance(schema, dict | bool):
            raise ConfigError(f"outbox.contracts: {event_type}'s file holds no JSON Schema", "an object is one")
        kind = validator_for(schema)
        kind.check_schema(cast("dict[str, Any]", schema))
    except ValueError as error:
        raise ConfigError(f"outbox.contracts: {event_type}'s file is not JSON", "correct the file") from error
    except SchemaError as error:
        place = "/".join(map(str, error.absolute_path))
        raise ConfigError(
            f"outbox.contracts: {event_type}'s file is not a JSON Schema at /{place}", "correct the file"
        ) from error
    return kind(schema, registry=Registry())  # no schema is fetched from elsewhere
