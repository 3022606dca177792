"""JSON of another server, whose address the configuration has: with bounds, and without redirects, which might lead to
an address that the configuration does not have."""

import json
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any, Final, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cdc.model.errors import UnreachableError

FETCH_S_MAX: Final = 5.0  # for the connection, and for each piece of the answer
BYTES_MAX: Final = 1_000_000
ERROR_CHARS_MAX: Final = 300


class Fetch(Protocol):
    """What `fetch_json` does."""

    def __call__(self, url: str, hint: str, headers: Mapping[str, str], bytes_max: int) -> Any: ...


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follows none."""


def fetch_json(url: str, hint: str, headers: Mapping[str, str] | None = None, bytes_max: int = BYTES_MAX) -> Any:
    """Returns what the server answers. Raises UnreachableError, with this hint, if that is no JSON, more than
    `bytes_max`, or an error."""
    shown = url.partition("?")[0]
    request = Request(url, headers={"Accept": "application/json", **(headers or {})})  # noqa: S310 its scheme was checked
    try:
        with build_opener(_NoRedirects).open(request, timeout=FETCH_S_MAX) as answer:
            body = answer.read(bytes_max + 1)
        if len(body) > bytes_max:
            raise UnreachableError(f"{shown} can't be read: its answer has more than {bytes_max:,} bytes", hint)
        return json.loads(body)
    except HTTPError as error:
        raise UnreachableError(f"{shown} can't be read: {_reason(error)}", hint) from error
    except (URLError, OSError, HTTPException, ValueError, RecursionError) as error:
        raise UnreachableError(f"{shown} can't be read: {error}", hint) from error


def _reason(refused: HTTPError) -> str:
    """Returns the code, and the sentence in the answer's field `error`, if it has one."""
    said = refused.reason
    with suppress(OSError, HTTPException, ValueError, RecursionError):
        body = json.loads(refused.read(BYTES_MAX))
        if isinstance(body, dict) and isinstance(body.get("error"), str):
            said = body["error"]
    text = "".join(c if c.isprintable() else " " for c in str(said))
    return f"{refused.code} {text if len(text) <= ERROR_CHARS_MAX else text[:ERROR_CHARS_MAX] + '…'}"
