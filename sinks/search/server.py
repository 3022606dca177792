"""Calls to OpenSearch: repeated where that can help; failures told as SinkErrors, without values or secrets."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from opensearchpy import OpenSearch
from opensearchpy.exceptions import (
    AuthenticationException,
    AuthorizationException,
    ConnectionError,
    ImproperlyConfigured,
    OpenSearchException,
    SerializationError,
    TransportError,
)
from opensearchpy.serializer import JSONSerializer

from cdc.model.errors import SinkError
from sinks.json_numbers import read_json
from sinks.retries import Retries
from sinks.search.bulk import BLOCKED, TRANSIENT_STATUSES, Busy, busy

# A bulk request of 5 MiB takes under a second; this is for a node that collects garbage or merges.
ANSWER_TIMEOUT_S = 60
T = TypeVar("T")


class _ExactSerializer(JSONSerializer):
    """Numbers of documents keep their digits."""

    def loads(self, s: Any) -> Any:
        try:
            return read_json(s if isinstance(s, str) else s.decode())
        except ValueError as error:
            raise SerializationError(s, error) from error


class SearchServer:
    """A connection to one OpenSearch cluster."""

    def __init__(self, url: str, retries: Retries) -> None:
        # The client logs each failure with a traceback, and the documents. Failures are told by us.
        for name in ("opensearch", "opensearchpy.trace"):
            logging.getLogger(name).setLevel(logging.ERROR)
        parts = _parsed(url)
        try:
            # Repetition is ours, so that it has one limit and knows what a repeated write means.
            self._client = OpenSearch([url], timeout=ANSWER_TIMEOUT_S, max_retries=0, serializer=_ExactSerializer())
        except (ValueError, ImproperlyConfigured) as error:
            raise _no_address() from error
        self.retries = retries
        self.name = f"OpenSearch at {parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 9200)}"

    def call(self, work: Callable[[OpenSearch], T], expected: tuple[int, ...] = ()) -> T:
        """What `work` returns, repeated while the cluster is busy or away. An error whose status is `expected` comes
        out as the client's TransportError; any other as SinkError."""
        try:
            return self.retries.call(lambda: work(self._client), is_transient)
        except OpenSearchException as error:
            if status(error) in expected:
                raise
            raise self.explained(error) from error

    def once(self, work: Callable[[OpenSearch], T]) -> T:
        """What `work` returns, in one attempt. Raises what the client raises."""
        return work(self._client)

    def explained(self, error: OpenSearchException) -> SinkError:
        """The error in our words: its status and type, not its text, which can quote a document."""
        match error:
            case AuthenticationException() | AuthorizationException() if error_type(error) == "":
                return SinkError(f"{self.name} refuses this user", "check user and password in the sink's url")
            case ConnectionError():
                return busy(Busy(0, type(error).__name__), self.name)
            case _ if is_transient(error) or error_type(error) == BLOCKED:
                return busy(Busy(status(error), error_type(error)), self.name)
            case _:
                what = f"status {status(error)}, {error_type(error) or type(error).__name__}"
                return SinkError(f"{self.name} refuses a request ({what})", "see the server's log for this error")

    def close(self) -> None:
        self._client.close()


def is_transient(error: Exception) -> bool:
    """Connection refused, reset or timed out; or a status that says: later."""
    return isinstance(error, ConnectionError) or status(error) in TRANSIENT_STATUSES


def status(error: Exception) -> int:
    """The HTTP status of a failed request, 0 when there was no answer."""
    code = error.status_code if isinstance(error, TransportError) else 0
    return code if isinstance(code, int) else 0


def error_type(error: Exception) -> str:
    """OpenSearch's name of the error, empty when the answer has none."""
    return _told(error, "type")


def error_reason(error: Exception) -> str:
    """OpenSearch's text, empty when the answer has none. It can quote a document: not to be told."""
    return _told(error, "reason")


def error_reasons(error: Exception) -> list[str]:
    """All that OpenSearch says of an error, the causes behind it too. It can quote a document, as error_reason."""
    info: Any = error.info if isinstance(error, TransportError) and len(error.args) > 2 else None
    waiting = [info.get("error") if isinstance(info, dict) else None]
    reasons: list[str] = []
    while waiting:
        said = waiting.pop(0)
        if isinstance(said, dict):
            reasons.append(str(said.get("reason", "")))
            waiting += [said.get("caused_by"), *said.get("suppressed", ())]
    return [reason for number, reason in enumerate(reasons) if reason and reason not in reasons[:number]]


def _told(error: Exception, field: str) -> str:
    info: Any = error.info if isinstance(error, TransportError) and len(error.args) > 2 else None
    said = info.get("error") if isinstance(info, dict) else None
    return str(said.get(field, "")) if isinstance(said, dict) else ""


def _parsed(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise _no_address() from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _no_address()
    return parts


def _no_address() -> SinkError:
    return SinkError("the sink's url is not an HTTP address", "write http://host:9200, https:// for TLS")
