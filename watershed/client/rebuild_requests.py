"""Requests to a sink's job about the generations of its store, which it finds in the progress topic."""

import secrets
import time
from typing import Final, Literal

from cdc.config.config_file import Config
from cdc.config.stores import sink_config
from cdc.kafka.signals import deliver
from cdc.model.errors import WatershedError
from cdc.model.job_records import RebuildRecord
from cdc.model.topics import Topics
from watershed.client.pipeline_watch import PipelineWatch

RebuildAction = Literal["rebuild", "rollback", "drop"]
UNDER_WAY: Final = {"rebuild": "a rebuild", "rollback": "a rollback", "drop": "dropping the kept generation"}


def require_rebuildable(config: Config, sink: str) -> None:
    """Raises ConfigError for a sink that is not configured, WatershedError for one whose type has no generations."""
    section = sink_config(config.sinks, sink)
    if (reason := section.no_rebuild) is not None:
        raise WatershedError(
            f"{sink} is a sink of type {section.type}, {reason}",
            "add a second sink of this type that uses other names in the store, fill it with cdc snapshot start --sink "
            "NAME, and switch readers to it",
        )


def request_rebuild(
    config: Config, watch: PipelineWatch, sink: str, action: RebuildAction
) -> tuple[RebuildRecord, bool]:
    """Returns the request, and whether it is a new one: the same action may be under way already. `watch`: was read to
    its end. Raises WatershedError if another one is."""
    last = _last(watch, sink)
    if last is not None and last.is_open:
        if last.action != action:
            raise WatershedError(
                f"{sink}: {UNDER_WAY[last.action]} is under way",
                f"wait for it, or cancel it: cdc rebuild --sink {sink} --cancel",
            )
        return last, False
    record = RebuildRecord(
        sink=sink,
        request=secrets.token_hex(8),
        action=action,
        status="asked",
        asked_us=time.time_ns() // 1000,
    )
    _publish(config, record)
    return record, True


def cancel_rebuild(config: Config, watch: PipelineWatch, sink: str) -> RebuildRecord:
    """Cancels what is under way. Raises WatershedError if nothing is."""
    last = _last(watch, sink)
    if last is None or not last.is_open:
        raise WatershedError(f"{sink}: no rebuild is under way", "nothing to do: readers use the serving generation")
    cancelled = last.model_copy(update={"status": "cancelled"})
    _publish(config, cancelled)
    return cancelled


def _last(watch: PipelineWatch, sink: str) -> RebuildRecord | None:
    return watch.progress(RebuildRecord, RebuildRecord.key_of(sink))


def _publish(config: Config, record: RebuildRecord) -> None:
    deliver(config.kafka, record.to(Topics(config.topics.prefix).progress))
