"""Addresses, and those that the environment gives."""

import pytest

from cdc.model.errors import StackError
from watershed.devstack.endpoints import Endpoints, given_addresses


def test_each_address_has_its_name() -> None:
    found = Endpoints({"postgres": "p", "kafka": "k", "opensearch": "o", "redis": "r"}, superuser="s")
    assert (found.dsn, found.bootstrap_servers, found.opensearch_url, found.redis_url) == ("p", "k", "o", "r")
    assert found.superuser_dsn == "s"


def test_a_given_database_has_one_role_for_all() -> None:
    assert Endpoints({"postgres": "p"}).superuser_dsn == "p"


def test_what_does_not_run_is_named_with_the_variable_that_would_give_it() -> None:
    with pytest.raises(StackError, match="kafka is not running") as caught:
        _ = Endpoints({"postgres": "p"}).bootstrap_servers
    assert "WATERSHED_KAFKA" in caught.value.hint


def test_the_environment_gives_what_it_names_and_no_more() -> None:
    environ = {"WATERSHED_DSN": "p", "WATERSHED_REDIS": "r", "WATERSHED_KAFKA": "", "OTHER": "x"}
    assert given_addresses(environ) == {"postgres": "p", "redis": "r"}
