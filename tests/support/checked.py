"""`cdc check` as somebody uses it who has to correct what it finds: its findings, and its printed fixes carried out."""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
import redis
import yaml
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from opensearchpy import OpenSearch

from tests.support.captured import Captured
from tests.support.forked import run
from tests.support.topics import admin_of
from watershed.cli.exit_codes import UNREACHABLE


@dataclass(frozen=True)
class Trouble:
    """A finding that is not ok."""

    about: str
    level: str
    message: str
    next: str


def findings(items: Captured, **environment: str) -> dict[str, list[tuple[str, str, str]]]:
    """About → (level, message, next)."""
    done = run(["check", "--json", "--config", str(items.config())], deadline_s=120.0, environment=environment)
    assert "Traceback" not in done.stderr
    reported = json.loads(done.stdout)
    found: dict[str, list[tuple[str, str, str]]] = {}
    for one in reported["findings"]:
        found.setdefault(one["about"], []).append((one["level"], one["message"], one["next"]))
    has_failed = any(level == "fail" for many in found.values() for level, _, _ in many)
    assert done.returncode in ((1, UNREACHABLE) if has_failed else (0,))
    assert reported["is_fit"] is not has_failed
    return found


def troubles(items: Captured, **environment: str) -> list[Trouble]:
    """Everything that is not well, except that the test server has no limit for WAL. Each has its next step."""
    found = [
        Trouble(about, level, message, step)
        for about, many in findings(items, **environment).items()
        for level, message, step in many
        if level != "ok" and "max_slot_wal_keep_size is not set" not in message
    ]
    assert all(one.next for one in found), found
    return found


def the_one(found: list[Trouble], about: str, expected: str) -> Trouble:
    """The only finding about this that says so."""
    matching = [one for one in found if one.about == about and expected in one.message]
    assert len(matching) == 1, f"{about}: {expected}: {found}"
    return matching[0]


# ---- fixes, as they are printed


def execute(dsn: str, statements: str) -> None:
    """SQL, each statement as it is printed."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in filter(None, map(str.strip, re.sub(r"--.*", "", statements).split(";"))):
            connection.execute(statement.encode())


def sql_of(step: str) -> str:
    """The statements in a next step, without the conditions and alternatives behind them."""
    words = re.search(r"\b(ALTER|CREATE|GRANT|SELECT|DROP)\b.*", step)
    assert words is not None, step
    return re.split(r"; or |, or |, if |; who |; then ", words[0])[0]


def configured(items: Captured, lines: str) -> None:
    """Lines of the configuration file: a YAML mapping, or `section.key: value`."""
    for path, value in dict(yaml.safe_load(lines)).items():
        for name in reversed(path.split(".")):
            value = {name: value}
        items.settings = _merged(items.settings, value)


def _merged(settings: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(settings)
    for name, value in added.items():
        is_section = isinstance(value, Mapping) and isinstance(both.get(name), Mapping)
        both[name] = _merged(both[name], value) if is_section else value
    return both


def set_in_kafka(bootstrap_servers: str, step: str) -> None:
    """`set NAME=VALUE on TOPIC`."""
    found = re.search(r"set (\S+)=(\S+) on ([^\s,;]+)", step)
    assert found is not None, step
    admin = admin_of(bootstrap_servers)
    entry = ConfigEntry(found[1], found[2], incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, found[3], incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def send(url: str, step: str) -> None:
    """`PUT /path {…}` or `DELETE /path`, to a search server."""
    found = re.search(r"\b(PUT|DELETE) (/\S+?)(?:,|;|$| (\{.*\}))", step)
    assert found is not None, step
    with OpenSearch([url]) as client:
        client.transport.perform_request(found[1], found[2], body=json.loads(found[3]) if found[3] else None)


def ask_redis(url: str, step: str, **fills: str) -> None:
    """A command of Redis; `fills`: what stands for `<name>`."""
    for name, value in fills.items():
        step = step.replace(f"<{name}>", value)
    words = re.split(r"; or |, if ", step)[0]
    with redis.Redis.from_url(url) as client:
        client.execute_command(*shlex.split(words))
