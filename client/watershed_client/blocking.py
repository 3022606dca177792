"""Waits of threads."""

import http.client
import ssl
import time
from collections.abc import Collection, Sequence

from watershed_client.asking import (
    ANSWER_S,
    TIMEOUT_S,
    Address,
    ConnectionFailure,
    Position,
    UnreachableError,
    Wait,
    position_of,
    position_path,
)
from watershed_client.commits import Written

CONNECT_S = 5.0


class Client:
    """Asks one Watershed process. It keeps no connection: any number of threads may wait at once."""

    def __init__(self, url: str, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        """`url`: of `cdc run`, `cdc sink run` or `cdc view run`, such as http://127.0.0.1:8480, perhaps with a proxy's
        path. `token`: of a user of `http.users`; role read is enough. `tls`: for certificates that the system does not
        know. Raises SetupError."""
        self._address = Address(url, token)
        self._tls = tls

    def wait_for(
        self,
        sink: str | Sequence[str] | None,
        lsn: str | int | Written,
        timeout: float = TIMEOUT_S,
        timeline: int | None = None,
        *,
        tables: Collection[str] = (),
        accepts_rejected: bool = False,
    ) -> None:
        """Returns when the sinks show all transactions that committed up to the LSN. `sink`: the name of one, of
        several, or None for every sink that has published a position. `lsn`: what `written` returns, or text as
        PostgreSQL prints it. `timeout`: in seconds. `tables`: as schema.table; by default all that the stores hold.
        `accepts_rejected`: return although rows are missing that were rejected. Raises NotShownInTimeError, which says
        what is missing, RefusedError, HistoryChangedError, UnreachableError, SetupError."""
        wait = Wait(self._address, sink, lsn, timeout, timeline, tables, accepts_rejected)
        while not wait.is_shown:
            self._ask(wait)
            if wait.pause_s:
                time.sleep(wait.pause_s)

    def position(self) -> Position:
        """Returns the LSN up to which every store shows all transactions, and that of each store. Raises
        UnreachableError, SetupError."""
        try:
            code, body = self._get(position_path(self._address), ANSWER_S)
        except ConnectionFailure as error:
            raise UnreachableError(
                f"{self._address.name}: {error}", "check the address, and that `cdc run` is running"
            ) from None
        return position_of(self._address, code, body)

    def _ask(self, wait: Wait) -> None:
        path = wait.begin()
        try:
            code, body = self._get(path, wait.answer_s)
        except ConnectionFailure as error:
            wait.failed(str(error), is_asked=error.is_asked)
            return
        wait.answer(code, body)

    def _get(self, path: str, answer_s: float) -> tuple[int, bytes]:
        """Returns code and body of the answer. Raises ConnectionFailure."""
        address = self._address
        if address.is_tls:
            context = self._tls or ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                address.host, address.port, timeout=CONNECT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(address.host, address.port, timeout=CONNECT_S)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise ConnectionFailure(str(error), is_asked=False) from None
            connection.sock.settimeout(answer_s)
            try:
                connection.request("GET", path, headers=address.headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                why = f"the connection was lost: {error or type(error).__name__}"
                raise ConnectionFailure(why, is_asked=True) from None
        finally:
            connection.close()
