"""The base of the sections of the configuration."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, model_validator


class Section(BaseModel):
    """The base of a section. Unknown names are errors, and errors do not show values, which may be secrets."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _text(value: Any) -> Any:
    """Returns a number or a truth value as the text that Java and librdkafka read."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_Scalar = str | int | float | bool
OptionText = Annotated[str, BeforeValidator(_text, json_schema_input_type=_Scalar)]
"""The value of another program's option: a text, a number, or true and false."""
SecretOption = Annotated[SecretStr, BeforeValidator(_text, json_schema_input_type=_Scalar)]


class DebeziumSection(Section):
    """A section whose options may also be written with Debezium's dots."""

    @model_validator(mode="before")
    @classmethod
    def _debeziums_names(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        dotted = {str(name).replace(".", "_"): value for name, value in values.items() if "." in str(name)}
        return dotted | {name: value for name, value in values.items() if "." not in str(name)}
