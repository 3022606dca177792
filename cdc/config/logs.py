"""Logging: one line per state change, key=value for people, JSON where machines read."""

import logging
import os
import sys
from collections import deque
from typing import Any, Final

import structlog

LEVEL_VARIABLE: Final = "WATERSHED_LOG_LEVEL"
JSON_VARIABLE: Final = "WATERSHED_LOG_JSON"
LINES_KEPT: Final = 1_000
LINE_CHARS_KEPT: Final = 4_000
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_recent: Final[deque[str]] = deque(maxlen=LINES_KEPT)
# For the console of the HTTP server: without colours, whatever the terminal gets.
_plain: Final = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)


def recent_lines(count: int) -> list[str]:
    """Returns the last lines that this process logged, the newest last: at most LINES_KEPT, each cut after
    LINE_CHARS_KEPT characters."""
    return list(_recent)[-count:]


def _keep(logger: Any, name: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    _recent.append(str(_plain(logger, name, dict(event)))[:LINE_CHARS_KEPT])
    return event


def configure_logs(*, level: str = "info", as_json: bool = False) -> None:
    """Sends logs to stderr; stdout is for answers. Also those of processes that this one starts, if they call
    configure_logs_as_parent()."""
    os.environ[LEVEL_VARIABLE] = level
    os.environ[JSON_VARIABLE] = "1" if as_json else ""
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        # The default formatter shows local variables, which may be rows or passwords.
        else [
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
        ]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _keep,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def configure_logs_as_parent() -> None:
    """Configures the logs as the process that has started this one did; of a process on another machine as by
    default."""
    level = os.environ.get(LEVEL_VARIABLE, "info")
    configure_logs(level=level if level in LEVELS else "info", as_json=bool(os.environ.get(JSON_VARIABLE)))
