"""The configuration as it is in effect, with secrets hidden, and where each value came from."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from cdc.config.config_file import Config
from cdc.config.interpolation import is_left_as_is, variables
from cdc.config.secret_files import secret_files
from cdc.config.settings import ENV_PREFIX
from cdc.config.yaml_file import read_config_file

HIDDEN: Final = "**********"  # what pydantic shows for a secret, too
DEFAULT: Final = "default"
FILE: Final = "file"
# Options of other programs are texts; those with such names are secrets of theirs.
_SECRET_NAME: Final = re.compile(r"secret|password|passwd|token|credential|access[._-]?key|api[._-]?key", re.IGNORECASE)

Place = tuple[str, ...]


class Value(NamedTuple):
    """One option: a text, a number, a list, null, or an empty map."""

    place: Place  # section and keys
    value: Any
    origin: str  # default, file, file ${NAME}, the name of a variable of the environment, or of a secret file

    @property
    def is_default(self) -> bool:
        return self.origin == DEFAULT


def effective_values(
    config: Config, sections: Mapping[str, Any], environment: Mapping[str, str], secrets: Mapping[str, str]
) -> Iterator[Value]:
    """Yields all options in the order of the file's sections. `sections`: as they are in the file, before variables are
    replaced; a value that a variable is part of is shown as it is there, because it may be a secret. `secrets`: secret
    files by name."""
    named = {name.upper(): name for name in environment if name.upper().startswith(ENV_PREFIX)}
    files = {name.upper(): f"secret file {name}" for name in secrets}
    for place, value in _leaves((), config.model_dump(mode="json", by_alias=True)):
        given = _override(place, {**files, **named})
        if given is not None:
            yield Value(place, _shown(place, value), given)
            continue
        is_there, written = _in_file(place, sections)
        used = [] if is_left_as_is(place) else sorted(set(variables(written)))
        if used:
            shown = value if value == HIDDEN else written if isinstance(written, str) else HIDDEN
            yield Value(place, shown, f"{FILE} {' '.join('${' + name + '}' for name in used)}")
        else:
            yield Value(place, _shown(place, value), FILE if is_there else DEFAULT)


def effective_options(
    config: Config, file: Path, environment: Mapping[str, str], *, is_changed: bool = False
) -> dict[str, Any]:
    """Returns what `cdc config show --json` prints. `is_changed`: only options that are not left at their default.
    Raises ConfigError."""
    found = values_of_file(config, file, environment)
    return {
        "file": str(file),
        "options": {
            ".".join(one.place): {"value": one.value, "from": one.origin}
            for one in found
            if not (is_changed and one.is_default)
        },
    }


def values_of_file(config: Config, file: Path, environment: Mapping[str, str]) -> Iterator[Value]:
    """Yields all options of a configuration that was read from this file. Raises ConfigError."""
    return effective_values(config, read_config_file(file), environment, secret_files(environment, ENV_PREFIX))


def _leaves(place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _leaves((*place, str(name)), one)
    else:
        yield place, value


def _shown(place: Place, value: Any) -> Any:
    """Hides what is a secret by its name in a map of another program's options."""
    is_option = "options" in place[:-1] or "properties" in place[:-1] or "settings" in place[:-1]
    return HIDDEN if is_option and isinstance(value, str) and _SECRET_NAME.search(place[-1]) else value


def _override(place: Place, named: Mapping[str, str]) -> str | None:
    """Returns the variable or the secret file that gives this option, or a section around it."""
    names = (ENV_PREFIX + "__".join(place[:length]).upper() for length in range(len(place), 1, -1))
    return next((named[name] for name in names if name in named), None)


def _in_file(place: Place, sections: Any) -> tuple[bool, Any]:
    """Returns whether the option is in the file, and as what. Debezium's options may have dots there."""
    found = sections
    for name in place:
        if not isinstance(found, Mapping):
            return True, found
        key = next((key for key in found if str(key) == name or str(key).replace(".", "_") == name), None)
        if key is None:
            return False, None
        found = found[key]
    return True, found
