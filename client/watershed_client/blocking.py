"""Waits of threads."""

import http.client
import ssl
import time
from collections.abc import Collection, Sequence

from watershed_client.asking import TIMEOUT_S, Address, Wait
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

    def _ask(self, wait: Wait) -> None:
        path, address = wait.begin(), self._address
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
                wait.failed(str(error), is_asked=False)
                return
            connection.sock.settimeout(wait.answer_s)
            try:
                connection.request("GET", path, headers=address.headers)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                wait.failed(f"the connection was lost: {error or type(error).__name__}")
                return
        finally:
            connection.close()
        wait.answer(answer.status, body)
