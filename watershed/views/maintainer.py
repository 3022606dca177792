"""Keeps one view equal to its query: changed rows → affected keys → their rows computed now → guarded writes.

A row is computed from the base's tables as they are at that moment, and written with a version that was drawn before.
So of two computations of one key the later one wins in the target, whichever is written last, and each step may be done
again after a crash. An affected key is forgotten only after its row was written.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final

import structlog

from cdc.config.event_logs import SCHEMA_OF_LOGS
from cdc.config.format_options import READABLE
from cdc.config.stores import CacheConfig
from cdc.config.views import MINUTES, ViewConfig
from cdc.formats.profiles import column_formats
from cdc.model.errors import ConfigError
from cdc.model.events import Column, TableSchema, pack_version
from sinks.contract import Change, Json, Outcome
from sinks.errors import SinkError
from sinks.records import decode_json
from sinks.row_errors import apply_each
from watershed.views.base import KEY_TOO_LONG, Base, is_too_long, not_deterministic, shortened
from watershed.views.connection import Key, Texts
from watershed.views.definition import ViewDefinition
from watershed.views.fold import fold_of
from watershed.views.parsing import named_tables
from watershed.views.states import ViewState
from watershed.views.target import Gathering, TargetGenerations, ViewTarget
from watershed.views.tracing import trace

log = structlog.get_logger(__name__)

IDLE_WAIT_S: Final = 1.0
TARGET_CHECK_S: Final = 3.0  # how soon it is noticed that the target has lost its rows
REJECTED_MAX: Final = 10_000  # keys of a filling that are noted with their reasons; the log has the number of all
SWAP_RETRY_S: Final = 30.0  # how long a filled generation follows its base before it is tried again to let it serve
_FOLLOWING: Final = ("serving", "filled")  # states of a view whose rows are all there
_EPOCH: Final = 1  # of versions: numbers of computations never begin again


def define(name: str, config: ViewConfig, base: Base) -> ViewDefinition:
    """Returns the view over its base as it is now. Raises ConfigError for a view that can't be maintained, SinkError
    while its base lacks tables that its sink has yet to prepare."""
    places = base.places()
    missing = [table for table in named_tables(name, config.sql) if table in base.kept and table not in places]
    if log := next((table.name for table in missing if table.schema == SCHEMA_OF_LOGS), None):
        raise SinkError(f"view {name}: nothing has loaded the event log {log} yet", f"cdc view run {log}")
    if MINUTES in missing:
        raise SinkError(f"view {name}: no job has created {MINUTES} in its base yet", f"cdc view run {name}")
    if not places:
        raise SinkError(f"view {name}: its base {config.base} holds no tables yet", f"cdc sink run {config.base}")
    if missing:
        raise SinkError(
            f"view {name}: the sink of its base {config.base} has not prepared {missing[0]} yet",
            f"cdc sink run {config.base}",
        )
    columns = base.columns(places)
    if gone := next((table for table in named_tables(name, config.sql) if columns.get(table) == {}), None):
        raise SinkError(
            f"view {name}: table {gone} no longer exists in its base {config.base}",
            f"restart its sink {config.base}, which fills the table; the job tries again, and the former rows of the "
            "view serve until then",
        )
    named = {table: list(names) for table, names in columns.items()}
    query = trace(name, config.sql, config.key, named)
    if aggregates := base.aggregates(sorted(query.key_functions)):
        raise ConfigError(f"view {name}: {aggregates[0]}() computes its key from many rows", "choose another key")
    if changing := base.changing(sorted(query.functions)):
        raise not_deterministic(name, changing[0])
    held = {table: places[table] for table in query.tables}
    fold = None if config.fold is None else fold_of(name, query, config.sql, config.fold, named)
    if fold and (aggregates := base.aggregates(sorted(query.functions))):
        raise ConfigError(
            f"view {name}: {aggregates[0]}() makes one row of several events", "fold the events themselves"
        )
    return base.with_read_columns(ViewDefinition(name, config, query, held, columns, fold))


def locked_elsewhere(kind: str, name: str) -> SinkError:
    return SinkError(
        f"{kind} {name}: another process runs it",
        "nothing to do: this process takes over when the other ends; or stop one of them",
    )


class RowEncoder:
    """Converts rows of a view to the JSON form that stores receive."""

    def __init__(self, definition: ViewDefinition, columns: Sequence[Column]) -> None:
        table, key = definition.table, definition.config.key
        self.schema = TableSchema(table, 1, 0, tuple(columns), key, f"views.{definition.name}")
        self._names = [column.name for column in columns]
        self._encoders = [one.form.encode for one in column_formats(self.schema, READABLE)]
        self._key_places = [self._names.index(name) for name in key]

    @property
    def key_types(self) -> list[str]:
        """The SQL types of the key's columns."""
        return [self.schema.columns[place].type_name for place in self._key_places]

    def key_of(self, row: Texts) -> Key:
        """The key's texts in a row."""
        return tuple(row[place] or "" for place in self._key_places)

    def change(self, key: Key, row: Texts | None, version: int) -> Change:
        """Returns the row of this key as it is now, or None."""
        encoded = {
            name: self._value(place, text)
            for name, place, text in zip(self.schema.key, self._key_places, key, strict=True)
        }
        values = None
        if row is not None:
            values = {
                name: self._value(place, text) for place, (name, text) in enumerate(zip(self._names, row, strict=True))
            }
        return Change(self.schema.table, encoded, pack_version(_EPOCH, version), values, self.schema.version)

    def _value(self, place: int, text: str | None) -> Json:
        encode = self._encoders[place]
        if text is None or encode is None:
            return None
        return decode_json(encode(text).encode())


