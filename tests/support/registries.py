"""A schema registry in memory, which checks what Confluent's checks of Avro by default: the new schema reads what the
last one wrote."""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Literal

import fastavro

from cdc.formats.avro_json import without_logical_types
from cdc.formats.encodings import Form
from cdc.kafka.schema_registry import SchemaRefusedError
from cdc.model.errors import UnknownIdError, WatershedError

Sample = Callable[[Form], bytes]


class FakeRegistry:
    """Implements cdc.kafka.schema_registry.Registry."""

    def __init__(self) -> None:
        self.subjects: dict[str, list[tuple[int, str]]] = {}  # subject → id and schema of its versions
        self.schemas: dict[int, tuple[str, str]] = {}
        self.samples: dict[str, bytes] = {}  # subject → the content of one record, which every new schema must read
        self.failure: WatershedError | None = None  # raised by each call
        self.calls = 0

    def register(self, topic: str, part: Literal["key", "value"], form: Form) -> int:
        self._answer()
        subject = f"{topic}-{part}"
        versions = self.subjects.setdefault(subject, [])
        for schema_id, schema in versions:
            if schema == form.schema:
                return schema_id
        if versions and form.schema_type == "AVRO":
            self._require_compatible(subject, versions[-1][1], form.schema)
        schema_id = next((i for i, (_, known) in self.schemas.items() if known == form.schema), len(self.schemas) + 1)
        self.schemas[schema_id] = form.schema_type, form.schema
        versions.append((schema_id, form.schema))
        return schema_id

    def newest(self, topic: str, part: Literal["key", "value"], name: str) -> tuple[str, str] | None:  # noqa: ARG002
        self._answer()
        versions = self.subjects.get(f"{topic}-{part}")
        return self.schemas[versions[-1][0]] if versions else None

    def fetch(self, schema_id: int) -> tuple[str, str]:
        self._answer()
        try:
            return self.schemas[schema_id]
        except KeyError:
            raise UnknownIdError(f"no schema with id {schema_id}", "restore the registry") from None

    def _answer(self) -> None:
        self.calls += 1
        if self.failure is not None:
            raise self.failure

    def _require_compatible(self, subject: str, before: str, after: str) -> None:
        """By reading a record of the last schema with the new one, of which the test has noted one."""
        sample = self.samples.get(subject)
        if sample is None:
            return
        writer, reader = (fastavro.parse_schema(without_logical_types(json.loads(text))) for text in (before, after))
        try:
            fastavro.schemaless_reader(BytesIO(sample), writer, reader)
        except Exception as error:  # fastavro's errors have no common class
            raise SchemaRefusedError(f"the registry refuses a schema for {subject}: {error}", "allow it") from error
