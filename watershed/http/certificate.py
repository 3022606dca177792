"""The server's certificate. Files that are replaced, as when it is renewed, count from the next connection on."""

import ssl
from pathlib import Path
from typing import Final

import structlog

from cdc.config.http_settings import HttpTls
from cdc.model.errors import ConfigError

log = structlog.get_logger(__name__)

Stamp = tuple[tuple[int, int], ...]
_HINT: Final = "both are in PEM form, the key belongs to the certificate, and has no passphrase"


class Certificate:
    """Makes the context of TLS, again when a file has changed."""

    def __init__(self, files: HttpTls) -> None:
        """Raises ConfigError for files that can't be used."""
        self._files = files
        try:
            self._stamp = self._stamped()
            self.context = self._newest = self._loaded()
        except OSError as error:  # also ssl.SSLError
            where = getattr(error, "filename", None) or f"{files.certificate_file} or {files.key_file}"
            raise ConfigError(f"http.tls: {where} can't be used", _HINT) from error
        # Called for each connection, with its beginning.
        self.context.sni_callback = self._renew

    def _renew(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, before: ssl.SSLContext) -> None:
        del name, before
        try:
            stamp = self._stamped()
            if stamp != self._stamp:
                self._newest, self._stamp = self._loaded(), stamp
                log.info("the certificate of the HTTP server was renewed")
        except OSError:  # half of a pair, which will be whole in a moment
            log.warning("the new certificate of the HTTP server can't be used yet", file=self._files.certificate_file)
        connection.context = self._newest

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # Without this function a key with a passphrase would ask for it on the terminal.
        context.load_cert_chain(self._files.certificate_file, self._files.key_file, password=lambda: "")
        return context

    def _stamped(self) -> Stamp:
        found = [Path(file).stat() for file in (self._files.certificate_file, self._files.key_file)]
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)
