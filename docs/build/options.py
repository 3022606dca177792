"""The options of the configuration, read from its models: name, type, default and meaning.

The meaning is that of `meanings.yml`. An option that it does not have takes the comment beside the key in
`deploy/watershed.example.yml`, else the one beside the field in its model.
"""

import inspect
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretStr
from pydantic_core import PydanticUndefined

from cdc.config.config_file import Config
from cdc.config.event_logs import EventLogConfig
from cdc.config.section import DebeziumSection
from cdc.config.store_types import SINK_TYPES, section_class
from cdc.config.views import TopicTarget, ViewConfig

EXAMPLE: Final = Path(__file__).parents[2] / "deploy/watershed.example.yml"
MEANINGS: Final = Path(__file__).with_name("meanings.yml")
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[a-z][\w.]*):(?P<rest>.*)$")
_COMMENT = re.compile(r"(?:^|\s)# ?(?P<text>.*)$")
_NAMES: Final = {"users": "<user>", "pipelines": "<pipeline>"}  # of sections whose names users choose
_TYPE_NAMES: Final = {str: "text", int: "integer", float: "number", bool: "boolean", SecretStr: "text, secret"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a section."""

    name: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True, slots=True)
class SectionOptions:
    """A section, or the options of each table in a sink's `shapes` or `mapping`."""

    path: str
    meaning: str
    options: tuple[Option, ...]


def sections() -> tuple[SectionOptions, ...]:
    """Returns every section in the order of the file, the sinks' by their type."""
    comments = example_comments(EXAMPLE.read_text(encoding="utf-8"))
    comments |= yaml.safe_load(MEANINGS.read_text(encoding="utf-8"))
    found: list[SectionOptions] = []
    for name, field in Config.model_fields.items():
        if name == "sinks":
            for kind in SINK_TYPES:
                found += _section(f"sinks.{kind}", section_class(kind), comments)
        elif name == "views":  # the target's options are those of the sinks
            found += [one for one in _section("views.<name>", ViewConfig, comments) if ".target" not in one.path]
            found += _section("views.<name>.target (type: topic)", TopicTarget, comments)
        elif name == "event_logs":
            found += _section("event_logs.<name>", EventLogConfig, comments)
        else:
            model = _model_in(field.annotation)
            assert model is not None, "the file has nothing but sections"
            found += _section(name, model, comments)
    return tuple(found)


def example_comments(text: str) -> dict[str, str]:
    """Returns the comment of each key of the example, with its following lines, by the key's path."""
    found: dict[str, list[str]] = {}
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        comment = _COMMENT.search(line)
        if key := _KEY.match(line.split(" #")[0] if " #" in line else line):
            indent = len(key["indent"])
            path = [*((depth, name) for depth, name in path if depth < indent), (indent, key["key"])]
            found[".".join(name for _, name in path)] = [comment["text"].strip()] if comment else []
        elif comment and path and line.index("#") > path[-1][0]:  # others show a section that is left out
            found[".".join(name for _, name in path)].append(comment["text"].strip())
    return {name: " ".join(filter(None, lines)) for name, lines in found.items()}


def field_comments(model: type[BaseModel]) -> Mapping[str, str]:
    """Returns the comments beside and above the fields of a model, and of those that it inherits from."""
    found: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        if not issubclass(parent, BaseModel) or parent is BaseModel or parent.__module__.startswith("pydantic"):
            continue
        above: list[str] = []
        for line in inspect.getsource(parent).splitlines():
            comment = _python_comment(line)
            if field := re.match(r"    (\w+): ", line):
                text = " ".join([*above, *([comment] if comment else [])])
                if text:
                    found[field[1]] = text
            above = [*above, comment or ""] if line.strip().startswith("#") else []
    return found


def _python_comment(line: str) -> str | None:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(line.strip() + "\n").readline))
    except (tokenize.TokenError, IndentationError):  # a line of a statement of several lines
        return None
    return next((token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT), None)


def _section(path: str, model: type[BaseModel], comments: Mapping[str, str]) -> Iterator[SectionOptions]:
    nested: list[SectionOptions] = []
    options: list[Option] = []
    beside = field_comments(model)
    for name, field in model.model_fields.items():
        shown = field.alias or (name.replace("_", ".") if issubclass(model, DebeziumSection) and "_" in name else name)
        inner = _model_in(field.annotation)
        meaning = _meaning(f"{path}.{shown}", comments) or beside.get(name, "")
        is_map = get_origin(_without_none(field.annotation)) is dict
        if inner is not None:
            place = f"{path}.{shown}.{_NAMES.get(shown, '<table>')}" if is_map else f"{path}.{shown}"
            nested += _section(place, inner, comments)
            meaning = meaning or f"see `{place}`"
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        options.append(Option(shown, type_name(field.annotation, field.metadata), default, meaning))
    yield SectionOptions(path, inspect.getdoc(model) or "", tuple(options))
    yield from nested


def _meaning(path: str, comments: Mapping[str, str]) -> str:
    """The comment of this path, else that of a pattern."""
    matching = (text for pattern, text in comments.items() if "*" in pattern and fnmatchcase(path, pattern))
    return comments.get(path) or next(matching, "")


def _default(value: Any) -> str:
    match value:
        case None:
            return "none"
        case _ if value is PydanticUndefined:
            return "required"
        case bool():
            return f"`{str(value).lower()}`"
        case BaseModel():
            return "its defaults"
        case tuple() | list() | dict() if not value:
            return "none"
        case _:
            return f"`{value}`"


def type_name(annotation: Any, metadata: list[Any] | tuple[Any, ...] = ()) -> str:
    """Returns the type in words, with its limits."""
    limits = [
        f"{text} {value}"
        for text, name in (("at least", "ge"), ("more than", "gt"), ("at most", "le"))
        for one in metadata
        if (value := getattr(one, name, None)) is not None
    ]
    if hasattr(annotation, "__metadata__"):
        return type_name(annotation.__origin__, annotation.__metadata__)
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if get_origin(annotation) in (tuple, list):
        return f"list of {type_name(arguments[0])}"
    if get_origin(annotation) is dict:
        return f"map of {type_name(arguments[0])} to {type_name(arguments[1])}"
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        return " or ".join(type_name(one, metadata) for one in arguments if one is not type(None))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return " ".join([_TYPE_NAMES.get(annotation, "any value"), ", ".join(limits)]).strip()


def _without_none(annotation: Any) -> Any:
    left = [one for one in get_args(annotation) if one is not type(None)]
    is_optional = len(left) == 1 and len(get_args(annotation)) > 1
    return left[0] if is_optional else annotation


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of an option that is a section, a list of sections, or a map from names to sections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for one in get_args(annotation) if (found := _model_in(one)) is not None), None)
