"""The configuration file as YAML, before its keys are checked."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from cdc.model.errors import ConfigError


def read_config_file(path: Path) -> dict[str, Any]:
    """Returns the file's sections by name. Raises ConfigError that names the file and the place, never a value."""
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = yaml.load(text, _Loader)  # noqa: S506 a safe one, but for equal keys
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}", "name the file with --config FILE") from error
    except _EqualKeysError as error:
        raise ConfigError(
            f"{path}: key {error.problem} occurs twice, at line {_line(error.context_mark)} and at line "
            f"{_line(error.problem_mark)}",
            "remove one of them: YAML readers silently take the last one",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {_line(mark)}, column {mark.column + 1}" if mark else ""
        quotes = "; between { and }, a text with ${…} needs quotes" if "${" in text else ""
        raise ConfigError(f"{path} is not valid YAML{where}", f"correct the file's syntax{quotes}") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} has no sections", "`cdc init` writes a configuration; `cdc config schema` lists all keys"
        )
    return {str(section): values for section, values in content.items()}


class _EqualKeysError(ConstructorError):
    """`problem` is the key; `context_mark` its first place, `problem_mark` the second."""


class _Loader(yaml.SafeLoader):
    """A loader that refuses a mapping with equal keys, which YAML 1.2 forbids and PyYAML accepts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        first: dict[str, yaml.Mark] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in first:
                    raise _EqualKeysError(None, first[key.value], key.value, key.start_mark)
                first[key.value] = key.start_mark
        return super().construct_mapping(node, deep)


def _line(mark: yaml.Mark | None) -> int:
    return 0 if mark is None else mark.line + 1
