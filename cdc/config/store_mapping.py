"""The mapping of one sink: which tables it holds, with which rows and columns. Pure.

Names of tables are patterns: `*` stands for any characters, `?` for one, `[ab]` for one of several; the pattern has to
match the whole of `schema.table`. If several entries of `mapping` match a table, the first in the file applies; entries
are not merged.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, field_validator, model_validator

from cdc.config.masking import Mask, MaskOptions
from cdc.config.row_condition import BeyondGrammarError, parse_condition
from cdc.config.row_functions import row_function
from cdc.config.section import Section
from cdc.config.table_choice import is_pattern, matches, pattern_of, require_patterns
from cdc.model.events import TableId

BIGINT: Final = 1 << 63


class StoreMasks(MaskOptions):
    """Masks for text that this store must not hold in clear. Columns have the source's names."""

    def masks(self, table: TableId) -> tuple[Mask, ...]:
        return self.masks_of(lambda name: (table, name))


class TableMapping(Section):
    """The mapping of some tables' rows in one store. Columns have the source's names, except for the new ones."""

    include: tuple[str, ...] | None = None  # these and the key's; None: all
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = Field(default_factory=dict)  # source's name → store's
    constants: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr] = Field(default_factory=dict)
    # Further columns, each with an SQL expression over the row; see sinks.shaping.expressions
    computed: dict[str, StrictStr] = Field(default_factory=dict)
    # The name of a Python function that computes further columns, or leaves the row out; see cdc.config.row_functions
    function: str | None = None
    # How long the function may take for a row. If it takes longer, the row is a dead letter.
    function_time_limit_s: Annotated[float, Field(gt=0, le=600)] = 5.0
    # Rows that the store holds; see cdc.config.row_condition, and sinks.shaping.expressions for what it can't read.
    where: str | None = None
    mask: StoreMasks = StoreMasks()
    as_text: tuple[str, ...] = ()  # columns whose values the store keeps as text: it can then hold every one of them
    # Columns that are null for values that most stores' types lack; the store's column <column>_not_held says so.
    as_null: tuple[str, ...] = ()

    @field_validator("where")
    @classmethod
    def _is_condition(cls, where: str | None) -> str | None:
        if where is not None:
            with suppress(BeyondGrammarError):  # an expression is checked where the table's columns are known
                parse_condition(where)
        return where

    @field_validator("constants")
    @classmethod
    def _fit(cls, constants: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
        for name, value in constants.items():
            if type(value) is int and not -BIGINT <= value < BIGINT:
                raise ValueError(f"the constant {name} does not fit in 64 bits: write it as a text")
            if type(value) is float and value - value != 0:
                raise ValueError(f"the constant {name} is not a finite number: write it as a text")
        return constants

    @model_validator(mode="after")
    def _names_are_clear(self) -> Self:
        if self.include is not None and (both := set(self.include) & set(self.exclude)):
            raise ValueError(f"column {min(both)} is both included and excluded")
        if left_out := set(self.rename) & set(self.exclude):
            raise ValueError(f"column {min(left_out)} is both excluded and renamed")
        if both := set(self.as_text) & set(self.as_null):
            raise ValueError(f"column {min(both)} is in as_text and in as_null")
        if self.function is None and "function_time_limit_s" in self.model_fields_set:
            raise ValueError("function_time_limit_s is for function")
        targets = [*self.rename.values(), *self.constants, *self.computed]
        if twice := {name for name in targets if targets.count(name) > 1}:
            raise ValueError(f"two columns would be named {min(twice)}")
        if "" in targets:
            raise ValueError("a column needs a name")
        return self

    def stores(self, column: str) -> bool:
        """Says whether the store has this column, which is not of the key."""
        return (self.include is None or column in self.include) and column not in self.exclude

    def reshapes(self, column: str) -> bool:
        """Says whether the store has other values of the column than the source."""
        return column in (*self.mask.columns, *self.as_text, *self.as_null)

    @property
    def is_identity(self) -> bool:
        """Says whether rows stay as they are."""
        return self == IDENTITY

    def to_json(self) -> str:
        """Returns the mapping for `parsed`, without the key of hashes."""
        return self.model_dump_json(exclude={"mask": {"hash_key"}}, exclude_defaults=True)

    @classmethod
    def parsed(cls, text: str, mask: StoreMasks) -> Self:
        """Returns a mapping from its JSON form. `mask`: has the key of its hashes. Raises ValueError."""
        content = json.loads(text)
        if mask.hash_key is not None and (held := content.get("mask")):
            held["hash_key"] = mask.hash_key.get_secret_value()
        return cls.model_validate(content)

    def fingerprint(self) -> str:
        """Returns a digest that differs for mappings that make different rows. Raises ConfigError for a function that
        is not installed."""
        content = self.model_dump(mode="json", exclude={"mask": {"hash_key"}, "function_time_limit_s": True})
        content["exclude"] = sorted(self.exclude)
        content["include"] = None if self.include is None else sorted(self.include)
        if self.function is not None:
            content["function"] = [self.function, row_function(self.function).version]
        for option in ("as_null", "computed", "function"):  # mappings from before these options keep their fingerprints
            if not content[option]:
                del content[option]
        key = self.mask.hash_key.get_secret_value().encode() if self.mask.hash_key else b""
        return hmac.digest(key, json.dumps(content, sort_keys=True).encode(), hashlib.sha256).hex()[:32]


IDENTITY: Final = TableMapping()


class StoredTables(Section):
    """The tables that a store holds, and their mappings."""

    tables: tuple[str, ...] = ("*",)  # patterns over schema.table
    exclude_tables: tuple[str, ...] = ()  # likewise: captured, but not in this store
    mapping: dict[str, TableMapping] = Field(default_factory=dict)  # pattern → shape; the first that matches counts

    @field_validator("tables", "exclude_tables")
    @classmethod
    def _are_names(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        require_patterns(patterns)
        return patterns

    @field_validator("mapping", mode="before")
    @classmethod
    def _sections(cls, mapping: Any) -> Any:
        """A table whose rows stay as they are may be there without a section."""
        if isinstance(mapping, dict):
            require_patterns(map(str, mapping))
            return {pattern: {} if section is None else section for pattern, section in mapping.items()}
        return mapping

    def holds(self, table: TableId) -> bool:
        return any(matches(pattern, table) for pattern in self.tables) and not any(
            matches(pattern, table) for pattern in self.exclude_tables
        )

    @property
    def excluded_names(self) -> frozenset[str]:
        """Returns the entries of exclude_tables that are names of one table."""
        return frozenset(pattern for pattern in self.exclude_tables if not is_pattern(pattern))

    def mapped(self, table: TableId) -> tuple[str, TableMapping]:
        """The entry for the table: its pattern, and its mapping. Of a table without an entry rows stay as they are."""
        return next(((p, entry) for p, entry in self.mapping.items() if matches(p, table)), (str(table), IDENTITY))

    @property
    def function_versions(self) -> dict[str, str]:
        """The versions of the mappings' functions, by name. Raises ConfigError for one that is not installed."""
        names = {entry.function for entry in self.mapping.values() if entry.function is not None}
        return {name: row_function(name).version for name in sorted(names)}

    def with_mappings(self, mappings: Mapping[TableId, TableMapping]) -> Self:
        """Returns a copy in which these tables have other mappings."""
        entries = {pattern_of(table): entry for table, entry in mappings.items()}
        return self.model_copy(update={"mapping": entries | self.mapping})

    def only(self, tables: Iterable[TableId]) -> Self:
        """Returns a copy that holds these tables only."""
        return self.model_copy(update={"tables": tuple(map(pattern_of, tables))})

    def fingerprints(self, tables: Iterable[TableId]) -> dict[str, str]:
        """Returns the fingerprints of tables whose rows do not stay as they are, by schema.table."""
        mapped = ((table, self.mapped(table)[1]) for table in tables)
        return {str(table): entry.fingerprint() for table, entry in mapped if not entry.is_identity}
