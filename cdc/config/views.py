"""Section `views`: rows that one SQL query derives from captured tables, and the states that a function computes from
them (`fold`). Section `clock`: the minutes that have passed, as a table that views read. Pure."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from cdc.config.outbox_routing import is_topic
from cdc.config.section import Section
from cdc.config.store_types import AnyStore
from cdc.config.stores import SqlConfig, StoreConfig, WarehouseConfig
from cdc.model.events import TableId
from cdc.model.topics import Topics

_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_COLUMN: Final = re.compile(r"[^\W\d]\w{0,62}")
_TYPE: Final = re.compile(
    r'[A-Za-z_"][\w ".]*(\( *\d+ *(, *\d+ *)?\))?[\w ]*(\[\])*'
)  # such as timestamp(3) with time zone


class FoldConfig(Section):
    """The rows of the query are events. The function is applied to the events of each key, in their order."""

    function: str  # module:function; function(state, event) returns the state after the event
    order: Annotated[tuple[str, ...], Field(min_length=1)]  # columns of the query, unique within a key
    columns: Annotated[dict[str, str], Field(min_length=1)]  # of the state, with their PostgreSQL types

    @field_validator("function")
    @classmethod
    def _is_named(cls, function: str) -> str:
        if not _FUNCTION.fullmatch(function):
            raise ValueError(f"{function!r} does not name a function: write module:function, such as accounts:apply")
        return function

    @field_validator("order", "columns", mode="before")
    @classmethod
    def _names_are_texts(cls, names: object) -> object:
        if isinstance(names, list | dict) and any(isinstance(name, bool) for name in names):
            raise ValueError('YAML reads no, off, yes and on as false and true: write a column of this name as "no"')
        return names

    @field_validator("order")
    @classmethod
    def _order_differs(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(order)) != len(order):
            raise ValueError("a column is listed twice in order")
        return order

    @field_validator("columns")
    @classmethod
    def _columns_have_types(cls, columns: dict[str, str]) -> dict[str, str]:
        for name, type_name in columns.items():
            if not _COLUMN.fullmatch(name):
                raise ValueError(f"{name!r} can't be a column's name: letters, digits and _, 63 at most")
            if not _TYPE.fullmatch(type_name):
                raise ValueError(f"{name}: {type_name!r} is not the name of a PostgreSQL type, such as numeric(12,2)")
        return columns


MINUTES: Final = TableId("clock", "minutes")  # the name under which views read the table


class ClockConfig(Section):
    """The table `clock.minutes`, which `cdc view run` keeps in each base with a view that reads it."""

    days: Annotated[int, Field(ge=1, le=366)] = 7  # back to which it has a row for each minute; older ones are deleted


NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")  # it is part of names in the base and in the target


class TopicTarget(Section):
    """A compacted topic that holds a view: the last record of each key is its row."""

    type: Literal["topic"]  # a compacted topic instead of a store
    name: str | None = None  # default: <topics.prefix>.view.<name of the view>
    partitions: Annotated[int, Field(ge=1, le=1000)] | None = None  # default: topics.partitions
    replication_factor: Annotated[int, Field(ge=1, le=10)] | None = None  # default: topics.replication_factor

    @field_validator("name")
    @classmethod
    def _is_name(cls, name: str | None) -> str | None:
        if name is not None and not is_topic(name):
            raise ValueError(f"{name!r} can't be a topic's name: letters, digits, '.', _ and -, 249 at most")
        return name


if TYPE_CHECKING:
    AnyTarget = StoreConfig | TopicTarget
else:
    AnyTarget = Annotated[AnyStore | TopicTarget, Field(discriminator="type")]


class ViewConfig(Section):
    """One view."""

    base: str  # a sink of type sql on PostgreSQL, which keeps the tables that the query reads
    sql: str  # one SELECT in PostgreSQL's SQL, over the source's names of tables
    key: Annotated[tuple[str, ...], Field(min_length=1)]  # columns of the query, together unique and not null
    target: AnyTarget  # where the rows are kept: a section like a sink's, or a topic
    fold: FoldConfig | None = None  # the row of a key is a state, to which a function folds the query's rows
    keys_per_batch: Annotated[int, Field(ge=1, le=10_000)] = 200  # rows that are computed together

    @field_validator("key")
    @classmethod
    def _key_differs(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(key)) != len(key):
            raise ValueError("a column is in the key twice")
        return key

    @model_validator(mode="after")
    def _fold_has_other_columns(self) -> "ViewConfig":
        if self.fold and (doubled := [name for name in self.fold.columns if name in self.key]):
            raise ValueError(f"fold.columns: {doubled[0]} is a column of the key, which each row contains anyway")
        return self

    @model_validator(mode="after")
    def _can_be_written(self) -> "ViewConfig":
        if isinstance(self.target, TopicTarget):
            return self
        if isinstance(self.target, WarehouseConfig):
            for pattern, shape in self.target.shapes.items():
                if shape.mode != "current":
                    raise ValueError(
                        f"target.shapes.{pattern}.mode: a view can't have mode {shape.mode}, because successive "
                        "changes are computed as one: leave mode out, and keep the tables' history in a sink of type "
                        "warehouse"
                    )
            if self.target.tag_interval_s is not None:
                raise ValueError(
                    "target.tag_interval_s: a view's rows are not those of one position of the source: set it in a "
                    "sink of type warehouse"
                )
        if self.target.mapping:
            raise ValueError(
                "target.mapping is not for views: the query chooses columns and rows; leave the mapping out"
            )
        return self


def problem(views: Mapping[str, ViewConfig], sinks: Mapping[str, StoreConfig], topic_prefix: str) -> str | None:
    """Returns the first error of the views, given the sinks; None if there is none."""
    stores = [(f"the sink {name}", section, topic_prefix) for name, section in sinks.items()]
    for name, view in views.items():
        if not NAME.fullmatch(name):
            return f"{name!r} can't be a view's name: a lower-case letter, then letters, digits and _, 40 at most"
        base = sinks.get(view.base)
        if not isinstance(base, SqlConfig):
            return f"{name}.base: {view.base} is not a sink of type sql"
        if not base.url.get_secret_value().startswith(("postgresql:", "postgres:")):
            return f"{name}.base: the database of {view.base} is not PostgreSQL, which views need"
        if isinstance(view.target, TopicTarget):
            continue
        prefix = target_prefix(topic_prefix, name)
        places = set(view.target.store_names(prefix))
        for other, section, its_prefix in stores:
            if section.type == view.target.type and places & set(section.store_names(its_prefix)):
                return f"{name}.target shares its store with {other}: set another {view.target.names_option}"
        stores.append((f"the view {name}", view.target, prefix))
    return None


def view_topics(views: Mapping[str, ViewConfig], topic_prefix: str) -> dict[str, str]:
    """Returns the topics of the views that are kept in one."""
    topics = Topics(topic_prefix)
    return {
        name: view.target.name or topics.view(name)
        for name, view in views.items()
        if isinstance(view.target, TopicTarget)
    }


def target_prefix(topic_prefix: str, view: str) -> str:
    """Returns the prefix of all names in the view's target, unless its section sets another one."""
    return f"{topic_prefix}_{view}"
