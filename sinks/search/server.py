"""Calls to OpenSearch. Failures that can pass are retried; all others are raised as SinkError, without values or
secrets.
"""

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

from sinks.errors import SinkError
from sinks.json_numbers import read_json
from sinks.retries import Retries
from sinks.search.bulk import BLOCKED, TRANSIENT_STATUSES, Busy, busy

# A bulk request of 5 MiB takes under a second; the timeout is for a node that collects garbage or merges.
ANSWER_TIMEOUT_S = 60
T = TypeVar("T")


class _ExactSerializer(JSONSerializer):
    """Reads JSON so that numbers of documents keep their digits."""

    def loads(self, s: Any) -> Any:
        try:
            return read_json(s if isinstance(s, str) else s.decode())
        except ValueError as error:
            raise SerializationError(s, error) from error


class SearchServer:
    """A connection to one OpenSearch cluster."""

    def __init__(self, url: str, retries: Retries) -> None:
        # The client logs each failure with a traceback and the documents. Callers log failures instead.
        for name in ("opensearch", "opensearchpy.trace"):
            logging.getLogger(name).setLevel(logging.ERROR)
        parts = _parsed(url)
        try:
            # Only `Retries` retries, so that one limit applies, and the meaning of a repeated write is known.
            self._client = OpenSearch([url], timeout=ANSWER_TIMEOUT_S, max_retries=0, serializer=_ExactSerializer())
        except (ValueError, ImproperlyConfigured) as error:
            raise _no_address() from error
        self.retries = retries
        self.name = f"OpenSearch at {parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 9200)}"

    def call(self, work: Callable[[OpenSearch], T], expected: tuple[int, ...] = ()) -> T:
        """Returns the result of `work`, which is repeated while the cluster is busy or does not answer. Raises the
        client's TransportError for an error whose status is `expected`, SinkError for any other.
        """
        try:
            return self.retries.call(lambda: work(self._client), is_transient)
        except OpenSearchException as error:
            if status(error) in expected:
                raise
            raise self.explained(error) from error

    def once(self, work: Callable[[OpenSearch], T]) -> T:
        """Returns the result of `work`, in one attempt. Raises the client's errors."""
        return work(self._client)

    def explained(self, error: OpenSearchException) -> SinkError:
        """Returns the SinkError for a client's error: with its status and type, without its text, which can quote a
        document.
        """
        match error:
            case AuthenticationException() | AuthorizationException() if error_type(error) == "":
                return SinkError(f"{self.name} refuses this user", "check user and password in the sink's url")
            case ConnectionError():
                return busy(Busy(0, type(error).__name__), self.name)
            case _ if is_transient(error) or error_type(error) in BLOCKED:
                return busy(Busy(status(error), error_type(error)), self.name)
            case _:
                what = f"status {status(error)}, {error_type(error) or type(error).__name__}"
                return SinkError(f"{self.name} refuses a request ({what})", "see the server's log for this error")

    def close(self) -> None:
        self._client.close()


def is_transient(error: Exception) -> bool:
    """Returns whether the connection was refused, reset or timed out, or the status asks to try later."""
    return isinstance(error, ConnectionError) or status(error) in TRANSIENT_STATUSES


def status(error: Exception) -> int:
    """Returns the HTTP status of a failed request; 0 if there was no answer."""
    code = error.status_code if isinstance(error, TransportError) else 0
    return code if isinstance(code, int) else 0


def error_type(error: Exception) -> str:
    """Returns OpenSearch's name of the error; "" if the answer has none."""
    return _error_field(error, "type")


def error_reason(error: Exception) -> str:
    """Returns OpenSearch's text; "" if the answer has none. It can quote a document, and must not appear in
    messages.
    """
    return _error_field(error, "reason")


def error_reasons(error: Exception) -> list[str]:
    """Returns all texts of an error and of its causes. They can quote a document, like error_reason."""
    info: Any = error.info if isinstance(error, TransportError) and len(error.args) > 2 else None
    waiting = [info.get("error") if isinstance(info, dict) else None]
    reasons: list[str] = []
    while waiting:
        cause = waiting.pop(0)
        if isinstance(cause, dict):
            reasons.append(str(cause.get("reason", "")))
            waiting += [cause.get("caused_by"), *cause.get("suppressed", ())]
    return [reason for number, reason in enumerate(reasons) if reason and reason not in reasons[:number]]


def _error_field(error: Exception, field: str) -> str:
    info: Any = error.info if isinstance(error, TransportError) and len(error.args) > 2 else None
    cause = info.get("error") if isinstance(info, dict) else None
    return str(cause.get(field, "")) if isinstance(cause, dict) else ""


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
