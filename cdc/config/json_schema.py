"""The JSON Schema of the configuration file, for editors."""

from typing import Any, Final

from cdc.config.config_file import Config
from cdc.config.section import DebeziumSection
from cdc.config.store_types import SINK_TYPES, section_class

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def config_schema() -> dict[str, Any]:
    """Returns the schema of the file as the loader reads it: Debezium's options may have dots, and a sink that is named
    like a type needs no type."""
    schema = Config.model_json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    for name in (kind.__name__ for kind in DebeziumSection.__subclasses__()):
        if (section := definitions.get(name)) is not None:
            properties = section["properties"]
            dotted = {option.replace("_", "."): value for option, value in properties.items() if "_" in option}
            section["properties"] = properties | dotted
    sections = {name: section_class(name).__name__ for name in SINK_TYPES}
    for definition in sections.values():
        definitions[f"Typed{definition}"] = definitions[definition] | {
            "required": ["type", *definitions[definition].get("required", ())]
        }
    typed = {"oneOf": [{"$ref": f"#/$defs/Typed{definition}"} for definition in sections.values()]}
    schema["properties"]["sinks"] = {
        "title": "Sinks",
        "type": "object",
        "properties": {name: {"anyOf": [{"$ref": f"#/$defs/{sections[name]}"}, typed]} for name in SINK_TYPES},
        "additionalProperties": typed,
    }
    return {"$schema": DIALECT, **schema, "title": "Watershed"}
