"""What the console has from other servers, for its tests: a Prometheus, and other pipelines."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cdc.config.http_settings import HttpConfig, HttpPipeline, HttpPrometheus
from cdc.model.errors import UnreachableError
from tests.support.console_pipeline import GIB, STORES, ShownPipeline, wave
from watershed.http.long_history import HoursOfHistory
from watershed.http.pipelines import OtherPipelines


class ShownPrometheus:
    """Has values of all times. `failure`: it answers with this instead. `is_empty`: it has none."""

    def __init__(self) -> None:
        self.failure = ""
        self.is_empty = False

    def part(self) -> HoursOfHistory:
        def fetch(url: str, hint: str, headers: Mapping[str, str], bytes_max: int) -> Any:
            return self._answer(url, hint)

        return HoursOfHistory(HttpPrometheus(url="http://prometheus:9090"), "shop", fetch)

    def _answer(self, url: str, hint: str) -> Any:
        if self.failure:
            raise UnreachableError(self.failure, hint)
        asked = parse_qs(urlsplit(url).query)
        start, end, step = (int(asked[name][0]) for name in ("start", "end", "step"))
        times = [] if self.is_empty else range(start, end + 1, step)
        found = [self._series(figure, sink, number, times) for figure, sink, number in self._names()]
        return {"data": {"result": found if times else []}}

    @staticmethod
    def _names() -> list[tuple[str, str, int]]:
        sinks = [(figure, sink, n) for figure in ("lag_seconds", "rate") for n, sink in enumerate(STORES, 1)]
        return [("lag_seconds", "", 0), ("rate", "", 0), ("retained_bytes", "", 0), *sinks]

    @staticmethod
    def _series(figure: str, sink: str, number: int, times: Sequence[int]) -> dict[str, Any]:
        size = {"lag_seconds": 3.0 + 4 * number, "rate": 1_800.0 - 150 * number, "retained_bytes": 0.6 * GIB}[figure]
        power = 4 if figure == "lag_seconds" else 1
        values = [[at, f"{size * wave(at, 40_000, number / 3) ** power:.3f}"] for at in times]
        return {"metric": {"figure": figure, **({"sink": sink} if sink else {})}, "values": values}


def other_pipelines(own: ShownPipeline, answers: Mapping[str, ShownPipeline | str]) -> OtherPipelines:
    """Pipelines that answer with their status, or not, for the reason that is given."""

    def fetch(url: str, hint: str, headers: Mapping[str, str], bytes_max: int) -> Any:
        found = answers[urlsplit(url).hostname or ""]
        if isinstance(found, str):
            raise UnreachableError(f"{url} can't be read: {found}", hint)
        return found.status().model_dump(mode="json")

    pipelines = {name: HttpPipeline(url=f"https://{name}:8480") for name in answers}
    return OtherPipelines(HttpConfig(pipelines=pipelines), own.status, fetch)
