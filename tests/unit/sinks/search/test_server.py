"""OpenSearch's failures become sentences, some after a repetition; addresses lose their secrets."""

import logging
import socket
from typing import Any

import pytest
from opensearchpy.exceptions import NotFoundError
from pydantic import SecretStr

from cdc.config.stores import SearchConfig
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.search.server import SearchServer
from tests.unit.sinks.search.scripted import scripted_server

ONCE = Retries(attempt_count_max=1)
BUSY: tuple[int, object] = (503, {"error": {"type": "no_master", "reason": "x"}, "status": 503})
INFO: tuple[int, object] = (200, {"version": {"number": "3.8.0"}})


def opened(url: str, retries: Retries) -> SearchServer:
    return SearchServer(SearchConfig(url=SecretStr(url)), retries)


def info(server: SearchServer) -> Any:
    return server.call(lambda client: client.info())


def test_a_server_that_does_not_answer_is_named_without_its_password(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    pauses: list[float] = []
    server = opened(f"http://user:s3cret@127.0.0.1:{port}", Retries(attempt_count_max=3, sleep=pauses.append))
    with pytest.raises(SinkError) as caught:
        info(server)
    assert caught.value.message == f"search cluster at 127.0.0.1:{port} does not answer (ConnectionError)"
    assert "the sink's url" in caught.value.hint
    assert "s3cret" not in str(caught.value)
    assert len(pauses) == 2
    assert capfd.readouterr() == ("", ""), "the client would log each failure with a traceback"


@pytest.mark.parametrize("url", ["", "localhost:9200", "ftp://localhost", "http://", "http://localhost:port"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SinkError, match=r"the sink's url is not an HTTP address"):
        opened(url, ONCE)


@pytest.mark.parametrize("first", [BUSY, (429, {}), (502, "bad gateway"), (504, {}), (0, None)])
def test_a_busy_or_cut_answer_is_asked_for_again(first: tuple[int, object]) -> None:
    pauses: list[float] = []
    with scripted_server([first, INFO]) as scripted:
        server = opened(scripted.url, Retries(sleep=pauses.append))
        assert info(server) == INFO[1]
        server.close()
    assert len(pauses) == 1


def test_a_server_that_only_starts_is_no_error_of_ours() -> None:
    with scripted_server([BUSY]) as scripted:
        server = opened(scripted.url, ONCE)
        with pytest.raises(SinkError, match=r"accepts no requests \(status 503, no_master\)") as caught:
            info(server)
        server.close()
    assert "the sink tries again by itself" in caught.value.hint


def test_an_expected_status_comes_out_at_once() -> None:
    with scripted_server([(404, {"error": {"type": "index_not_found_exception"}})]) as scripted:
        server = opened(scripted.url, ONCE)
        with pytest.raises(NotFoundError):
            server.call(lambda client: client.get(index="i", id="1"), (404,))
        with pytest.raises(SinkError, match=r"refuses a request \(status 404, index_not_found_exception\)"):
            server.call(lambda client: client.get(index="i", id="1"))
        server.close()


@pytest.mark.combination(
    "search",
    "each of these",
    "a user that the server refuses",
    refused="refuses the sink's credential (status 401)",
)
def test_a_refused_user_is_said_at_once(expected_refusal: str) -> None:
    pauses: list[float] = []
    for status, message in ((401, expected_refusal), (403, "does not permit")):
        with scripted_server([(status, "no")]) as scripted:
            server = opened(scripted.url.replace("//", "//user:s3cret@"), Retries(sleep=pauses.append))
            with pytest.raises(SinkError) as caught:
                info(server)
            server.close()
        assert message in caught.value.message
        assert pauses == []
        assert "s3cret" not in str(caught.value)


def test_the_servers_sentence_stays_out_of_the_message() -> None:
    with scripted_server([(400, {"error": {"type": "parse_exception", "reason": "near 'private'"}})]) as scripted:
        server = opened(scripted.url, ONCE)
        with pytest.raises(SinkError, match=r"status 400, parse_exception") as caught:
            info(server)
        server.close()
    assert "private" not in str(caught.value)


def test_documents_are_not_logged_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with scripted_server([(200, {"items": []})]) as scripted:
        server = opened(scripted.url, ONCE)
        server.once(lambda client: client.bulk(body=b'{"index":{}}\n{"name":"private"}\n'))
        server.close()
    assert "private" not in caplog.text
