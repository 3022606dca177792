"""The base of the sections of the configuration."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """The base of a section. Unknown names are errors, and errors do not show values, which may be secrets."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class DebeziumSection(Section):
    """A section whose options may also be written with Debezium's dots."""

    @model_validator(mode="before")
    @classmethod
    def _debeziums_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        dotted = {str(name).replace(".", "_"): value for name, value in values.items() if "." in str(name)}
        return dotted | {name: value for name, value in values.items() if "." not in str(name)}
