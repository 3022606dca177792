"""Operations on stores: their dead letters, and the generations that are built of them. The same that `cdc dlq` and
`cdc rebuild` do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

from pydantic import Field

from cdc.config.config_file import Config
from cdc.config.stores import sink_config
from cdc.model.events import TableId
from watershed.client.dead_letters import DeadLetter, chosen_dead_letters, discard_dead_letters, replay_dead_letters
from watershed.client.pipeline_watch import PipelineWatch
from watershed.client.rebuild_requests import (
    UNDER_WAY,
    RebuildAction,
    cancel_rebuild,
    request_rebuild,
    require_rebuildable,
)
from watershed.http.access import Caller
from watershed.http.operations import Operation, OperationAnswer, Wanted, WantedTables

KEYS_MAX: Final = 1_000
_BY_JOB: Final = "requested: the sink's job does it, and GET /v1/sinks shows its generations"


class DeadLetterRequest(WantedTables):
    """Dead letters of one sink: all, those of some tables, or those of some rows of one table."""

    sink: str
    # Each as text, or of several columns a JSON list, as in `cdc dlq`.
    keys: tuple[Annotated[str, Field(max_length=10_000)], ...] = Field(default=(), max_length=KEYS_MAX)

    def refusal(self) -> str:
        return "keys: they are of exactly one table" if self.keys and len(self.tables) != 1 else ""


class Stores(Protocol):
    """What the operations do. Methods raise WatershedError."""

    def replay(self, wanted: DeadLetterRequest, user: str) -> Mapping[str, int]: ...
    def discard(self, wanted: DeadLetterRequest) -> int: ...
    def rebuild(self, sink: str, action: RebuildAction) -> bool: ...
    def cancel(self, sink: str) -> None: ...


@dataclass(frozen=True, slots=True)
class PipelineStores:
    """Acts through the brokers."""

    config: Callable[[], Config]  # as it is now

    def replay(self, wanted: DeadLetterRequest, user: str) -> Mapping[str, int]:
        """Returns table → rows that capture publishes again."""
        config = self.config()
        return {str(name): rows for name, rows in replay_dead_letters(config, _chosen(config, wanted), user)}

    def discard(self, wanted: DeadLetterRequest) -> int:
        """Returns how many were discarded."""
        config = self.config()
        chosen = _chosen(config, wanted)
        discard_dead_letters(config, chosen)
        return len(chosen)

    def rebuild(self, sink: str, action: RebuildAction) -> bool:
        """Returns False if the same is under way already."""
        config = self.config()
        with _watched(config, sink) as watch:
            return request_rebuild(config, watch, sink, action)[1]

    def cancel(self, sink: str) -> None:
        config = self.config()
        with _watched(config, sink) as watch:
            cancel_rebuild(config, watch, sink)


def _chosen(config: Config, wanted: DeadLetterRequest) -> list[DeadLetter]:
    sink_config(config.sinks, wanted.sink)
    return chosen_dead_letters(config, wanted.sink, [TableId.parse(name) for name in wanted.tables], wanted.keys)


@contextmanager
def _watched(config: Config, sink: str) -> Iterator[PipelineWatch]:
    require_rebuildable(config, sink)
    with closing(PipelineWatch.of(config)) as watch:
        watch.read_to_end()
        yield watch


def store_operations(stores: Stores) -> Sequence[Operation[Any]]:
    def replay(caller: Caller, wanted: DeadLetterRequest, _: Mapping[str, str]) -> OperationAnswer:
        found = stores.replay(wanted, caller.name)
        said = ", ".join(f"{rows} rows of {table}" for table, rows in found.items())
        answer = f"capture publishes {said} again" if said else f"sink {wanted.sink} has no such dead letters"
        return OperationAnswer(answer=answer, tables=tuple(found))

    def discard(_: Caller, wanted: DeadLetterRequest, __: Mapping[str, str]) -> OperationAnswer:
        count = stores.discard(wanted)
        return OperationAnswer(answer=f"{count} dead letters of sink {wanted.sink} are discarded", tables=wanted.tables)

    def rebuild(action: RebuildAction) -> Callable[[Caller, Wanted, Mapping[str, str]], OperationAnswer]:
        def do(_: Caller, __: Wanted, place: Mapping[str, str]) -> OperationAnswer:
            is_new = stores.rebuild(place["name"], action)
            return OperationAnswer(answer=_BY_JOB if is_new else f"{UNDER_WAY[action]} is under way already")

        return do

    def cancel(_: Caller, __: Wanted, place: Mapping[str, str]) -> OperationAnswer:
        stores.cancel(place["name"])
        return OperationAnswer(answer="cancelled: the sink's job deletes what it has built")

    sink = "/v1/sinks/{name}"
    return [
        Operation("/v1/dead-letters/replay", "replay", "Publish rejected rows again, as they are in the source now.",
                  DeadLetterRequest, replay),
        Operation("/v1/dead-letters/discard", "discard", "Delete dead letters without publishing their rows.",
                  DeadLetterRequest, discard),
        Operation(f"{sink}/rebuild", "rebuild", "Build a new generation of the store, and let readers use it then.",
                  Wanted, rebuild("rebuild")),
        Operation(f"{sink}/rollback", "rollback", "Let the kept generation catch up, and readers use it again.",
                  Wanted, rebuild("rollback")),
        Operation(f"{sink}/cancel", "cancel_rebuild", "Cancel what is under way; readers are unaffected.",
                  Wanted, cancel),
    ]  # fmt: skip
