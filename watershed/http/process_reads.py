"""What the console shows of this process: its configuration with secrets hidden, and its last log lines."""

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cdc.config.config_file import Config, load_config
from cdc.config.effective import effective_options
from cdc.config.http_settings import HttpConfig
from cdc.config.logs import LINE_CHARS_KEPT, LINES_KEPT, recent_lines
from cdc.config.secrets import hidden, secret_texts
from cdc.model.errors import WatershedError
from watershed.http.access import refused_values
from watershed.http.answers import count_of, failed
from watershed.http.bounded_work import BoundedWork

LINES: Final = 200
FILE_S_MAX: Final = 10.0


class ProcessReads:
    """Routes for the process itself."""

    def __init__(self, http: HttpConfig, config: Callable[[], Config], file: Path) -> None:
        """`config`: as it is now."""
        self._http = http
        self._current = config
        self._file = file
        self._files = BoundedWork("reading the configuration file", 1, FILE_S_MAX)

    def routes(self) -> Sequence[Route]:
        return [Route("/v1/config", self._config), Route("/v1/log", self._log)]

    async def _config(self, request: Request) -> Response:
        if (refusal := refused_values(self._http, request)) is not None:
            return refusal
        try:
            return JSONResponse(await self._files.run(partial(options_of, self._file)))
        except WatershedError as error:  # the file was changed, and the process has not read it again
            return failed(error, 409)

    async def _log(self, request: Request) -> Response:
        if (refusal := refused_values(self._http, request)) is not None:
            return refusal
        count = count_of(request, "lines", LINES, 1, LINES_KEPT)
        if isinstance(count, Response):
            return count
        secrets = await self._files.run(lambda: secret_texts(self._current()))
        return JSONResponse({"lines": [_shown(line, secrets) for line in recent_lines(count)]})


def _shown(line: str, secrets: Collection[str]) -> str:
    without = hidden(line, secrets)
    if len(line) < LINE_CHARS_KEPT:
        return without
    # The line was cut, perhaps within a secret, whose beginning would not be recognised.
    return without[: -max(map(len, secrets), default=1)] + "…"


def options_of(file: Path) -> dict[str, Any]:
    """Returns what `cdc config show --json` prints. Raises ConfigError."""
    return effective_options(load_config(file), file, os.environ)
