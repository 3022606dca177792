"""A connection string with several servers: each alone, how long a silent one is waited for, and which one is read."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest
from psycopg.conninfo import conninfo_to_dict
from pydantic import SecretStr
from structlog.testing import capture_logs

from cdc.config.settings import SourceConfig
from cdc.model.errors import ConfigError, ConnectionLost, UnreachableError
from cdc.postgres import primaries
from cdc.postgres.connection import SourceConnection, at_slot, conninfo, name_of, single_hosts
from cdc.postgres.primaries import PrimaryWatch, find_primary
from cdc.postgres.replication import StandbyError, SystemIdentity
from tests.support.waiting import eventually


def source(dsn: str) -> SourceConfig:
    return SourceConfig(dsn=SecretStr(dsn), tables=("public.items",))


TWO = source("postgresql://me@a:1,b:2/shop?application_name=x&load_balance_hosts=random")


@pytest.mark.parametrize(
    ("dsn", "names"),
    [
        ("postgresql://me@a:1,b:2/shop", ["a:1", "b:2"]),
        ("host=a,b,c port=5433 dbname=shop", ["a:5433", "b:5433", "c:5433"]),
        ("host=a,b dbname=shop target_session_attrs=read-write", ["a:5432", "b:5432"]),
        ("hostaddr=10.0.0.1,10.0.0.2 dbname=shop", ["10.0.0.1:5432", "10.0.0.2:5432"]),
        ("host=a,b hostaddr=10.0.0.1,10.0.0.2 port=,5433 dbname=shop", ["a:5432", "b:5433"]),
        ("postgresql://me@a/shop", ["a:5432"]),
    ],
)
def test_each_server_alone(dsn: str, names: list[str]) -> None:
    assert [name_of(one) for one in single_hosts(source(dsn))] == names


def test_one_server_keeps_its_connection_string() -> None:
    only = source("postgresql://me@a/shop?target_session_attrs=read-write")
    assert single_hosts(only) == [only]
    assert find_primary(only, None) == (only, ())
    assert conninfo_to_dict(conninfo(only, application="x"))["connect_timeout"] == "10"


def test_several_servers_are_not_waited_for_as_long_and_capture_itself_chooses_one() -> None:
    whole = conninfo_to_dict(conninfo(TWO, application="x"))
    assert (whole["target_session_attrs"], whole["connect_timeout"]) == ("primary", "3")
    alone = conninfo_to_dict(conninfo(single_hosts(TWO)[1], application="x"))
    assert (alone["host"], alone["port"], alone["target_session_attrs"]) == ("b", "2", "any")
    assert (alone["connect_timeout"], alone["tcp_user_timeout"]) == ("3", "8000")
    assert "load_balance_hosts" not in alone
    given = source("host=a,b connect_timeout=7 target_session_attrs=read-write")
    assert conninfo_to_dict(conninfo(given, application="x"))["connect_timeout"] == "7"
    assert conninfo_to_dict(conninfo(given, application="x"))["target_session_attrs"] == "read-write"
    assert conninfo_to_dict(conninfo(single_hosts(given)[0], application="x"))["connect_timeout"] == "7"


def test_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="names 3 servers, but 2 values of port"):
        single_hosts(source("host=a,b,c port=1,2 dbname=shop"))


# ---- a standby whose log is read


def test_the_log_is_read_where_the_standby_is_and_rows_where_the_primary_is() -> None:
    with_standby = TWO.model_copy(update={"standby_dsn": SecretStr("host=b port=2 dbname=shop")})
    assert name_of(with_standby.log_server) == "b:2"
    assert with_standby.log_server.may_be_standby
    assert not with_standby.may_be_standby
    assert not any(one.may_be_standby for one in single_hosts(with_standby)), "the same server as one of several"
    assert (TWO.log_server, TWO.may_be_standby) == (TWO, False)


def test_without_a_standby_no_second_connection_is_opened() -> None:
    connection = cast("SourceConnection", object())
    with at_slot(TWO, connection) as server:
        assert server is connection


# ---- which one


def on(timeline: int, ended: tuple[tuple[int, int], ...] = (), system: str = "7") -> SystemIdentity:
    return SystemIdentity(system, timeline, "shop", True, ended)


OLD, NEW = on(1), on(2, ((1, 1000),))
STANDBY, AWAY = StandbyError("a standby"), UnreachableError("can't connect to PostgreSQL: refused")


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, SystemIdentity | Exception]:
    """What each server says of itself."""
    said: dict[str, SystemIdentity | Exception] = {"a:1": OLD, "b:2": STANDBY}
    monkeypatch.setattr(primaries, "_ask", lambda server: said[name_of(server)])
    monkeypatch.setattr(primaries, "LOOK_INTERVAL_S", 0.01)
    return said


@pytest.mark.parametrize(
    ("said", "chosen", "is_split"),
    [
        ({}, "a:1", False),
        ({"a:1": STANDBY, "b:2": NEW}, "b:2", False),
        ({"a:1": AWAY, "b:2": NEW}, "b:2", False),
        ({"b:2": NEW}, "b:2", True),
    ],
)
def test_the_primary_is_found_and_another_one_is_named(
    servers: dict[str, SystemIdentity | Exception],
    said: Mapping[str, SystemIdentity | Exception],
    chosen: str,
    is_split: bool,
) -> None:
    servers.update(said)
    with capture_logs() as logs:
        found, others = find_primary(TWO, None)
    assert name_of(found) == chosen
    assert [name_of(other) for other in others] == [name for name in servers if name != chosen]
    split = [entry for entry in logs if entry["log_level"] == "error"]
    assert bool(split) == is_split
    assert all((entry["server"], entry["primary"]) == ("a:1", "b:2") for entry in split)


def test_without_a_primary_each_server_is_named(servers: dict[str, SystemIdentity | Exception]) -> None:
    servers["a:1"] = AWAY
    with pytest.raises(UnreachableError) as error:
        find_primary(TWO, None)
    assert "a:1: can't connect to PostgreSQL: refused; b:2: a standby" in error.value.message


def test_a_promotion_that_the_old_primary_does_not_know_of_ends_the_session(
    servers: dict[str, SystemIdentity | Exception],
) -> None:
    watch = PrimaryWatch([single_hosts(TWO)[1]], OLD)
    watch.check()
    for other in (AWAY, OLD, on(9, system="8")):
        servers["b:2"] = other
        watch.check()
    servers["b:2"] = NEW
    eventually(lambda: watch._found, 10.0, "the promotion is seen")
    with pytest.raises(ConnectionLost, match=r"b:2 was promoted \(timeline 2\).*timeline 1, still calls itself"):
        watch.check()
    watch.close()


def test_a_standby_that_streams_is_no_old_primary(servers: dict[str, SystemIdentity | Exception]) -> None:
    servers["b:2"] = NEW
    watch = PrimaryWatch([single_hosts(TWO)[1]], replace(OLD, is_standby=True))
    eventually(lambda: watch._found, 10.0, "the promotion is seen")
    with pytest.raises(ConnectionLost, match=r"b:2 was promoted \(timeline 2\)$"):
        watch.check()
    watch.close()