class ViewMaintainer:
    """One view, kept by this object alone: its connection to the base has the view's lock."""

    def __init__(
        self,
        definition: ViewDefinition,
        base: Base,
        open_target: Callable[[], ViewTarget],
        wait_for_base: Callable[[], None],
        gathering: Gathering | None = None,
        generations: TargetGenerations | None = None,
    ) -> None:
        """`wait_for_base` returns when the base shows everything that the source has committed by now. `gathering`:
        when keys are written; None: each batch at once. `generations`: None for a target that holds only one, in which
        a changed view replaces its rows one by one. Raises SinkError if another process keeps the view."""
        self._definition = definition
        self._base = base
        self._wait_for_base = wait_for_base
        self._gathering = gathering or Gathering(definition.config.keys_per_batch)
        base.install()
        if not base.lock(definition.name):
            raise locked_elsewhere("view", definition.name)
        self._encoder = RowEncoder(definition, base.described(definition))
        self._open_target = open_target
        self._generations = generations
        self._is_beside = False  # whether the target is a generation that readers don't see yet
        self._target = open_target()
        self._target_checked_s = self._swap_due_s = time.monotonic()

    def close(self) -> None:
        self._target.close()

    def start(self) -> None:
        """Prepares the target, and fills the view where it is not known to be whole."""
        known = self._base.state(self._definition.name)
        state = self._prepared(known)
        self._base.note(self._definition.name, state)
        if state.state not in _FOLLOWING or not self._base.has_triggers(self._definition):
            self._fill(state)

    def step(self) -> bool:
        """Does what there is to do. Returns False if there was nothing, or if keys wait for others to be written
        with them."""
        name = self._definition.name
        state = self._base.state(name)
        if state is None or state.state not in _FOLLOWING or not self._base.has_triggers(self._definition):
            self._fill(state or self._prepared(None))
            return True
        has_done = self._follow(state)
        if state.state != "filled" or (has_done and time.monotonic() < self._swap_due_s):
            return has_done
        self._serve(state)
        return True

    def _follow(self, state: ViewState) -> bool:
        """Computes the keys that changes concern. Returns as `step`."""
        self._check_target(state)
        self._base.check_shape(self._definition)
        collected = self._base.collect(self._definition, self._encoder.key_types)
        if not self._gathering.is_due():
            return collected > 0
        keys = self._base.keys(self._definition, self._gathering.keys_max)
        if not keys:
            return collected > 0
        self._gathering.begin(len(keys))
        rejected: dict[Key, str] = {}
        for start in range(0, len(keys), self._definition.config.keys_per_batch):
            rejected |= self._computed(keys[start : start + self._definition.config.keys_per_batch])
        self._target.make_readable([self._definition.table])
        self._base.written(self._definition.name, keys, rejected)
        return True

    def _computed(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        """Computes the rows of these keys and has the target take them. Returns the keys that have no row in it though
        they should, with the reason."""
        (version,) = self._base.versions()
        rows, failed = self._base.rows_of(self._definition, self._encoder.key_types, keys)
        changes = [self._encoder.change(key, row, version) for key, row in rows.items()]
        return failed | dict(self._apply(list(rows), changes))

    def wait(self) -> None:
        """Waits until a base table changes, or a second has passed."""
        self._base.wait(IDLE_WAIT_S)

    def _check_target(self, state: ViewState) -> None:
        """Raises SinkError if the target no longer holds what was written: a view without changes would never notice
        it."""
        if time.monotonic() - self._target_checked_s < TARGET_CHECK_S:
            return
        if self._target.generation() != state.generation:
            raise SinkError(
                f"view {self._definition.name}: its target has lost rows: it no longer holds generation "
                f"{state.generation}",
                "nothing to do: the view is filled again",
            )
        self._target_checked_s = time.monotonic()

    def _prepared(self, known: ViewState | None) -> ViewState:
        """Opens and prepares the target for this definition. Returns the view's state: `serving`, `filled`, with a
        generation that readers don't see yet, or `filling`. "Beside": where the target can hold two generations.

        | the base knows                     | the target holds     | what is prepared                              |
        |------------------------------------|----------------------|-----------------------------------------------|
        | nothing                            | nothing              | generation 1                                  |
        | nothing: it was lost               | a generation         | the next one, beside; or rows are replaced    |
        | this definition                    | the same generation  | nothing: its rows go on to serve              |
        | this definition, filled beside     | the former one       | the filled one, if it is still there          |
        | this definition                    | another one, or none | the next generation: the target has lost rows |
        | another definition, these columns  | the same generation  | the next one, beside; or rows are replaced    |
        | another definition, other columns  | the same generation  | the next one, beside; or in the table's place |
        """
        definition, columns = self._definition, _described(self._encoder.schema)
        if self._is_beside:
            self._open_served()
        held = self._target.generation()
        has_other_columns = known is not None and known.columns != columns
        is_same = known is not None and known.fingerprint == definition.fingerprint and not has_other_columns
        generation = known.generation if known is not None else 1
        version = known.schema_version + has_other_columns if known is not None else 1
        was_filled = known is not None and is_same and known.state == "filled"
        if was_filled and held != generation and self._resume(generation):
            self._prepare_table(version)
            return ViewState(definition.fingerprint, "filled", generation, version, columns)
        is_beside = self._generations is not None and held is not None and (held != generation or not is_same)
        if held != generation or has_other_columns or is_beside:
            # A base that was lost knows no versions of the schema, which begin again in another generation.
            generation = max(generation, held or 0) + (known is not None or held is not None)
            is_same = False
            if is_beside:
                self._begin_beside(generation)
            self._target.begin_generation(generation)
        # A cache has no columns: each former row serves until it is replaced by one with a greater version, or swept.
        if has_other_columns and not is_beside and not isinstance(definition.config.target, CacheConfig):
            self._target.discard(definition.table)
        self._prepare_table(version)
        kept = "serving" if known is not None and is_same and known.state in _FOLLOWING else "filling"
        return ViewState(definition.fingerprint, kept, generation, version, columns)

    def _prepare_table(self, schema_version: int) -> None:
        definition = self._definition
        self._encoder.schema = TableSchema(
            definition.table, schema_version, 0, self._encoder.schema.columns, definition.config.key, definition.name
        )
        self._target.prepare(self._encoder.schema)

    def _begin_beside(self, generation: int) -> None:
        """Begins to fill the view in a generation that readers don't see."""
        assert self._generations is not None
        made = self._generations.begin(generation)
        self._target.close()
        self._target, self._is_beside = made, True

    def _resume(self, generation: int) -> bool:
        """Continues with a generation that was filled while readers use another one. Returns False if it no longer
        exists."""
        made = self._generations.resume(generation) if self._generations is not None else None
        if made is None:
            return False
        self._target.close()
        self._target, self._is_beside = made, True
        self._swap_due_s = time.monotonic() + SWAP_RETRY_S
        return True

    def _open_served(self) -> None:
        """Opens the generation that readers see."""
        self._target.close()
        self._target, self._is_beside = self._open_target(), False

    def _serve(self, state: ViewState) -> None:
        """Switches readers to the filled generation, unless they use it already."""
        name = self._definition.name
        if self._is_beside:
            assert self._generations is not None
            self._generations.serve(state.generation)
            self._open_served()
            self._prepare_table(state.schema_version)
        self._base.note(name, state._replace(state="serving"))
        if state.state == "filled":
            self._base.forget_error(name)
            log.info("readers see the view with its changed definition", view=name)

    def _fill(self, state: ViewState) -> None:
        """Writes every row again, and at the end deletes rows that the view no longer has. Until then the target serves
        its present rows. If the definition has changed and the target can hold two generations, these are the rows of
        the former generation."""
        name, table = self._definition.name, self._definition.table
        self._base.note(name, state._replace(state="filling"))
        log.info("view is being filled", view=name)
        self._wait_for_base()
        self._base.install_triggers(self._definition)
        floor, version = self._base.versions(2)
        count, rejected_count = 0, 0
        rejected: dict[Key, str] = {}
        for rows in self._base.all_rows(self._definition):
            by_key = {self._encoder.key_of(row): row for row in rows}
            failed = {shortened(key): KEY_TOO_LONG for key in by_key if is_too_long(key)}
            keys = [key for key in by_key if not is_too_long(key)]
            failed |= self._apply(keys, [self._encoder.change(key, by_key[key], version) for key in keys])
            rejected |= dict(islice(failed.items(), REJECTED_MAX - len(rejected)))
            rejected_count += len(failed)
            if count == 0:  # base and target do their work
                self._base.forget_error(name)
            count += len(rows)
        self._target.sweep(table, pack_version(_EPOCH, floor))
        self._target.make_readable([table])
        self._base.written(name, list(rejected), rejected)
        log.info("view is filled", view=name, rows=count, rejected=rejected_count)
        if self._is_beside:  # if the swap fails, or the job ends, it is tried again without another filling
            state = state._replace(state="filled")
            self._base.note(name, state)
        self._serve(state)

    def _apply(self, keys: Sequence[Key], changes: Sequence[Change]) -> Mapping[Key, str]:
        """Writes changes. Returns the keys of rejected rows with the reason, and removes these rows from the target."""
        if not changes:
            return {}
        results = apply_each(self._target.apply, changes)
        rejected = {
            key: result.reason for key, result in zip(keys, results, strict=True) if result.outcome is Outcome.REJECTED
        }
        if rejected:
            gone = [
                self._encoder.change(key, None, change.version & ((1 << 48) - 1))
                for key, change in zip(keys, changes, strict=True)
                if key in rejected
            ]
            self._target.apply(gone)
        return rejected


def _described(schema: TableSchema) -> list[list[object]]:
    """Returns name and type of each column, and its place in the key: the table of rows of another form is another."""
    places = {name: place for place, name in enumerate(schema.key)}
    return [[column.name, column.type_name, places.get(column.name)] for column in schema.columns]
