"""Answers of the routes that show the status."""

from typing import Literal

from cdc.config.http_settings import Role
from watershed.http.answers import Failure
from watershed.status.model import Node, Problem, SinkStatus, TableStatus, ViewStatus


class Health(Node):
    """The process answers."""

    is_alive: bool


class Readiness(Node):
    """The readiness of this process, and the reasons if it is not ready."""

    is_ready: bool
    reasons: tuple[Problem, ...]


class Tables(Node):
    tables: tuple[TableStatus, ...]


class Sinks(Node):
    sinks: tuple[SinkStatus, ...]


class Views(Node):
    views: tuple[ViewStatus, ...]


class User(Node):
    """Whose token the request carries. A server without users has one without a name, who reads."""

    name: str
    role: Role


class Offered(Node):
    """What the console can show beyond this pipeline's last half hour, by the configuration."""

    hours: bool  # /v1/history/hours
    pipelines: bool  # /v1/pipelines


class Shown(Node):
    """Every sink shows all transactions that committed up to the LSN."""

    is_shown: Literal[True] = True
    lsn: str
    sinks: tuple[str, ...]


class NotShown(Failure):
    """The timeout is over. The same question with this epoch continues the wait."""

    epoch: int | None
