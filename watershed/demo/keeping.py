"""The part of the demo after the comparison, if it keeps running: one order in all its places, a falsified value that
`cdc verify` finds and `cdc repair` mends, and commands to copy."""

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from cdc.config.config_file import Config
from cdc.model.errors import WatershedError
from sinks.cache.keys import DOCUMENT_FIELD
from watershed.demo.followed import ORDER
from watershed.demo.stores import ORDERS, cache_client, order_key, orders_alias
from watershed.devstack.endpoints import Endpoints
from watershed.status.children import CDC

FALSE_NOTE: Final = "nobody wrote this"
COMMAND_S_MAX: Final = 180.0
TICK_S: Final = 0.25
HEADING: Final = "bold cyan"
EXIT_DRIFT: Final = 5  # of cdc verify


class Keeping:
    """The pipeline of a demo whose workload has stopped."""

    def __init__(self, config: Config, config_file: Path, endpoints: Endpoints, console: Console) -> None:
        self._config = config
        self._config_file = config_file
        self._endpoints = endpoints
        self._console = console

    def show(self) -> None:
        """Prints the commands, and has a false value found and repaired. Raises WatershedError where it is not."""
        self._print(f"one order in all its places: {ORDER}", HEADING)
        for words in commands(self._config, self._config_file, self._endpoints):
            self._print(f"  {words}")
        self._print("a value is falsified in the cache", HEADING)
        with cache_client(self._endpoints.redis_url) as client:
            key = order_key(self._config, ORDER)
            document = json.loads(str(client.hget(key, DOCUMENT_FIELD)))
            client.hset(key, DOCUMENT_FIELD, json.dumps(document | {"note": FALSE_NOTE}))
        for command, expected in (("verify", EXIT_DRIFT), ("repair", 0), ("verify", 0)):
            self._run(command, "--sink", "cache", "--table", str(ORDERS), expected=expected)

    def wait(self, is_over: Callable[[], bool], check: Callable[[], None]) -> None:
        """Waits for the reader's Enter or Ctrl-C. `check` raises WatershedError when a process has ended."""
        self._print("everything keeps running: Enter ends the demo, Ctrl-C too", HEADING)
        try:
            while not is_over():
                check()
                time.sleep(TICK_S)
        except KeyboardInterrupt:
            self._print("the demo is ending", HEADING)

    def _run(self, *words: str, expected: int) -> None:
        self._print(f"$ cdc {' '.join(words)}", "bold")
        done = subprocess.run(
            [*CDC, *words, "--config", str(self._config_file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S_MAX,
        )
        for line in done.stdout.rstrip().splitlines():
            self._print(f"  {line}")
        if done.returncode != expected:
            raise WatershedError(f"cdc {words[0]} ended with exit code {done.returncode}", done.stderr.strip())

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def console_line(config: Config) -> str:
    return f"console: http://127.0.0.1:{config.http.port}/"


def commands(config: Config, config_file: Path, servers: Endpoints) -> list[str]:
    """Commands to copy: the console, and the followed order in the source and in the stores."""
    return [
        console_line(config),
        f"psql '{servers.dsn}' -c 'SELECT * FROM orders WHERE id = {ORDER}'",
        f"psql '{servers.dsn}' -c \"UPDATE orders SET note = 'changed by hand' WHERE id = {ORDER}\"",
        f"curl '{servers.opensearch_url}/{orders_alias(config)}/_search?q=id:{ORDER}&pretty'",
        f"redis-cli -u {servers.redis_url} HGET '{order_key(config, ORDER)}' {DOCUMENT_FIELD}",
        f"cdc status --config {config_file}",
    ]
