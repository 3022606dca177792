"""Calls to a search cluster. Failures that can pass are retried; all others are raised as SinkError, without values or
secrets.
"""

import logging
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, TypeVar

from opensearchpy import OpenSearch
from opensearchpy.exceptions import (
    AuthenticationException,
    AuthorizationException,
    ConnectionError,
    OpenSearchException,
    SSLError,
    TransportError,
)

from cdc.config.stores import SearchConfig
from sinks.errors import SinkError
from sinks.retries import Retries
from sinks.search.bulk import BLOCKED, TRANSIENT_STATUSES, Busy, busy
from sinks.search.connection import open_client, place
from sinks.search.product import Product

T = TypeVar("T")
# What a user lacks, in the reason of OpenSearch's and of Elasticsearch's answer.
_ACTION: Final = re.compile(r"(?:permissions for|action) \[([a-z:/_*]+)")
_CERTIFICATE: Final = re.compile(r"certificate verify failed: ([a-zA-Z -]*[a-z])")


class SearchServer:
    """A connection to one cluster of OpenSearch or Elasticsearch."""

    def __init__(self, config: SearchConfig, retries: Retries) -> None:
        # The client logs each failure with a traceback and the documents. Callers log failures instead.
        for name in ("opensearch", "opensearchpy.trace"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self._place = place(config)
        self._client = open_client(config)
        self.retries = retries

    @property
    def name(self) -> str:
        """The product, as far as it is known, and its hosts."""
        product = self.__dict__.get("product")
        return f"{product.name if product else 'search cluster'} at {self._place}"

    @cached_property
    def product(self) -> Product:
        """The product that answers. Raises SinkError for one that the sink can't use."""
        product = Product.of(self.call(lambda client: client.info()))
        product.check()
        return product

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
            case AuthenticationException():
                return SinkError(
                    f"{self.name} refuses the sink's credential (status 401)",
                    "check user and password, api_key or aws in the sink's section; none is sent without them",
                )
            case AuthorizationException() if error_type(error) not in BLOCKED:
                action = _ACTION.search(error_reason(error))
                return SinkError(
                    f"{self.name} does not permit a request (status 403, {action[1] if action else 'no action named'})",
                    "grant it to the sink's user, key or role: the reference page about search lists what a sink needs",
                )
            case SSLError():
                reason = _CERTIFICATE.search(str(error))
                return SinkError(
                    f"{self.name} can't be reached over TLS ({reason[1] if reason else type(error).__name__})",
                    "set tls.ca_file to the authority of its certificate; tls.certificate_file if it asks for one",
                )
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
