"""The server in a thread of its own. Nothing in capture or in a sink waits for it, and it ends with the process."""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from cdc.config.config_file import Config
from cdc.config.http_settings import HttpConfig, is_loopback
from cdc.daemon.conditions import Conditions
from cdc.daemon.thread_signals import without_signals
from cdc.model.errors import ConfigError
from watershed.client.dead_letters import read_dead_letters
from watershed.client.pipeline_watch import FollowedPositions
from watershed.client.source_reader import PostgresSourceReader
from watershed.http.access import CheckedAccess
from watershed.http.answers import NotKept
from watershed.http.audit import Audit
from watershed.http.certificate import Certificate
from watershed.http.change_streams import ChangeStreams, following
from watershed.http.comparisons import Comparisons
from watershed.http.connections import bounded
from watershed.http.current_config import CurrentConfig
from watershed.http.dead_letters import DeadLetterReader
from watershed.http.hosts import CheckedHost, KnownHosts
from watershed.http.long_history import HoursOfHistory
from watershed.http.operations import Operations
from watershed.http.pipelines import OtherPipelines
from watershed.http.process_reads import ProcessReads
from watershed.http.routes import Scope, application
from watershed.http.signals import signal_operations, to_capture
from watershed.http.store_operations import PipelineStores, store_operations
from watershed.http.table_reads import PipelineTables, TableReads
from watershed.http.waits import Waits
from watershed.status.facts import ViewReader
from watershed.status.monitor import Monitor
from watershed.status.topic_facts import KafkaTopicReader
from watershed.status.trend import Trend

log = structlog.get_logger(__name__)

KEEP_ALIVE_S: Final = 15
BACKLOG: Final = 64


def make_monitor(config: Config, conditions: Conditions, views: Sequence[ViewReader]) -> Monitor:
    """Observes the source and the brokers of this configuration, and the bases of its views."""
    source, topics = PostgresSourceReader(config.source), KafkaTopicReader(config)
    return Monitor(config, source, topics, conditions.all, views=views)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a process listens, and the file that says so."""

    file: Path  # of the configuration
    port: int
    key: str  # of the port in the file


def serve(
    config: Config,
    address: ListenAddress,
    scope: Scope,
    monitor: Monitor,
    dropped: Callable[[], Mapping[str, int]] = dict,
) -> None:
    """Listen, start the monitor, and answer from now on. `dropped`: see Telemetry. Raises ConfigError where the address
    can't be taken."""
    port = address.port
    listener = listening_socket(config.http.host, port, address.key)
    waits = Waits(PostgresSourceReader(config.source).read_end, FollowedPositions(config).last)
    trend = Trend()
    dead_letters = DeadLetterReader(config, lambda sinks: read_dead_letters(config, sinks))
    audit, current = Audit.of(config), CurrentConfig(config, address.file)
    comparisons = Comparisons(current, address.file, audit.note)
    operations = (
        *signal_operations(to_capture(config)),
        *store_operations(PipelineStores(current)),
        *comparisons.operations(),
    )
    parts = (
        Operations(operations, audit),
        comparisons,
        audit,
        TableReads(config.http, PipelineTables(current), ChangeStreams(following(current))),
        ProcessReads(config.http, current, address.file),
        HoursOfHistory(config.http.prometheus, config.topics.prefix),
        OtherPipelines(config.http, monitor.status),
    )
    server = http_server(
        application(monitor.status, scope, waits, trend.recent, dead_letters, *parts, dropped=dropped),
        config.http,
        audit,
    )

    def run() -> None:
        monitor.start()
        trend.follow(monitor.status)
        server.run(sockets=[listener])

    with without_signals():
        threading.Thread(target=run, name="http", daemon=True).start()
    scheme = "http" if config.http.tls is None else "https"
    console = console_address(config.http.host, port, scheme)
    log.info("listening", http=f"{scheme}://{config.http.host}:{port}", console=console)
    if config.http.has_users and config.http.tls is None and not is_loopback(config.http.host):
        log.warning("tokens travel unencrypted: set http.tls, unless a proxy in front ends TLS")
    for key in config.http.unencrypted:
        log.warning("a secret is sent unencrypted: use an address with https://", option=key)


def http_server(app: ASGIApp, http: HttpConfig, audit: Audit | None = None) -> uvicorn.Server:
    """Returns the server of an application, which it protects from other names, from callers without a token if there
    are users, and from too many connections. `audit`: records operations that are refused. Raises ConfigError for a
    certificate that can't be used.
    """
    certificate = None if http.tls is None else Certificate(http.tls)
    checked = CheckedAccess(app, http, None if audit is None else audit.refused)
    return uvicorn.Server(
        uvicorn.Config(
            NotKept(CheckedHost(checked, KnownHosts(http))),
            ssl_context_factory=None if certificate is None else lambda _, __: certificate.context,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http=bounded(),
            loop="asyncio",
            timeout_keep_alive=KEEP_ALIVE_S,
        )
    )


def console_address(host: str, port: int, scheme: str = "http") -> str:
    """Returns the console's address for a browser on this machine."""
    name = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"{scheme}://{name}:{port}/"


def listening_socket(host: str, port: int, key: str) -> socket.socket:
    """Opens the socket. Raises ConfigError if that fails, now rather than in a thread."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"can't listen on {host} port {port}: {error.strerror}",
            f"another port in {key} (CDC__HTTP__{key.rpartition('.')[2].upper()}, or --http-port), or null for no "
            "server; or end the program that uses the port",
        ) from error
    return listener
