"""The registry of stores: which section of the configuration each type of store has.

A store of ours is a folder of `sinks/`, a line in STORES here and a function in `sinks/registry.py`. A store of another
package is a StoreType, named in that package's pyproject.toml in the table `project.entry-points."watershed.stores"`;
`docs/examples/jsonlines` is one.
"""

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, Final, Union

from pydantic import BeforeValidator, Field

from cdc.config.stores import CacheConfig, SearchConfig, SqlConfig, StoreConfig, StoreType, WarehouseConfig
from cdc.model.suggestions import did_you_mean

GROUP: Final = "watershed.stores"
STORES: Final[Mapping[str, type[StoreConfig]]] = {
    "search": SearchConfig,
    "cache": CacheConfig,
    "warehouse": WarehouseConfig,
    "sql": SqlConfig,
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")  # as a topic prefix: it is part of topics' and folders' names


def _installed() -> tuple[dict[str, StoreType], dict[str, str]]:
    """Returns the types of other packages; and why others can't be used, by type."""
    found: dict[str, StoreType] = {}
    broken: dict[str, str] = {}
    for entry in entry_points(group=GROUP):
        where = f"its package says {entry.value}"
        try:
            store = entry.load()
        except Exception as error:  # noqa: BLE001  code of another package; reported when the type is used
            broken[entry.name] = f"{where}, which can't be imported: {type(error).__name__}: {error}"
            continue
        default = store.section.model_fields.get("type") if isinstance(store, StoreType) else None
        if default is None or default.default != entry.name or entry.name in STORES:
            broken[entry.name] = f"{where}, which is not a StoreType whose section has the new type {entry.name!r}"
            continue
        found[entry.name] = store
    return found, broken


PLUGINS, _BROKEN = _installed()
_SECTIONS: Final = {**STORES, **{name: store.section for name, store in PLUGINS.items()}}
SINK_TYPES: Final = tuple(_SECTIONS)


def section_class(store_type: str) -> type[StoreConfig]:
    """Returns the class of a known type's section."""
    return _SECTIONS[store_type]


def _with_types(sinks: Any) -> Any:
    """A sink that is named like a type has that type."""
    if not isinstance(sinks, dict):
        return sinks
    typed: dict[str, Any] = {}
    for name, section in sinks.items():
        if not _NAME.fullmatch(str(name)):
            raise ValueError(f"{name!r} can't be a sink's name: letters, digits, _ and -, 100 at most")
        if section is None and name in SINK_TYPES:
            continue
        if isinstance(section, dict) and "type" not in section:
            if name not in SINK_TYPES:
                raise ValueError(f"{name} needs a type: {', '.join(SINK_TYPES)}{did_you_mean(name, SINK_TYPES)}")
            section = {"type": name, **section}
        if isinstance(section, dict) and section["type"] == "topic":
            raise ValueError(
                f"{name}: type topic is for the target of a view: capture writes the topics of tables, so no sink does"
            )
        if isinstance(section, dict) and (problem := _BROKEN.get(str(section["type"]))):
            raise ValueError(f"{name}: type {section['type']} can't be used: {problem}")
        typed[str(name)] = section
    return typed


if TYPE_CHECKING:
    AnyStore = StoreConfig
else:
    AnyStore = Annotated[Union[tuple(_SECTIONS.values())], Field(discriminator="type")]  # noqa: UP007

SinksConfig = Annotated[dict[str, AnyStore], BeforeValidator(_with_types)]
