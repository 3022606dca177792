"""Hours of history for the charts of the console, from the Prometheus of `http.prometheus`.

Each process exposes the metrics of the whole pipeline, so several have the same series: the greatest value counts.
Whose series they are is said by `watershed_build_info`, which has the topic prefix.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal
from urllib.parse import urlencode

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cdc.config.http_settings import HttpPrometheus
from cdc.model.errors import UnreachableError, WatershedError
from watershed.http.answers import count_of, failed, failure, json_answer
from watershed.http.bounded_work import BoundedWork
from watershed.http.json_fetch import Fetch, fetch_json
from watershed.status.model import Node

HOURS: Final = 24
HOURS_MAX: Final = 168
STEPS: Final = 240
# Of the time that a value is made of. A rate needs several scrapes, whose interval is not known here.
GAUGE_S_MIN: Final = 120
RATE_S_MIN: Final = 300
AT_ONCE: Final = 2
SECONDS_MAX: Final = 15.0
ANSWER_BYTES_MAX: Final = 16_000_000  # of a thousand stores
HINT: Final = "check http.prometheus: its url is the address below which /api/v1/query_range is"

Figure = Literal["lag_seconds", "rate", "retained_bytes"]
_GAUGES: Final[Sequence[tuple[Figure, str]]] = (
    ("lag_seconds", "watershed_capture_lag_seconds"),
    ("lag_seconds", "watershed_sink_lag_seconds"),
    ("retained_bytes", "watershed_slot_retained_wal_bytes"),
)
_COUNTERS: Final[Sequence[tuple[Figure, str]]] = (
    ("rate", "watershed_capture_records_total"),
    ("rate", "watershed_sink_written_changes_total"),
)


class LongSeries(Node):
    """One figure over the time; null where it is not known."""

    figure: Figure
    sink: str | None  # null: capture, or the slot
    values: tuple[float | None, ...]


class LongHistory(Node):
    """Figures of some hours: of a lag or of WAL the greatest value in each step, of a rate the average."""

    start_unix_seconds: int
    step_seconds: int
    series: tuple[LongSeries, ...]


class _Found(BaseModel):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(BaseModel):
    result: list[_Found]


class _Answer(BaseModel):
    data: _Matrix


class HoursOfHistory:
    """The route. `settings`: None if no Prometheus is configured."""

    def __init__(
        self,
        settings: HttpPrometheus | None,
        prefix: str,
        fetch: Fetch = fetch_json,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.is_configured = settings is not None
        self._settings = settings
        self._prefix = prefix
        self._fetch = fetch
        self._clock = clock
        self._work = BoundedWork("asking Prometheus", AT_ONCE, SECONDS_MAX, late=HINT)

    def routes(self) -> Sequence[Route]:
        return [Route("/v1/history/hours", self._answer)]

    async def _answer(self, request: Request) -> Response:
        if self._settings is None:
            return failure(404, "no Prometheus is configured", "set http.prometheus.url, and start the process again")
        hours = count_of(request, "hours", HOURS, 1, HOURS_MAX)
        if isinstance(hours, Response):
            return hours
        try:
            return json_answer(await self._work.run(partial(self._read, self._settings, hours)))
        except WatershedError as error:
            return failed(error)

    def _read(self, settings: HttpPrometheus, hours: int) -> LongHistory:
        """Raises UnreachableError."""
        step_s = hours * 3600 // STEPS
        end_s = int(self._clock()) // step_s * step_s  # so that the same points are asked for again
        start_s = end_s - STEPS * step_s
        asked = {"query": query(self._prefix, settings.labels, step_s), "start": start_s, "end": end_s, "step": step_s}
        secret = settings.authorization
        headers = {} if secret is None else {"Authorization": secret.get_secret_value()}
        url = f"{settings.url}/api/v1/query_range?{urlencode(asked)}"
        found = self._fetch(url, HINT, headers, ANSWER_BYTES_MAX)
        try:
            answer = _Answer.model_validate(found)
            series = tuple(_series(one, start_s, step_s) for one in answer.data.result)
            return LongHistory(start_unix_seconds=start_s, step_seconds=step_s, series=series)
        except ValueError as error:  # of pydantic, or a value that is no number
            raise UnreachableError(f"{settings.url} answers, but not with series of Prometheus", HINT) from error


def query(prefix: str, labels: Mapping[str, str], step_s: int) -> str:
    """Returns the question for all figures, in PromQL."""
    own = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items())
    processes = f"watershed_build_info{{{','.join(filter(None, (own, f'prefix={json.dumps(prefix)}')))}}}"
    gauge_s, rate_s = max(step_s, GAUGE_S_MIN), max(step_s, RATE_S_MIN)
    of_prefix = f"on (job, instance) group_left () max by (job, instance) (max_over_time({processes}[{gauge_s}s]))"
    values = [(figure, f"max_over_time({name}{{{own}}}[{gauge_s}s])") for figure, name in _GAUGES]
    values += [(figure, f"rate({name}{{{own}}}[{rate_s}s])") for figure, name in _COUNTERS]
    return " or ".join(
        f'label_replace(max by (sink) ({value} * {of_prefix}), "figure", "{figure}", "", "")'
        for figure, value in values
    )


def _series(found: _Found, start_s: int, step_s: int) -> LongSeries:
    """Returns the values at each step; Prometheus leaves out those that it does not have. Raises ValueError."""
    values: list[float | None] = [None] * (STEPS + 1)
    for at_s, text in found.values:
        place = round((at_s - start_s) / step_s)
        if 0 <= place <= STEPS and math.isfinite(value := float(text)):
            values[place] = value
    labels = {"figure": found.metric.get("figure"), "sink": found.metric.get("sink")}
    return LongSeries.model_validate({**labels, "values": values})
