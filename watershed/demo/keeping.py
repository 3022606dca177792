"""The part of the demo after the comparison, if it keeps running: one order in all its places, a falsified value that
`cdc verify` finds and `cdc repair` mends, and commands to copy."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import redis
from rich.console import Console
from rich.text import Text

from cdc.config.config_file import Config
from cdc.config.stores import CacheConfig, SearchConfig
from cdc.model.errors import WatershedError
from cdc.model.events import TableId
from sinks.cache.keys import DOCUMENT_FIELD, CacheKeys
from sinks.search.names import SearchNames
from watershed.demo.programs import CDC
from watershed.demo.stores import SCHEMA

ORDERS: Final = TableId(SCHEMA, "orders")
FALSE_NOTE: Final = "nobody wrote this"
COMMAND_S_MAX: Final = 180.0
TICK_S: Final = 0.25


class Order(NamedTuple):
    """An order that the cache has."""

    number: int
    name: str  # of its key in the cache


class Keeping:
    """The pipeline of a demo whose workload has stopped."""

    def __init__(self, config: Config, config_file: Path, console: Console) -> None:
        self._config = config
        self._config_file = config_file
        self._console = console

    def show(self) -> None:
        """Prints the commands, and has a false value found and repaired. Raises WatershedError where it is not."""
        order = self.an_order()
        self._heading(f"one order in all its places: {order.number}")
        for words in commands(self._config, self._config_file, order):
            self._print(f"  {words}")
        self._heading("a value is falsified in the cache")
        self.falsify(order)
        self._run("verify", "--sink", "cache", "--table", str(ORDERS), expected=(5,))
        self._run("repair", "--sink", "cache", "--table", str(ORDERS), expected=(0,))
        self._run("verify", "--sink", "cache", "--table", str(ORDERS), expected=(0,))

    def wait(self, is_over: Callable[[], bool], check: Callable[[], None]) -> None:
        """Waits for the reader's Enter or Ctrl-C. `check` raises WatershedError when a process has ended."""
        self._heading("everything keeps running: Enter ends the demo, Ctrl-C too")
        try:
            while not is_over():
                check()
                time.sleep(TICK_S)
        except KeyboardInterrupt:
            self._heading("the demo is ending")

    def an_order(self) -> Order:
        keys, prefix = self._client(), self._keys().table(ORDERS)
        with keys as client:
            for name in client.scan_iter(f"{prefix}*", _type="hash"):
                if client.hexists(name, DOCUMENT_FIELD):
                    return Order(int(json.loads(str(client.hget(name, DOCUMENT_FIELD)))["id"]), str(name))
        raise WatershedError("the cache has no order", "run make demo with larger ROWS or SECONDS")

    def falsify(self, order: Order) -> None:
        """Changes the order's note in the cache, and nowhere else."""
        with self._client() as client:
            document = json.loads(str(client.hget(order.name, DOCUMENT_FIELD)))
            client.hset(order.name, DOCUMENT_FIELD, json.dumps(document | {"note": FALSE_NOTE}))

    def _run(self, *words: str, expected: Sequence[int]) -> None:
        self._print(f"$ cdc {' '.join(words)}", style="bold")
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
        if done.returncode not in expected:
            raise WatershedError(f"cdc {words[0]} ended with exit code {done.returncode}", done.stderr.strip())

    def _client(self) -> "redis.Redis":
        section = self._config.sinks["cache"]
        assert isinstance(section, CacheConfig), "the demo has a cache"
        return redis.Redis.from_url(section.url.get_secret_value(), decode_responses=True)

    def _keys(self) -> CacheKeys:
        return CacheKeys(self._config.topics.prefix)

    def _heading(self, text: str) -> None:
        self._print(text, style="bold cyan")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def console_line(config: Config) -> str:
    return f"console: http://127.0.0.1:{config.http.port}/"


def commands(config: Config, config_file: Path, order: Order) -> list[str]:
    """Commands to copy: the console, and the order in the source and in the stores."""
    search, cache = config.sinks["search"], config.sinks["cache"]
    assert isinstance(search, SearchConfig), "the demo has a search index"
    assert isinstance(cache, CacheConfig), "the demo has a cache"
    alias = SearchNames(config.topics.prefix).alias(ORDERS)
    dsn = config.source.dsn.get_secret_value()
    return [
        console_line(config),
        f"psql '{dsn}' -c 'SELECT * FROM orders WHERE id = {order.number}'",
        f"psql '{dsn}' -c \"UPDATE orders SET note = 'changed by hand' WHERE id = {order.number}\"",
        f"curl '{search.url.get_secret_value()}/{alias}/_search?q=id:{order.number}&pretty'",
        f"redis-cli -u {cache.url.get_secret_value()} HGET '{order.name}' {DOCUMENT_FIELD}",
        f"cdc status --config {config_file}",
    ]
