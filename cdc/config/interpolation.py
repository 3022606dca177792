"""`${NAME}` in values of the configuration file stands for a variable of the environment, and `$${` for `${`.

Values are replaced after the file was read as YAML: no variable can add keys, and a value stays one text, whatever it
contains. Where a number or true and false is needed, the text is read as one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cdc.model.errors import ConfigError
from cdc.model.suggestions import did_you_mean

_REFERENCE: Final = re.compile(r"\$(\$?)\{([^}]*)(\}?)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Its own syntax is the same: ${routedByValue} is a group of route.topic.regex, as in Debezium's router.
_LEFT_AS_IS: Final = "route.topic.replacement"
_ESCAPE: Final = "write $${ for the text ${ itself"


def interpolated(path: Path, sections: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the sections with their variables replaced. Raises ConfigError that names the file, the key and the
    variable, never a value."""
    try:
        return {name: _replaced(path, (name,), value, environment) for name, value in sections.items()}
    except RecursionError:
        raise ConfigError(
            f"{path}: a section contains itself, by an alias", "write out what the alias (* and a name) stands for"
        ) from None


def is_left_as_is(place: Sequence[str]) -> bool:
    """Says whether an option's value has a syntax of its own that is like ours."""
    return ".".join(place).replace("_", ".").endswith(_LEFT_AS_IS)


def variables(value: Any) -> Iterator[str]:
    """Yields the names of the variables in a text, a list or a section as it is in the file."""
    match value:
        case str():
            yield from (found[2] for found in _REFERENCE.finditer(value) if not found[1])
        case dict():
            for one in value.values():
                yield from variables(one)
        case list():
            for one in value:
                yield from variables(one)


def _replaced(path: Path, place: tuple[str, ...], value: Any, environment: Mapping[str, str]) -> Any:
    match value:
        case str() if is_left_as_is(place):
            return value
        case str() if "${" in value:
            return _REFERENCE.sub(lambda found: _value(path, place, found, environment), value)
        case dict():
            return {name: _replaced(path, (*place, str(name)), one, environment) for name, one in value.items()}
        case list():
            return [_replaced(path, (*place, str(n)), one, environment) for n, one in enumerate(value)]
    return value


def _value(path: Path, place: tuple[str, ...], found: re.Match[str], environment: Mapping[str, str]) -> str:
    if found[1]:
        return found[0][1:]
    key, name = f"{path}: {'.'.join(place)}", found[2]
    if not found[3] or not _NAME.fullmatch(name):  # what follows ${ may be part of a secret, and is not shown
        raise ConfigError(f"{key}: ${{ is not followed by a variable's name and }}", _ESCAPE)
    if name not in environment:
        raise ConfigError(
            f"{key}: the environment has no variable {name}{did_you_mean(name, environment)}",
            f"set {name} where the process starts; or {_ESCAPE}",
        )
    return environment[name]
